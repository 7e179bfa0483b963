"""Which ids rows have in common from their start on: rows in the order of a dictionary, where those that share most lie
side by side.

The tree of all prefixes is never built: its size and its parts follow from what neighbours share. Not here: samples,
micro-batches.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """Ids `first` .. `last` - 1 of each of some rows, which have all ids up to `last` in common."""

    rows: Sequence[int]
    """Positions in the list that `stretches` was given."""
    first: int
    last: int
    above: int | None
    """Number of the stretch that comes before; None at the start of the rows."""


class PrefixOrder:
    """`order.rank[i]` is row i's place among all; `order.num_common(a, b)` takes places, a < b."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        arrays = [np.asarray(row, dtype=">u4") for row in rows]
        keys = [array.tobytes() for array in arrays]  # big-endian bytes sort as the numbers do
        order = sorted(range(len(rows)), key=keys.__getitem__)
        self.rank = [0] * len(rows)
        for place, index in enumerate(order):
            self.rank[index] = place
        self._shared = np.zeros(len(rows), dtype=np.int64)
        """Ids that each place has in common with the one before."""
        for place in range(1, len(order)):
            self._shared[place] = _num_common(arrays[order[place - 1]], arrays[order[place]])

    def num_common(self, first: int, second: int) -> int:
        """How many ids two places have in common from the start on."""
        return int(self._shared[first + 1 : second + 1].min())


def _num_common(first: np.ndarray, second: np.ndarray) -> int:
    length = min(len(first), len(second))
    differs = np.flatnonzero(first[:length] != second[:length])
    return int(differs[0]) if len(differs) else length


def stretches(lengths: Sequence[int], shared: Sequence[int]) -> Iterator[Stretch]:
    """The parts of the tree, each once and after what comes before it; each row shares so many ids with the one before.

    Rows (1, 2, 5), (1, 2, 6) have lengths (3, 3) and share (0, 2): stretches 0 to 2 of both, 2 to 3 of each.
    """
    waiting: list[tuple[int, int, int, int | None]] = [(0, len(lengths), 0, None)]
    count = 0
    while waiting:
        start, end, depth, above = waiting.pop()
        common = lengths[start] if end - start == 1 else min(shared[start + 1 : end])
        if common > depth:
            yield Stretch(range(start, end), depth, common, above)
            above, count = count, count + 1
        if end - start == 1:
            continue
        cuts = [start, *(place for place in range(start + 1, end) if shared[place] == common), end]
        waiting += [(one, other, common, above) for one, other in zip(cuts[-2::-1], cuts[:0:-1], strict=True)]
