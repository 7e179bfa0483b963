"""Where a run stands, and how that is saved, restored and gone back to.

Not here: files of a checkpoint (`distributed/checkpoint.py`), when one is due (`trainer_grpo.py`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.config import Config
from agent_rl.core.evaluation import RunEvaluation
from agent_rl.core.interrupts import deferred_interrupt
from agent_rl.core.policy_sync import PolicySync
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checkpoint import (
    MODEL_FOLDER,
    add_score,
    best_checkpoint,
    checkpoints_in,
    get_rng_state,
    latest_checkpoint,
    load_state,
    remove_later_checkpoints,
    replace_state,
    restoring,
    save_checkpoint,
    set_rng_state,
)
from agent_rl.learning.update import PolicyUpdater
from agent_rl.modeling.tensor_files import load_tensors, save_tensors
from agent_rl.policies.model_files.trained_for import TrainedFor
from agent_rl.policies.trained_model import TrainedModel, save_trained
from agent_rl.rollout.rollout import RolloutSource
from agent_rl.telemetry.alarms import Alarms, make_alarms
from agent_rl.telemetry.events import EventLog


@dataclass(slots=True, kw_only=True)
class RunState:
    """What changes while a run trains, beside weights and optimizer."""

    alarms: Alarms
    step: int = 0
    """Steps done."""
    num_rollbacks: int = 0
    rate_factor: float = 1.0
    """Of the learning rate: halved by every return to a checkpoint."""
    saved_step: int | None = None
    """Step of the last checkpoint that this run saved or continues from."""


class RunCheckpoints:
    """Saves and restores the state of a run and all that learns; every process makes the same calls."""

    def __init__(
        self,
        config: Config,
        run: RunFolder,
        state: RunState,
        backend: Backend,
        *,
        model: TrainedModel,
        updater: PolicyUpdater,
        source: RolloutSource,
        evaluation: RunEvaluation,
        events: EventLog,
        trained_for: TrainedFor | None,
    ) -> None:
        """`trained_for`, of the model after this run, is saved beside its weights."""
        self._config = config
        self._run = run
        self._state = state
        self._backend = backend
        self._model = model
        self._updater = updater
        self._source = source
        self._evaluation = evaluation
        self._events = events
        self._trained_for = trained_for

    def save(self) -> None:
        """Save everything needed to continue from the last whole step, unless that was done."""
        state = self._state
        if state.saved_step == state.step:
            return
        saved = self._state_dict()
        with deferred_interrupt():
            path = save_checkpoint(
                self._run.checkpoints,
                state.step,
                write_model=self._write_model,
                write_rank=self._write_rank,
                state=saved,
                keep=self._config.checkpoint.keep,
                score=self._score(),
                processes=self._backend,
            )
            state.saved_step = state.step
            self._events.write("checkpoint", state.step, folder=path)

    def add_score(self) -> None:
        """Give the checkpoint of this step its score, where it was saved before its evaluation was over, at Ctrl-C."""
        state, score = self._state, self._score()
        if score is not None and state.saved_step == state.step:
            add_score(self._run.checkpoints, state.step, score, self._backend)

    def _score(self) -> float | None:
        return self._evaluation.score(self._state.step) if self._config.checkpoint.keep_best else None

    def _state_dict(self) -> dict[str, Any]:
        """What is the same on every process, beside the weights and the optimizer."""
        state = self._state
        return {
            "step": state.step,
            "updater": self._updater.state_dict(),
            "source": self._source.state_dict(),
            "alarms": state.alarms.state_dict(),
            "num_rollbacks": state.num_rollbacks,
            "rate_factor": state.rate_factor,
            "evals": self._evaluation.state_dict(),
        }

    def _write_model(self, folder: Path) -> None:
        save_trained(self._model, self._updater.policy_module, self._backend, folder)
        if self._trained_for is not None and self._backend.is_main_process:
            self._trained_for.save(folder)

    def _write_rank(self, folder: Path) -> dict[Path, str]:
        path = folder / _rng_file(self._backend.rank)
        return self._updater.save_state(folder) | {path: save_tensors(get_rng_state(), path)}

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint; the policy was already loaded from there."""
        saved, state = load_state(path, self._backend), self._state
        with restoring(path):
            self._load_learned(path, saved)
            self._source.load_state_dict(saved["source"])
            state.alarms.load_state_dict(saved["alarms"])
            state.num_rollbacks, state.rate_factor = int(saved["num_rollbacks"]), float(saved["rate_factor"])
            rank = self._backend.rank
            set_rng_state(saved["rng"][rank] if "rng" in saved else load_tensors(path / _rng_file(rank)))
        # One of them, or what is one of them, may be a link to another disk.
        if any(path.samefile(own) for own in checkpoints_in(self._run.checkpoints) if own.exists()):
            state.saved_step = state.step
            self._evaluation.read_later(state.step)

    def _load_learned(self, path: Path, saved: dict[str, Any]) -> None:
        """What learning made: optimizer, evaluations; the policy's own weights are there already."""
        self._state.step = int(saved["step"])
        self._updater.load_state_dict(saved["updater"])
        self._updater.load_state(path)
        self._evaluation.load_state_dict(saved["evals"])

    def roll_back(self, sync: PolicySync, output: RunOutput) -> None:
        """Go back to the best checkpoint and on from there, with half the learning rate and the tasks that come next.

        The checkpoint gets the state from which the run goes on, so that a run that stops there does not forget it.
        Without any checkpoint only the learning rate changes. `sync` sends the weights to the sampler.
        """
        with deferred_interrupt():  # else Ctrl-C would save what is half gone back
            self._roll_back(sync, output)

    def _roll_back(self, sync: PolicySync, output: RunOutput) -> None:
        state = self._state
        state.num_rollbacks += 1
        state.rate_factor /= 2.0
        folder = self._run.checkpoints
        path = best_checkpoint(folder) or latest_checkpoint(folder)
        saved = load_state(path, self._backend) if path else {"step": state.step}
        facts = {"to_step": saved["step"], "checkpoint": path, "rate_factor": state.rate_factor}
        self._events.write("rollback", state.step, **facts)
        if path is None:
            output.message("there is no checkpoint to go back to; continuing with half the learning rate")
            return
        self._source.rewind(saved["step"])
        self._backend.on_main(lambda: (remove_later_checkpoints(path), self._run.remove_later(saved["step"])))
        if self._backend.kind != "deepspeed":  # whose state holds the weights too
            self._model.load_weights(path / MODEL_FOLDER)
        self._load_learned(path, saved)
        self._evaluation.read_later(state.step)
        sync.sync_weights(state.step)
        state.alarms = make_alarms(self._config.log.alarms)
        generators = self._backend.all_gather_object(get_rng_state())
        replace_state(path, self._state_dict() | {"rng": generators}, self._backend)
        state.saved_step = state.step
        output.rewind(state.step)
        output.message(f"back to step {state.step}, from there with half the learning rate")


def _rng_file(rank: int) -> str:
    return f"rng_{rank:05d}.pt"
