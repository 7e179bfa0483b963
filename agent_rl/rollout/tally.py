"""How many episodes of a rollout are over, for whoever shows it while they run.

Not here: what is shown (`telemetry/progress.py`).
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[int, int, str], None]
"""Gets how many are done, of how many, and of what; called in any thread."""


class EpisodeTally:
    """`tally.begin(128)`, then `tally.add()` as each of them ends; `with tally.watched(show): ...` shows it."""

    def __init__(self) -> None:
        self._show: Show | None = None
        self._num_done = self._total = 0
        self._lock = threading.Lock()

    @contextmanager
    def watched(self, show: Show) -> Iterator[None]:
        """While the block runs, `show` is called at every change."""
        self._show = show
        try:
            yield
        finally:
            self._show = None

    def begin(self, total: int) -> None:
        """A rollout of `total` episodes starts."""
        with self._lock:
            self._num_done, self._total = 0, total
        self.show(0, total)

    def add(self) -> None:
        """One of them is over; without a `begin`, as in the background, nothing is counted."""
        with self._lock:
            if self._num_done >= self._total:
                return
            self._num_done += 1
            num_done, total = self._num_done, self._total
        self.show(num_done, total)

    def show(self, num_done: int, total: int, unit: str = "episodes") -> None:
        """Show figures that were counted elsewhere."""
        show = self._show
        if show is not None:
            show(num_done, total, unit)
