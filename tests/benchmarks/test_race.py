"""benchmarks/race.py: turns, figures, clock, rows and rewards by small numbers; and a race of a step each."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from race import FIXED, Race, main, parse
from racing.figures import OURS, TRL, Result, Turn, mean_curve, success_at, summarize, table, time_to, turns
from racing.models import find_model
from racing.plot import save_plot
from racing.tasks import find_task, make_rows
from racing.workload import Clock, Workload

from agent_rl.errors import ConfigError
from agent_rl.reports.episodes import GENERAL, Episode

ROOT = Path(__file__).parents[2]
TRL_PYTHON = ROOT / ".venv-trl/bin/python"
CURVE = [(0.0, 0.2), (10.0, 0.4), (20.0, 0.3), (40.0, 0.9)]


def test_sides_take_turns_and_change_places_with_each_seed() -> None:
    order = [(turn.task, turn.seed, turn.side) for turn in turns(["a", "b"], ["m"], 2)]
    assert order == [
        ("a", 0, TRL), ("a", 0, OURS), ("b", 0, TRL), ("b", 0, OURS),
        ("a", 1, OURS), ("a", 1, TRL), ("b", 1, OURS), ("b", 1, TRL),
    ]  # fmt: skip


def test_success_lies_on_straight_lines_between_checkpoints() -> None:
    times = (-1, 0, 5, 10, 15, 30, 40, 99)
    assert [success_at(CURVE, t) for t in times] == pytest.approx([0.2, 0.2, 0.3, 0.4, 0.35, 0.6, 0.9, 0.9])


def test_a_threshold_is_reached_where_the_curve_first_crosses_it() -> None:
    assert time_to(CURVE, 0.1) == 0.0
    assert time_to(CURVE, 0.3) == pytest.approx(5.0)
    assert time_to(CURVE, 0.6) == pytest.approx(30.0)
    assert time_to(CURVE, 0.95) is None


def test_the_mean_has_the_times_of_all_curves_up_to_the_first_end() -> None:
    curves = [[(0.0, 0.0), (10.0, 1.0)], [(0.0, 0.5), (4.0, 0.5), (12.0, 0.5)]]
    assert mean_curve(curves) == [(0.0, 0.25), (4.0, pytest.approx(0.45)), (10.0, 0.75)]


def result(side: str, seed: int, curve: Sequence[tuple[float, float]]) -> Result:
    """Of two tasks, solved as the end of the curve says."""
    episodes = [
        Episode.from_record(
            {
                "task_id": name,
                "reward": 1.0,
                "reward_parts": {"success": float(place < 2 * curve[-1][1])},
                "stop_reason": "done",
            },
            "here",
            GENERAL.label,
        )
        for place, name in enumerate(("x", "y"))
    ]
    turn = Turn("reverse_text", "small", seed, side)
    return Result(turn=turn, curve=curve, num_steps=10 + seed, others_cpu=0.1 * seed, final=tuple(episodes))


RESULTS = [
    result(TRL, 0, [(0.0, 0.0), (600.0, 0.5)]),
    result(OURS, 0, [(0.0, 0.0), (600.0, 1.0)]),
    result(OURS, 1, [(0.0, 0.0), (600.0, 1.0)]),
    result(TRL, 1, [(0.0, 0.0), (600.0, 0.5)]),
]


def test_the_table_tells_when_each_side_is_where_trl_ends() -> None:
    trl, ours = summarize(RESULTS)
    assert (trl["side"], trl["to_peer_s"], trl["share_of_time"]) == (TRL, 600.0, 1.0)
    assert (ours["side"], ours["to_peer_s"], ours["share_of_time"]) == (OURS, 300.0, 0.5)
    assert (ours["final"]["rate"], trl["final"]["rate"], trl["final_by_seed"]) == (1.0, 0.5, [0.5, 0.5])
    assert (ours["steps"], ours["others_cpu"], ours["seeds"]) == (10.5, 0.1, [0, 1])
    head, line, *rows = table([trl, ours]).splitlines()
    assert head.count("|") == line.count("|") == rows[0].count("|")
    cells = [cell.strip() for cell in rows[1].split("|")[1:-1]]
    assert cells[:6] == ["reverse_text", "small", OURS, "2", "10", "0.0"]
    assert cells[7:] == ["100.0, 100.0", "5.0", "50%", "10%"]


def test_a_side_that_never_gets_there_is_said_so_and_one_alone_has_no_share() -> None:
    slow = result(OURS, 0, [(0.0, 0.0), (600.0, 0.0)])
    assert "not reached" in table(summarize([RESULTS[0], slow])).splitlines()[-1]
    (alone,) = summarize([slow])
    assert (alone["to_peer_s"], alone["share_of_time"], alone["has_target"]) == (None, None, False)


def test_where_trl_did_not_rise_there_is_no_time_to_its_end() -> None:
    rows = summarize([result(TRL, 0, [(0.0, 0.5), (600.0, 0.5)]), result(OURS, 0, [(0.0, 0.5), (600.0, 1.0)])])
    assert [(row["to_peer_s"], row["has_target"]) for row in rows] == [(None, False)] * 2
    assert all("not reached" not in line for line in table(rows).splitlines())


def test_the_plot_has_a_panel_for_each_task(tmp_path: Path) -> None:
    save_plot(RESULTS, tmp_path / "race.svg")
    assert "<svg" in (tmp_path / "race.svg").read_text(encoding="utf-8")


def test_the_clock_saves_when_it_is_due_and_stands_still_meanwhile(tmp_path: Path) -> None:
    now = [100.0]

    def save(folder: Path) -> None:
        folder.mkdir(parents=True)
        now[0] += 1000.0  # however long that takes

    clock = Clock(tmp_path, seconds=10.0, points=2, save=save, now=lambda: now[0])
    clock.start()
    ended = []
    for step, seconds in enumerate((3.0, 3.0, 2.0, 3.0), start=1):
        now[0] += seconds
        ended.append(clock.end_step(step))
    assert ended == [False, False, False, True]
    rows = [json.loads(line) for line in (tmp_path / "clock.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(row["seconds"], row["checkpoint"]) for row in rows] == [
        (3.0, None), (6.0, "step_00002"), (8.0, None), (11.0, "step_00004"),
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step_00002", "step_00004"]


def test_a_workload_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    workload = Workload(
        model="m", policy="minimind", reward="racing.rewards:countdown", rows=str(tmp_path / "rows.jsonl"),
        folder=str(tmp_path), seed=1, num_prompts=2, group_size=4, max_new_tokens=8, max_context=64,
        learning_rate=1e-3, trl_rows=4, seconds=6.0, points=3, device="cpu",
    )  # fmt: skip
    workload.write(tmp_path / "new/workload.json")
    again = Workload.read(tmp_path / "new/workload.json")
    assert (again, again.num_episodes, again.read_rows()) == (workload, 8, [{"prompt": "a"}])
    assert again.reward_function()(["<answer>1+2</answer>"], numbers=[[1, 2]], target=[3]) == [1.0]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--tasks", "reverse"], "reverse_text"),
        (["--tasks", "reasoning_gym:n_queens"], "runs answers as Python"),
        (["--models", "smol"], "smollm2"),
        (["--prompts", "3", "--models", "smollm2"], "16 episodes"),
        (["--trl-python", "nowhere/python"], "make setup-trl"),
        (["--temperature", "-1"], "--temperature is -1.0"),
    ],
)
def test_what_cannot_be_raced_is_refused_before_anything_runs(tmp_path: Path, words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Race(parse(["--output", str(tmp_path / "race"), "--trl-python", sys.executable, *words]))
    assert not (tmp_path / "race").exists()


def test_a_race_goes_on_with_more_seeds_and_not_with_other_minutes(tmp_path: Path) -> None:
    given = ["--output", str(tmp_path), "--trl-python", sys.executable]
    Race(parse(given))
    Race(parse([*given, "--seeds", "5", "--tasks", "countdown", "--models", "smollm2"]))
    with pytest.raises(ConfigError, match=r"minutes = 10\.0, not 3\.0"):
        Race(parse([*given, "--minutes", "3"]))
    assert json.loads((tmp_path / "settings.json").read_text(encoding="utf-8")).keys() == set(FIXED)


@pytest.mark.parametrize("name", ["reverse_text", "countdown", "reasoning_gym:spell_backward"])
def test_rows_repeat_by_seed_and_demonstrations_are_right(name: str) -> None:
    pytest.importorskip("reasoning_gym", reason="pip install -r requirements-envs.txt")
    task, counts = find_task(name), {"eval": 5, "train": 10, "demonstrations": 20}
    rows = make_rows(task, counts, seed=0)
    assert {split: len(each) for split, each in rows.items()} == counts
    assert rows == make_rows(task, counts, seed=0) != make_rows(task, counts, seed=1)
    asked = [
        row["messages"][-2]["content"] if "messages" in row else row["prompt"][-1]["content"]
        for each in rows.values()
        for row in each
    ]
    assert len(set(asked)) == 35
    for row in rows["train"]:
        prompt = sum(len(message["content"]) for message in row["prompt"])
        assert prompt + 60 + task.max_new_tokens < task.max_context
    for row in rows["demonstrations"]:
        assert len(row["messages"][-1]["content"]) < task.max_new_tokens
        assert row["messages"][-1]["role"] == "assistant"


def test_models_know_what_they_are_started_from(tmp_path: Path) -> None:
    folder = find_model("small").base(tmp_path / "base")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["vocab_size"] < 300


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.skipif(not TRL_PYTHON.exists(), reason="run make setup-trl")
def test_a_race_of_one_step_each_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("reasoning_gym", reason="pip install -r requirements-envs.txt")
    words = ["--output", str(tmp_path), "--tasks", "reverse_text", "--seeds", "1", "--minutes", "0.001"]
    words += ["--points", "1", "--prompts", "2", "--group-size", "2", "--num-train", "8", "--num-eval", "2"]
    words += ["--demonstrations", "16", "--threads", "1", "--trl-python", str(TRL_PYTHON)]
    main(words)
    pair = tmp_path / "reverse_text-small"
    for side in (TRL, OURS):
        (row,) = (pair / f"{side}-0/clock.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(row)["checkpoint"] == "step_00001"
        assert not (pair / f"{side}-0/checkpoints").exists()
    race = json.loads((tmp_path / "race.json").read_text(encoding="utf-8"))
    assert [(run["side"], run["steps"], len(run["curve"])) for run in race["runs"]] == [(TRL, 1, 2), (OURS, 1, 2)]
    for report in (*pair.glob("*/evals/*/report.json"), pair / "start/report.json"):
        assert json.loads(report.read_text(encoding="utf-8"))["settings"]["protocol"]["temperature"] == 1.0
    first = {path: path.stat().st_mtime_ns for path in pair.rglob("clock.jsonl")}
    capsys.readouterr()
    main(words)
    assert capsys.readouterr().out == (tmp_path / "race.md").read_text(encoding="utf-8")
    assert first == {path: path.stat().st_mtime_ns for path in pair.rglob("clock.jsonl")}
