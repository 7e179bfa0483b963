"""Which tokens every slot of the key/value cache holds, and which slot a new request gets.

Slots 0 .. n - 1 belong to the n requests in generation, so that a decode step is dense. All others are idle: what
they hold stays for the next turn of its episode and for prompts that begin alike, until another request needs the
slot; the least recently used one goes first. Host side only. Not here: tensors.
"""

import numpy as np

from agent_rl.inference.local.kv_cache import KeyValueCache

MIN_SHARED = 16
"""Fewest tokens worth copying from a slot that another request still uses."""


class SlotTable:
    """Bookkeeping of a KeyValueCache; every move is made in both."""

    def __init__(self, cache: KeyValueCache) -> None:
        self._cache = cache
        self.tokens = np.zeros((cache.num_slots, cache.width), dtype=np.int32)
        self.lengths = np.zeros(cache.num_slots, dtype=np.int64)
        """Tokens of each slot whose keys and values are cached."""
        self._last_used = np.zeros(cache.num_slots, dtype=np.int64)
        self._clock = 0

    def num_shared(self, prompt: np.ndarray) -> np.ndarray:
        """Length of the prefix that each slot shares with the prompt, its last token left out. Shape [num_slots].

        The last token must be run through the model in any case, because sampling the first new token needs its logits.
        """
        wanted = prompt[:-1]
        # One column that always differs stands behind the others, for `argmax` to find.
        differs = np.ones((len(self.lengths), len(prompt)), dtype=bool)
        np.not_equal(self.tokens[:, : len(wanted)], wanted, out=differs[:, :-1])
        return np.minimum(differs.argmax(axis=1), self.lengths)

    def claim(self, row: int, prompt: np.ndarray) -> int:
        """Make slot `row`, the first idle one, ready for a prompt; returns how many of its tokens are cached there."""
        shared = self.num_shared(prompt)
        continued = np.flatnonzero((shared == self.lengths) & (shared > 0) & (np.arange(len(shared)) >= row))
        best = int(shared.argmax())
        if len(continued) and shared[owner := continued[shared[continued].argmax()]] == shared[best]:
            self.swap(int(owner), row)
            return int(shared[best])
        num_cached = int(shared[best]) if shared[best] >= MIN_SHARED else 0
        best = self._evict(row, best if num_cached else None)
        if best is not None and best != row:
            self._cache.copy(best, row, num_cached)
        self.tokens[row, :num_cached] = prompt[:num_cached]
        self.lengths[row] = num_cached
        return num_cached

    def fill(self, row: int, tokens: np.ndarray) -> None:
        """Note that a slot now holds exactly `tokens`."""
        self.tokens[row, : len(tokens)] = tokens
        self.lengths[row] = len(tokens)

    def append(self, num_rows: int, token_ids: list[int]) -> None:
        """Note one more token in each of the first slots."""
        rows = np.arange(num_rows)
        self.tokens[rows, self.lengths[:num_rows]] = token_ids
        self.lengths[:num_rows] += 1

    def fork(self, source: int, row: int) -> None:
        """Give slot `row`, the first idle one, what a slot before it holds."""
        self._evict(row, source)
        num = int(self.lengths[source])
        self._cache.copy(source, row, num)
        self.tokens[row, :num] = self.tokens[source, :num]
        self.lengths[row] = num

    def release(self, row: int) -> None:
        """Note that a slot has just become idle."""
        self._clock += 1
        self._last_used[row] = self._clock

    def swap(self, first: int, second: int) -> None:
        """Exchange two slots."""
        if first == second:
            return
        num_first, num_second = int(self.lengths[first]), int(self.lengths[second])
        if num_second == 0:
            self._cache.copy(first, second, num_first)
        elif num_first == 0:
            self._cache.copy(second, first, num_second)
        else:
            self._cache.swap(first, second, max(num_first, num_second))
        for state in (self.tokens, self.lengths, self._last_used):
            state[[first, second]] = state[[second, first]]

    def clear(self) -> None:
        """Drop everything: the keys and values are of old weights."""
        self.lengths[:] = 0
        self._last_used[:] = 0

    def _evict(self, row: int, source: int | None) -> int | None:
        """Let `row` be overwritten, at the expense of the oldest idle slot but `source`; returns where `source` is."""
        age = self._last_used.copy()
        age[self.lengths == 0] = -1
        candidates = [slot for slot in range(row, len(age)) if slot != source]
        if not candidates:
            return source
        victim = min(candidates, key=age.__getitem__)
        if victim == row:
            return source
        self._cache.copy(row, victim, int(self.lengths[row]))
        for state in (self.tokens, self.lengths, self._last_used):
            state[victim] = state[row]
        return victim if source == row else source
