"""A web address that is told when a run ends, fails or raises an alarm (`log.notify`).

It gets a POST with JSON: `text` (one sentence), `event`, `run`, `folder`, `host`, `step`, `time` and `metrics`. One
thread sends the messages in order, each with bounded time, and no answer and no failure ends or delays a run for long.
Secrets in the sentence and the address itself are shown nowhere. Not here: when it is told (`core/run/ending.py`).
"""

import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from agent_rl.closing import Closing
from agent_rl.redacted import redacted
from agent_rl.telemetry.files import finite

TIMEOUT_S = 5.0
"""For each of connecting, sending and waiting for the answer's first line."""
LAST_S = 10.0
"""Longest wait for what is on its way when a run ends."""


class Notifier(Closing):
    """`Notifier(url, {"run": "nat_grpo"}, say=print).tell("alarm", 12, "step 12: ...")`; nothing without a `url`."""

    def __init__(self, url: str | None, facts: Mapping[str, Any], *, say: Callable[[str], None]) -> None:
        """`facts` are in every message; `say` gets a sentence at the first failure."""
        self._url = url
        self._facts = {**facts, "host": socket.gethostname()}
        self._say = say
        self._has_failed = False
        self._waiting: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def tell(self, event: str, step: int, text: str, metrics: Mapping[str, float] | None = None) -> None:
        """Send a message in the background; `event` is `finished`, `failed`, `stopped`, `interrupted` or `alarm`."""
        if self._url is None:
            return
        row = {"text": redacted(text), "event": event, **self._facts, "step": step, "time": round(time.time(), 3)}
        row["metrics"] = {name: finite(value) for name, value in (metrics or {}).items()}
        self._waiting.put(row)
        if self._thread is None:
            self._thread = threading.Thread(target=self._send_all, args=[self._waiting], name="notify", daemon=True)
            self._thread.start()

    def _send_all(self, waiting: "queue.SimpleQueue[dict[str, Any] | None]") -> None:
        while (row := waiting.get()) is not None:
            self._send(row)

    def _send(self, row: dict[str, Any]) -> None:
        import httpx

        try:
            with httpx.stream("POST", str(self._url), json=row, timeout=TIMEOUT_S) as answer:
                problem = "" if answer.status_code < 300 else f"HTTP {answer.status_code}"
        except Exception as error:  # the webhook's boundary: an address of a user may fail in any way
            problem = type(error).__name__  # its text may hold the address
        if problem and not self._has_failed:
            self._has_failed = True
            self._say(f"log.notify: {urlsplit(str(self._url)).hostname} was not told ({problem}); the run continues")

    def close(self) -> None:
        """Wait for what is on its way, within bounds. What is told after that is sent by another thread."""
        if self._thread is None:
            return
        thread, waiting = self._thread, self._waiting
        self._thread, self._waiting = None, queue.SimpleQueue()
        waiting.put(None)
        thread.join(LAST_S)
