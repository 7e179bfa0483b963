"""Sends new weights to engines with weights of their own and verifies them: `WeightSync.sync` after every step.

In order: hold new completions, pause, send, drop cached keys and values, resume, let every engine sample after the same
prompt, compare with the trainer's log-probs of these tokens, and only then release the completions: nothing is learned
from weights that were not verified. A difference ends the run with one sentence, on all processes alike.
Not here: gathering (`weight_stream.py`), comparing (`weight_verification.py`), how weights travel (the receiver).
"""

import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.processes import ProcessLostError
from agent_rl.distributed.weight_stream import WeightStream
from agent_rl.distributed.weight_verification import (
    ProbeGapError,
    WeightSyncError,
    check_gap,
    check_probes,
    check_receipts,
)
from agent_rl.errors import AgentRLError, EngineError
from agent_rl.inference.base import Probe, Receipt, WeightReceiver

T = TypeVar("T")
ProbeSample = tuple[tuple[int, ...], tuple[int, ...]]
"""Ids of a prompt, and those sampled after it."""
TrainerLogprobs = Callable[[Sequence[ProbeSample]], list[list[float]]]
"""The trainer's log-probs of the sampled ids at the sampling temperature; collective."""

NUM_PROBE_TOKENS = 16
AGAIN = 2**32
"""What the seed of a second probe has more."""


