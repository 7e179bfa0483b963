"""What an evaluation reports: figures by hand, tables that fit, a page that escapes all text of a model."""

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from fakes import LetterEnv
from rich.console import Console

from agent_rl.config import Config, load_config
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import DataError
from agent_rl.redacted import redacted
from agent_rl.reports.episodes import GENERAL, Episode, failure_counts, read_episode_lines, read_eval_file
from agent_rl.reports.evaluation import EvaluationFolder, as_csv, difference, episode_settings, evaluation_page
from agent_rl.reports.page import MAX_MESSAGE_CHARS, MAX_TRANSCRIPT_CHARS, choose, shortened
from agent_rl.reports.plots import evaluation_plots
from agent_rl.reports.summary import (
    MAX_VALUES,
    compare,
    dropped,
    figure_rows,
    figure_table,
    group_rows,
    group_table,
    left_out,
    pass_rows,
    pass_table,
    summarize,
)
from agent_rl.telemetry.statistics import wilson_interval

ROOT = Path(__file__).parents[2]


def factory_of(config: Config) -> EnvFactory:
    return make_env_factory(config.env.name, config.env.options, seed=0)


def episode(task_id: str, success: float | None, *, sample: int = 0, **more: Any) -> Episode:
    """Parts as those of the NAT environment: the weight of the tools is 0.3."""
    parts = {} if success is None else {"success": success, "tools": 0.3 * success, "share/tests": 1.0}
    values: dict[str, Any] = {
        "reward": None if success is None else success,
        "reward_parts": parts,
        "stop_reason": "env_error" if success is None else "finished",
        "num_turns": 2,
        "num_tokens": 10,
        "duration_s": 0.5,
    }
    return Episode.from_record({"task_id": task_id, "sample": sample, **(values | more)}, "here", GENERAL.label)


EPISODES = [
    episode("a", 1.0, difficulty="easy", family="units", flags=("skips_tests",)),
    episode("b", 0.0, difficulty="hard", family="units", num_tokens=30),
    episode("c", 0.0, difficulty="easy", family="dates", stop_reason="max_tokens"),
    episode("d", None, difficulty="medium", family="dates", error="the sandbox is gone"),
]


def test_with_several_episodes_a_task_parts_are_compared_within_tasks() -> None:
    pays = [("a", 1.0, 0.1), ("a", 0.0, 0.3), ("b", 1.0, 0.8), ("b", 0.0, 0.9), ("c", 1.0, 5.0)]
    episodes = [
        episode(task, success, sample=number, reward_parts={"success": success, "style": style})
        for number, (task, success, style) in enumerate(pays)
    ]
    # Distances -0.1 0.1, -0.05 0.05 and 0.5 -0.5 twice: products -0.15, squares 0.025 and 1. Task c is one episode.
    found = summarize(episodes)["parts_with_success"]["style"]
    assert found == pytest.approx(-0.15 / 0.025**0.5)


def test_a_part_of_one_environment_is_measured_over_its_episodes() -> None:
    pays = [("a", 1.0, 0.2), ("b", 0.0, 0.8), ("c", 1.0, 0.4), ("d", 0.0, 0.4)]
    one = [
        episode(task, success, env="one", reward_parts={"success": success, "style": style})
        for task, success, style in pays
    ]
    two = [episode(task, float(task == "e"), env="two", reward_parts={"success": float(task == "e")}) for task in "ef"]
    three = [episode(task, 1.0, env="three", reward_parts={"length": 5.0}) for task in "gh"]
    alone, mixed = summarize(one), summarize([*one, *two, *three])
    assert mixed["parts"] == {"length": 5.0, "style": pytest.approx(0.45)}
    assert mixed["parts_with_success"] == {"length": None, **alone["parts_with_success"]}


