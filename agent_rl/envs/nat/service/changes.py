"""Wakes coroutines when a job changes, from any thread. Not here: what changed; who is woken looks into the store."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class JobChanges:
    """`with changes.listening(job_id, key_name) as changed: await changed.wait()`, all on one event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self.num_of_key: Counter[str] = Counter()
        """Who listens, by the names of their keys."""

    def notify(self, job_id: str) -> None:
        """A job changed; may be called from any thread, also when nobody listens."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self._wake, job_id)

    @contextmanager
    def listening(self, job_id: str, key_name: str) -> Iterator[asyncio.Event]:
        self._loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        self._listening[job_id].add(changed)
        self.num_of_key[key_name] += 1
        try:
            yield changed
        finally:
            self._listening[job_id].discard(changed)
            if not self._listening[job_id]:
                del self._listening[job_id]
            self.num_of_key[key_name] -= 1
            if not self.num_of_key[key_name]:
                del self.num_of_key[key_name]

    @property
    def num_listening(self) -> int:
        return self.num_of_key.total()

    def _wake(self, job_id: str) -> None:
        for changed in self._listening.get(job_id, ()):
            changed.set()
