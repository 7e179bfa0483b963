"""What every engine inside this process asks of a completion before it is drawn, and how it fails those it cannot end.

Not here: what has been drawn so far; each engine keeps its own.
"""

import math
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Protocol

from agent_rl.errors import EngineError
from agent_rl.records import Completion, SamplingParams


class Cancel(Protocol):
    """What says that nobody waits for a completion any more; a `threading.Event` is one."""

    def is_set(self) -> bool: ...


class InferenceEngine(Protocol):
    """What samples completions: an engine inside this process, or clients of servers."""

    def complete(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """Sample one completion; blocks. EngineError when the engine fails."""

    def close(self) -> None:
        """Free what the engine holds."""


def check_request(prompt_ids: Sequence[int], sampling: SamplingParams, *, max_context: int, vocab_size: int) -> int:
    """Most new tokens: as asked for, capped by the room left in the window. ValueError for what cannot be drawn."""
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


def fail_all(futures: "Iterable[Future[Completion]]", reason: str, cause: Exception | None) -> None:
    """An EngineError for each. One exception each: every caller's thread adds its own traceback to it."""
    for future in futures:
        failure = EngineError(reason)
        failure.__cause__ = cause
        future.set_exception(failure)
