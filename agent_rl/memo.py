"""Equal questions are answered once: a bounded memory in front of what is dear and depends on its question alone.

Who asks while an equal question is being answered waits for that answer. Not here: what belongs into a question, and
which answers are worth keeping.
"""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar, cast

AnswerT = TypeVar("AnswerT")
MAX_ENTRIES = 4096


class Memo:
    """`memo.answer(["square", 3], lambda: (9, True))`; safe to call from many threads."""

    def __init__(self, *, is_on: bool = True, max_entries: int = MAX_ENTRIES) -> None:
        """Switched off, every question is answered anew; both kinds are counted."""
        self._is_on, self._max_entries = is_on, max_entries
        self._lock = threading.Lock()
        self._answers: OrderedDict[str, Future[Any]] = OrderedDict()
        self._num_asked = self._num_run = 0
        self._seconds = 0.0

    def answer(self, question: Sequence[Any], run: Callable[[], tuple[AnswerT, bool]]) -> AnswerT:
        """The answer to an equal question, also one still being answered in another thread; else that of `run`.

        `question` is JSON, with bytes allowed: all that can change the answer. `run` returns (answer, whether to keep
        it); what it raises reaches all who wait.
        """
        key = _key(question) if self._is_on else ""
        with self._lock:
            self._num_asked += 1
            future = self._answers.get(key)
            if future is None:
                self._num_run += 1
                mine: Future[Any] = Future()
                if self._is_on:
                    self._answers[key] = mine
                    if len(self._answers) > self._max_entries:
                        self._answers.popitem(last=False)
            else:
                self._answers.move_to_end(key)
        if future is not None:
            return cast(AnswerT, future.result())
        started = time.monotonic()
        try:
            answer, is_kept = run()
        except BaseException as error:
            self._forget(key)
            mine.set_exception(error)
            raise
        with self._lock:
            self._seconds += time.monotonic() - started
        if not is_kept:
            self._forget(key)
        mine.set_result(answer)
        return answer

    def counters(self) -> dict[str, float]:
        """So far: questions `asked`, those that were `run`, and `seconds` of all threads in these."""
        with self._lock:
            return {"asked": self._num_asked, "run": self._num_run, "seconds": self._seconds}

    def _forget(self, key: str) -> None:
        with self._lock:
            self._answers.pop(key, None)


def _key(question: Sequence[Any]) -> str:
    text = json.dumps(question, sort_keys=True, ensure_ascii=True, default=_written)
    return hashlib.sha256(text.encode()).hexdigest()


def _written(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    raise TypeError(f"a {type(value).__name__} cannot be part of a question")
