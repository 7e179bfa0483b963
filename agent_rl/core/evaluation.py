"""Evaluation: one episode or more of each held-out task, counted with 95 % intervals; and when a run evaluates.

Evaluations of one run sample with the same seeds, so they differ by the weights alone. An episode is a success when its
`success` part is 1. Not here: what an episode is worth, tables and pages of a separate evaluation
(`reports/evaluation.py`).
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from agent_rl.config import Config
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput
from agent_rl.data.tasks import Task, read_tasks
from agent_rl.distributed.processes import Processes
from agent_rl.envs.opening import open_environment
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Trajectory, TrajectoryGroup
from agent_rl.rollout.rollout import (
    DistributedRollout,
    RolloutRequest,
    RolloutWorker,
    make_worker,
    require_scored,
)
from agent_rl.telemetry.events import EventLog
from agent_rl.telemetry.files import write_json
from agent_rl.telemetry.statistics import PairedChange, is_success, paired_change, rate_text, wilson_interval
from agent_rl.telemetry.trajectory_json import evaluated_record, task_digest

EVAL_SEED_STEP = -1
"""Takes the place of the step in the seeds: the same for every evaluation, and no training step's."""
MIN_EPISODES_PER_CHUNK = 32
"""A chunk ends with its slowest episode, so it holds many; a stopped evaluation repeats at most one chunk."""
Record = dict[str, Any]
"""An evaluated record (`telemetry/trajectory_json.py`) with the number of its sample."""


# One evaluation


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
    """Over scored episodes, like the parts."""
    mean_reward_parts: dict[str, float]
    stop_reasons: dict[str, int]
    """Episodes by `StopReason`, unscored ones included."""
    num_env_errors: int
    mean_tokens: float
    """Generated tokens per episode."""
    solved: dict[str, bool] = field(default_factory=dict)
    """Scored tasks, by id and digest of the row; empty in checkpoints of earlier versions."""

    @property
    def success_rate(self) -> float:
        return self.num_successes / self.num_scored


def evaluate(
    rollout: RolloutWorker | DistributedRollout, tasks: Sequence[Task], *, temperature: float, step: int
) -> tuple[EvalResult, list[Trajectory]]:
    """Run one episode per task; the result, and the episodes in task order."""
    request = RolloutRequest(tasks=tasks, group_size=1, step=EVAL_SEED_STEP, temperature=temperature)
    groups = rollout.collect(request)
    episodes = [group.trajectories[0] for group in groups]
    return summarize(episodes, tasks, temperature=temperature, step=step), episodes


def evaluate_policy(
    config: Config, policy: BasePolicy, *, temperature: float = 0.0
) -> tuple[EvalResult, list[Trajectory]]:
    """Evaluate any policy, one made by hand too, on the held-out tasks of a configuration, as a run does.

    `env`, `tools`, `data.eval_path`, `data.max_eval_tasks`, `rollout`, `policy.max_new_tokens` and `run.seed` are read.
    Everything happens in this process, nothing is written, and the policy stays open. `step` of the result is 0.
    Raises UserError for anything the user can fix, SandboxError when no episode could be scored.
    """
    with open_environment(config) as factory:
        tasks = read_tasks(config.data.eval_path, factory.check_task)[: config.data.max_eval_tasks]
        factory.start()
        return evaluate(make_worker(config, policy, factory), tasks, temperature=temperature, step=0)


def summarize(episodes: Sequence[Trajectory], tasks: Sequence[Task], *, temperature: float, step: int) -> EvalResult:
    """Count the outcomes of `episodes`, one of each of `tasks`; at least one of them must be scored."""
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
    """The result and one row per task, as plain JSON values; `tasks` are those of the episodes, in order."""
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


# A long evaluation


