"""What a sampler with weights of its own (vLLM's) is asked to do when the trainer's weights change.

Records and the interface alone. Not here: gathering and comparing weights (`weight_sync.py`), vLLM.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor


def digest_of(checksums: Mapping[str, str]) -> str:
    """One short text for all of an engine's `checksums`."""
    return hashlib.sha256(repr(sorted(checksums.items())).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one engine says it received, for example `{"lm_head.weight": "bfloat16 [2] 400000003f800000 ..."}`."""

    where: str
    """Address of the server, or `process 3`."""
    checksums: Mapping[str, str]
    """`distributed/checksums.py` of each tensor as it arrived, by name."""

    @property
    def digest(self) -> str:
        return digest_of(self.checksums)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What one engine drew after a prompt that is the same after every change of weights."""

    where: str
    version: int
    """Of the weights, as the engine says."""
    num_cached: int
    """Tokens of the prompt that were taken from a key/value cache; 0 after a flush."""
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class WeightReceiver(Protocol):
    """The order is `hold`, `pause`, `load` or `load_adapter`, `flush`, `resume`, `probe`; after the proof `release`.

    EngineError when vLLM fails. Where it `is_shared` (servers), process 0 directs it for all. On the other processes
    `load` only takes all tensors off the iterator, because gathering is collective, `load_adapter` and `resume` only
    take note, `hold` and `release` are of this process's own completions, and nothing else is called. Else every
    process calls everything.
    """

    is_shared: bool
    weight_version: int
    """Of the last `resume`; 0 at first."""

    def hold(self) -> None:
        """Completions that this process asks for from now on wait here for `release`, probes excepted."""

    def release(self) -> None:
        """Let what waits since `hold` be drawn. After a change that failed it is not called."""

    def pause(self) -> None:
        """Draw no more: completions under way end as `INTERRUPTED`."""

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
        """Take over all weights, by the names of a Hugging Face checkpoint; a receipt from every engine.

        A tensor is valid only until the next one is asked for.
        """

    def load_adapter(self, folder: Path, version: int) -> list[Receipt]:
        """Draw with the LoRA adapter in `folder` from now on, in the place of the last one."""

    def flush(self) -> None:
        """Forget all cached keys and values."""

    def resume(self, version: int) -> None:
        """Draw again; completions carry `version` from now on. All processes call it equally often."""

    def probe(self, prompt_ids: tuple[int, ...], *, num_tokens: int, temperature: float, seed: int) -> list[Probe]:
        """Draw `num_tokens` after `prompt_ids`, no stop ids, on every engine; prompts of this length may be cached."""
