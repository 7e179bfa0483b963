"""How a run ends: finished, stopped, interrupted or failed; what it saves, tells and writes then.

Not here: the loop (`trainer_grpo.py`), checkpoints themselves.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from agent_rl.core.run.state import RunState
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.run_output import RunOutput
from agent_rl.distributed.stopping import AgreedInterrupt
from agent_rl.errors import (
    AgentRLError,
    DataError,
    EpisodesFailedError,
    SandboxError,
    TrainingStoppedError,
    UserError,
)
from agent_rl.telemetry.events import EventLog

_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


@contextmanager
def disk_refusals_as_user_errors() -> Iterator[None]:
    """Around a run: DataError, one sentence, where the disk refuses a file and nobody has said so before."""
    try:
        yield
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        raise DataError(
            f"{error.filename or 'a file of the run'}: cannot be written ({error.strerror}); make room, then continue "
            "with checkpoint.resume=auto"
        ) from error


@contextmanager
def suppressed_errors(name: str, report: Callable[[str], None]) -> Iterator[None]:
    """Around a user's code that is called while something else ends the run: its error is a message to `report`."""
    try:
        yield
    except Exception as error:
        report(f"{name} raised {type(error).__name__}: {error}; the run ends for another reason")


class RunEnding:
    """`with ending.watch(output): ...` around the loop of a run; every process does the same."""

    def __init__(
        self,
        run: RunFolder,
        events: EventLog,
        state: RunState,
        *,
        num_processes: int,
        save: Callable[[], None],
    ) -> None:
        """`save` saves a checkpoint of the last whole step; `state` tells where the run stands."""
        self._run = run
        self._events = events
        self._num_processes = num_processes
        self._save = save
        self._state = state

    @contextmanager
    def watch(self, output: RunOutput) -> Iterator[None]:
        """Write how the block ended, and save the last whole step where the episodes, or Ctrl-C, ended it."""
        try:
            yield
            output.finished()
            self._events.write("end", self._state.step, reason="finished")
            output.notify("finished", self._state.step, f"finished after step {self._state.step}")
        except KeyboardInterrupt as error:
            self._interrupted(output, is_alike=self._num_processes == 1 or isinstance(error, AgreedInterrupt))
            raise
        except Exception as error:
            if isinstance(error, AgentRLError) and error.failed_calls:
                self._save_before(error, output)
            reason = "stopped" if isinstance(error, TrainingStoppedError) else "failed"
            with suppress(DataError):  # of a full disk, which may be the error itself
                self._events.write("end", self._state.step, reason=reason, error=f"{type(error).__name__}: {error}")
            output.notify(reason, self._state.step, f"{reason} after step {self._state.step}: {error}")
            raise

    def _interrupted(self, output: RunOutput, *, is_alike: bool) -> None:
        """Where not all processes are at the same place, the last checkpoint that was saved counts."""
        if is_alike:
            self._save()
        step, saved_step = self._state.step, self._state.saved_step
        saved = "no checkpoint yet" if saved_step is None else f"that of step {saved_step}"
        output.message(
            f"Interrupted after step {step}; checkpoint saved in {self._run.checkpoints}: {saved}; continue with "
            "checkpoint.resume=auto"
        )
        self._events.write("interrupt", step, checkpoint_step=saved_step)
        output.notify("interrupted", step, f"interrupted after step {step}")

    def _save_before(self, error: AgentRLError, output: RunOutput) -> None:
        """Episodes ended the run: what was learned before is saved, what was raised is written.

        Of several processes all have to save, so they do where all raise alike.
        """
        step = self._state.step
        output.all_failed(step, error.failed_calls)
        is_alike = self._num_processes == 1 or isinstance(error, EpisodesFailedError | SandboxError)
        if not step or self._state.saved_step == step or not is_alike:
            return
        try:
            self._save()
        except UserError as refusal:  # the episodes' error is the one that matters
            output.message(str(refusal))
            return
        output.message(
            f"The checkpoint of step {step} is saved in {self._run.checkpoints}; once the cause is fixed, continue "
            "with checkpoint.resume=auto"
        )
