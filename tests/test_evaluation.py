"""Evaluation: what is counted, and how before and after are put side by side."""

from dataclasses import replace

from fakes import EchoEnv, ScriptedPolicy
from rich.console import Console

from agent_rl.core.episode import EpisodeLimits
from agent_rl.core.evaluation import (
    comparison_table,
    eval_metrics,
    evaluate,
    evaluated_record,
    one_line,
    summarize,
    to_record,
    verdict,
)
from agent_rl.core.rollout import RolloutWorker
from agent_rl.envs.base import EnvFactory
from agent_rl.records import SamplingParams, StopReason, Trajectory


def episode(reward: float | None, success: float | None, reason: StopReason = StopReason.FINISHED) -> Trajectory:
    parts = {} if success is None else {"success": success, "tools": 0.3 * success}
    return Trajectory(task_id="t", group_id="g", turns=(), stop_reason=reason, reward=reward, reward_parts=parts)


EPISODES = [
    episode(1.0, 1.0),
    episode(0.5, 0.0),
    episode(0.0, None, StopReason.MAX_TURNS),
    episode(None, None, StopReason.ENV_ERROR),
]


def test_an_episode_without_a_score_counts_for_nothing_but_itself() -> None:
    result = summarize(EPISODES, temperature=1.0, step=3)
    assert (result.num_scored, result.num_successes, result.num_env_errors) == (3, 1, 1)
    assert result.mean_reward == 0.5
    assert result.mean_reward_parts["tools"] == 0.3 / 3
    assert result.stop_reasons == {"finished": 2, "max_turns": 1, "env_error": 1}
    assert round(result.success_low, 4) == 0.0615  # Wilson, 1 of 3
    assert round(result.success_high, 4) == 0.7923


def test_every_evaluation_plays_each_task_once_with_the_same_draws() -> None:
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
    record = to_record(summarize(EPISODES, temperature=0.0, step=3), EPISODES, tasks)
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


def results(successes: int, *, step: int) -> object:
    return summarize([episode(1.0, float(i < successes)) for i in range(100)], temperature=0.0, step=step)


def test_the_verdict_calls_a_change_real_only_when_its_interval_leaves_zero_out() -> None:
    low, same, high = results(10, step=0), results(14, step=5), results(60, step=5)
    assert verdict(low, high).startswith("At temperature 0 tasks solved rose from 10/100 to 60/100: beyond chance")
    assert "fell from 60/100 to 10/100: beyond chance" in verdict(high, low)
    assert "went from 10/100 to 14/100: within chance" in verdict(low, same)


def test_the_table_fits_80_columns() -> None:
    console = Console(width=80, record=True, force_terminal=False)
    console.print(comparison_table({0.0: results(10, step=0)}, {0.0: results(60, step=5)}))
    text = console.export_text()
    assert "10.0 [5.5, 17.4]" in text
    assert "60.0 [50.2, 69.1]" in text
    assert "+50.0 [+37.7, +60.1]" in text
    assert "after 5 steps" in text


def test_the_line_and_the_metrics_name_the_temperature_and_dropped_episodes() -> None:
    result = summarize(EPISODES, temperature=0.0, step=3)
    assert one_line(result) == (
        "eval at step 3, temperature 0: 1/3 solved, 33.3 [6.1, 79.2] %, mean reward 0.500, "
        "1 dropped by environment errors"
    )
    assert eval_metrics(result)["eval/t0/reward"] == 0.5