def test_of_many_values_some_are_shown_and_the_rest_counted() -> None:
    figures = summarize([episode(str(n), 1.0, sample=s, family=f"f{n:03}") for n in range(60) for s in range(2)])
    assert len(figures["by"]["family"]) == 60
    assert len(group_rows(figures)) == len(pass_rows(figures)) == MAX_VALUES + 1
    assert left_out(figures) == "family: 10 more in report.json"
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(group_table(figures))
    assert "family: 10 more in report.json" in " ".join(console.export_text().split())
    assert evaluation_plots(figures, None, [])["success"][1].endswith("family: 10 more in report.json")


def test_figures_of_one_episode_a_task_by_hand() -> None:
    figures = summarize(EPISODES, part_weights={"tools": 0.3, "workflow": 0.4})
    assert (figures["num_tasks"], figures["num_episodes"], figures["num_env_errors"]) == (4, 4, 1)
    success = figures["success"]
    assert (success["rate"], success["num_successes"], success["num_tasks"]) == (pytest.approx(1 / 3), 1, 3)
    assert (success["low"], success["high"]) == pytest.approx(wilson_interval(1, 3))
    assert {name: group["rate"] for name, group in figures["by"]["difficulty"].items()} == {"easy": 0.5, "hard": 0.0}
    assert list(figures["by"]["family"]) == ["dates", "units"]
    assert "level" not in figures["by"]
    assert figures["components"] == {"tools": pytest.approx(1 / 3), "tests": 1.0}
    assert figures["parts_with_success"] == {"tools": pytest.approx(1.0), "share/tests": None}
    sections = dict(figure_rows(figures))
    assert sections["Parts, correlation with success"] == [("share/tests", "none"), ("tools", "+1.00")]
    assert figures["reward"] == {"mean": pytest.approx(1 / 3), "min": 0.0, "max": 1.0}
    assert (figures["turns"], figures["tokens"], figures["seconds"]) == (2, 15, 0.5)
    assert figures["stop_reasons"] == {"finished": 2, "max_tokens": 1, "env_error": 1}
    assert figures["failure_modes"] == {"other": 1, "ran out of tokens": 1}
    assert figures["flags"] == {"skips_tests": 1}


def test_tasks_weigh_the_same_whatever_was_dropped_of_their_episodes() -> None:
    episodes = [episode("a", 1.0, sample=i) for i in range(4)]
    episodes += [episode("b", float(i == 0), sample=i) for i in range(3)] + [episode("b", None, sample=3)]
    figures = summarize(episodes)
    assert figures["success"]["rate"] == pytest.approx((1 + 1 / 3) / 2)
    # Of b, 1 of 3 is right: 1/3 and 2/3; pass@4 is of a alone, and is marked so.
    assert figures["pass_at_k"] == pytest.approx({"1": (1 + 1 / 3) / 2, "2": (1 + 2 / 3) / 2, "4": 1.0})
    assert figures["pass_at_k_tasks"] == {"1": 2, "2": 2, "4": 1}
    assert ("pass@4", "100.0 [20.7, 100.0] % (1 of 2 tasks)") in dict(figure_rows(figures))["pass@k"]
    assert dropped(figures) == ["1 of 8 episodes dropped by environment errors."]
    whole = summarize(episodes[:4])
    assert dropped(whole, figures) == ["1 of 8 episodes of the baseline dropped by environment errors."]
    assert dropped(whole, whole) == []


