import io
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import episode
from rich.console import Console

from agent_rl.agent.messages import Message, ToolCall, ToolCallError
from agent_rl.algorithms.advantages import has_variance
from agent_rl.errors import DataError
from agent_rl.records import Completion, FinishReason, StopReason, TrajectoryGroup, Turn
from agent_rl.telemetry.episode_files import write_transcripts
from agent_rl.telemetry.metrics import MetricsWriter, group_metrics
from agent_rl.telemetry.progress import TrainingProgress
from agent_rl.telemetry.statistics import rate_text, wilson_interval
from agent_rl.telemetry.trajectory_json import MAX_INFO_CHARS


def turn(num_tokens=3, message=None, env_messages=(), info=None):
    return Turn(
        prompt_token_ids=(1,),
        completion=Completion(
            token_ids=(5,) * num_tokens,
            logprobs=(-0.1,) * num_tokens,
            finish_reason=FinishReason.STOP,
            weight_version=0,
        ),
        message=message or Message.assistant("ok"),
        env_messages=env_messages,
        info=info or {},
    )


def measure(*groups_of_episodes):
    groups = [TrajectoryGroup(task_id="t", trajectories=tuple(episodes)) for episodes in groups_of_episodes]
    return group_metrics(groups, has_variance=has_variance)


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# metrics.jsonl


