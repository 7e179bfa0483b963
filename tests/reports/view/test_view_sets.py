"""What `agent-rl view` reads beside training: evaluations, tasks over steps, several runs; the page as one file."""

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from commands import one_line_error, run_here
from view_runs import HOSTILE, held_out, make_evaluated_run, make_run, record, write_evaluation, write_step

from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.view.data import RunSamples
from agent_rl.reports.view.runs import ViewedRuns
from agent_rl.reports.view.static_page import write_page


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_evaluated_run(tmp_path / "tiny")


def evaluation(folder: Path, records: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True)
    (folder / "episodes.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))
    return folder


def test_evaluations_come_behind_training_by_temperature_and_step(run: Path) -> None:
    sets = RunSamples(run).overview()["sets"]
    assert [each["id"] for each in sets] == ["step-1", "step-10", "eval-0-t0", "eval-10-t0", "eval-10-t0.7"]
    assert sets[2] == {"id": "eval-0-t0", "step": 0, "temperature": "0", "reward": None, "success": None}


def test_figures_of_an_evaluation_are_those_of_the_metrics(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('ard/mean": 1}\n{"step": 10, "eval/t0/success": 0.75, "eval/t0/reward": 1.5}\n')
    sets = {each["id"]: (each["success"], each["reward"]) for each in RunSamples(run).overview()["sets"]}
    assert sets["eval-10-t0"] == (0.75, 1.5)
    assert sets["eval-10-t0.7"] == (None, None)
    assert sets["step-10"] == (0.25, None)


def test_held_out_episodes_have_summaries_records_and_texts(run: Path) -> None:
    samples = RunSamples(run)
    found = samples.episodes("eval-0-t0")
    assert found["scales"] == {"advantage": 0.0, "log_ratio": 0.0}
    assert [(each["task_id"], each["success"], each["reward"], each["number"]) for each in found["episodes"]] == [
        ("eval-0", True, 1.0, 0),
        ("eval-1", False, 0.0, 0),
        ("eval-2", None, None, 0),
    ]
    assert samples.episode("eval-0-t0", 1)["problems"] == [HOSTILE]
    assert samples.search("eval-10-t0", "episode 2") == [2]


def test_files_of_earlier_versions_are_shown_as_far_as_they_go(run: Path) -> None:
    fields = ("task_id", "reward", "reward_parts", "stop_reason", "num_turns")
    write_evaluation(run, 0, "1", [{key: held_out(0)[key] for key in fields}])
    (summary,) = RunSamples(run).episodes("eval-0-t1")["episodes"]
    assert (summary["task_id"], summary["success"], summary["flags"], summary["num_tokens"]) == (
        "eval-0",
        True,
        [],
        None,
    )


@pytest.mark.parametrize(
    "content", ["", "no JSON", "[]", '{"episodes": []}', '{"episodes": [{"task_id": "a"}]}', "[" * 9999]
)
def test_a_damaged_evaluation_is_one_sentence_and_hides_no_other(run: Path, content: str) -> None:
    write_evaluation(run, 10, "0", []).write_text(content)
    samples = RunSamples(run)
    with pytest.raises(DataError, match=r"step_00010_t0\.json: .* remove it to see the others"):
        samples.episodes("eval-10-t0")
    assert [each["id"] for each in samples.of_task("eval-0")] == ["eval-0-t0", "eval-10-t0.7"]


def test_an_evaluation_that_is_not_there_is_one_sentence(run: Path) -> None:
    with pytest.raises(DataError, match=r"step 3 of tiny has no evaluation at temperature 0; eval\.every says"):
        RunSamples(run).episodes("eval-3-t0")
    with pytest.raises(DataError, match="tiny has no episodes 'evaluation'"):
        RunSamples(run).episodes("evaluation")


def test_a_link_out_of_the_folder_of_evaluations_is_not_followed(run: Path, tmp_path: Path) -> None:
    secret = write_evaluation(tmp_path / "other", 5, "0", [held_out(0)])
    (run / "eval" / secret.name).symlink_to(secret)
    assert "eval-5-t0" not in RunSamples(run).sets()


def test_a_folder_of_agent_rl_eval_is_one_set(tmp_path: Path) -> None:
    folder = evaluation(tmp_path / "evaluated", [held_out(0, sample=0), held_out(0, sample=1), held_out(1)])
    with (folder / "episodes.jsonl").open("a") as file:
        file.write('{"task_id": "half')
    samples = RunSamples(folder)
    (row,) = samples.overview()["sets"]
    assert (row["id"], row["step"], row["temperature"]) == ("evaluation", None, None)
    numbers = [(each["task_id"], each["number"]) for each in samples.episodes("evaluation")["episodes"]]
    assert numbers == [("eval-0", 0), ("eval-0", 1), ("eval-1", 0)]


def test_a_task_is_found_in_every_set_of_every_run(run: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "other")
    write_step(run, 20, [record(number, step=20) for number in range(2)])
    runs = ViewedRuns([RunSamples(run), RunSamples(other)])
    found = [(each["run"], each["id"], [one["index"] for one in each["episodes"]]) for each in runs.of_task("task-0")]
    assert found == [(0, "step-1", [0, 1]), (0, "step-20", [0, 1]), (1, "step-1", [0, 1])]
    assert [(each["run"], each["id"]) for each in runs.of_task("eval-1")] == [(0, "eval-0-t0"), (0, "eval-10-t0")]
    assert runs.of_task("no such task") == []


def test_what_a_task_did_follows_a_file_that_changes(run: Path) -> None:
    samples = RunSamples(run)
    assert len(samples.of_task("eval-0")) == 3
    write_evaluation(run, 10, "0.7", [held_out(1), held_out(2)])
    assert [each["id"] for each in samples.of_task("eval-0")] == ["eval-0-t0", "eval-10-t0"]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [make_run(tmp_path / name) for name in ("a/tiny", "b/tiny", "b/other")]
    runs = ViewedRuns([RunSamples(path) for path in paths])
    assert [each["run"] for each in runs.overview()] == ["a/tiny", "b/tiny", "other"]
    with pytest.raises(DataError, match="two of the folders are called a/tiny"):
        ViewedRuns([RunSamples(paths[0]), RunSamples(paths[0])])
    with pytest.raises(DataError, match="there is no run 3: there are 3, counted from 0"):
        runs.run(3)


# One file


def blocks(page: str) -> dict[str, Any]:
    """What is packed in a page, by run and set."""
    found = re.findall(r'<script type="application/gzip" (.*?)>([A-Za-z0-9+/=]+)</script>', page)
    return {
        " ".join(re.findall('"(.*?)"', named)): json.loads(gzip.decompress(base64.b64decode(data)))
        for named, data in found
    }


def test_one_file_holds_everything_and_no_text_of_a_model_as_markup(run: Path, tmp_path: Path) -> None:
    runs = ViewedRuns([RunSamples(run)])
    assert write_page(tmp_path / "page.html", runs) == 12
    page = (tmp_path / "page.html").read_text()
    packed = blocks(page)
    assert list(packed) == ["0 step-1", "0 step-10", "0 eval-0-t0", "0 eval-10-t0", "0 eval-10-t0.7", "overview"]
    assert packed["overview"] == runs.overview()
    shown = packed["0 step-1"]
    assert shown["episodes"] == RunSamples(run).episodes("step-1")["episodes"]
    assert shown["records"]["3"]["messages"][3]["content"] == HOSTILE
    assert "episode 3" in shown["texts"]["3"]
    assert "harmed" not in page and "src=" not in page and '<link rel="stylesheet"' not in page
    assert page.count("</script>") == len(packed) + 1


def test_scripts_and_style_of_one_file_run_by_their_checksums(run: Path, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", ViewedRuns([RunSamples(run)]))
    page = (tmp_path / "page.html").read_text()
    (policy,) = re.findall('Content-Security-Policy" content="(.*?)"', page)
    assert "default-src 'none'; script-src 'sha256-" in policy and "unsafe" not in policy
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")


def test_one_file_may_hold_some_episodes_alone(run: Path, tmp_path: Path) -> None:
    def wanted(_run: int, name: str) -> list[int] | None:
        return {"step-1": [3, 0], "eval-0-t0": None}.get(name, [])

    assert write_page(tmp_path / "page.html", ViewedRuns([RunSamples(run)]), wanted) == 5
    packed = blocks((tmp_path / "page.html").read_text())
    assert list(packed) == ["0 step-1", "0 eval-0-t0", "overview"]
    assert [each["index"] for each in packed["0 step-1"]["episodes"]] == [0, 3]
    assert (packed["0 step-1"]["num_left_out"], packed["0 eval-0-t0"]["num_left_out"]) == (2, 0)


def test_a_file_that_cannot_be_written_is_one_sentence(run: Path, tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    with pytest.raises(ConfigError, match=r"page\.html cannot be written .* name another file"):
        write_page(tmp_path / "page.html", ViewedRuns([RunSamples(run)]))


def test_the_command_writes_one_file_and_ends(run: Path, tmp_path: Path) -> None:
    done = run_here("view", run, "--output", tmp_path / "new" / "page.html")
    assert done.returncode == 0, done.stderr
    assert "holds 12 episodes" in done.stdout
    assert len(blocks((tmp_path / "new" / "page.html").read_text())) == 6
    assert "ends with .html" in one_line_error(run_here("view", run, "--output", tmp_path / "page.txt"))
