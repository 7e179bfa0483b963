"""Evaluation: one episode per held-out task, counted, with 95 % intervals; and the table of before against after.

Evaluations of one run draw with the same seeds, so that they differ by the weights alone. An episode is a success when
its `success` part is 1. Not here: when to evaluate, and what an episode is worth.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from agent_rl.config import Config
from agent_rl.data.tasks import read_tasks
from agent_rl.envs.base import Task
from agent_rl.envs.opening import open_environment
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Trajectory
from agent_rl.rollout.workers import RolloutWorker, SpreadRollout, make_worker
from agent_rl.telemetry.statistics import PairedChange, is_success, paired_change, rate_text, wilson_interval
from agent_rl.telemetry.trajectory_json import evaluated_record, task_digest

EVAL_SEED_STEP = -1
"""Stands for the step in the seeds: the same for every evaluation, and no training step's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """What one evaluation found: 3 of 4 tasks solved is `num_successes=3, num_scored=4`."""

    step: int
    """Optimizer steps done before it."""
    temperature: float
    """0 is greedy."""
    num_scored: int
    """Episodes that count; `num_env_errors` more could not be scored."""
    num_successes: int
    success_low: float
    success_high: float
    """95 % Wilson interval of the success rate."""
    mean_reward: float
    """Over scored episodes, like the parts."""
    mean_reward_parts: dict[str, float]
    stop_reasons: dict[str, int]
    """Episodes by `StopReason`, unscored ones included."""
    num_env_errors: int
    mean_tokens: float
    """Tokens the model drew, per episode."""
    solved: dict[str, bool] = field(default_factory=dict)
    """Scored tasks, by id and digest of the row; empty in checkpoints of earlier versions."""

    @property
    def success_rate(self) -> float:
        return self.num_successes / self.num_scored


def evaluate(
    rollout: RolloutWorker | SpreadRollout, tasks: Sequence[Task], *, temperature: float, step: int
) -> tuple[EvalResult, list[Trajectory]]:
    """Play one episode per task; the result, and the episodes in task order."""
    groups = rollout.collect(tasks, group_size=1, step=EVAL_SEED_STEP, temperature=temperature)
    episodes = [group.trajectories[0] for group in groups]
    return summarize(episodes, tasks, temperature=temperature, step=step), episodes


def evaluate_policy(
    config: Config, policy: BasePolicy, *, temperature: float = 0.0
) -> tuple[EvalResult, list[Trajectory]]:
    """Play the held-out tasks of a configuration with any policy, one made by hand too, as an evaluation of a run does.

    `env`, `tools`, `data.eval_path`, `data.max_eval_tasks`, `rollout`, `policy.max_new_tokens` and `run.seed` are read.
    Everything happens in this process, nothing is written, and the policy stays open. `step` of the result is 0.
    Raises a UserError for what a person can mend, SandboxError when no episode could be scored.
    """
    with open_environment(config) as factory:
        tasks = read_tasks(config.data.eval_path, factory.check_task)[: config.data.max_eval_tasks]
        factory.start()
        return evaluate(make_worker(config, policy, factory), tasks, temperature=temperature, step=0)


def summarize(episodes: Sequence[Trajectory], tasks: Sequence[Task], *, temperature: float, step: int) -> EvalResult:
    """Count what `episodes` did, one of each of `tasks`; at least one of them must be scored."""
    scored = [(episode.reward, episode) for episode in episodes if episode.reward is not None]
    num_successes = sum(is_success(episode.reward_parts) for _, episode in scored)
    low, high = wilson_interval(num_successes, len(scored))
    names = sorted({name for _, episode in scored for name in episode.reward_parts})
    return EvalResult(
        step=step,
        temperature=temperature,
        num_scored=len(scored),
        num_successes=num_successes,
        success_low=low,
        success_high=high,
        mean_reward=fmean(reward for reward, _ in scored),
        mean_reward_parts={name: fmean(e.reward_parts.get(name, 0.0) for _, e in scored) for name in names},
        stop_reasons=dict(Counter(episode.stop_reason.value for episode in episodes)),
        num_env_errors=len(episodes) - len(scored),
        mean_tokens=fmean(sum(len(turn.completion.token_ids) for turn in e.turns) for e in episodes),
        solved={
            f"{task['task_id']} {task_digest(task)}": is_success(episode.reward_parts)
            for episode, task in zip(episodes, tasks, strict=True)
            if episode.reward is not None
        },
    )


