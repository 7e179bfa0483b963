"""`agent-rl report`: a hand-made run's folder read, judged, shown; runs that go on, were cut off, hold nothing."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import one_line_error, run_here

from agent_rl.errors import DataError
from agent_rl.reports.episodes import Episode
from agent_rl.reports.run.changes import TaskPair, compare, reading_order
from agent_rl.reports.run.curves import PANELS, part_panels, plot, running_mean, series_of, smoothing
from agent_rl.reports.run.data import HeldOutEvaluation, read_run
from agent_rl.reports.run.page import run_page, shared_start
from agent_rl.reports.run.report import as_data, clock, different_settings, facts, history, make_report, status
from agent_rl.telemetry.events import EventLog

NAN = math.nan
TRAIN = {"steps": 4, "learning_rate": 0.8, "schedule": "constant"}
CONFIG = {
    "run": {"name": "small", "seed": 0},
    "model": {"path": "model/some_model"},
    "policy": {"temperature": 1.0},
    "env": {"name": "math_qa", "options": {}},
    "train": TRAIN,
    "log": {"alarms": [{"metric": "reward/mean", "below": 0.15, "steps": 1, "action": "warn"}]},
}
HOSTILE = "<script>document.title='taken'</script><img src=x onerror=alert(1)>"


def step(number: int, **metrics: float | None) -> dict:
    return {"step": number, "reward/mean": 0.1 * number, "success/mean": 0.1 * number, "time/step_s": 2.0, **metrics}


def episode(task_id: str, success: float, *, reply: str = "Answer: 4") -> dict:
    question = [{"role": "user", "content": "What is 2 + 2?"}]
    reply_message = {"role": "assistant", "content": reply, "info": {"prediction": reply}}
    return {
        "task_id": task_id,
        "family": "sums",
        "reward": success,
        "reward_parts": {"success": success},
        "stop_reason": "finished",
        "num_turns": 1,
        "messages": [*question, reply_message],
    }


def old_episode(task_id: str, success: float) -> dict:
    """As versions before this report wrote it."""
    fields = ("task_id", "reward", "reward_parts", "stop_reason", "num_turns")
    return {key: value for key, value in episode(task_id, success).items() if key in fields}


def write_run(folder: Path, rows: list[dict], *, evals: dict[str, list[dict]] | None = None, **config: dict) -> Path:
    """A run's folder as training leaves it; `evals` by file name without ending."""
    (folder / "eval").mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG | config), encoding="utf-8")
    environment = {"python": "3.11.7", "num_cpus": 2, "platform": "Linux", "packages": {"torch": "2.13.0"}}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for name, episodes in (evals or {}).items():
        (folder / "eval" / f"{name}.json").write_text(
            json.dumps({"result": {}, "episodes": episodes}), encoding="utf-8"
        )
    return folder


BEFORE = [episode("a", 0.0, reply=HOSTILE), episode("b", 0.0), episode("c", 1.0), episode("d", 0.0)]
AFTER = [episode("a", 1.0), episode("b", 1.0), episode("c", 0.0), episode("d", 0.0)]
EVALS = {"step_00000_t1": BEFORE, "step_00004_t1": AFTER}
ROWS = [
    {"step": 0, "eval/t1/success": 0.25, "time/eval_s": 1.5},
    *(step(number) for number in range(1, 5)),
    {"step": 4, "eval/t1/success": 0.5, "time/eval_s": 1.5},
]


# Reading


def test_steps_and_evaluations_are_separated_and_times_added_up(tmp_path):
    run = read_run(write_run(tmp_path / "run", ROWS, evals=EVALS))
    assert run.steps == [1, 2, 3, 4]
    assert run.metrics["time/step_s"] == [2.0] * 4
    assert run.wall_s == 4 * 2.0 + 2 * 1.5
    assert [(each.step, each.temperature, each.counted.num_successes) for each in run.evaluations] == [
        (0, 1.0, 1),
        (4, 1.0, 2),
    ]
    assert (run.name, run.is_finished, run.notes) == ("small", True, [])


