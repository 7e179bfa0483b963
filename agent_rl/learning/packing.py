"""Which samples are computed together: a step's samples become flat micro-batches, as many on every rank.

Samples with the same prompt stay together, so that the prompt is computed once. Every batch carries the
denominators of the whole step, so loss and gradient do not depend on the plan. The plan is a function of its arguments
alone: every rank makes the whole plan and takes its part. Not here: the forward pass, columns of values, devices.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from agent_rl.records import Batch, Segment, TrainingSample


@dataclass(frozen=True, slots=True)
class _Row:
    """A sample as the plan sees it: what is read of it, the last trained id and what follows left out."""

    index: int
    """In the step's list."""
    prompt: int
    """Equal for samples that may share their prompt."""
    num_prompt: int
    """Ids before the first trained one."""
    num_own: int

    @property
    def num_read(self) -> int:
        return self.num_prompt + self.num_own


@dataclass(slots=True)
class _Bin:
    """The rows of one micro-batch and what they cost in computed tokens; padded, every row costs as the longest."""

    share: bool
    pad: bool
    rows: list[_Row] = field(default_factory=list)
    prompts: Counter[int] = field(default_factory=Counter)
    num_flat: int = 0

    @property
    def load(self) -> int:
        return len(self.rows) * max(row.num_read for row in self.rows) if self.pad and self.rows else self.num_flat

    def load_with(self, rows: Sequence[_Row]) -> int:
        if self.pad:
            return (len(self.rows) + len(rows)) * max(row.num_read for row in [*self.rows, *rows])
        new = {row.prompt: row.num_prompt for row in rows if not self.prompts[row.prompt]}
        num_prompts = sum(new.values()) if self.share else sum(row.num_prompt for row in rows)
        return self.num_flat + num_prompts + sum(row.num_own for row in rows)

    def load_without(self, row: _Row) -> int:
        if self.pad:
            return (len(self.rows) - 1) * max((other.num_read for other in self.rows if other is not row), default=0)
        is_last = not self.share or self.prompts[row.prompt] == 1
        return self.num_flat - row.num_own - (row.num_prompt if is_last else 0)

    def add(self, row: _Row) -> None:
        self.num_flat += row.num_own + (0 if self.share and self.prompts[row.prompt] else row.num_prompt)
        self.rows.append(row)
        self.prompts[row.prompt] += 1

    def remove(self, row: _Row) -> None:
        self.prompts[row.prompt] -= 1
        self.num_flat -= row.num_own + (0 if self.share and self.prompts[row.prompt] else row.num_prompt)
        self.rows.remove(row)


