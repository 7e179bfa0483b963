"""Communication between the processes of a run: gather, sum, broadcast, wait.

Every function here is collective: all processes call it, in the same order. In a run of one process each is the
identity. A process that died, or does not answer in time, ends the others with one sentence that names what they
waited for. On GPUs too it goes over gloo, through main memory: NCCL would end a process that waits too long by a
signal, would count a wait for a rollout against the limit of gradients, and would queue behind an update's kernels.
Not here: starting processes (a launcher's work), gradients, weights.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from agent_rl.distributed.stopping import StopRequest
from agent_rl.errors import UserError

T = TypeVar("T")

_closed: list[Any] = []
"""Process groups that were closed."""

_GLOO_THREAD = "pt_gloo_runloop"
"""The name that PyTorch gives the threads of a gloo group."""
_IDLE_WAIT_S = 10.0


class ProcessLostError(UserError):
    """Another process of this run ended, or did not answer within the time limit."""


class Processes:
    """The processes of this run, as one of them sees them: `rank` of `num_processes`, working on `device`."""

    def __init__(self, *, device: torch.device, timeout_s: float) -> None:
        """Join the process group if a launcher made one; a process waits `timeout_s` for the others. Collective."""
        self.device = device
        self.timeout_s = timeout_s
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.num_processes = dist.get_world_size() if dist.is_initialized() else 1
        self.stop = StopRequest()
        """Signals that this process got, in a run of several."""
        self._control: dist.ProcessGroup | None = None
        """All processes, over gloo; None: the default group is that, or there is none."""
        if dist.is_initialized() and dist.get_backend() != "gloo":
            self._control = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Around code that communicates: raises ProcessLostError when one of them is lost."""
        try:
            yield
        except RuntimeError as error:
            # Gloo's failures have no class of their own, only the path of its source in the message.
            if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            raise ProcessLostError(
                f"process {self.rank} of {self.num_processes} waited for {what}, but another process ended or did not "
                f"answer within {self.timeout_s:g} s; look for the cause in the output of the others, then continue "
                "with checkpoint.resume=auto"
            ) from None

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self.num_processes > 1:
            with self.waiting_for("all processes to get to the same point"):
                dist.barrier(group=self._control)

    def all_gather_object(self, value: T) -> list[T]:
        """The `value` of every process, by rank; values are pickled."""
        if self.num_processes == 1:
            return [value]
        gathered: list[Any] = [None] * self.num_processes
        with self.waiting_for("a value of every process"):
            dist.all_gather_object(gathered, value, group=self._control)
        return gathered

    def broadcast_object(self, value: T) -> T:
        """The `value` of rank 0, on every process; the values of the others are ignored."""
        if self.num_processes == 1:
            return value
        holder = [value]
        with self.waiting_for("a value of process 0"):
            dist.broadcast_object_list(holder, src=0, group=self._control)
        return holder[0]

    def sum(self, value: float) -> float:
        """The sum over all processes, in float64, the same bits on each."""
        if self.num_processes == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64)
        with self.waiting_for("a sum over all processes"):
            dist.all_reduce(total, group=self._control)
        return float(total)

    def stopping_together(self) -> AbstractContextManager[None]:
        """Around a run: signals are noted where there are several processes, and as they were where there is one."""
        return self.stop.watching() if self.num_processes > 1 else nullcontext()

    def leave_if_stopped(self) -> None:
        """Raise AgreedInterrupt on every process once one of them has noted a signal to stop."""
        if self.sum(float(self.stop.is_noted)) > 0.0:
            self.stop.leave()

    def on_main(self, function: Callable[[], T]) -> T:
        """Call `function` on rank 0 only; every process returns its result, or raises its UserError."""
        result, error = None, None
        if self.is_main_process:
            try:
                result = function()
            except UserError as caught:
                error = caught
        result, error = self.broadcast_object((result, error))
        if error is not None:
            error.is_everywhere = True
            raise error
        return result

    def close(self) -> None:
        """End the process group; call it last, on every process, and not after a ProcessLostError."""
        if dist.is_initialized():
            # Without it one process can still be sending when the other is gone, and aborts at exit.
            self.barrier()
            # Freed later, the group would join its threads with the interpreter's lock held, which they may want.
            _closed.extend((dist.group.WORLD, self._control))
            dist.destroy_process_group()
            _wait_for_idle_threads()


def _wait_for_idle_threads() -> None:
    """Wait until gloo's threads are done with their last collectives, at most 10 s; on Linux only, as it reads /proc.

    To drop a collective's tensors they want the interpreter's lock. Who asks for it while the interpreter ends is ended
    itself, inside C++ that allows no such thing, and takes the whole process with it (SIGABRT).
    """
    deadline = time.monotonic() + _IDLE_WAIT_S
    before = _gloo_threads()
    while before and time.monotonic() < deadline:
        time.sleep(0.002)  # Without the interpreter's lock: a thread that waits for it gets it now.
        after = _gloo_threads()
        if after == before and all(is_asleep for is_asleep, _ in after.values()):
            return
        before = after


def _gloo_threads() -> dict[str, tuple[bool, str]]:
    """Of each thread of a gloo group, whether it sleeps and how often it did so far."""
    threads = {}
    for folder in Path("/proc/self/task").glob("*"):
        try:
            lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # a thread that ended meanwhile
            continue
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        if fields.get("Name") == _GLOO_THREAD:
            threads[folder.name] = (fields["State"].startswith("S"), fields["voluntary_ctxt_switches"])
    return threads
