"""The worker's end of a conversation: one order of the host's at a time, one answer to it.

An order holds a number drawn for it, which its answer repeats: what a candidate writes ahead answers nothing. Lines of
JSON on the run's standard input and output, which the candidate finds replaced. Not here: what is asked
(`agent_client.py`), and how a project answers (`jobs.py`).
"""

import json
import os
from typing import Any


class Talk:
    """Takes over descriptors 0 and 1."""

    def __init__(self) -> None:
        self._from, self._to = os.dup(0), os.dup(1)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        os.dup2(2, 1)  # what the candidate prints
        self._rest = b""
        self._number: int | None = None

    def next(self) -> dict[str, Any]:
        """The host's next order. Raises EOFError when there is none."""
        while b"\n" not in self._rest:
            chunk = os.read(self._from, 1 << 16)
            if not chunk:
                raise EOFError("the host is gone")
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        order = dict(json.loads(line))
        self._number = order.pop("n")
        return order

    def answer(self, **facts: Any) -> None:
        """Answer the order, or the next one where none waits."""
        if self._number is None:
            self.next()
        payload = json.dumps({"n": self._number, **facts}).encode() + b"\n"
        self._number = None
        while payload:
            payload = payload[os.write(self._to, payload) :]
