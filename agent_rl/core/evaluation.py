"""Evaluation: one episode or more of each held-out task; and when a run evaluates.

Evaluations of one run sample with the same seeds, so they differ by the weights alone. Not here: what an episode is
worth, counting (`run/eval_result.py`), tables and pages of a separate evaluation (`reports/evaluation.py`).
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from agent_rl.config import Config
from agent_rl.core.run.eval_result import (
    EvalResult,
    comparison_table,
    eval_metrics,
    one_line,
    summarize,
    to_record,
    verdict,
)
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput
from agent_rl.data.tasks import Task, as_tasks
from agent_rl.distributed.processes import Processes
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.envs.opening import open_environment
from agent_rl.failures import FailedCall
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Trajectory, TrajectoryGroup
from agent_rl.rollout.rollout import (
    DistributedRollout,
    RolloutRequest,
    RolloutWorker,
    make_worker,
    require_scored,
)
from agent_rl.rollout.window import check_room
from agent_rl.telemetry.events import EventLog
from agent_rl.telemetry.files import write_json
from agent_rl.telemetry.run_log import RunLog
from agent_rl.telemetry.statistics import is_success
from agent_rl.telemetry.trajectory_json import evaluated_record

EVAL_SEED_STEP = -1
"""Takes the place of the step in the seeds: the same for every evaluation, and no training step's."""
MIN_EPISODES_PER_CHUNK = 32
"""A chunk ends with its slowest episode, so it holds many; a stopped evaluation repeats at most one chunk."""
Record = dict[str, Any]
"""An evaluated record (`telemetry/trajectory_json.py`) with the number of its sample."""


# One evaluation


def evaluate(
    rollout: RolloutWorker | DistributedRollout, tasks: Sequence[Task], *, temperature: float, step: int
) -> tuple[EvalResult, list[Trajectory]]:
    """Run one episode per task; the result, and the episodes in task order."""
    request = RolloutRequest(tasks=tasks, group_size=1, step=EVAL_SEED_STEP, temperature=temperature)
    groups = rollout.collect(request)
    episodes = [group.trajectories[0] for group in groups]
    return summarize(episodes, tasks, temperature=temperature, step=step), episodes