def test_each_step_is_on_disk_as_soon_as_it_is_written(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        writer.write(1, {"a": 0.5, "bad": math.nan, "worse": -math.inf, "n": 3})
        (row,) = rows(path)
        assert abs(row.pop("time") - time.time()) < 100
        assert row == {"step": 1, "a": 0.5, "bad": None, "worse": None, "n": 3}
        writer.write(2, {"a": 1.0})
    assert [row["step"] for row in rows(path)] == [1, 2]


def test_resuming_drops_the_steps_that_will_run_again(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as writer:
        for step in (1, 2, 3, 4):
            writer.write(step, {"a": float(step)})
    with MetricsWriter(path, resume_from_step=3) as writer:
        writer.write(3, {"a": 30.0})
    assert [(row["step"], row["a"]) for row in rows(path)] == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert [p.name for p in tmp_path.iterdir()] == ["metrics.jsonl"]


@pytest.mark.parametrize("resume_from_step", [None, 9])
def test_a_line_cut_off_by_a_crash_is_dropped(tmp_path, resume_from_step):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "rew')
    with MetricsWriter(path, resume_from_step=resume_from_step) as writer:
        writer.write(2, {})
    assert [row["step"] for row in rows(path)] == [1, 2]


def test_a_file_of_something_else_is_not_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nhello\n')
    with pytest.raises(DataError, match=r"metrics.jsonl:2: not a line of metrics"):
        MetricsWriter(path, resume_from_step=1)
    assert path.read_text() == '{"step": 1}\nhello\n'


# group_metrics


def test_rewards_and_parts_are_over_scored_episodes():
    metrics = measure(
        [
            episode(1.0, reward_parts={"tools": 0.3, "success": 1.0}),
            episode(0.0, reward_parts={"success": 0.0}),
            episode(None, reward_parts={"tools": 9.0}),
        ]
    )
    assert metrics["reward/mean"] == 0.5
    assert metrics["reward/std"] == 0.5
    assert (metrics["reward/min"], metrics["reward/max"]) == (0.0, 1.0)
    assert metrics["reward_parts/tools/mean"] == pytest.approx(0.15)
    assert metrics["success/mean"] == 0.5
    assert "reward_parts/success/mean" not in metrics
    assert metrics["rollout/env_errors"] == 1
    assert metrics["rollout/stop/env_error"] == pytest.approx(1 / 3)
    assert metrics["rollout/stop/finished"] == pytest.approx(2 / 3)
    assert metrics["rollout/stop/timeout"] == 0.0


def test_an_episode_that_was_cut_off_before_it_could_succeed_counts_as_a_failure():
    metrics = measure([episode(1.0, reward_parts={"success": 1.0}), episode(0.0, stop_reason=StopReason.MAX_TURNS)])
    assert metrics["success/mean"] == 0.5
    assert metrics["group/frac_mixed"] == 1.0


def test_groups_are_sorted_by_success_and_signal():
    good, bad = {"success": 1.0}, {"success": 0.0}
    metrics = measure(
        [episode(2.0, reward_parts=good), episode(1.7, reward_parts=good)],  # all good, but the rewards differ
        [episode(0.9, reward_parts=bad)] * 8,
        [episode(0.1, reward_parts=bad), episode(None)],
        [episode(2.0, reward_parts=good), episode(0.1, reward_parts=bad)],
        [episode(None)],
    )
    assert metrics["group/frac_all_good"] == 0.25
    assert metrics["group/frac_all_bad"] == 0.5
    assert metrics["group/frac_mixed"] == 0.25
    assert metrics["group/frac_no_signal"] == pytest.approx(3 / 5)


def test_groups_of_one_outcome_that_hardly_differ_are_counted():
    good, bad = {"success": 1.0}, {"success": 0.0}
    metrics = measure(
        [episode(2.30, reward_parts=good)] * 7 + [episode(2.29, reward_parts=good)],
        [episode(0.31, reward_parts=bad), episode(0.30, reward_parts=bad)],
        [episode(0.4, reward_parts=bad), episode(0.3, reward_parts=bad)],  # more than a fiftieth of the widest
        [episode(2.30, reward_parts=good), episode(2.29, reward_parts=bad)],  # two outcomes
        [episode(2.30, reward_parts=good)] * 8,
    )
    assert metrics["group/frac_minor_signal"] == pytest.approx(2 / 5)
    assert "group/frac_minor_signal" not in measure([episode(2.30), episode(2.29)], [episode(0.0)])


def test_turns_tokens_and_tool_calls_are_counted():
    call = ToolCall(name="add", arguments={})
    broken = ToolCallError(kind="bad_json", message="not JSON", span=(0, 3))
    reported = Message(role="assistant", content="", tool_calls=(call, call), tool_errors=(broken,))
    metrics = measure(
        [
            # The environment ran two calls, one of which failed; the third could not be read.
            episode(1.0, turn(4, reported, info={"tool_calls": 2, "tool_errors": 2}), turn(6)),
            # Without counts from the environment, the message itself is counted.
            episode(0.0, turn(5, Message(role="assistant", content="", tool_calls=(call,)))),
        ]
    )
    assert (metrics["rollout/turns_mean"], metrics["rollout/turns_max"]) == (1.5, 2)
    assert (metrics["rollout/tokens_mean"], metrics["rollout/tokens_max"]) == (7.5, 10)
    assert metrics["rollout/tool_calls_mean"] == 1.5
    assert metrics["rollout/tool_calls_per_turn"] == 1.0
    assert metrics["rollout/tool_error_share"] == 0.5
    assert metrics["rollout/parse_error_share"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "noted", [["add", "sub"], "two", True, -1, 1.5, math.nan, math.inf, pytest.param(10**400, id="huge"), None]
)
def test_what_an_environment_notes_under_the_name_of_a_count_may_be_anything(noted):
    call = ToolCall(name="add", arguments={})
    message = Message(role="assistant", content="", tool_calls=(call,))
    metrics = measure([episode(1.0, turn(4, message, info={"tool_calls": noted, "tool_errors": noted}))])
    assert (metrics["rollout/tool_calls_mean"], metrics["rollout/tool_error_share"]) == (1.0, 0.0)
    for three in (np.int64(3), 3.0, np.float32(3)):
        counted = measure([episode(1.0, turn(4, message, info={"tool_calls": three}))])
        assert counted["rollout/tool_calls_mean"] == 3.0


def test_prompts_are_measured_at_the_first_turn_and_episodes_by_the_clock():
    first, later = replace(turn(), prompt_token_ids=(1,) * 30), replace(turn(), prompt_token_ids=(1,) * 500)
    metrics = measure(
        [
            replace(episode(1.0, first, later), duration_s=2.0),
            replace(episode(0.0, turn()), duration_s=0.5),
            replace(episode(None), duration_s=0.5),
        ]
    )
    assert (metrics["rollout/prompt_tokens_mean"], metrics["rollout/prompt_tokens_max"]) == (15.5, 30)
    assert (metrics["time/episode_s_mean"], metrics["time/episode_s_max"]) == (1.0, 2.0)


def test_cut_off_are_the_episodes_that_a_budget_or_a_deadline_ended():
    metrics = measure([episode(0.0, stop_reason=reason) for reason in StopReason])
    # Not cut off: finished, invalid_calls, env_error.
    assert metrics["rollout/truncated_share"] == pytest.approx(5 / 8)


def test_episodes_without_a_turn_leave_metrics_of_turns_unmeasured():
    metrics = measure([episode(None)])
    unmeasured = {name for name, value in metrics.items() if math.isnan(value)}
    assert unmeasured == {
        "reward/mean",
        "reward/std",
        "reward/min",
        "reward/max",
        "rollout/prompt_tokens_mean",
        "rollout/prompt_tokens_max",
        "rollout/tool_calls_per_turn",
        "rollout/parse_error_share",
    }


def test_noticed_attempts_are_counted_by_kind_and_by_episode():
    metrics = measure(
        [episode(1.0, flags=("dropped_test_config", "source_exit")), episode(0.0, flags=("source_exit",)), episode(0.5)]
    )
    hacks = {name: value for name, value in metrics.items() if name.startswith("hacks/")}
    assert hacks == {"hacks/episodes": 2, "hacks/dropped_test_config": 1, "hacks/source_exit": 2}


def test_a_step_without_any_score_has_no_reward_and_no_success():
    metrics = measure([episode(None)])
    assert math.isnan(metrics["reward/mean"])
    assert "success/mean" not in metrics
    assert metrics["group/frac_no_signal"] == 1.0
    with pytest.raises(ValueError, match="no episodes"):
        measure()


# Intervals: golden values are examples worked in Newcombe 1998, Statist. Med. 17:857.


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_intervals_match_the_published_ones(successes, n, low, high):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=1e-4)
    mirrored = wilson_interval(n - successes, n)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-4)