def test_pass_at_k_has_intervals_over_tasks_for_every_family() -> None:
    # Of four samples each: all of a, one of b, none of c.
    right = {"a": 4, "b": 1, "c": 0}
    episodes = [
        episode(name, float(sample < right[name]), sample=sample, family="dates" if name == "c" else "units")
        for name in right
        for sample in range(4)
    ]
    figures = summarize(episodes)
    assert figures["pass_at_k"] == pytest.approx({"1": 1.25 / 3, "2": 1.5 / 3, "4": 2 / 3})
    # With k = 1 the interval of success; with as many samples as k Wilson's of 2 tasks of 3.
    success = figures["success"]
    assert figures["pass_at_k_intervals"]["1"] == [success["low"], success["high"]]
    assert figures["pass_at_k_intervals"]["4"] == pytest.approx(wilson_interval(2, 3))
    families = figures["pass_at_k_by"]["family"]
    assert {name: {k: each["rate"] for k, each in by_k.items()} for name, by_k in families.items()} == {
        "dates": {"1": 0.0, "2": 0.0, "4": 0.0},
        "units": {"1": pytest.approx(0.625), "2": pytest.approx(0.75), "4": 1.0},
    }
    assert families["units"]["4"]["num_tasks"] == 2
    assert (families["units"]["4"]["low"], families["units"]["4"]["high"]) == pytest.approx(wilson_interval(2, 2))

    console = Console(width=80, record=True, file=io.StringIO())
    console.print(pass_table(figures))
    assert "family units" in (text := console.export_text())
    assert "66.7 [20.8, 93.9]" in text
    plots = evaluation_plots(figures, None, episodes)
    page = Tags(evaluation_page(report_on(episodes), episodes, plots, {}))
    assert "pass@2 %" in page.shown
    assert "100.0 [34.2, 100.0]" in page.shown


def test_one_episode_a_task_has_no_table_of_pass_at_k() -> None:
    figures = summarize(EPISODES)
    assert (pass_rows(figures), figures["pass_at_k_intervals"].keys()) == ([], {"1"})
    assert "pass_at_k" not in evaluation_plots(figures, None, EPISODES)


def test_levels_are_sorted_by_number() -> None:
    levels = [episode(str(level), 1.0, level=level) for level in (10, 2, "all", 1)]
    assert list(summarize(levels)["by"]["level"]) == ["1", "2", "10", "all"]


def test_nothing_scored_has_no_figures() -> None:
    with pytest.raises(ValueError, match="no episode was scored"):
        summarize([episode("a", None)])


def test_weights_of_the_reward_are_those_of_the_configuration() -> None:
    weights = {"tools": 0.5, "integration": 0.3, "workflow": 0.4}
    config = load_config(ROOT / "configs/nat_grpo.yaml", ["env.options.reward.tools=0.5"])
    assert factory_of(config).part_weights() == weights
    assert factory_of(load_config(ROOT / "configs/math_grpo.yaml")).part_weights() == {}


def test_a_comparison_names_the_tasks_that_changed() -> None:
    before = [episode("a", 0.0), episode("b", 1.0), episode("c", 0.0), episode("d", 1.0)]
    after = [episode("c", 0.0), episode("a", 1.0), episode("b", 0.0), episode("d", None)]
    found = compare(before, after, "runs/first")
    assert (found["gained"], found["lost"], found["num_tasks"], found["p_value"]) == (["a"], ["b"], 3, 1.0)
    assert found["method"] == "McNemar"
    assert found["reward_change"]["mean"] == 0.0
    with pytest.raises(DataError, match="runs/first: 4 tasks, of which 3 are among the 3 of this evaluation"):
        compare(before, after[:3], "runs/first")


def test_tasks_that_only_share_an_id_are_not_compared() -> None:
    before, after = [episode("a", 0.0, task_sha256="1")], [episode("a", 1.0, task_sha256="2")]
    with pytest.raises(DataError, match=r"runs/first: task 'a'"):
        compare(before, after, "runs/first")
    conversations = [
        ({"role": "user", "content": text}, {"role": "assistant", "content": ""}) for text in ("one", "other")
    ]
    old, new = (
        episode("a", 0.0, messages=messages) for messages in conversations
    )  # of earlier versions, without a digest
    assert old.is_of_another_task(new)
    assert not old.is_of_another_task(old)
    assert not old.is_of_another_task(before[0])  # the records show no difference


def test_settings_show_no_credentials_and_differ_by_them_all_the_same(tmp_path: Path) -> None:
    def report_of(password: str) -> dict[str, Any]:
        address = f"https://me:{password}@host/mcp?key={password}#{password}"
        overrides = [f"tools.mcp=[{{url: '{address}'}}]", f"env.options.server={address}"]
        config = load_config(ROOT / "configs/math_grpo.yaml", overrides)
        return episode_settings(config, EnvFactory(LetterEnv))

    one, other = report_of("first"), report_of("second")
    assert one["env_options"] == {"server": "https://host/mcp?(not shown)"}
    assert "first" not in str(one) and "me:" not in str(one)
    assert difference(one, other).startswith("not_shown_sha256")
    assert redacted({"default_params": {"key": "k"}, "a": "x@y"}) == {
        "default_params": {"key": "(not shown)"},
        "a": "x@y",
    }


