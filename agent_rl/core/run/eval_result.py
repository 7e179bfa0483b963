"""The result of one evaluation, counted with 95 % intervals, and two of them compared.

An episode is a success when its `success` part is 1. Not here: running the episodes, when that is done
(`core/evaluation.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from agent_rl.data.tasks import Task
from agent_rl.records import Trajectory
from agent_rl.telemetry.statistics import PairedChange, is_success, paired_change, rate_text, wilson_interval
from agent_rl.telemetry.trajectory_json import evaluated_record, task_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """The counts of one evaluation: 3 of 4 tasks solved is `num_successes=3, num_scored=4`."""

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
    """Over scored episodes, like the parts; a part in a mixture over those of the environments that report it."""
    mean_reward_parts: dict[str, float]
    stop_reasons: dict[str, int]
    """Episodes by `StopReason`, unscored ones included."""
    num_env_errors: int
    mean_tokens: float
    """Generated tokens per episode."""
    solved: dict[str, bool] = field(default_factory=dict)
    """Scored tasks, by id and digest of the row; empty in checkpoints of earlier versions."""
    by_env: dict[str, "EvalResult"] = field(default_factory=dict)
    """The same of each environment of a mixture, those without a scored episode left out; else empty."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "EvalResult":
        """Of what `asdict` gave, or JSON of it."""
        by_env = {name: cls.from_dict(result) for name, result in raw.get("by_env", {}).items()}
        return cls(**{**raw, "by_env": by_env})

    @property
    def success_rate(self) -> float:
        return self.num_successes / self.num_scored


def summarize(episodes: Sequence[Trajectory], tasks: Sequence[Task], *, temperature: float, step: int) -> EvalResult:
    """Count the outcomes of `episodes`, one of each of `tasks`; at least one of them must be scored."""
    by_env: dict[str, list[tuple[Trajectory, Task]]] = {}
    for episode, task in zip(episodes, tasks, strict=True):
        if episode.env:
            by_env.setdefault(episode.env, []).append((episode, task))
    counted = {
        name: _count(*zip(*pairs, strict=True), temperature=temperature, step=step)
        for name, pairs in by_env.items()
        if any(episode.reward is not None for episode, _ in pairs)
    }
    return replace(_count(episodes, tasks, temperature=temperature, step=step), by_env=counted)


def _count(episodes: Sequence[Trajectory], tasks: Sequence[Task], *, temperature: float, step: int) -> EvalResult:
    scored = [(episode.reward, episode) for episode in episodes if episode.reward is not None]
    num_successes = sum(is_success(episode.reward_parts) for _, episode in scored)
    low, high = wilson_interval(num_successes, len(scored))
    reporting: dict[str, set[str | None]] = {}
    for _, episode in scored:
        for name in episode.reward_parts:
            reporting.setdefault(name, set()).add(episode.env)
    return EvalResult(
        step=step,
        temperature=temperature,
        num_scored=len(scored),
        num_successes=num_successes,
        success_low=low,
        success_high=high,
        mean_reward=fmean(reward for reward, _ in scored),
        mean_reward_parts={
            name: fmean(e.reward_parts.get(name, 0.0) for _, e in scored if e.env in envs)
            for name, envs in sorted(reporting.items())
        },
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
    """The result and one row per task, as plain JSON values; `tasks` are those of the episodes, in order."""
    rows = [evaluated_record(episode, task) for episode, task in zip(episodes, tasks, strict=True)]
    return {"result": asdict(result), "episodes": rows}


def eval_metrics(result: EvalResult) -> dict[str, float]:
    """The result as entries of the metrics file, those of an environment of a mixture below `env/NAME`."""
    prefix = f"eval/t{result.temperature:g}"
    metrics = {
        f"{prefix}/success": result.success_rate,
        f"{prefix}/success_low": result.success_low,
        f"{prefix}/success_high": result.success_high,
        f"{prefix}/reward": result.mean_reward,
        f"{prefix}/num_scored": float(result.num_scored),
        f"{prefix}/num_env_errors": float(result.num_env_errors),
    }
    for name, of_env in result.by_env.items():
        metrics |= {f"env/{name}/{key}": value for key, value in eval_metrics(of_env).items()}
    return metrics


def one_line(result: EvalResult) -> str:
    """The result in one line for a terminal."""
    text = (
        f"eval at step {result.step}, temperature {result.temperature:g}: "
        f"{result.num_successes}/{result.num_scored} solved, {_percent(result)} %, mean reward {result.mean_reward:.3f}"
    )
    if result.by_env:
        text += "".join(f", {name} {each.num_successes}/{each.num_scored}" for name, each in result.by_env.items())
    return f"{text}, {result.num_env_errors} dropped by environment errors" if result.num_env_errors else text


# Two of them


def comparison_table(before: Mapping[float, EvalResult], after: Mapping[float, EvalResult]) -> Table:
    """Before against after, two rows per temperature and environment, narrow enough for 80 columns.

    Brackets are 95 % intervals. Success is over the tasks that were scored both times, if these are known.
    """
    table = Table(title="Held-out tasks (95 % intervals, the change paired)", box=SIMPLE, title_justify="left")
    steps = [max((result.step for result in each.values()), default=0) for each in (before, after)]
    table.add_column("")
    for column in (*(f"after {n} step{'' if n == 1 else 's'}" if n else "before" for n in steps), "change"):
        table.add_column(column, justify="right", no_wrap=True)
    for temperature, result in after.items():
        first = before[temperature]
        both = {name: (first.by_env[name], each) for name, each in result.by_env.items() if name in first.by_env}
        for name, pair in {"": (first, result), **both}.items():
            _add_rows(table, *pair, name)
    return table


def _add_rows(table: Table, first: EvalResult, result: EvalResult, name: str) -> None:
    solved, reward = (
        f"{name}, {what}" if name else f"{what}, T={result.temperature:g}" for what in ("solved %", "reward")
    )
    change = change_of(first, result)
    rates = _percent(first), _percent(result), f"{100 * (result.success_rate - first.success_rate):+.1f}"
    table.add_row(solved, *(rates if change is None else _paired(change)))
    table.add_row(
        reward,
        f"{first.mean_reward:.3f}",
        f"{result.mean_reward:.3f}",
        f"{result.mean_reward - first.mean_reward:+.3f}",
    )


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