def test_wilson_limits_at_the_ends_are_exact():
    assert wilson_interval(0, 7)[0] == 0.0
    assert wilson_interval(7, 7)[1] == 1.0
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_a_rate_is_shown_with_its_interval():
    assert rate_text(15, 148) == "10.1 [6.2, 16.0]"
    with pytest.raises(ValueError, match="at least one trial"):
        rate_text(0, 0)


def test_counts_that_are_no_proportion_are_refused():
    with pytest.raises(ValueError, match="4 successes of 3 trials"):
        wilson_interval(4, 3)


# transcripts


def test_the_best_and_the_worst_episodes_are_written_once_each(tmp_path):
    groups = [
        TrajectoryGroup(task_id="a", trajectories=tuple(episode(r, task_id=f"a{r}") for r in (0.2, 0.9, None))),
        TrajectoryGroup(task_id="b", trajectories=tuple(episode(r, task_id=f"b{r}") for r in (0.5, 0.1))),
    ]
    path = tmp_path / "transcripts" / "step_000003.jsonl"
    write_transcripts(path, groups, per_step=1, step=3)
    assert [(r["rank"], r["task_id"], r["step"]) for r in rows(path)] == [("best", "a0.9", 3), ("worst", "b0.1", 3)]
    write_transcripts(path, groups, per_step=3, step=3)
    assert [(r["rank"], r["reward"]) for r in rows(path)] == [
        ("best", 0.9),
        ("best", 0.5),
        ("best", 0.2),
        ("worst", 0.1),
    ]


def test_a_transcript_holds_the_conversation_in_order(tmp_path):
    call = ToolCall(name="add", arguments={"a": "ä\ud800"})  # half a surrogate pair, as a model may write it
    broken = ToolCallError(kind="unclosed", message="the call is not closed", span=(0, 3))
    long_episode = episode(
        0.5,
        turn(
            2,
            Message(role="assistant", content="I add", reasoning="2 + 1", tool_calls=(call,)),
            (Message.tool("3", name="add"),),
        ),
        turn(4, Message(role="assistant", content="", tool_errors=(broken,))),
        reward_parts={"tools": 0.5},
        stop_reason=StopReason.MAX_TURNS,
    )
    path = tmp_path / "step.jsonl"
    write_transcripts(path, [TrajectoryGroup(task_id="t", trajectories=(long_episode,))], per_step=2, step=1)
    (row,) = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert row["messages"] == [
        {
            "role": "assistant",
            "content": "I add",
            "reasoning": "2 + 1",
            "tool_calls": [{"name": "add", "arguments": {"a": "ä\ud800"}}],
        },
        {"role": "tool", "content": "3", "name": "add"},
        {"role": "assistant", "content": "", "tool_errors": ["the call is not closed"]},
    ]
    assert (row["reward"], row["reward_parts"], row["stop_reason"]) == (0.5, {"tools": 0.5}, "max_turns")
    assert row["num_tokens"] == 6


def test_a_transcript_holds_what_the_environment_noted_with_the_reply_it_was_noted_on(tmp_path):
    found = [{"query": "velm", "results": ["Velm"]}]
    long_episode = episode(
        1.0,
        turn(message=Message.assistant("a"), env_messages=(Message.tool("3"),), info={"search_history": found}),
        turn(message=Message.assistant("b")),
        turn(message=Message.assistant("c"), info={"prediction": "ä\ud800", "problems": ["no"]}),
    )
    path = tmp_path / "step.jsonl"
    write_transcripts(path, [TrajectoryGroup(task_id="t", trajectories=(long_episode,))], per_step=1, step=1)
    (row,) = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [message.get("info") for message in row["messages"]] == [
        {"search_history": found},
        None,
        None,
        {"prediction": "ä\ud800", "problems": ["no"]},
    ]