def test_a_search_corpus_is_part_of_the_settings(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    overrides = ["tools.use=[search]", "tools.search.mode=corpus", f"tools.search.corpus_path={corpus}"]
    config = load_config(ROOT / "configs/search_qa_grpo.yaml", overrides)
    digests = []
    for text in ("one", "other"):
        corpus.write_text(text, encoding="utf-8")
        digests.append(episode_settings(config, factory_of(config))["corpus_sha256"])
    assert len(set(digests)) == 2
    corpus.unlink()
    with pytest.raises(DataError, match=r"corpus\.jsonl cannot be read"):
        episode_settings(config, factory_of(config))


def test_the_first_difference_of_settings_is_named() -> None:
    earlier = {"samples": 1, "env_options": {"a": [1, 2]}}
    assert difference(earlier, {"samples": 1, "env_options": {"a": [1, 2]}}) is None
    assert difference(earlier, {"samples": 1, "env_options": {"a": [1]}}) == "env_options.a: [1, 2] there, [1] here"
    assert difference(earlier, {**earlier, "seed": 1}) == "seed: None there, 1 here"


def test_the_tables_fit_80_columns_whatever_tasks_are_called() -> None:
    wide = "a_family_with_a_name_that_is_much_longer_than_any_other_and_goes_on"
    episodes = [episode("a", 1.0, family=wide, flags=(wide,)), episode("b", 0.0, family="[bold]x[/bold]")]
    figures = summarize(episodes)
    console = Console(width=80, record=True, file=io.StringIO())
    for baseline in (None, figures):
        console.print(group_table(figures, baseline))
        console.print(figure_table(figures, baseline))
    text = console.export_text()
    assert "50.0 [9.5, 90.5]" in text
    assert "family [bold]x[/bold]" in text
    assert "family a_family_with_a_name" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_csv_has_a_row_per_episode() -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv([*EPISODES, episode("e", 0.0, error='said "no",\nand ended')]))))
    assert [row["task_id"] for row in rows] == ["a", "b", "c", "d", "e"]
    assert [row["success"] for row in rows] == ["1", "0", "0", "", "0"]
    assert [row["failure_mode"] for row in rows[:4]] == ["", "other", "ran out of tokens", "environment error"]
    assert [row["part:tools"] for row in rows[:2]] == ["0.3", "0.0"]
    assert rows[4]["error"] == 'said "no",\nand ended'


HOSTILE = '<script>alert(1)</script><img src=x onerror="alert(2)"></details></body>'


class Tags(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.shown = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.shown += data


def report_on(episodes: list[Episode], baseline: list[Episode] | None = None) -> dict[str, Any]:
    protocol = {"num_tasks": len(episodes), "samples": 1, "temperature": 0.0, "env_options": {"text": HOSTILE}}
    return {
        "settings": {"model": {"name": HOSTILE, "tasks": "val.jsonl"}, "protocol": protocol},
        "summary": summarize(episodes),
        "baseline_name": HOSTILE if baseline else None,
        "baseline": summarize(baseline) if baseline else None,
        "comparison": compare(baseline, episodes, "first") if baseline else None,
    }


def test_nothing_that_a_model_wrote_is_interpreted(tmp_path: Path) -> None:
    call = {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE, "text": f"{HOSTILE}\n$x$ \ud800"}}
    messages = (
        {"role": "user", "content": HOSTILE, "name": HOSTILE},
        {"role": "assistant", "content": HOSTILE, "reasoning": HOSTILE, "tool_calls": [call], "tool_errors": [HOSTILE]},
        {"role": "tool", "content": HOSTILE},
    )
    hostile = episode(HOSTILE, 0.0, family="$a$ <b>", messages=messages, problems=(HOSTILE,), flags=(HOSTILE,))
    episodes = [hostile, episode("b", 1.0, family="dates")]
    report = report_on(episodes, [replace(each, reward_parts={"success": 1.0}) for each in episodes])
    plots = evaluation_plots(report["summary"], report["baseline"], episodes)
    EvaluationFolder(tmp_path).write_page(html := evaluation_page(report, episodes, plots, {}), plots)
    page = Tags(html)
    assert {"script", "b"}.isdisjoint(page.names)
    assert page.names.count("img") == len(plots) == 3
    assert all(
        value and value.startswith("data:image/svg+xml;base64,") for key, value in page.attributes if key == "src"
    )
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert {"link", "iframe", "object"}.isdisjoint(page.names)
    assert page.shown.count("<script>alert(1)</script>") >= 10
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        "success.png", "failure_modes.png", "rewards.png",
    }  # fmt: skip