def test_a_torn_last_line_is_left_out_with_a_note_and_null_is_not_a_number(tmp_path):
    folder = write_run(tmp_path / "run", [step(1), step(2, **{"policy/entropy": None})])
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 3, "reward/me')
    run = read_run(folder)
    assert run.steps == [1, 2]
    assert all(math.isnan(value) for value in run.metrics["policy/entropy"])
    assert run.notes == ["the last line of metrics.jsonl was cut off and is left out"]
    assert status(run).startswith("2 of 4 steps: running or killed, last written 2")


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"reward/mean": 1}', '{"step": 1, "reward/mean": "much"}'])
def test_a_damaged_line_in_the_middle_is_refused_with_its_number(tmp_path, line):
    folder = write_run(tmp_path / "run", [step(1)])
    with (folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(f"{line}\n{json.dumps(step(3))}\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl:2: not a line of metrics with a step and numbers"):
        read_run(folder)


def test_a_run_without_steps_or_files_is_read_as_far_as_it_got(tmp_path):
    folder = write_run(tmp_path / "run", [])
    (folder / "metrics.jsonl").unlink()
    (folder / "environment.json").unlink()
    run = read_run(folder)
    assert run.notes == ["there is no metrics.jsonl yet: no step is done", "there is no environment.json"]
    assert status(run) == "no step is done"
    assert "Nothing was evaluated yet" in run_page(make_report(run))


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds neither config\.yaml nor metrics\.jsonl; give the folder of a run"):
        read_run(tmp_path)


def test_alarms_resumes_and_rollbacks_are_those_of_the_events(tmp_path):
    folder = write_run(tmp_path / "run", ROWS)
    log = EventLog(folder)
    log.write("start", 0, planned_steps=4, num_processes=1)
    log.write("alarm", 1, metric="reward/mean", sentence="step 1: reward/mean below 0.15")
    log.write("rollback", 1, to_step=0, checkpoint=None, rate_factor=0.5)
    log.write("resume", 0, from_step=0, planned_steps=4, num_processes=1)
    report = make_report(read_run(folder))
    assert report.alarms == ("step 1: reward/mean below 0.15",)
    assert "<li>step 1: reward/mean below 0.15</li>" in run_page(report)
    assert history(report.run) == "continued 1 time, rolled back by alarms 1 time"
    data = as_data(report)
    assert (data["run"]["num_resumes"], data["run"]["num_rollbacks"], len(data["alarms"])) == (1, 1, 1)


def test_a_run_without_events_has_an_unknown_history(tmp_path):
    report = make_report(read_run(write_run(tmp_path / "run", ROWS)))
    assert "unknown" in history(report.run)
    assert "Unknown: the run has no events.jsonl" in run_page(report)
    data = as_data(report)
    assert (data["run"]["num_resumes"], data["run"]["num_rollbacks"], data["alarms"]) == (None, None, None)


def test_of_many_alarms_some_are_folded_and_none_is_interpreted(tmp_path):
    folder = write_run(tmp_path / "run", ROWS)
    for number in range(12):
        EventLog(folder).write("alarm", number, sentence=f"step {number}: {HOSTILE}")
    page = run_page(make_report(read_run(folder)))
    assert "2 more" in page
    assert page.count("&lt;script&gt;document.title") == 12 and "<script" not in page


def test_a_run_that_stopped_or_failed_shows_the_reason(tmp_path):
    folder = write_run(tmp_path / "run", [step(1), step(2)])
    EventLog(folder).write("end", 2, reason="failed", error="DataError: no space left")
    assert status(read_run(folder)) == "2 of 4 steps: failed (DataError: no space left)"


@pytest.mark.parametrize(
    ("given", "said"), [({"stop_at": 0.9}, "finished (eval.stop_at is reached)"), ({}, "finished")]
)
def test_a_run_that_ended_before_its_last_step_has_no_error(tmp_path, given, said):
    folder = write_run(tmp_path / "run", [step(1), step(2)], eval=given)
    EventLog(folder).write("end", 2, reason="finished")
    assert status(read_run(folder)) == f"2 of 4 steps: {said}"


def test_an_environment_that_cannot_be_made_is_a_note_and_failures_are_named_by_their_ends(tmp_path):
    evals = {"step_00000_t1": [episode("a", 0.0) | {"stop_reason": "timeout"}], "step_00004_t1": [episode("a", 1.0)]}
    run = read_run(write_run(tmp_path / "run", ROWS, evals=evals, env={"name": "no_such_env"}))
    assert ["no_such_env" in note for note in run.notes] == [True]
    assert make_report(run).held_out[0].failures_before == {"timeout": 1}


# Before and after


def test_tasks_that_changed_are_counted_and_compared_in_pairs(tmp_path):
    (found,) = make_report(read_run(write_run(tmp_path / "run", ROWS, evals=EVALS))).held_out
    assert [pair.after.task_id for pair in found.gained] == ["a", "b"]
    assert [pair.after.task_id for pair in found.lost] == ["c"]
    assert (found.change.before, found.change.after) == (0.25, 0.5)
    assert found.change.p_value == 1.0  # 2 against 1 of a fair coin
    assert (sum(found.failures_before.values()), sum(found.failures_after.values())) == (3, 2)


def pair(task_id: str, reward: float, mode: str) -> TaskPair:
    failed = Episode(task_id=task_id, reward=0.0, reward_parts={"success": 0.0}, stop_reason="x", failure_mode=mode)
    solved = Episode(task_id=task_id, reward=reward, reward_parts={"success": 1.0}, stop_reason="finished")
    return TaskPair(before=failed, after=solved)


def test_one_of_each_failure_mode_is_read_first_the_largest_change_of_reward_before_others():
    pairs = [pair("a", 1.0, "timeout"), pair("b", 2.0, "timeout"), pair("c", 0.5, "invalid_calls")]
    assert [each.after.task_id for each in reading_order(pairs)] == ["b", "c", "a"]


def test_only_tasks_that_both_sides_scored_are_compared():
    def evaluation(*records: dict) -> HeldOutEvaluation:
        episodes = tuple(Episode.from_record(record, "here") for record in records)
        return HeldOutEvaluation(step=0, temperature=0.0, episodes=episodes)

    unscored = episode("b", 0.0) | {"reward": None, "reward_parts": {}, "stop_reason": "env_error"}
    found = compare(
        [evaluation(episode("a", 0.0), episode("b", 1.0)), evaluation(unscored, episode("a", 1.0), episode("c", 1.0))]
    )
    assert found is not None and (found.change.num_tasks, found.change.num_gained) == (1, 1)
    assert compare([evaluation(episode("a", 0.0)), evaluation(episode("c", 1.0))]) is None


def test_tasks_that_only_share_an_id_are_left_out_with_a_sentence(tmp_path):
    """Within one run, as after a change of the task file, and against another run."""
    before = [episode("a", 0.0) | {"task_sha256": "1"}, episode("b", 0.0)]
    after = [episode("a", 1.0) | {"task_sha256": "2"}, episode("b", 1.0)]
    evals = {"step_00000_t1": before, "step_00004_t1": after}
    one = read_run(write_run(tmp_path / "one", ROWS, evals=evals))
    found = make_report(one)
    assert [pair.after.task_id for pair in found.held_out[0].gained] == ["b"]
    note = "held-out tasks with the same id that are different tasks on both sides are not compared: 1, such as 'a'"
    assert found.notes == (f"temperature 1, steps 0 and 4: {note}",)
    two = read_run(write_run(tmp_path / "two", ROWS, evals={"step_00004_t1": before}))
    against = make_report(two, one)
    assert against.against[0].change.num_tasks == 1
    assert against.notes == (f"compared with small, temperature 1, steps 4 and 4: {note}",)
    assert "Note: compared with small" in run_page(against)


def test_the_rates_of_a_row_are_those_of_the_tasks_that_are_compared(tmp_path):
    lost = episode("b", 0.0) | {"reward": None, "reward_parts": {}, "stop_reason": "env_error"}
    evals = {
        "step_00000_t1": [episode("a", 0.0), episode("b", 1.0)],
        "step_00004_t1": [episode("a", 1.0), lost],
    }
    report = make_report(read_run(write_run(tmp_path / "run", ROWS, evals=evals)))
    (held_out,) = as_data(report)["held_out"]
    assert (held_out["before"]["num_successes"], held_out["before"]["num_scored"]) == (0, 1)
    assert held_out["reward"] == {"before": 0.0, "after": 1.0}
    assert report.notes == ("temperature 1, step 4: 1 of 2 held-out episodes were dropped by environment errors",)


@pytest.mark.parametrize("names", [("step_00004_t1",), ("step_00000_t1", "step_00004_t1")])
def test_an_environment_of_a_mixture_that_scored_nothing_has_no_row(tmp_path, names):
    lost = episode("b", 0.0) | {"env": "lost", "reward": None, "reward_parts": {}, "stop_reason": "env_error"}
    evals = {name: [episode("a", 1.0) | {"env": "fine"}, lost] for name in names}
    report = make_report(read_run(write_run(tmp_path / "run", ROWS, evals=evals)))
    assert list(report.run.evaluations[0].by_env) == ["fine"]
    assert "<td>lost" not in run_page(report)
    assert json.dumps(as_data(report), allow_nan=False)


def test_environments_of_a_mixture_that_were_renamed_are_not_compared():
    def evaluation(*envs: str) -> HeldOutEvaluation:
        records = [episode(task_id, 1.0) | {"env": env} for task_id, env in zip("abc", envs, strict=True)]
        episodes = tuple(Episode.from_record(record, "here") for record in records)
        return HeldOutEvaluation(step=0, temperature=0.0, episodes=episodes)

    found = compare([evaluation("sums", "old", "old"), evaluation("sums", "new", "new")])
    assert found is not None and (found.change.num_tasks, list(found.by_env)) == (3, ["sums"])


def test_evaluations_beyond_the_last_step_of_the_metrics_are_left_out(tmp_path):
    evals = EVALS | {"step_00009_t1": AFTER}
    run = read_run(write_run(tmp_path / "run", ROWS, evals=evals))
    assert [each.step for each in run.evaluations] == [0, 4]
    assert run.notes == [
        "evaluations of step 9 are left out: the metrics end at step 4, as after going back to an earlier checkpoint"
    ]


# Curves


def test_running_means_leave_out_what_was_not_measured():
    assert running_mean([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]
    assert running_mean([1.0, NAN, 3.0], 2) == [1.0, 1.0, 3.0]
    assert math.isnan(running_mean([NAN], 3)[0])
    assert [smoothing(steps) for steps in (1, 3, 20, 100)] == [1, 1, 4, 10]


def test_reward_parts_that_move_get_a_plot_and_the_others_a_value():
    parts = {
        "reward_parts/share/tests/mean": [0.1, 0.2],
        "reward_parts/timeout/mean": [0.0, 0.0],
        "reward/mean": [1, 2],
    }
    panels, constant = part_panels(parts)
    assert [panel.title for panel in panels] == ["share/tests"]
    assert constant == {"timeout": 0.0}


def test_stop_reasons_that_never_came_are_no_area():
    (panel,) = (panel for panel in PANELS["Episodes"] if panel.title == "How episodes end")
    metrics = {
        "rollout/stop/finished": [0.5, 1.0],
        "rollout/stop/timeout": [0.5, 0.0],
        "rollout/stop/env_error": [0, 0],
    }
    assert list(series_of(panel, metrics)) == ["finished", "timeout"]


def test_every_plot_can_be_made_of_one_step_and_of_values_that_are_not_numbers(tmp_path):
    names = [name for panels in PANELS.values() for panel in panels for name in panel.names]
    metrics = {name.replace("/*", "/some"): 0.5 for name in names if name != "other"} | {"time/step_s": 2.0}
    whole, holes = step(1, **metrics), step(2, **dict.fromkeys(metrics))
    evaluated = {"step": 4, "eval/t1/success": 0.5}
    for number, rows in enumerate(([whole, evaluated], [whole, holes, step(3, **metrics), evaluated])):
        run = read_run(write_run(tmp_path / str(number), rows, evals=EVALS))
        for panels in PANELS.values():
            for panel in panels:
                (axes,) = plot(panel, run, run).axes
                assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", panel.unit)


# The page and the command


def test_the_page_needs_nothing_and_runs_nothing_that_a_model_wrote(tmp_path):
    page = run_page(make_report(read_run(write_run(tmp_path / "run", ROWS, evals=EVALS))))
    assert "&lt;script&gt;document.title" in page
    assert "<script" not in page and "<img src=x" not in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page
    assert page.index("Held-out tasks") < page.index("What to change") < page.index("Learning curves")
    assert page.count("What is 2 + 2?") == 3  # once for each task that turned: the question is the same on both sides


def test_messages_that_two_conversations_open_with_are_shared():
    question, one, other = ({"role": "user", "content": text} for text in ("question", "one", "other"))
    assert shared_start([question, one], [question, other]) == 1
    assert shared_start([question, one], [question]) == 1
    assert shared_start([], [question]) == 0


def test_files_of_earlier_versions_are_shown_without_conversations(tmp_path):
    evals = {name: [old_episode(e["task_id"], e["reward"]) for e in episodes] for name, episodes in EVALS.items()}
    page = run_page(make_report(read_run(write_run(tmp_path / "run", ROWS, evals=evals))))
    assert "hold no conversations" in page
    assert "Failed before, solved after, at temperature 1: 2" in page


def test_the_data_hold_the_pages_figures_and_only_json_values(tmp_path):
    rows = [step(number, **{"policy/entropy": None}) for number in range(1, 12)]
    data = as_data(make_report(read_run(write_run(tmp_path / "run", rows, evals=EVALS))))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["metrics"]["reward/mean"] == pytest.approx({"first": 0.3, "last": 0.9})
    assert data["metrics"]["policy/entropy"] is None
    (held_out,) = data["held_out"]
    assert [pair["task_id"] for pair in held_out["gained"]] == ["a", "b"]
    assert held_out["after"]["num_successes"] == 2
    assert data["compared_with"] is None


def test_two_runs_are_set_against_each_other(tmp_path):
    one = read_run(write_run(tmp_path / "one", ROWS, evals={"step_00004_t1": BEFORE}, train=TRAIN | {"steps": 9}))
    two = read_run(write_run(tmp_path / "two", ROWS, evals={"step_00004_t1": AFTER}))
    assert different_settings(two, one) == [("train.steps", "9", "4")]
    compared = as_data(make_report(two, one))["compared_with"]
    assert compared["settings"] == [{"key": "train.steps", "other": "9", "run": "4"}]
    assert compared["held_out"][0]["paired"]["change"] == 0.25
    elsewhere = read_run(write_run(tmp_path / "three", ROWS, evals={"step_00004_t1": [episode("z", 1.0)]}))
    assert "no evaluation of the same tasks" in run_page(make_report(elsewhere, one))


def test_addresses_are_shown_without_credentials(tmp_path):
    tools = {"mcp": [{"url": "https://me:secret@host/mcp?key=secret"}], "search": {"default_params": {"k": "secret"}}}
    one = read_run(write_run(tmp_path / "one", ROWS, evals=EVALS, tools=tools))
    other = read_run(write_run(tmp_path / "other", ROWS, evals=EVALS))
    page = run_page(make_report(one, other))
    assert "https://host/mcp?(not shown)" in page
    assert "secret" not in page + json.dumps(as_data(make_report(one, other)))


def test_a_run_without_alarms_is_shown_as_such(tmp_path):
    folder = write_run(tmp_path / "run", ROWS, evals=EVALS)
    EventLog(folder).write("start", 0, planned_steps=4, num_processes=1)
    assert "No alarm fired" in run_page(make_report(read_run(folder)))


def test_reports_load_no_torch():
    modules = "agent_rl.reports.run.page, agent_rl.reports.evaluation, agent_rl.scripts.commands.report"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(("seconds", "text"), [(8.4, "8 s"), (90, "1 min 30 s"), (7260, "2 h 1 min")])
def test_clock(seconds, text):
    assert clock(seconds) == text


def test_the_command_writes_its_files_and_a_summary_of_80_columns(tmp_path):
    folder = write_run(tmp_path / "run", ROWS, evals=EVALS)
    done = run_here("report", folder)
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "report.json").read_text())["run"]["steps"] == 4
    assert (folder / "report.html").read_text().startswith("<!DOCTYPE html>")
    lines = done.stdout.splitlines()
    assert lines[0] == "small: 4 of 4 steps: finished"
    *summary, last = lines
    assert max(map(len, summary)) <= 80
    files = [folder / name for name in ("report.html", "report.json", "report_episodes.html")]
    assert last == f"Report: {', '.join(map(str, files))}" and all(file.is_file() for file in files)
    again = run_here("report", folder, "--output", tmp_path / "new" / "x.html", "--compare", folder)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "new" / "x.json").exists()


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("nowhere",), "holds neither config.yaml nor metrics.jsonl"),
        (("run", "--compare", "nowhere"), "holds neither config.yaml nor metrics.jsonl"),
        (("run", "--output", "page.pdf"), "expected a file that ends with .html"),
        (("run", "--output", "run/config.yaml/x.html"), "cannot be a folder"),
        (("run", "--output", "taken.html"), "cannot be written (Is a directory)"),
        (("unread",), "metrics.jsonl: cannot be read (Is a directory)"),
    ],
)
def test_a_wrong_word_is_one_sentence_and_exit_code_2(tmp_path, words, complaint):
    write_run(tmp_path / "run", ROWS)
    (tmp_path / "taken.html").mkdir()
    (write_run(tmp_path / "unread", ROWS) / "metrics.jsonl").unlink()
    (tmp_path / "unread/metrics.jsonl").mkdir()
    assert complaint in one_line_error(run_here("report", *words, folder=tmp_path))


def test_what_ran_has_hardware_cost_and_memory(tmp_path: Path) -> None:
    rows = [
        step(number, **{"perf/tokens_per_s": 500.0, "host/process_memory_gib": float(number), "gpu/memory_share": 0.5})
        for number in (1, 2)
    ]
    folder = write_run(tmp_path / "run", rows)
    about = {"platform": "Linux", "cpu": "Some CPU", "num_cpus": 2, "gpus": [{"name": "H100", "memory_gib": 80.0}] * 2}
    (folder / "environment.json").write_text(json.dumps(about), encoding="utf-8")
    found = dict(facts(read_run(folder)))
    assert found["Machine"] == "Linux, Some CPU, 2 CPUs, 2 x H100"
    assert found["Cost"] == "2,000 tokens sampled in training, 0.00 GPU hours on this machine"
    assert found["Memory at most"] == "2.0 GiB of the main process, 50% of a GPU"
    assert "Cost" not in dict(facts(read_run(write_run(tmp_path / "old", [step(1)]))))