def to_record(result: EvalResult, episodes: Sequence[Trajectory], tasks: Sequence[Task]) -> dict[str, Any]:
    """The result and one row per task, as plain JSON values; `tasks` are those that the episodes played, in order."""
    rows = [evaluated_record(episode, task) for episode, task in zip(episodes, tasks, strict=True)]
    return {"result": asdict(result), "episodes": rows}


def eval_metrics(result: EvalResult) -> dict[str, float]:
    """The result as entries of the metrics file."""
    prefix = f"eval/t{result.temperature:g}"
    return {
        f"{prefix}/success": result.success_rate,
        f"{prefix}/success_low": result.success_low,
        f"{prefix}/success_high": result.success_high,
        f"{prefix}/reward": result.mean_reward,
        f"{prefix}/num_scored": float(result.num_scored),
        f"{prefix}/num_env_errors": float(result.num_env_errors),
    }


def one_line(result: EvalResult) -> str:
    """The result in one line for a terminal."""
    text = (
        f"eval at step {result.step}, temperature {result.temperature:g}: "
        f"{result.num_successes}/{result.num_scored} solved, {_percent(result)} %, mean reward {result.mean_reward:.3f}"
    )
    return f"{text}, {result.num_env_errors} dropped by environment errors" if result.num_env_errors else text


def comparison_table(before: Mapping[float, EvalResult], after: Mapping[float, EvalResult]) -> Table:
    """Before against after, two rows per temperature, narrow enough for 80 columns; brackets are 95 % intervals.

    Success is over the tasks that both scored, where these are known.
    """
    table = Table(title="Held-out tasks (95 % intervals, the change paired)", box=SIMPLE, title_justify="left")
    steps = max((result.step for result in after.values()), default=0)
    table.add_column("")
    for column in ("before", f"after {steps} step{'' if steps == 1 else 's'}", "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for temperature, result in after.items():
        first = before[temperature]
        change = change_of(first, result)
        rates = _percent(first), _percent(result), f"{100 * (result.success_rate - first.success_rate):+.1f}"
        table.add_row(f"solved %, T={temperature:g}", *(rates if change is None else _paired(change)))
        table.add_row(
            f"reward, T={temperature:g}",
            f"{first.mean_reward:.3f}",
            f"{result.mean_reward:.3f}",
            f"{result.mean_reward - first.mean_reward:+.3f}",
        )
    return table


def verdict(before: EvalResult, after: EvalResult) -> str:
    """One sentence: did the success rate move by more than chance explains?"""
    where, change = f"At temperature {after.temperature:g}", change_of(before, after)
    if change is None:
        return f"{where} before and after are not compared: no task is known to be the same in both evaluations."
    return f"{where} {change.sentence[:1].lower()}{change.sentence[1:]}"


def change_of(before: EvalResult, after: EvalResult) -> PairedChange | None:
    """The change on the tasks that both evaluations scored; None without one, as for results of earlier versions."""
    both = [task for task in before.solved if task in after.solved]
    if not both:
        return None
    return paired_change([[before.solved[task]] for task in both], [[after.solved[task]] for task in both])


def _paired(change: PairedChange) -> tuple[str, str, str]:
    rates = [rate_text(round(rate * change.num_tasks), change.num_tasks) for rate in (change.before, change.after)]
    return rates[0], rates[1], change.points


def _percent(result: EvalResult) -> str:
    return rate_text(result.num_successes, result.num_scored)
