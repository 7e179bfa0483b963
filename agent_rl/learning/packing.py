"""Which samples are computed together: a step's samples become flat micro-batches, as many on every rank.

What samples of a micro-batch have in common from their start on, trained ids too, is computed once. Every batch carries
the denominators of the whole step, so loss and gradient do not depend on the plan. The plan is a function of its
arguments alone: every rank makes the whole plan and takes its part. Not here: the forward pass, columns of values,
devices.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch

from agent_rl.learning.prefix_order import PrefixOrder, stretches
from agent_rl.records import Batch, Segment, TrainingSample


@dataclass(frozen=True, slots=True)
class _Row:
    """A sample as the plan sees it: what is read of it, the last trained id and what follows left out."""

    index: int
    """In the step's list."""
    rank: int
    """In the order of a dictionary."""
    num_read: int


def _rank(row: _Row) -> int:
    return row.rank


Cost = Callable[[int], float]
"""What the first n tokens of a sequence cost; more with every token."""


def _num_tokens(num_read: int) -> int:
    return num_read


@dataclass(slots=True)
class _Bin:
    """The rows of one micro-batch, in order, and what they cost: each distinct prefix once, or `order` None, every row
    whole; padded, every row costs as the longest."""

    order: PrefixOrder | None
    pad: bool
    cost: Cost = _num_tokens
    rows: list[_Row] = field(default_factory=list)
    flat: float = 0

    @property
    def load(self) -> float:
        return len(self.rows) * max(self._of(row) for row in self.rows) if self.pad and self.rows else self.flat

    def load_with(self, rows: Sequence[_Row]) -> float:
        """The load with more rows, given in order."""
        if self.pad:
            return (len(self.rows) + len(rows)) * max(self._of(row) for row in [*self.rows, *rows])
        if self.order is None:
            return self.flat + sum(self._of(row) for row in rows)
        place = bisect_left(self.rows, rows[0].rank, key=_rank)
        if place != bisect_left(self.rows, rows[-1].rank, key=_rank):
            return self._size(sorted([*self.rows, *rows], key=_rank))
        return self.flat + self._size(rows) - self._shared_cost(rows[0], rows[-1], place, place)

    def load_without(self, row: _Row) -> float:
        if self.pad:
            return (len(self.rows) - 1) * max((self._of(other) for other in self.rows if other is not row), default=0)
        if self.order is None:
            return self.flat - self._of(row)
        place = bisect_left(self.rows, row.rank, key=_rank)
        return self.flat - self._of(row) + self._shared_cost(row, row, place, place + 1)

    def add(self, rows: Sequence[_Row]) -> None:
        self.flat = self.flat if self.pad else self.load_with(rows)
        for row in rows:
            insort(self.rows, row, key=_rank)

    def remove(self, row: _Row) -> None:
        self.flat = self.flat if self.pad else self.load_without(row)
        self.rows.remove(row)

    def measured_by(self, cost: Cost) -> "_Bin":
        """A bin of the same rows at another cost."""
        other = _Bin(order=self.order, pad=self.pad, cost=cost)
        if self.rows:
            other.add(self.rows)
        return other

    def shared(self, rows: Sequence[_Row]) -> list[int]:
        """How many ids each row has in common with the one before it, 0 for the first."""
        if self.order is None:
            return [0] * len(rows)
        return [0, *(self.order.num_common(one.rank, other.rank) for one, other in pairwise(rows))]

    def _of(self, row: _Row) -> float:
        return self.cost(row.num_read)

    def _size(self, rows: Sequence[_Row]) -> float:
        return sum(self._of(row) for row in rows) - sum(self.cost(num) for num in self.shared(rows)[1:])

    def _shared_cost(self, first: _Row, last: _Row, before: int, after: int) -> float:
        """Of what rows that lie together have in common with those before place `before` and from `after` on."""
        shared = [0]
        if before > 0:
            shared.append(self.order.num_common(self.rows[before - 1].rank, first.rank))
        if after < len(self.rows):
            shared.append(self.order.num_common(last.rank, self.rows[after].rank))
        return self.cost(max(shared))


