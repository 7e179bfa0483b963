"""Statistics of one step's updates: collected by each process, merged over all of them, and the metrics made of them.

Not here: training, formulas of the metrics (`algorithms/`), the convention and the peaks of FLOPs
(`telemetry/flops.py`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.learning.logprob_model import LogprobModel, Scores
from agent_rl.learning.objective import LossInputs
from agent_rl.learning.samples import StepSamples
from agent_rl.modeling.hf_causal_lm import largest_heads
from agent_rl.modeling.sharding import full_shape
from agent_rl.records import Batch, LoggedSample, TrainingSample
from agent_rl.telemetry.flops import count_matmul_weights, peak_flops, train_flops


class ScoredSample(NamedTuple):
    """A sample as one update computed it; float32 [n trained tokens]."""

    index: int
    """In the step's list of samples."""
    logprobs: Tensor
    entropies: Tensor
    full_kl: Tensor | None
    num_updates_before: int
    """Updates of the step before this one."""


@dataclass(slots=True)
class StepStats:
    """Statistics of all updates of a step."""

    scored: list[ScoredSample] = field(default_factory=list)
    loss_parts: dict[str, Tensor | float] = field(default_factory=dict)
    """Sums over micro-batches, one update after the other."""
    grad_norms: list[float] = field(default_factory=list)
    """One per update; equal on all processes, as is the next."""
    applied: list[bool] = field(default_factory=list)
    """Whether it changed the weights, one per update."""
    num_batches: int = 0
    num_predictions: int = 0
    """Of trained ids; what samples have in common counts once."""
    segments: list[tuple[int, int]] = field(default_factory=list)
    """Tokens computed one after the other, and those before them, which are computed for several samples."""

    def add(self, batch: Batch, scores: Scores, loss_parts: Mapping[str, Tensor]) -> None:
        """Add one micro-batch."""
        self.num_batches += 1
        self.num_predictions += len(batch.targets)
        before: list[int] = []
        for segment in batch.segments:
            above = segment.prefix
            before.append(0 if above is None else before[above] + batch.segments[above].length)
        self.segments += [
            (segment.length, num_before) for segment, num_before in zip(batch.segments, before, strict=True)
        ]
        for name, part in loss_parts.items():
            self.loss_parts[name] = self.loss_parts.get(name, 0.0) + part
        columns = [
            [None] * len(batch.samples) if column is None else column.detach().split(batch.num_trained)
            for column in (scores.logprobs, scores.entropies, scores.full_kl)
        ]
        num_before = len(self.grad_norms)
        self.scored += [ScoredSample(*row, num_before) for row in zip(batch.samples, *columns, strict=True)]

    def on_cpu(self) -> "StepStats":
        """The same on the CPU; nothing waits for the device before."""
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
        """Tokens computed; what samples have in common counts once."""
        return sum(length for length, _ in self.segments)

    @classmethod
    def merged(cls, shares: Sequence["StepStats"]) -> "StepStats":
        """The statistics of all processes as one: sums and lists over them."""
        whole = cls(grad_norms=shares[0].grad_norms, applied=shares[0].applied)
        for share in shares:
            whole.scored += share.scored
            whole.num_batches += share.num_batches
            whole.num_predictions += share.num_predictions
            whole.segments += share.segments
            for name, part in share.loss_parts.items():
                whole.loss_parts[name] = whole.loss_parts.get(name, 0.0) + part
        return whole

    def inputs(self, samples: Sequence[LossInputs], *, first_update: bool = False) -> LossInputs:
        """What the updates computed, as one set of rows; with `first_update`, that of the step's first update alone."""
        chosen = [each for each in self.scored if not (first_update and each.num_updates_before)]
        return LossInputs.stack(
            [samples[each.index] for each in chosen],
            torch.cat([each.logprobs for each in chosen]),
            [len(each.logprobs) for each in chosen],
        )

    def logged_samples(
        self,
        step: StepSamples,
        samples: Sequence[TrainingSample],
        inputs: Sequence[LossInputs],
        *,
        is_critic_alone: bool,
    ) -> list[LoggedSample]:
        """The step's samples, each with the log-probs from before the step, or else those of its first update.

        In a step of several minibatches the first update of a sample comes after those of earlier minibatches.
        """
        num_updates: Counter[int] = Counter()
        if not is_critic_alone:
            num_updates.update(scored.index for scored in self.scored if self.applied[scored.num_updates_before])
        last_first = sorted(self.scored, key=lambda scored: scored.num_updates_before, reverse=True)
        known = {scored.index: scored.logprobs for scored in last_first}
        known |= {i: each.old_logprobs for i, each in enumerate(inputs) if each.old_logprobs is not None}
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
        """Means over updates; without an update only counts."""
        num_updates = len(self.grad_norms)
        metrics = {
            "batch/num_micro_batches": float(self.num_batches),
            "batch/num_computed_tokens": float(self.num_tokens),
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


def value_metrics(values_N: Tensor, returns_N: Tensor) -> dict[str, float]:
    """How well the critic predicted the returns before the step; explained variance is 0 for a constant."""
    variance = float(returns_N.var(correction=0))
    unexplained = float((returns_N - values_N).var(correction=0))
    return {
        "critic/value_mean": float(values_N.mean()),
        "critic/return_mean": float(returns_N.mean()),
        "critic/explained_variance": 1.0 - unexplained / variance if variance else 0.0,
    }


class Throughput:
    """Tokens per second, and the operations of the policy's matrix products by the peak of the devices.

    `Throughput(logprob_model, config, backend).metrics(stats, seconds)`. A critic's own model and a reference are not
    counted.
    """

    def __init__(self, logprob_model: LogprobModel, config: Config, backend: Backend) -> None:
        whole = logprob_model.model.config
        shape = whole.get_text_config() if hasattr(whole, "get_text_config") else whole
        self._num_trained, self._num_frozen = count_matmul_weights(logprob_model.backbone)
        self._num_head = full_shape(logprob_model.head.weight).numel()
        self._num_layers = shape.num_hidden_layers
        self._num_heads, _, self._head_dim = largest_heads(shape)
        is_half = "bfloat16" in (config.model.dtype, config.train.autocast)
        self._dtype = torch.bfloat16 if is_half else torch.float32
        self._backend = backend

    @property
    def attention_cost(self) -> float:
        """What it costs a token to attend to one earlier token, forward and backward, in tokens without attention."""
        per_token = 6 * self._num_trained + 4 * self._num_frozen
        return 12 * self._num_layers * self._num_heads * self._head_dim / per_token

    def metrics(self, stats: StepStats, seconds: float) -> dict[str, float]:
        """Of what all processes computed with gradients in `seconds`."""
        flops = train_flops(
            num_matmul_weights=self._num_trained,
            num_frozen_weights=self._num_frozen,
            num_head_weights=self._num_head,
            num_head_rows=stats.num_predictions,
            num_layers=self._num_layers,
            num_heads=self._num_heads,
            head_dim=self._head_dim,
            segment_lengths=[length for length, _ in stats.segments],
            prefix_lengths=[prefix for _, prefix in stats.segments],
        )
        peak = peak_flops(self._backend.device, self._dtype) * self._backend.num_processes
        return {
            "perf/update_tokens_per_s": stats.num_tokens / seconds,
            "perf/mfu": flops / (seconds * peak),
        }
