"""The loop of `nat finetune`: evaluate, then play and update for each epoch, evaluate again.

Whatever fails ends the command with code 1 and one sentence: `nat` itself would end with 0 after a failed update. Not
here: the algorithm, checkpoints and the number of steps, which are the server's.
"""

import json
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nat.data_models.finetuning import FinetuneConfig, TrainingJobRef, TrainingJobStatus
from nat.finetuning.interfaces.finetuning_runner import Trainer

from nat_agent_rl.configs import AgentRLTrainerConfig
from nat_agent_rl.held_out import HeldOut, change_text, paired_change
from nat_agent_rl.quiet import quiet_command
from nat_agent_rl.trainer_adapter import AgentRLTrainerAdapter
from nat_agent_rl.trajectory_builder import AgentRLTrajectoryBuilder

METRICS, HELD_OUT = "epochs.jsonl", "held_out.json"
"""In `finetuning.output_dir`: a line per epoch and interim evaluation; the evaluations before and after."""


class AgentRLTrainer(Trainer):
    """Epochs are numbered by the updates that the server has made, so a second command continues behind the first."""

    trajectory_builder: AgentRLTrajectoryBuilder
    trainer_adapter: AgentRLTrainerAdapter

    def __init__(self, config: AgentRLTrainerConfig) -> None:
        super().__init__(config)
        self._run_id = ""
        self._metrics: dict[str, Any] = {}

    async def initialize(self, run_config: FinetuneConfig) -> None:
        quiet_command()
        await super().initialize(run_config)
        self.trajectory_builder.server = self.trainer_adapter.server

    async def run(self, num_epochs: int) -> list[TrainingJobStatus]:
        """Make `num_epochs` updates. Raises FinetuneError with the first thing that makes one impossible."""
        # Unique: after a command that was interrupted, the server still has its episodes. Seeds do not depend on it.
        self._run_id = uuid.uuid4().hex[:12]
        first = (await self.trainer_adapter.server.health())["updates"]
        options = self.run_config.run_configuration
        is_evaluated = (options.validation_dataset or options.validation_config_file) is not None
        before = await self._evaluate("before") if is_evaluated else None
        statuses = []
        for done in range(1, num_epochs + 1):
            epoch, started = first + done - 1, time.monotonic()
            ref = await self.run_epoch(epoch, self._run_id)
            played = time.monotonic()
            status = await self.trainer_adapter.wait_until_complete(ref)
            self.trajectory_builder.are_trained()
            seconds = {"play_s": round(played - started, 3), "update_s": round(time.monotonic() - played, 3)}
            statuses.append(status)
            self._report(epoch, status, seconds)
            if is_evaluated and done < num_epochs and done % options.validation_interval == 0:
                result = await self._evaluate(f"after-epoch-{epoch}")
                self.log_progress(epoch, {"held_out": result.as_json()})
        if before is not None:
            self._compare(before, await self._evaluate("after"))
        return statuses

    async def run_epoch(self, epoch: int, run_id: str) -> TrainingJobRef:
        """Play the epoch and start its update."""
        meta = {"epoch": epoch}
        await self.trajectory_builder.start_run(run_id, meta)
        return await self.trainer_adapter.submit(await self.trajectory_builder.finalize(run_id, meta))

    async def get_metrics(self, run_id: str) -> dict[str, Any]:
        """Those of the last epoch."""
        return self._metrics

    async def cleanup(self) -> None:
        await self.trajectory_builder.close()
        await self.trainer_adapter.close()

    def log_progress(self, epoch: int, metrics: dict[str, Any], output_dir: str | None = None) -> None:
        """Append a line to `epochs.jsonl`."""
        folder = Path(output_dir or self.run_config.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"epoch": epoch, **metrics}) + "\n")

    def _report(self, epoch: int, status: TrainingJobStatus, seconds: dict[str, float]) -> None:
        tally, learned = self.trajectory_builder.tally, status.metadata
        self._metrics = {
            **asdict(tally),
            **seconds,
            "update": learned["update"],
            "weight_version": learned["weight_version"],
            "trainer": learned["metrics"],
        }
        self.log_progress(epoch, self._metrics)
        lost = f"; the first failed as {tally.first_error}" if tally.first_error else ""
        print(
            f"epoch {epoch}: reward {tally.reward:.3f}, {tally.solved} of {tally.episodes} solved, {tally.failed} "
            f"failed, {tally.dropped} dropped, {seconds['play_s']:.1f} s; update {learned['update']}: weights "
            f"{learned['weight_version']}, {seconds['update_s']:.1f} s{lost}",
            flush=True,
        )

    async def _evaluate(self, name: str) -> HeldOut:
        result = await self.trajectory_builder.evaluate(name, self._run_id)
        lost = f", {result.num_failed} failed, the first as {result.first_error}" if result.first_error else ""
        print(f"held out, {name}: success {result.text}, reward {result.reward:.3f}{lost}", flush=True)
        return result

    def _compare(self, before: HeldOut, after: HeldOut) -> None:
        change = paired_change(before, after)
        rows = {row: [was, after.solved.get(row)] for row, was in before.solved.items()}
        table = {"before": before.as_json(), "after": after.as_json(), "change": change, "rows": rows}
        folder = Path(self.run_config.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HELD_OUT).write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        print(f"held out, change: {change_text(change)}; {folder / HELD_OUT}", flush=True)
