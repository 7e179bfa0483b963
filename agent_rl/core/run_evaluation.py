"""The evaluations of a run: when they are due, their files, and the table of before and after.

Not here: playing and counting (`evaluation.py`), the loop.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from agent_rl.config import Config
from agent_rl.core.evaluation import (
    EvalResult,
    comparison_table,
    eval_metrics,
    evaluate,
    one_line,
    to_record,
    verdict,
)
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput
from agent_rl.data.tasks import Task
from agent_rl.distributed.processes import Processes
from agent_rl.rollout.workers import SpreadRollout
from agent_rl.telemetry.events import EventLog
from agent_rl.telemetry.files import write_json


class RunEvaluation:
    """Plays the held-out tasks at every temperature of the configuration; every process calls it alike."""

    def __init__(
        self, config: Config, tasks: Sequence[Task], rollout: SpreadRollout, run: RunFolder, processes: Processes
    ) -> None:
        self._config = config
        self._tasks = tasks
        self._rollout = rollout
        self._run = run
        self._processes = processes
        self._results: list[EvalResult] = []

    def evaluate(self, step: int, temperature: float) -> EvalResult:
        """Play every held-out task once at `temperature` (0 is greedy) and write `eval/step_*_t*.json`."""
        result, episodes = evaluate(self._rollout, self._tasks, temperature=temperature, step=step)
        path = self._run.eval_file(step, temperature)
        self._processes.on_main(lambda: write_json(path, to_record(result, episodes, self._tasks)))
        self._results.append(result)
        return result

    def due(self, step: int) -> list[float]:
        """Temperatures at which this step is to be evaluated and was not yet."""
        every, is_last = self._config.eval.every, step >= self._config.train.steps
        if not self._tasks or not (step == 0 or is_last or (every > 0 and step % every == 0)):
            return []
        return [temperature for temperature in self._config.eval.temperatures if self.at(step, temperature) is None]

    def run(self, step: int, temperature: float, output: RunOutput, events: EventLog) -> None:
        """Evaluate, and write and show the result."""
        started = time.perf_counter()
        result = self.evaluate(step, temperature)
        seconds = time.perf_counter() - started
        output.write(step, eval_metrics(result) | {"time/eval_s": seconds})
        output.message(one_line(result))
        counted = {name: getattr(result, name) for name in ("num_scored", "num_successes", "mean_reward")}
        events.write("evaluation", step, temperature=temperature, **counted, seconds=seconds)

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
        """Evaluations that were made after the checkpoint was saved, as after Ctrl-C, are in the run's folder."""
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
