"""Evaluation: what is counted, and how before and after are put side by side."""

from dataclasses import replace

from fakes import EchoEnv, ScriptedPolicy
from rich.console import Console

from agent_rl.core.evaluation import evaluate
from agent_rl.core.run.eval_result import (
    EvalResult,
    change_of,
    comparison_table,
    eval_metrics,
    one_line,
    summarize,
    to_record,
    verdict,
)
from agent_rl.envs.base import EnvFactory, StepResult, Task
from agent_rl.records import SamplingParams, StopReason, Trajectory
from agent_rl.rollout.rollout import RolloutWorker
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.telemetry.statistics import paired_change
from agent_rl.telemetry.trajectory_json import evaluated_record


def episode(reward: float | None, success: float | None, reason: StopReason = StopReason.FINISHED) -> Trajectory:
    parts = {} if success is None else {"success": success, "tools": 0.3 * success}
    return Trajectory(task_id="t", group_id="g", turns=(), stop_reason=reason, reward=reward, reward_parts=parts)


EPISODES = [
    episode(1.0, 1.0),
    episode(0.5, 0.0),
    episode(0.0, None, StopReason.MAX_TURNS),
    episode(None, None, StopReason.ENV_ERROR),
]
TASKS: list[Task] = [{"task_id": f"t{number}"} for number in range(4)]


def test_an_episode_without_a_score_counts_for_nothing_but_itself() -> None:
    result = summarize(EPISODES, TASKS, temperature=1.0, step=3)
    assert (result.num_scored, result.num_successes, result.num_env_errors) == (3, 1, 1)
    assert result.mean_reward == 0.5
    assert result.mean_reward_parts["tools"] == 0.3 / 3
    assert result.stop_reasons == {"finished": 2, "max_turns": 1, "env_error": 1}
    assert round(result.success_low, 4) == 0.0615  # Wilson, 1 of 3
    assert round(result.success_high, 4) == 0.7923


def test_a_part_is_averaged_over_the_environments_that_report_it() -> None:
    first = [replace(each, env="first") for each in EPISODES]
    other = [replace(each, env="other", reward_parts={"length": 0.5}) for each in EPISODES[:2]]
    result = summarize([*first, *other], [*TASKS, *TASKS[:2]], temperature=1.0, step=3)
    assert result.mean_reward_parts == {"length": 0.5, "success": 1 / 3, "tools": 0.3 / 3}


def test_every_evaluation_runs_each_task_once_with_the_same_samples() -> None:
    def by_seed(_turn: int, sampling: SamplingParams) -> str:
        return "done" if sampling.seed % 2 else "x"

    limits = EpisodeLimits(max_new_tokens=9, max_turns=1)
    rollout = RolloutWorker(ScriptedPolicy(by_seed), EnvFactory(EchoEnv), limits=limits, seed=0)
    tasks = [{"task_id": f"t{i}"} for i in range(8)]
    before, first = evaluate(rollout, tasks, temperature=0.7, step=0)
    after, second = evaluate(rollout, tasks, temperature=0.7, step=40)
    assert replace(before, step=40) == after
    assert [e.task_id for e in first] == [task["task_id"] for task in tasks]
    assert [e.turns for e in first] == [e.turns for e in second]
    assert 0 < before.num_successes < 8


def test_the_record_has_one_row_per_task() -> None:
    tasks = [{"task_id": "t", "metadata": {"family": "sums"}}, *([{"task_id": "t", "level": 2}] * 3)]
    record = to_record(summarize(EPISODES, tasks, temperature=0.0, step=3), EPISODES, tasks)
    assert record["result"]["num_successes"] == 1
    assert [row["reward"] for row in record["episodes"]] == [1.0, 0.5, 0.0, None]
    assert [row["family"] for row in record["episodes"]] == ["sums", None, None, None]
    assert [row["level"] for row in record["episodes"]] == [None, 2, 2, 2]