def test_what_is_noted_is_made_readable_and_cut_off_where_it_is_long(tmp_path):
    circle: list = []
    circle.append(circle)
    info = {"path": Path("a/b"), "keys": {(1, 2): 3}, "nan": [float("nan")], "circle": circle, 5: (1,)}
    long = {"first": "x" * (2 * MAX_INFO_CHARS), "second": "y" * 10, "third": 3}
    turns = (turn(message=Message.assistant("a"), info=info), turn(message=Message.assistant("b"), info=long))
    path = tmp_path / "step.jsonl"
    write_transcripts(path, [TrajectoryGroup(task_id="t", trajectories=(episode(1.0, *turns),))], per_step=1, step=1)
    (row,) = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    noted, shortened = (message["info"] for message in row["messages"])
    assert noted == {
        "path": "PosixPath('a/b')",
        "keys": "{(1, 2): 3}",
        "nan": "[nan]",
        "circle": "[[...]]",
        "5": [1],
    }
    assert shortened == {"first": '"' + "x" * (MAX_INFO_CHARS - 1) + "...", "second": "...", "third": "..."}


def test_nothing_is_written_when_there_is_nothing_to_show(tmp_path):
    groups = [TrajectoryGroup(task_id="t", trajectories=(episode(None), episode(1.0)))]
    write_transcripts(tmp_path / "off.jsonl", groups, per_step=0, step=1)
    write_transcripts(tmp_path / "none.jsonl", [], per_step=2, step=1)
    assert list(tmp_path.iterdir()) == []


# progress


METRICS = {
    "reward/mean": 1.4123,
    "success/mean": 0.125,
    "loss/policy": -0.0123,
    "loss/kl": 3.1e-4,
    "policy/entropy": 0.0209,
    "optim/learning_rate": 2.5e-5,
    "perf/tokens_per_s": 1234.4,
    "time/step_s": 10.0,
}
LINE = "reward 1.412  success 12%  loss -0.012  KL 3e-04  H 0.021  lr 2.5e-05  1234 tok/s  ETA 0:01:10"


@pytest.mark.parametrize("terminal", [False, True])
def test_without_a_live_display_each_step_is_one_plain_line(capsys, terminal):
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with TrainingProgress(10, enabled=not terminal, console=console) as progress:
        progress.step(3, METRICS)
        progress.message("saved [step 3]")
        progress.step(4, {"time/step_s": 20.0})
    assert capsys.readouterr().out.splitlines() == [f"step 3/10  {LINE}", "saved [step 3]", "step 4/10  ETA 0:01:30"]
    assert console.file.getvalue() == ""


def test_a_line_of_a_long_and_fast_run_still_fits(capsys):
    with TrainingProgress(2000, enabled=False) as progress:
        progress.step(999, METRICS | {"perf/tokens_per_s": 123_456.0, "time/step_s": 90.0})
    (line,) = capsys.readouterr().out.splitlines()
    assert line.endswith("123k tok/s  ETA 25:01:30")
    assert len(line) <= 110


def test_a_narrow_terminal_shows_the_rest_in_a_second_line():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, color_system=None)
    with TrainingProgress(10, console=console) as progress:
        progress.step(3, METRICS)
    words = screen.getvalue().split()
    assert all(word in words for word in LINE.split())
    assert "3/10" in words


def test_on_a_terminal_a_live_bar_shows_the_same(capsys):
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=140, color_system=None)
    with TrainingProgress(10, console=console) as progress:
        progress.step(3, METRICS)
        progress.message("saved [step 3]")
    shown = screen.getvalue()
    assert "3/10" in shown
    assert LINE in shown
    assert "saved [step 3]" in shown
    assert capsys.readouterr().out == ""


def test_the_eta_follows_the_latest_steps_and_not_what_came_before(capsys):
    with TrainingProgress(100, num_steps_done=5, console=Console(file=io.StringIO())) as progress:
        for step in range(6, 27):
            progress.step(step, {"time/step_s": 50.0 if step < 17 else 1.0})
    assert capsys.readouterr().out.splitlines()[-1] == "step 26/100  ETA 0:01:14"


def test_the_eta_counts_evaluations_to_come_as_long_as_those_so_far(capsys):
    with TrainingProgress(10, enabled=False) as progress:
        progress.step(1, {"time/step_s": 2.0}, evaluations_left=3)
        progress.evaluated(60.0)
        progress.evaluated(120.0)
        progress.step(2, {"time/step_s": 2.0}, evaluations_left=3)
    assert capsys.readouterr().out.splitlines() == [
        "step 1/10  ETA 0:00:18 + evaluations",
        "step 2/10  ETA 0:04:46",
    ]
