"""What a coroutine of another package, which runs on a loop of its own, and a blocking episode say to each other."""

import asyncio
import queue
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Ask:
    """A request for a reply, answered from another thread."""

    prompt: Any
    tools: Any
    reply: "asyncio.Future[Any]"

    def answer(self, value: Any) -> None:
        """Give the reply, or raise it where it is an exception; nothing if nobody waits any more."""
        self.reply.get_loop().call_soon_threadsafe(self._settle, value)

    def _settle(self, value: Any) -> None:
        if self.reply.done():
            return
        if isinstance(value, BaseException):
            self.reply.set_exception(value)
        else:
            self.reply.set_result(value)


@dataclass(slots=True)
class Dialogue:
    """What one rollout on the loop says to its episode: requests, and at last its result or exception."""

    _said: "queue.SimpleQueue[Any]" = field(default_factory=queue.SimpleQueue)

    async def ask(self, prompt: Any, tools: Any) -> Any:
        """On the loop: wait for the episode's reply."""
        made = Ask(prompt=prompt, tools=tools, reply=asyncio.get_running_loop().create_future())
        self._said.put(made)
        return await made.reply

    def ended(self, future: "Future[Any]") -> None:
        self._said.put(future)

    def next(self) -> "Ask | Future[Any]":
        """In the episode's thread: wait for what is said next."""
        return self._said.get()