def test_a_row_has_the_conversation_and_what_the_environment_noted_at_the_end() -> None:
    rollout = RolloutWorker(
        ScriptedPolicy(["x", "done"]), EnvFactory(EchoEnv), limits=EpisodeLimits(max_new_tokens=9), seed=0
    )
    tasks = [{"task_id": "t0", "family": "echo", "level": 1, "difficulty": "easy"}]
    _, episodes = evaluate(rollout, tasks, temperature=0.0, step=0)
    last = replace(episodes[0].turns[-1], info={"problems": ["tests, hold: one fails"]})
    row = evaluated_record(replace(episodes[0], turns=(*episodes[0].turns[:-1], last)), tasks[0])
    assert [row[name] for name in ("family", "level", "difficulty")] == ["echo", 1, "easy"]
    other = replace(episodes[0], turns=(replace(last, info={"problems": 3}),))
    assert evaluated_record(other, tasks[0])["problems"] == []  # an environment may note what it likes
    assert (row["num_turns"], row["num_tokens"], row["problems"]) == (2, 7, ["tests, hold: one fails"])
    assert [(m["role"], m["content"]) for m in row["messages"] if m["role"] == "assistant"] == [
        ("assistant", "x"),
        ("assistant", "done"),
    ]


class NotingEnv(EchoEnv):
    """Notes on an episode that is cut off what an ended one would have got."""

    def truncate(self, reason: StopReason) -> StepResult:
        return StepResult(reward=0.0, terminated=True, info={"problems": ["files, all files: missing a.py"]})


def test_what_is_noted_of_a_truncated_episode_is_recorded() -> None:
    limits = EpisodeLimits(max_new_tokens=9, max_turns=1)
    rollout = RolloutWorker(ScriptedPolicy(["x"]), EnvFactory(NotingEnv), limits=limits, seed=0)
    _, episodes = evaluate(rollout, TASKS[:1], temperature=0.0, step=0)
    row = evaluated_record(episodes[0], TASKS[0])
    assert (row["stop_reason"], row["problems"]) == ("max_turns", ["files, all files: missing a.py"])
    assert episodes[0].turns[-1].info["note"] == "seen"  # beside what was noted on the turn


def results(successes: int, *, step: int, first: int = 0, of: str = "") -> EvalResult:
    """Of 100 tasks those from number `first` on are solved, as many as `successes`."""
    episodes = [episode(1.0, float(first <= i < first + successes)) for i in range(100)]
    tasks = [{"task_id": f"t{i}", "question": of} for i in range(100)]
    return summarize(episodes, tasks, temperature=0.0, step=step)


def test_the_verdict_is_the_paired_one_that_reports_give() -> None:
    low, same, high = results(10, step=0), results(14, step=5, first=2), results(60, step=5)
    assert verdict(low, high).startswith(
        "At temperature 0 success rose from 10.0 % to 60.0 % on 100 tasks (50 tasks better, 0 worse): beyond chance"
    )
    assert "success fell from 60.0 % to 10.0 % on 100 tasks (0 tasks better, 50 worse): beyond chance" in verdict(
        high, low
    )
    assert "(6 tasks better, 2 worse): within chance" in verdict(low, same)
    change = change_of(low, high)
    assert change == paired_change([[i < 10] for i in range(100)], [[i < 60] for i in range(100)])


def test_tasks_that_are_not_the_same_are_not_compared() -> None:
    other = results(60, step=5, of="another question")
    assert change_of(results(10, step=0), other) is None
    assert "no task is known to be the same" in verdict(results(10, step=0), other)
    assert "no task is known to be the same" in verdict(replace(other, solved={}), other)  # of an earlier version


def test_the_table_fits_80_columns() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    console.print(comparison_table({0.0: results(10, step=0)}, {0.0: results(60, step=5)}))
    text = console.export_text()
    assert "10.0 [5.5, 17.4]" in text
    assert "60.0 [50.2, 69.1]" in text
    assert "+50.0 [+39." in text
    assert "after 5 steps" in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_line_and_the_metrics_name_the_temperature_and_dropped_episodes() -> None:
    result = summarize(EPISODES, TASKS, temperature=0.0, step=3)
    assert one_line(result) == (
        "eval at step 3, temperature 0: 1/3 solved, 33.3 [6.1, 79.2] %, mean reward 0.500, "
        "1 dropped by environment errors"
    )
    assert eval_metrics(result)["eval/t0/reward"] == 0.5