def test_a_page_stays_small_and_reports_what_it_leaves_out() -> None:
    long = ({"role": "assistant", "content": "word " * (MAX_MESSAGE_CHARS // 5)},) * 20
    modes = ("max_tokens", "timeout", "invalid_calls", "tool_budget")
    episodes = [episode(f"t{n}", 0.0, messages=long, stop_reason=modes[n % 4]) for n in range(40)]
    report = report_on(episodes)
    page = evaluation_page(report, episodes, evaluation_plots(report["summary"], None, episodes), {})
    assert MAX_TRANSCRIPT_CHARS < len(page) < 1.3 * MAX_TRANSCRIPT_CHARS
    assert "more are left out to keep the page small" in page
    assert "\n... 5 more characters" in shortened("x" * (MAX_MESSAGE_CHARS + 5))


def test_the_best_the_worst_and_every_failure_mode_are_shown_once() -> None:
    episodes = [episode(f"s{n}", 1.0, reward=float(n)) for n in range(5)]
    episodes += [episode(f"f{n}", 0.0, reward=-1.0, stop_reason="timeout") for n in range(7)] + [EPISODES[3]]
    chosen = {title: [e.task_id for e in group] for title, group in choose(episodes)}
    assert chosen == {
        "Highest rewards": ["s4", "s3", "s2"],
        "Lowest rewards": ["f6", "f5", "f4"],
        "Failed: timeout": ["f0", "f1", "f2"],
        "Failed: environment error": ["d"],
    }


def test_records_of_earlier_versions_are_read(tmp_path: Path) -> None:
    path = tmp_path / "step_00000_t0.json"
    row = '{"task_id": "a", "reward": 0.5, "reward_parts": {"success": 0.0}, "stop_reason": "finished", "num_turns": 3'
    path.write_text('{"result": {}, "episodes": [' + row + ', "error": null}]}', encoding="utf-8")
    (only,) = read_eval_file(path)
    assert (only.task_id, only.reward, only.num_turns, only.family, only.messages) == ("a", 0.5, 3, None, ())
    path.write_text('{"episodes": [{"task_id": "a"}]}', encoding="utf-8")
    with pytest.raises(DataError, match="episode 1: not a record of an episode"):
        read_eval_file(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="not the record of an evaluation"):
        read_eval_file(path)


def test_a_damaged_line_is_named_and_a_torn_last_one_left_out(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_text('{"task_id": "a"}\n{"task_id": "b', encoding="utf-8")
    assert read_episode_lines(path) == [{"task_id": "a"}]
    path.write_bytes('{"task_id": "a"}\n{"task_id": "20 °'.encode()[:-1])
    assert read_episode_lines(path) == [{"task_id": "a"}]
    path.write_text('{"task_id": \n{"task_id": "b"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"episodes.jsonl:1: not a record"):
        read_episode_lines(path)


def test_failures_are_counted_without_what_was_solved_or_not_scored() -> None:
    assert failure_counts([*EPISODES, episode("e", 0.0)]) == {"other": 2, "ran out of tokens": 1}