class WeightSync:
    """`WeightSync(backend, receiver, dtype=torch.bfloat16, probe_ids=ids, temperature=1.0, max_gap=0.5)`.

    Every process makes one and calls the same methods with the same arguments, between two steps: gathering and the
    trainer's log-probs are collective. After an error the engines stay paused.
    """

    def __init__(
        self,
        backend: Backend,
        receiver: WeightReceiver,
        *,
        dtype: torch.dtype,
        probe_ids: Sequence[int],
        temperature: float,
        max_gap: float,
    ) -> None:
        """`dtype` is the engine's, `max_gap` is in nats (`weight_verification.gap_of`).

        `probe_ids` is a prompt that is long enough to be cached (128 tokens on a CPU), with first tokens that no
        episode begins with: tokens sampled between `resume` and the probe would count as cached. Where log-probs are
        too far apart, other tokens sampled after it decide: one may be where rounding matters most.
        """
        self._backend = backend
        self._receiver = receiver
        self._dtype = dtype
        self._probe_ids = tuple(probe_ids)
        self._temperature = temperature
        self._max_gap = max_gap

    def sync(self, module: nn.Module, version: int, *, trainer_logprobs: TrainerLogprobs) -> dict[str, float]:
        """Send the weights of `module`, the model inside the prepared module, as `version`, and verify it.

        Metrics: `sync/total_s` (all of it), `sync/load_s` (gather, send, load), `sync/gather_s` (of it, until
        shards were gathered on process 0), `sync/gigabytes`, `sync/num_buckets`, `sync/probe_gap` (how far the
        log-probs of probe tokens of engine and trainer are apart, in nats).
        Raises WeightSyncError for weights that differ, EngineError when the engine fails; on all processes.
        """
        started = time.perf_counter()
        stream = WeightStream(self._backend, module, dtype=self._dtype)
        self._stop()
        began_loading = time.perf_counter()
        receipts = self.together(lambda: self._load(stream, version))
        load_s = time.perf_counter() - began_loading
        checksums, gather_s = self._backend.broadcast_object((stream.checksums, stream.gather_s))
        gap = self._resume(receipts, checksums, version, trainer_logprobs)
        return {
            "sync/total_s": time.perf_counter() - started,
            "sync/load_s": load_s,
            "sync/gather_s": gather_s,
            "sync/gigabytes": stream.num_bytes / 1e9,
            "sync/num_buckets": stream.num_buckets,
            "sync/probe_gap": gap,
        }

    def sync_adapter(
        self,
        write_adapter: Callable[[Path], None],
        folder: Path,
        version: int,
        *,
        trainer_logprobs: TrainerLogprobs,
    ) -> dict[str, float]:
        """Send a LoRA adapter through `folder/adapter_<version>`, which trainer and engine see, and verify it.

        `write_adapter` is called by every process, because sharded weights are gathered by all, and first of all; only
        process 0 writes.
        The folders of older versions are removed once the new one is verified. Metrics: `sync/total_s`, `sync/load_s`
        (write and load), `sync/gigabytes`, `sync/probe_gap`; errors as in `sync`.
        """
        started = time.perf_counter()
        path = folder / f"adapter_{version}"
        self._stop()
        began_loading = time.perf_counter()
        # Before anything is gathered: a process that cannot write would leave the others waiting in it.
        self.together(lambda: self._make_folder(path, version))
        sent = self.together(lambda: self._write(write_adapter, path, version))
        receipts = self.together(lambda: self._receiver.load_adapter(path, version))
        load_s = time.perf_counter() - began_loading
        ((checksums, num_bytes),) = sent
        gap = self._resume(receipts, checksums, version, trainer_logprobs)
        if self._backend.is_main_process:
            for old in folder.iterdir():
                if re.fullmatch(r"adapter_\d+", old.name) and old != path:
                    shutil.rmtree(old, ignore_errors=True)  # a folder that stays is removed next time
        return {
            "sync/total_s": time.perf_counter() - started,
            "sync/load_s": load_s,
            "sync/gigabytes": num_bytes / 1e9,
            "sync/probe_gap": gap,
        }

    def _load(self, stream: WeightStream, version: int) -> list[Receipt]:
        try:
            return self._receiver.load(stream, version)
        finally:
            # The other processes gather to the end, also if this one's engine failed.
            stream.drain()

    def _stop(self) -> None:
        self.together(self._receiver.hold)
        self._direct(self._receiver.pause)

    def _make_folder(self, path: Path, version: int) -> None:
        if not self._backend.is_main_process:
            return
        try:
            shutil.rmtree(path, ignore_errors=True)  # of a resumed run
            path.mkdir(parents=True)
        except OSError as error:
            raise _not_written(path, version, error) from None

    def _write(
        self, write_adapter: Callable[[Path], None], path: Path, version: int
    ) -> list[tuple[Mapping[str, str], int]]:
        """Checksums and bytes of what process 0 wrote; nothing on the others."""
        try:
            write_adapter(path)
            if not self._backend.is_main_process:
                return []
            tensors = {name: tensor for file in path.glob("*.safetensors") for name, tensor in load_file(file).items()}
        except (OSError, SafetensorError) as error:
            raise _not_written(path, version, error) from None
        return [({name: checksum(t) for name, t in tensors.items()}, sum(t.nbytes for t in tensors.values()))]

    def _resume(
        self, receipts: list[Receipt], checksums: Mapping[str, str], version: int, trainer_logprobs: TrainerLogprobs
    ) -> float:
        """Resume with the received weights, verify them, and release the completions; returns the largest gap."""
        check_receipts(receipts, checksums, version=version)
        self._direct(self._receiver.flush)
        self.together(lambda: self._receiver.resume(version))
        try:
            gap = self._probe(receipts, version, trainer_logprobs, seed=version)
        except ProbeGapError:  # on every process: they compare the same numbers, those of the first one
            gap = self._probe(receipts, version, trainer_logprobs, seed=version + AGAIN, is_first=False)
        self.together(self._receiver.release)
        return gap

    def _probe(
        self,
        receipts: list[Receipt],
        version: int,
        trainer_logprobs: TrainerLogprobs,
        *,
        seed: int,
        is_first: bool = True,
    ) -> float:
        """The largest gap of all engines; WeightSyncError when one fails. After the first, the prompt is cached."""
        probes: list[Probe] = self._direct(
            lambda: self._receiver.probe(
                self._probe_ids, num_tokens=NUM_PROBE_TOKENS, temperature=self._temperature, seed=seed
            )
        )
        check_probes(
            probes,
            receipts,
            version=version,
            num_tokens=NUM_PROBE_TOKENS,
            may_be_lost=self._receiver.is_shared,
            may_be_cached=not is_first,
        )
        # Engines with the same weights sample the same tokens, which are scored once.
        sampled = list(dict.fromkeys(probe.token_ids for probe in probes))
        own = trainer_logprobs([(self._probe_ids, token_ids) for token_ids in sampled])
        # What one process computed, because another's may round to the other side of the limit.
        scored = self._backend.broadcast_object(own)
        logprobs = dict(zip(sampled, scored, strict=True))
        return max(check_gap(probe, logprobs[probe.token_ids], max_gap=self._max_gap) for probe in probes)

    def _direct(self, call: Callable[[], list[T] | None]) -> list[T]:
        """`together` of the processes that direct an engine: process 0 alone where they are shared."""
        takes_part = self._backend.is_main_process or not self._receiver.is_shared
        return self.together(call if takes_part else list)

    def together(self, call: Callable[[], list[T] | None]) -> list[T]:
        """The results of `call` on all processes, in one list; or the error of the first one that failed, on all."""
        result, error, cause = None, None, None
        try:
            result = call()
        except ProcessLostError:
            raise
        except Exception as caught:  # the engine boundary: the other processes wait for this one
            cause = caught
            is_own = isinstance(caught, AgentRLError)
            error = caught if is_own else EngineError(f"new weights failed with {type(caught).__name__}: {caught}")
        outcomes = self._backend.all_gather_object((result or [], error))
        for rank, (_, failure) in enumerate(outcomes):
            if failure is not None:
                failure.is_everywhere = True
                raise failure from (cause if rank == self._backend.rank else None)
        return [item for items, _ in outcomes for item in items]


def _not_written(path: Path, version: int, error: Exception) -> WeightSyncError:
    return WeightSyncError(
        f"the adapter of version {version} could not be written to {path} ({error}); free space there, or set "
        "vllm.weight_folder to a folder that trainer and servers see"
    )
