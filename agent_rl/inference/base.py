"""The interface of inference engines, and what those inside this process have in common.

An engine either shares the trained module (`inference/local`) or has weights of its own (`RemoteEngine`), which are
sent to it after every update. What an engine can do is in its configuration section (`config/engines.py`).
Does not: gather or compare weights (`distributed/weight_sync.py`), keep the state of a completion.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from agent_rl.records import Completion, SamplingParams


class Cancel(Protocol):
    """Set once a completion is no longer needed; a `threading.Event` is one."""

    def is_set(self) -> bool: ...


class InferenceEngine(Protocol):
    """Generates completions: an engine inside this process, or clients of servers."""

    def complete(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """Generate one completion; blocks. EngineError when the engine fails."""

    def counters(self) -> Mapping[str, float]:
        """Work so far, by name (`BasePolicy.counters`)."""

    def close(self) -> None:
        """Free the engine's resources."""


def digest_of(checksums: Mapping[str, str]) -> str:
    """One short text for all of an engine's `checksums`."""
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The tensors that one engine received, for example `{"lm_head.weight": "bfloat16 [2] 400000003f800000 ..."}`."""

    where: str
    """Address of the server, or `process 3`."""
    checksums: Mapping[str, str]
    """`distributed/checksums.py` of each tensor as it arrived, by name."""

    @property
    def digest(self) -> str:
        return digest_of(self.checksums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The tokens that one engine sampled after a prompt that is the same after every weight sync."""

    where: str
    version: int
    """Of the weights, as the engine reports it."""
    num_cached: int
    """Tokens of the prompt that were taken from a key/value cache; 0 after a flush."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class WeightReceiver(Protocol):
    """Takes new weights. Order: `hold`, `pause`, `load` or `load_adapter`, `flush`, `resume`, `probe`, `release`.

    EngineError when the engine fails. If it `is_shared` (servers), process 0 directs it for all. On the other processes
    `load` does nothing, `load_adapter` and `resume` only record the version, `hold` and `release` are of this process's
    own completions, and nothing else is called. If it is not shared, every process calls every method.
    """

    is_shared: bool
    weight_version: int
    """Of the last `resume`; 0 at first."""

    def hold(self) -> None:
        """Queue this process's new completions until `release`, probes excepted."""

    def release(self) -> None:
        """Start the completions queued since `hold`. Not called after a failed sync."""

    def pause(self) -> None:
        """Stop sampling: running completions end as `INTERRUPTED`."""

    def sleep(self) -> None:
        """Pause and free GPU memory until new weights come; an engine that cannot does nothing."""

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
        """Load all weights, by the names of a Hugging Face checkpoint; a receipt from every engine.

        A tensor is valid only until the next one is read. The caller reads what is left of them, because gathering is
        collective.
        """

    def load_adapter(self, folder: Path, version: int) -> list[Receipt]:
        """Sample with the LoRA adapter in `folder` from now on, instead of the last one."""

    def flush(self) -> None:
        """Drop all cached keys and values."""

    def resume(self, version: int) -> None:
        """Sample again; completions carry `version` from now on. All processes call it equally often."""

    def probe(self, prompt_ids: tuple[int, ...], *, num_tokens: int, temperature: float, seed: int) -> list[Probe]:
        """Sample `num_tokens` after `prompt_ids` on every engine, no stop ids; prompts this long may be cached."""


class RemoteEngine(InferenceEngine, WeightReceiver, Protocol):
    """An engine with weights of its own, as the makers in `config.engines.ENGINES` return it."""


def check_request(prompt_ids: Sequence[int], sampling: SamplingParams, *, max_context: int, vocab_size: int) -> int:
    """Largest number of new tokens: as requested, capped by the room in the window. ValueError for bad requests."""
    room = max_context - len(prompt_ids)
    if len(prompt_ids) == 0 or room < 1:
        raise ValueError(
            f"the prompt has {len(prompt_ids)} tokens; expected 1 to {max_context - 1}, because prompt and completion "
            f"share a window of {max_context}"
        )
    for what, ids in (("prompt", prompt_ids), ("list of stop ids", sampling.stop_token_ids or (0,))):
        if not (min(ids) >= 0 and max(ids) < vocab_size):
            raise ValueError(
                f"the {what} holds ids from {min(ids)} to {max(ids)}; the vocabulary ends at {vocab_size - 1}"
            )
    is_temperature = math.isfinite(sampling.temperature) and sampling.temperature >= 0
    if sampling.max_new_tokens < 1 or sampling.seed < 0 or not is_temperature:
        raise ValueError(f"expected max_new_tokens >= 1, seed >= 0 and a finite temperature >= 0, got {sampling}")
    return min(sampling.max_new_tokens, room)