def plan_micro_batches(
    samples: Sequence[TrainingSample],
    indices: Sequence[int] | None = None,
    *,
    max_tokens: int,
    share_prefixes: bool = True,
    num_ranks: int = 1,
    skip_zero_advantage: bool = True,
    padded: bool = False,
    attention_cost: float = 0.0,
    only_rank: int | None = None,
) -> list[list[Batch]]:
    """The micro-batches of each rank, heaviest first, each of at most `max_tokens` computed tokens.

    With `indices`, those samples are the whole step, as in one of several updates on the same episodes. A sample longer
    than `max_tokens` gets a micro-batch of its own. With `share_prefixes`, ids that samples of a micro-batch have in
    common from their start on are computed and counted once. With `padded`, for models that cannot run flat
    (`LogprobModel.is_packed`), every sample counts as many tokens as the longest beside it, and nothing is shared.
    All ranks get equally many, those that work at the same time alike in cost, where a token that attends to n earlier
    ones costs as much as `1 + attention_cost * n`; where samples do not suffice, a micro-batch holds one token and no
    trained one, so that collective calls meet. Without anything to train on, none.
    Samples without a trained token are left out and not counted. With `skip_zero_advantage`, samples whose advantages
    are all 0 are left out, as is right where the loss is the policy's alone; the denominators count them.
    With `only_rank` the whole plan is made, but tensors for that rank alone: the lists of the others stay empty.
    Raises ValueError for a sample that begins with a trained id.
    """
    chosen = range(len(samples)) if indices is None else indices
    trained = [index for index in chosen if any(samples[index].loss_mask)]
    counts = (sum(sum(samples[index].loss_mask) for index in trained), len(trained))
    selected = [index for index in trained if not skip_zero_advantage or any(samples[index].advantages)]
    read = [_read_ids(samples[index], index) for index in selected]
    order = PrefixOrder(read) if share_prefixes and not padded else None
    rows = [_Row(index, order.rank[n] if order else n, len(read[n])) for n, index in enumerate(selected)]
    bins = _fill(rows, samples, max_tokens, _Bin(order=order, pad=padded))
    num_turns = -(-len(bins) // num_ranks)
    bins += [_Bin(order=order, pad=padded) for _ in range(num_turns * num_ranks - len(bins))]
    turns = _balance(bins, num_ranks, max_tokens, lambda num_read: num_read * (1 + attention_cost * num_read / 2))
    ranks: list[list[Batch]] = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    # Of the whole plan: where every call of a head gathers shards, all passes call it equally often.
    most_trained = max((sum(sum(samples[row.index].loss_mask) for row in part.rows) for part in bins), default=0)
    for turn in turns:
        # The heaviest of a turn goes to the rank that had least so far.
        by_load = sorted(range(num_ranks), key=lambda rank: (loads[rank], rank))
        for rank, (part, work) in zip(by_load, turn, strict=True):
            loads[rank] += work.load
            if only_rank in (None, rank):
                ranks[rank].append(_batch(part, samples, most_trained=most_trained, counts=counts))
    return ranks


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on another device."""
    names = ("token_ids", "position_ids", "sources", "targets", "predictions")
    return replace(batch, **{name: getattr(batch, name).to(device) for name in names})


def _read_ids(sample: TrainingSample, index: int) -> tuple[int, ...]:
    """The ids before the last trained one."""
    if sample.loss_mask[0]:
        raise ValueError(f"sample {index} begins with a trained id: nothing predicts it; give it prompt ids")
    return sample.token_ids[: len(sample.loss_mask) - 1 - sample.loss_mask[::-1].index(1)]


def _fill(rows: Sequence[_Row], samples: Sequence[TrainingSample], max_tokens: int, empty: _Bin) -> list[_Bin]:
    """Largest first: a group of one prompt as a whole where it fits and costs least, else row by row in bins of its
    own."""
    groups: dict[tuple[int, ...] | int, list[_Row]] = {}
    for row in sorted(rows, key=_rank):
        sample = samples[row.index]
        prompt = sample.token_ids[: sample.loss_mask.index(1)] if empty.order else row.index
        groups.setdefault(prompt, []).append(row)
    bins: list[_Bin] = []
    for group in sorted(groups.values(), key=lambda group: -_copy(empty).load_with(group)):
        fitting = [part for part in bins if part.load_with(group) <= max_tokens]
        if fitting:
            cheapest = min(fitting, key=lambda part: part.load_with(group) - part.load) if empty.order else fitting[0]
            cheapest.add(group)
            continue
        own: list[_Bin] = []
        for row in group:
            part = next((part for part in own if part.load_with([row]) <= max_tokens), None)
            if part is None:
                own.append(part := _copy(empty))
            part.add([row])
        bins += own
    return bins


def _copy(empty: _Bin) -> _Bin:
    return _Bin(order=empty.order, pad=empty.pad)


def _balance(bins: list[_Bin], num_ranks: int, max_tokens: int, cost: Cost) -> list[list[tuple[_Bin, _Bin]]]:
    """Turns of one bin a rank, heaviest first; rows move from a turn's heaviest bin to its lightest while it helps.

    Every bin comes with its twin, measured by `cost`.
    """
    twins = [(part, part.measured_by(cost)) for part in bins]

    def turns() -> list[list[tuple[_Bin, _Bin]]]:
        ordered = sorted(twins, key=lambda twin: -twin[1].load)
        return [ordered[start : start + num_ranks] for start in range(0, len(ordered), num_ranks)]

    # Every move makes one load smaller and no other as large, so the search ends.
    while move := next((move for turn in turns() if (move := _best_move(turn[0], turn[-1], max_tokens))), None):
        heavy, light, row = move
        for part in heavy:
            part.remove(row)
        for part in light:
            part.add([row])
    return turns()


def _best_move(
    heavy: tuple[_Bin, _Bin], light: tuple[_Bin, _Bin], max_tokens: int
) -> tuple[tuple[_Bin, _Bin], tuple[_Bin, _Bin], _Row] | None:
    """The move that leaves the heavier of both lightest; None where none does, as between a bin and itself."""
    best, lowest = None, heavy[1].load
    for row in heavy[0].rows if heavy is not light else ():
        worst = max(heavy[1].load_without(row), light[1].load_with([row]))
        if worst < lowest and light[0].load_with([row]) <= max_tokens:
            best, lowest = (heavy, light, row), worst
    return best


def _batch(part: _Bin, samples: Sequence[TrainingSample], *, most_trained: int, counts: tuple[int, int]) -> Batch:
    """The tensors of one bin, samples in their order in the step; an empty bin is one token that is never read."""
    token_ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    places = [np.empty(row.num_read, dtype=np.int64) for row in part.rows]
    """Where in the batch each id lies that is read of a row."""
    for stretch in stretches([row.num_read for row in part.rows], part.shared(part.rows)) if part.rows else ():
        start, first, last = len(token_ids), stretch.first, stretch.last
        segments.append(Segment(start, last - first, stretch.above))
        token_ids += samples[part.rows[stretch.rows[0]].index].token_ids[first:last]
        positions += range(first, last)
        for row in stretch.rows:
            places[row][first:last] = np.arange(start, start + last - first)
    by_index = sorted(zip(part.rows, places, strict=True), key=lambda pair: pair[0].index)
    sources, targets = [], []
    for row, of_row in by_index:
        trained = np.flatnonzero(samples[row.index].loss_mask)
        sources.append(of_row[trained - 1])
        targets.append(np.asarray(samples[row.index].token_ids)[trained])
    if not part.rows:
        token_ids, positions, segments = [0], [0], [Segment(0, 1)]
        sources, targets = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    pairs, predictions = np.unique(np.concatenate(sources) << 32 | np.concatenate(targets), return_inverse=True)
    return Batch(
        token_ids=torch.tensor(token_ids),
        position_ids=torch.tensor(positions),
        segments=tuple(segments),
        sources=torch.from_numpy(pairs >> 32),
        targets=torch.from_numpy(pairs & 0xFFFFFFFF),
        predictions=torch.from_numpy(predictions),
        num_trained=tuple(sum(samples[row.index].loss_mask) for row, _ in by_index),
        samples=tuple(row.index for row, _ in by_index),
        most_trained=most_trained,
        num_loss_tokens=counts[0],
        num_samples=counts[1],
    )
