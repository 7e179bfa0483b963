"""What a user's own code raised, kept whole: which code, the innermost line of the user's file, the traceback.

A library boundary that turns an exception into data (an episode is dropped, a model reads a text) notes it here, and
whoever runs the episode takes what was noted. Not here: the files that show it (`telemetry/error_file.py`), whether an
exception ends anything.
"""

import traceback
from asyncio import CancelledError
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.errors import (
    AgentRLError,
    EngineError,
    EnvLostError,
    SandboxError,
    defined_at,
    in_one_line,
    raised_at,
)

OF_ONE_CALL = (Exception, SystemExit, CancelledError)
"""What ends one call of a user's code and nothing else, for `except`: `sys.exit()` too (see `ends_program`), and the
cancelling of a client's own tasks that leaks out of it. What this package cancels are coroutines that it awaits; the
threads that call such code are told by an event, so that there it is never a cancelling of ours."""
MAX_TRACEBACK_CHARS = 20_000
"""Of a longer traceback the beginning and the end are kept."""
MAX_NOTED = 8
"""Failures of one episode that are kept; a tool may fail at every turn."""
_MAX_ERROR_CHARS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCall:
    """An exception: `FailedCall(source="environment", error="KeyError: 'oops'", place="my_env.py:6 in helper")`."""

    source: str
    """Whose code it was: `environment`, `tool calculator`, `agent`."""
    error: str
    """Class and text."""
    place: str = ""
    """Innermost line of the user's own code; empty where none was running."""
    traceback: str = ""
    """All of it; empty where nothing was raised."""
    is_infrastructure: bool = False
    """Whether a sandbox, a service or an engine failed, rather than a person's code."""

    @classmethod
    def of(cls, error: BaseException, source: str, owner: Any = None) -> "FailedCall":
        """What is to be known of an exception; of one that another process raised, what was known there.

        `owner` is the user's object that was called: its class tells the place of a call with wrong arguments, which
        runs no line of it.
        """
        known = getattr(error, "failed_call", None)
        if isinstance(known, FailedCall):
            return replace(known, source=source)
        return cls(
            source=source,
            error=in_one_line(error)[:_MAX_ERROR_CHARS],
            place=_place(error, owner),
            traceback=_shortened("".join(traceback.format_exception(error))),
            is_infrastructure=isinstance(error, SandboxError | EngineError | EnvLostError),
        )

    @property
    def sentence(self) -> str:
        """`KeyError: 'oops' at my_env.py:6 in helper`."""
        return f"{self.error} at {self.place}" if self.place and self.place not in self.error else self.error


def _place(error: BaseException, owner: Any) -> str:
    """Where an exception was raised; of the library's own, which says what is wrong itself, where its cause was."""
    if place := getattr(error, "place", ""):
        return str(place)
    found: BaseException | None = error
    while isinstance(found, AgentRLError) and found.__cause__ is not None:
        found = found.__cause__
    if isinstance(found, AgentRLError):
        return ""
    return raised_at(found or error).removeprefix(" at ") or defined_at(type(owner))[2:-1]


def _shortened(text: str) -> str:
    if len(text) <= MAX_TRACEBACK_CHARS:
        return text
    half = MAX_TRACEBACK_CHARS // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


_noted: ContextVar[list[FailedCall] | None] = ContextVar("noted", default=None)


@contextmanager
def noting() -> Iterator[list[FailedCall]]:
    """Around an episode, in its thread: the list of what `note` is given meanwhile."""
    found: list[FailedCall] = []
    before = _noted.set(found)
    try:
        yield found
    finally:
        _noted.reset(before)


def note(failed: FailedCall) -> None:
    """Keep a failure that became data; nothing outside of `noting`."""
    found = _noted.get()
    if found is not None and len(found) < MAX_NOTED:
        found.append(failed)