def evaluate_policy(
    config: Config,
    policy: BasePolicy,
    *,
    temperature: float = 0.0,
    env_factory: EnvFactory | Callable[[], AgentEnv] | None = None,
    tasks: Any = None,
) -> tuple[EvalResult, list[Trajectory]]:
    """Evaluate any policy, one made by hand too, on the held-out tasks of a configuration, as a run does.

    `env_factory` and `tasks`, rows as in `GRPOTrainer.from_config`, take the place of the configuration's.

    `env`, `tools`, `data`, `rollout`, `policy.max_new_tokens` and `run.seed` are read. Everything happens in this
    process, nothing is written, and the policy stays open. `step` of the result is 0.
    Raises UserError for anything the user can fix; errors of `require_scored` when no episode could be scored.
    """
    with open_environment(config, env_factory) as factory:
        if tasks is None:
            held_out = factory.read_tasks(config.data, "eval")
        else:
            held_out = as_tasks(tasks, "tasks", factory.check_task, columns=config.data.columns)
        factory.start()
        chosen = held_out[: config.data.max_eval_tasks]
        return evaluate(make_worker(config, policy, factory), chosen, temperature=temperature, step=0)


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
    policy: BasePolicy,
    samples: int,
    temperature: float,
    chunk: int,
    save: Callable[[Sequence[Record]], None],
    failed: Callable[[Sequence[FailedCall]], None],
    report: Callable[[str], None],
) -> list[Record]:
    """Run `samples` episodes of every task that is not among the records `done`; all records, in task order.

    `save` gets the records of each `chunk` tasks once they ended, `failed` what code of the user raised in them,
    `report` a line of progress. Errors of `require_scored`, before the chunk is saved, when none of its episodes could
    be scored; a single task, or fewer than a chunk, may fail once others were scored. ConfigError when none of the
    first chunk's prompts leaves room for a reply in the window of `policy`, which plays them.
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
        failed([failure for group in groups for episode in group.trajectories for failure in episode.failures])
        if 1 < len(chosen) == chunk or all(record["reward"] is None for record in records):
            require_scored(groups)
        if not records:
            check_room(groups, policy, "the first tasks")
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
        return self._evaluate(step, temperature)[0]

    def _evaluate(self, step: int, temperature: float) -> tuple[EvalResult, list[Trajectory]]:
        result, episodes = evaluate(self._rollout, self._tasks, temperature=temperature, step=step)
        path = self._run.eval_file(step, temperature)
        self._processes.on_main(lambda: write_json(path, to_record(result, episodes, self._tasks)))
        self._results.append(result)
        return result, episodes

    def due(self, step: int) -> list[float]:
        """Temperatures at which this step has to be evaluated and was not yet."""
        every, is_last = self._config.eval.every, step >= self._config.train.steps
        is_wanted = self._config.eval.before_training if step == 0 else is_last or (every > 0 and step % every == 0)
        if not self._tasks or not is_wanted:
            return []
        return [temperature for temperature in self._config.eval.temperatures if self.at(step, temperature) is None]

    def num_left(self, step: int) -> int:
        """Evaluations from this step on, its own included, if it was not evaluated yet."""
        last, every = self._config.train.steps, self._config.eval.every
        if not self._tasks:
            return 0
        num_between = (last - 1) // every - step // every if every and step < last else 0
        steps_left = num_between + (step < last)
        return steps_left * len(self._config.eval.temperatures) + len(self.due(step))

    def run(self, step: int, temperature: float, output: RunOutput, events: EventLog) -> EvalResult:
        """Evaluate, log the metrics and print a line."""
        output.activity(f"evaluation at temperature {temperature:g}")
        started = time.perf_counter()
        result, episodes = self._evaluate(step, temperature)
        seconds = time.perf_counter() - started
        output.evaluated(seconds)
        output.write(step, eval_metrics(result) | {"time/eval_s": seconds})
        output.message(one_line(result))
        output.episodes(step, episodes)
        counts = {name: getattr(result, name) for name in ("num_scored", "num_successes", "mean_reward")}
        events.write("evaluation", step, temperature=temperature, **counts, seconds=seconds)
        return result

    def at(self, step: int, temperature: float) -> EvalResult | None:
        """The result at a step, if there is one."""
        return next((e for e in self._results if (e.step, e.temperature) == (step, temperature)), None)

    def score(self, step: int) -> float | None:
        """Success of the evaluation at a step, at the first temperature."""
        temperatures = self._config.eval.temperatures
        result = self.at(step, temperatures[0]) if temperatures else None
        return None if result is None else result.success_rate

    def is_reached(self, step: int) -> bool:
        """Whether the run ends here, before its last step, as `eval.stop_at` was solved."""
        wanted, score = self._config.eval.stop_at, self.score(step)
        return wanted is not None and score is not None and score >= wanted

    def state_dict(self) -> list[dict[str, Any]]:
        return [asdict(result) for result in self._results]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        self._results = [EvalResult.from_dict(result) for result in state]

    def read_later(self, step: int) -> None:
        """Read evaluations that were made after the checkpoint of a step, as before Ctrl-C, from the run's folder."""
        for temperature in self._config.eval.temperatures:
            path = self._run.eval_file(step, temperature)
            if path.exists() and self.at(step, temperature) is None:
                self._results.append(EvalResult.from_dict(json.loads(path.read_text(encoding="utf-8"))["result"]))

    def report(self, step: int) -> dict[str, Any]:
        """Print the table of before and after, and return it."""
        before, after = {}, {}
        for temperature in self._config.eval.temperatures:
            last = self.at(step, temperature)
            earlier = [each for each in self._results if each.temperature == temperature and each.step < step]
            if last is not None and earlier:
                before[temperature], after[temperature] = min(earlier, key=lambda each: each.step), last
        console = Console(quiet=not self._processes.is_main_process, record=True)
        if after:
            console.print(comparison_table(before, after))
            for temperature, result in after.items():
                console.print(verdict(before[temperature], result), highlight=False, markup=False)
        console.print(f"Run folder: {self._run.path}", highlight=False, markup=False, soft_wrap=True)
        if self._processes.is_main_process:
            log = RunLog(self._run.path)
            for line in console.export_text().splitlines():
                log.write(line.rstrip())
        return {"step": step, "run_folder": self._run.path, "before": before, "after": after}
