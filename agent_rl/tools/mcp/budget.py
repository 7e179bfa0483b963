"""What an MCP server may write: so many messages and bytes for each call that waits, and few while none does.

A server that floods would otherwise take the training process's time, during a call and after it. Beyond its budget a
server is ended. Reading also pauses in between, so that other threads get their turn. Not here: the length of one
message (`transport.py`).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio

from agent_rl.errors import AgentRLError

MAX_MESSAGES, MAX_BYTES = 1000, 2**26
"""For one call, from its start; a further call starts anew."""
IDLE_MESSAGES = 100
"""Left when no call waits any more: late answers, news, requests."""
_MESSAGES_PER_S, _BYTES_PER_S = 2.0, 2**16
"""By which a budget grows again while nobody asks, up to where it begins: servers log and send signs of life."""
_PAUSE_S, _PAUSE_MESSAGES, _PAUSE_BYTES = 0.005, 20, 2**20
_WORDS_CHARS = 600


class FloodError(AgentRLError):
    """A server wrote more than its budget; the message says so of `it`."""


@dataclass(slots=True)
class LastWords:
    """The end of what a server wrote to stderr."""

    text: str = ""

    def add(self, text: str) -> None:
        self.text = (self.text + text[-_WORDS_CHARS:])[-_WORDS_CHARS:]

    @property
    def last_line(self) -> str:
        """Of a traceback, the line that says what went wrong."""
        return self.text.strip().rpartition("\n")[2]


class Budget:
    """Of one connection: `with budget.call(): ...` around what asks, `await budget.take(len(line))` for what comes."""

    def __init__(
        self, on_spent: Callable[[], None] = lambda: None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_spent` is called once, when `failure` says why."""
        self.failure = ""
        self._on_spent, self._clock = on_spent, clock
        self._num_calls = 0
        self._messages, self._bytes = float(IDLE_MESSAGES), float(MAX_BYTES)
        self._since = clock()
        self._unpaused_messages, self._unpaused_bytes = 0, 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """While this is open a call waits."""
        self._num_calls += 1
        self._messages, self._bytes = float(MAX_MESSAGES), float(MAX_BYTES)
        try:
            yield
        finally:
            self._num_calls -= 1
            if not self._num_calls:
                self._messages = min(self._messages, float(IDLE_MESSAGES))

    async def take(self, num_bytes: int, num_messages: int = 1) -> None:
        """Count what came, and pause now and then. FloodError when it is too much."""
        self._grow()
        self._messages -= num_messages
        self._bytes -= num_bytes
        if self.failure or self._messages < 0 or self._bytes < 0:
            self._refuse()
        self._unpaused_messages += num_messages
        self._unpaused_bytes += num_bytes
        if self._unpaused_messages >= _PAUSE_MESSAGES or self._unpaused_bytes >= _PAUSE_BYTES:
            self._unpaused_messages = self._unpaused_bytes = 0
            await anyio.sleep(_PAUSE_S)

    def _grow(self) -> None:
        now = self._clock()
        seconds, self._since = now - self._since, now
        if self._messages < IDLE_MESSAGES:
            self._messages = min(self._messages + seconds * _MESSAGES_PER_S, float(IDLE_MESSAGES))
        self._bytes = min(self._bytes + seconds * _BYTES_PER_S, float(MAX_BYTES))

    def _refuse(self) -> None:
        if not self.failure:
            num = MAX_MESSAGES if self._num_calls else IDLE_MESSAGES
            what = f"{num} messages" if self._messages < 0 else f"{MAX_BYTES >> 20} MiB"
            when = "before it answered" if self._num_calls else "while no call waited"
            self.failure = f"it wrote more than {what} {when}"
            self._on_spent()
        raise FloodError(self.failure)