def plan_micro_batches(
    samples: Sequence[TrainingSample],
    indices: Sequence[int] | None = None,
    *,
    max_tokens: int,
    share_prompts: bool = True,
    num_ranks: int = 1,
    skip_zero_advantage: bool = True,
    padded: bool = False,
    only_rank: int | None = None,
) -> list[list[Batch]]:
    """The micro-batches of each rank, heaviest first, each of at most `max_tokens` computed tokens.

    With `indices`, those samples are the whole step, as in one of several updates on the same episodes. A sample longer
    than `max_tokens` gets a micro-batch of its own. With `share_prompts`, equal prompts (the ids before the first
    trained one) in a micro-batch are computed and counted once. With `padded`, for models that cannot run flat
    (`LogprobModel.is_packed`), every sample counts as many tokens as the longest beside it, and nothing is shared.
    All ranks get equally many, those that work at the same time alike in cost; where samples do not suffice, a
    micro-batch holds one token and no trained one, so that collective calls meet. Without anything to train on, none.
    Samples without a trained token are left out and not counted. With `skip_zero_advantage`, samples whose advantages
    are all 0 are left out, as is right where the loss is the policy's alone; the denominators count them.
    With `only_rank` the whole plan is made, but tensors for that rank alone: the lists of the others stay empty.
    Raises ValueError for a sample that begins with a trained id.
    """
    chosen = range(len(samples)) if indices is None else indices
    trained = [index for index in chosen if any(samples[index].loss_mask)]
    counts = (sum(sum(samples[index].loss_mask) for index in trained), len(trained))
    selected = [index for index in trained if not skip_zero_advantage or any(samples[index].advantages)]
    shared = share_prompts and not padded
    bins = _fill(_rows_of(samples, selected), max_tokens, _Bin(share=shared, pad=padded))
    num_turns = -(-len(bins) // num_ranks)
    bins += [_Bin(share=shared, pad=padded) for _ in range(num_turns * num_ranks - len(bins))]
    turns = _balance(bins, num_ranks)
    ranks: list[list[Batch]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for turn in turns:
        most_trained = max(sum(sum(samples[row.index].loss_mask) for row in part.rows) for part in turn)
        # The heaviest of a turn goes to the rank that had least so far.
        order = sorted(range(num_ranks), key=lambda rank: (loads[rank], rank))
        for rank, part in zip(order, turn, strict=True):
            loads[rank] += part.load
            if only_rank in (None, rank):
                ranks[rank].append(_batch(part, samples, most_trained=most_trained, counts=counts))
    return ranks


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on another device."""
    names = ("token_ids", "position_ids", "sources", "targets")
    return replace(batch, **{name: getattr(batch, name).to(device) for name in names})


def _rows_of(samples: Sequence[TrainingSample], selected: Sequence[int]) -> list[_Row]:
    prompts: dict[tuple[int, ...], int] = {}
    rows = []
    for index in selected:
        sample = samples[index]
        num_prompt = sample.loss_mask.index(1)
        if num_prompt == 0:
            raise ValueError(f"sample {index} begins with a trained id: nothing predicts it; give it prompt ids")
        last = len(sample.loss_mask) - 1 - sample.loss_mask[::-1].index(1)
        prompt = prompts.setdefault(tuple(sample.token_ids[:num_prompt]), len(prompts))
        rows.append(_Row(index, prompt, num_prompt, last - num_prompt))
    return rows


def _fill(rows: Sequence[_Row], max_tokens: int, empty: _Bin) -> list[_Bin]:
    """First fit, largest first: a group of one prompt as a whole where it fits, else row by row in bins of its own."""
    groups: dict[int, list[_Row]] = {}
    for row in sorted(rows, key=lambda row: (-row.num_read, row.index)):
        groups.setdefault(row.prompt if empty.share else row.index, []).append(row)
    bins: list[_Bin] = []
    for group in sorted(groups.values(), key=lambda group: -_copy(empty).load_with(group)):
        whole = next((part for part in bins if part.load_with(group) <= max_tokens), None)
        if whole is not None:
            for row in group:
                whole.add(row)
            continue
        own: list[_Bin] = []
        for row in group:
            part = next((part for part in own if part.load_with([row]) <= max_tokens), None)
            if part is None:
                own.append(part := _copy(empty))
            part.add(row)
        bins += own
    return bins


def _copy(empty: _Bin) -> _Bin:
    return _Bin(share=empty.share, pad=empty.pad)


def _balance(bins: list[_Bin], num_ranks: int) -> list[list[_Bin]]:
    """Turns of one bin a rank, heaviest first; rows move from a turn's heaviest bin to its lightest while it helps."""

    def turns() -> list[list[_Bin]]:
        ordered = sorted(bins, key=lambda part: -part.load)
        return [ordered[start : start + num_ranks] for start in range(0, len(ordered), num_ranks)]

    # Every move makes one load smaller and no other as large, so the search ends.
    while move := next((move for turn in turns() if (move := _best_move(turn[0], turn[-1]))), None):
        heavy, light, row = move
        heavy.remove(row)
        light.add(row)
    return turns()


def _best_move(heavy: _Bin, light: _Bin) -> tuple[_Bin, _Bin, _Row] | None:
    """The move that leaves the heavier of both lightest; None where none does, as between a bin and itself."""
    best, lowest = None, heavy.load
    for row in heavy.rows if heavy is not light else ():
        worst = max(heavy.load_without(row), light.load_with([row]))
        if worst < lowest:
            best, lowest = (heavy, light, row), worst
    return best


def _batch(part: _Bin, samples: Sequence[TrainingSample], *, most_trained: int, counts: tuple[int, int]) -> Batch:
    """The tensors of one bin, samples in their order in the step; an empty bin is one token that is never read."""
    rows = sorted(part.rows, key=lambda row: row.index)
    token_ids: list[int] = []
    positions: list[int] = []
    segments: list[Segment] = []
    prefixes: dict[int, int] = {}

    def append(index: int, first: int, last: int, prefix: int | None = None) -> int:
        """Adds ids `first` .. `last` - 1 of a sample; returns where in the batch they begin."""
        start = len(token_ids)
        segments.append(Segment(start, last - first, prefix))
        token_ids.extend(samples[index].token_ids[first:last])
        positions.extend(range(first, last))
        return start

    sources: list[int] = []
    targets: list[int] = []
    for row in rows:
        sample, first, last = samples[row.index], row.num_prompt, row.num_read
        if part.share and part.prompts[row.prompt] > 1:
            if row.prompt not in prefixes:
                prefixes[row.prompt] = len(segments)
                append(row.index, 0, first)
            prefix = prefixes[row.prompt]
            prompt_start = segments[prefix].start
            own_start = append(row.index, first, last, prefix) if row.num_own else 0
        else:
            prompt_start = append(row.index, 0, last)
            own_start = prompt_start + first
        for place in (place for place, trained in enumerate(sample.loss_mask) if trained):
            before = place - 1
            sources.append(prompt_start + before if before < first else own_start + before - first)
            targets.append(sample.token_ids[place])
    if not rows:
        token_ids, positions, segments = [0], [0], [Segment(0, 1)]
    return Batch(
        token_ids=torch.tensor(token_ids),
        position_ids=torch.tensor(positions),
        segments=tuple(segments),
        sources=torch.tensor(sources, dtype=torch.long),
        targets=torch.tensor(targets, dtype=torch.long),
        num_trained=tuple(sum(samples[row.index].loss_mask) for row in rows),
        samples=tuple(row.index for row in rows),
        most_trained=most_trained,
        num_loss_tokens=counts[0],
        num_samples=counts[1],
    )