def tasks_per_chunk(num_workers: int, samples: int) -> int:
    """Tasks of a chunk: as many as fill all workers once, or so often that it holds `MIN_EPISODES_PER_CHUNK`."""
    workers = max(1, num_workers)
    return max(1, workers * -(-MIN_EPISODES_PER_CHUNK // workers) // samples)


def run_in_chunks(
    rollout: RolloutWorker,
    tasks: Sequence[Task],
    done: Sequence[Record],
    *,
    samples: int,
    temperature: float,
    chunk: int,
    save: Callable[[Sequence[Record]], None],
    report: Callable[[str], None],
) -> list[Record]:
    """Run `samples` episodes of every task that is not among the records `done`; all records, in task order.

    `save` gets the records of each `chunk` tasks once they ended, `report` a line of progress. SandboxError, before the
    chunk is saved, when none of its episodes could be scored; a single task, or fewer than a chunk, may fail once
    others were scored.
    """
    records = list(done)
    finished = {record["task_id"] for record in done}
    open_positions = [position for position, task in enumerate(tasks) if task["task_id"] not in finished]
    if finished:
        report(f"{len(finished)} of {len(tasks)} tasks were evaluated before; continuing with {len(open_positions)}")
    started, num_open = time.monotonic(), len(open_positions)
    for first in range(0, num_open, chunk):
        positions = open_positions[first : first + chunk]
        chosen = [tasks[position] for position in positions]
        request = RolloutRequest(
            tasks=chosen, group_size=samples, step=EVAL_SEED_STEP, temperature=temperature, positions=positions
        )
        groups = rollout.roll_out(request)
        if 1 < len(chosen) == chunk or all(record["reward"] is None for record in records):
            require_scored(groups)
        new = _records(groups, chosen)
        save(new)
        records += new
        report(_progress(records, len(tasks), samples, time.monotonic() - started, first + len(chosen), num_open))
    place = {task["task_id"]: position for position, task in enumerate(tasks)}
    return sorted(records, key=lambda record: (place[record["task_id"]], record["sample"]))


def _records(groups: Sequence[TrajectoryGroup], tasks: Sequence[Task]) -> list[Record]:
    return [
        {"sample": sample, **evaluated_record(episode, task)}
        for group, task in zip(groups, tasks, strict=True)
        for sample, episode in enumerate(group.trajectories)
    ]


def _progress(
    records: Sequence[Record], num_tasks: int, samples: int, seconds: float, num_now: int, num_open: int
) -> str:
    scored = [record for record in records if record["reward"] is not None]
    solved = sum(is_success(record["reward_parts"]) for record in scored)
    rate = num_now * samples / seconds
    left = (num_open - num_now) * seconds / num_now
    share = f"{100 * solved / len(scored):5.1f} % solved" if scored else "nothing scored"
    lost = f", {len(records) - len(scored)} not scored" if len(scored) < len(records) else ""
    minutes, rest = divmod(round(left), 60)
    counted = f"{len(records) // samples:5} of {num_tasks} tasks  {share}{lost}"
    return f"{counted}  {rate:.1f} episodes/s  {minutes}:{rest:02} left"


# Before and after


def comparison_table(before: Mapping[float, EvalResult], after: Mapping[float, EvalResult]) -> Table:
    """Before against after, two rows per temperature, narrow enough for 80 columns; brackets are 95 % intervals.

    Success is over the tasks that were scored both times, if these are known.
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


# The evaluations of a run


class RunEvaluation:
    """Evaluates the held-out tasks at every temperature of the configuration; every process makes the same calls."""

    def __init__(
        self, config: Config, tasks: Sequence[Task], rollout: DistributedRollout, run: RunFolder, processes: Processes
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._run = run
        self._processes = processes
        self._results: list[EvalResult] = []

    def evaluate(self, step: int, temperature: float) -> EvalResult:
        """Run one episode of every held-out task at `temperature` (0 is greedy) and write `eval/step_*_t*.json`."""
        result, episodes = evaluate(self._rollout, self._tasks, temperature=temperature, step=step)
        path = self._run.eval_file(step, temperature)
        self._processes.on_main(lambda: write_json(path, to_record(result, episodes, self._tasks)))
        self._results.append(result)
        return result

    def due(self, step: int) -> list[float]:
        """Temperatures at which this step has to be evaluated and was not yet."""
        every, is_last = self._config.eval.every, step >= self._config.train.steps
        if not self._tasks or not (step == 0 or is_last or (every > 0 and step % every == 0)):
            return []
        return [temperature for temperature in self._config.eval.temperatures if self.at(step, temperature) is None]

    def run(self, step: int, temperature: float, output: RunOutput, events: EventLog) -> None:
        """Evaluate, log the metrics and print a line."""
        started = time.perf_counter()
        result = self.evaluate(step, temperature)
        seconds = time.perf_counter() - started
        output.write(step, eval_metrics(result) | {"time/eval_s": seconds})
        output.message(one_line(result))
        counts = {name: getattr(result, name) for name in ("num_scored", "num_successes", "mean_reward")}
        events.write("evaluation", step, temperature=temperature, **counts, seconds=seconds)

    def at(self, step: int, temperature: float) -> EvalResult | None:
        """The result at a step, if there is one."""
        return next((e for e in self._results if (e.step, e.temperature) == (step, temperature)), None)

    def score(self, step: int) -> float | None:
        """Success of the evaluation at a step, at the first temperature."""
        temperatures = self._config.eval.temperatures
        result = self.at(step, temperatures[0]) if temperatures else None
        return None if result is None else result.success_rate

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(result) for result in self._results]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        self._results = [EvalResult(**result) for result in state]

    def read_later(self, step: int) -> None:
        """Read evaluations that were made after the checkpoint of a step, as before Ctrl-C, from the run's folder."""
        for temperature in self._config.eval.temperatures:
            path = self._run.eval_file(step, temperature)
            if path.exists() and self.at(step, temperature) is None:
                self._results.append(EvalResult(**json.loads(path.read_text(encoding="utf-8"))["result"]))

    def report(self, step: int) -> dict[str, Any]:
        """Print the table of before and after, and return it."""
        before, after = {}, {}
        for temperature in self._config.eval.temperatures:
            first, last = self.at(0, temperature), self.at(step, temperature)
            if first is not None and last is not None:
                before[temperature], after[temperature] = first, last
        console = Console(quiet=not self._processes.is_main_process)
        if after:
            console.print(comparison_table(before, after))
            for temperature, result in after.items():
                console.print(verdict(before[temperature], result), highlight=False, markup=False)
        console.print(f"Run folder: {self._run.path}", highlight=False, markup=False, soft_wrap=True)
        return {"step": step, "run_folder": self._run.path, "before": before, "after": after}
