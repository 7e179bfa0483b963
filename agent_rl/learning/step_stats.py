"""What one process noted while it learned from a step, and what all of them noted together.

Not here: learning, formulas of the metrics (`algorithms/`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from agent_rl.learning.credit import StepSamples
from agent_rl.learning.logprob_model import Scores
from agent_rl.records import Batch, LoggedSample, TrainingSample


class ScoredSample(NamedTuple):
    """A sample as an update saw it; float32 [n trained tokens]."""

    index: int
    """In the step's list of samples."""
    logprobs: Tensor
    entropies: Tensor
    full_kl: Tensor | None
    num_updates_before: int
    """Updates of the step before this one."""


@dataclass(slots=True)
class StepStats:
    """Of all updates of a step."""

    scored: list[ScoredSample] = field(default_factory=list)
    loss_parts: dict[str, Tensor | float] = field(default_factory=dict)
    """Sums over micro-batches, one update after the other."""
    grad_norms: list[float] = field(default_factory=list)
    """One per update; equal on all processes, as is the next."""
    applied: list[bool] = field(default_factory=list)
    """Whether it changed the weights, one per update."""
    num_batches: int = 0
    segments: list[tuple[int, int]] = field(default_factory=list)
    """Tokens computed one after the other, and those of the shared prompt before them."""

    def add(self, batch: Batch, scores: Scores, loss_parts: Mapping[str, Tensor]) -> None:
        """Note one micro-batch."""
        self.num_batches += 1
        lengths = [segment.length for segment in batch.segments]
        self.segments += [
            (segment.length, 0 if segment.prefix is None else lengths[segment.prefix]) for segment in batch.segments
        ]
        for name, part in loss_parts.items():
            self.loss_parts[name] = self.loss_parts.get(name, 0.0) + part
        columns = [
            [None] * len(batch.samples) if column is None else column.detach().split(batch.num_trained)
            for column in (scores.logprobs, scores.entropies, scores.full_kl)
        ]
        num_before = len(self.grad_norms)
        self.scored += [ScoredSample(*row, num_before) for row in zip(batch.samples, *columns, strict=True)]

    def fetched(self) -> "StepStats":
        """The same on the CPU: until here nothing waits for the device."""
        scored = [
            sample._replace(
                **{name: column.cpu() for name, column in sample._asdict().items() if torch.is_tensor(column)}
            )
            for sample in self.scored
        ]
        return replace(self, scored=scored, loss_parts={name: float(part) for name, part in self.loss_parts.items()})

    @property
    def num_refused(self) -> int:
        """Updates that were not applied."""
        return self.applied.count(False)

    @property
    def num_tokens(self) -> int:
        """Tokens computed, shared prompts once."""
        return sum(length for length, _ in self.segments)

    @classmethod
    def merged(cls, shares: Sequence["StepStats"]) -> "StepStats":
        """All processes' notes as one; sums over them."""
        whole = cls(grad_norms=shares[0].grad_norms, applied=shares[0].applied)
        for share in shares:
            whole.scored += share.scored
            whole.num_batches += share.num_batches
            whole.segments += share.segments
            for name, part in share.loss_parts.items():
                whole.loss_parts[name] = whole.loss_parts.get(name, 0.0) + part
        return whole

    def learned(
        self,
        step: StepSamples,
        samples: Sequence[TrainingSample],
        prox_logprobs: Sequence[Tensor] | None,
        *,
        is_critic_alone: bool,
    ) -> list[LoggedSample]:
        """The step's samples, each with the log-probs of its first update, or those from before it where there are any.

        In a step of several minibatches the first update of a sample comes after those of earlier minibatches.
        """
        num_updates: Counter[int] = Counter()
        if not is_critic_alone:
            num_updates.update(scored.index for scored in self.scored if self.applied[scored.num_updates_before])
        last_first = sorted(self.scored, key=lambda scored: scored.num_updates_before, reverse=True)
        known = {scored.index: scored.logprobs for scored in last_first}
        known |= dict(enumerate(prox_logprobs or ()))
        return [
            LoggedSample(
                episode=step.episodes[episode],
                sample=sample,
                trainer_logprobs=tuple(known[index].tolist()) if index in known else None,
                num_updates=num_updates[index],
            )
            for index, (sample, episode) in enumerate(zip(samples, step.episode_of, strict=True))
        ]

    def metrics(self) -> dict[str, float]:
        """Means over updates; without an update only what says so."""
        num_updates = len(self.grad_norms)
        metrics = {
            "batch/num_micro_batches": float(self.num_batches),
            "batch/num_loss_tokens": float(sum(len(sample.logprobs) for sample in self.scored)),
            "optim/skipped": float(self.num_refused == num_updates),
        }
        if not num_updates:
            return metrics
        entropies = torch.cat([sample.entropies for sample in self.scored])
        return (
            metrics
            | {name: total / num_updates for name, total in self.loss_parts.items()}
            | {
                "optim/grad_norm": sum(self.grad_norms) / num_updates,
                "optim/nonfinite": float(self.num_refused),
                "policy/entropy": float(entropies.mean()),
            }
        )
