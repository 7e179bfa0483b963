"""The loss of one micro-batch: policy, sampler correction, KL to a reference, entropy, value, combined as configured.

Not here: the formulas (`algorithms/`), log-probs (`logprob_model.py`), gradients (`update.py`).
Shape suffixes: `_S` sample of the micro-batch, `_N` trained token.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agent_rl.algorithms.aggregation import aggregate_loss
from agent_rl.algorithms.corrections import importance_weights, mismatch_metrics
from agent_rl.algorithms.kl import kl_penalty
from agent_rl.algorithms.policy_losses import ratio_metrics, token_policy_loss, value_loss
from agent_rl.config import Config
from agent_rl.learning.logprob_model import Scores
from agent_rl.records import Batch
from agent_rl.registry import POLICY_LOSSES


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """The trained tokens as a loss reads them: of one sample [n], or of several as rows [S, N] with a mask; float32.

    Rows are 0 where the mask is False: samples with 2 and 1 trained tokens are rows (1, 2) and (3, 0). Optional
    tensors are None where the configuration does not read them.
    """

    sampling_logprobs: Tensor
    """Log-probs by the policy when it generated the tokens."""
    advantages: Tensor
    old_logprobs: Tensor | None = None
    """Log-probs by the trainer's weights before the step's first update."""
    ref_logprobs: Tensor | None = None
    """Log-probs by the frozen reference."""
    old_values: Tensor | None = None
    """Values by the critic before the step's first update."""
    returns: Tensor | None = None
    """Targets of the critic."""
    logprobs: Tensor | None = None
    """Log-probs by the weights that are trained, in a loss with their gradient. Rows only."""
    mask: Tensor | None = None
    """Which entries are tokens, bool. Rows only."""

    @classmethod
    def stack(cls, samples: Sequence["LossInputs"], logprobs_N: Tensor, num_trained: Sequence[int]) -> "LossInputs":
        """Rows of several samples on the device of `logprobs_N`, the log-probs of their trained tokens in a row.

        `num_trained` are the trained tokens of each sample. ValueError when a sample has more or fewer.
        """
        lengths = [len(sample.advantages) for sample in samples]
        if lengths != list(num_trained):
            raise ValueError(f"samples of {lengths} tokens for log-probs of {list(num_trained)} trained tokens")

        def rows(name: str) -> Tensor | None:
            columns = [getattr(sample, name) for sample in samples]
            if not columns or columns[0] is None:
                return None
            return to_rows(torch.cat(columns).to(logprobs_N.device), num_trained)[0]

        names = ("sampling_logprobs", "advantages", "old_logprobs", "ref_logprobs", "old_values", "returns")
        logprobs_SN, mask_SN = to_rows(logprobs_N, num_trained)
        return cls(**{name: rows(name) for name in names}, logprobs=logprobs_SN, mask=mask_SN)


def to_rows(column_N: Tensor, num_trained: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A column as one row per sample, zeros on the right of shorter ones, and the mask of real entries: both [S, N].

    (1, 2, 3) with 2 and 1 trained tokens is ((1, 2), (3, 0)). Gradients pass through; `column_SN[mask_SN]` is the
    column again. A batch without samples is one row without entries.
    """
    num_trained_S = torch.tensor(list(num_trained) or [0], device=column_N.device)
    mask_SN = torch.arange(max(num_trained, default=0), device=column_N.device) < num_trained_S[:, None]
    column_SN = torch.zeros(mask_SN.shape, dtype=column_N.dtype, device=column_N.device)
    return column_SN.masked_scatter(mask_SN, column_N), mask_SN


class Objective:
    """`loss, parts = objective(scores, inputs, batch, ...)`; `needs_*` names the inputs that it reads."""

    def __init__(self, config: Config) -> None:
        self._config, self._algorithm = config, config.algorithm
        self._max_length = (
            config.policy.max_context if config.algorithm.aggregation == "seq_mean_token_sum_norm" else None
        )
        algorithm = config.algorithm
        self._options = {
            "ratio_level": algorithm.ratio_level,
            "clip_low": algorithm.clip_low,
            "clip_high": algorithm.clip_high,
            "dual_clip": algorithm.dual_clip,
        }
        self._loss_options = algorithm.loss_options()
        self.has_critic = algorithm.advantage == "gae"
        self.needs_ref = algorithm.kl.coef > 0
        self.needs_full_kl = self.needs_ref and algorithm.kl.kind == "full"
        self.has_full_kl_in_loss = self.needs_full_kl and algorithm.kl.place == "loss"
        self.needs_old_logprobs = algorithm.correction.kind != "none" and config.updates_per_step > 1
        self.reads_all_samples = (
            self.has_critic
            or algorithm.loss not in POLICY_LOSSES.builtin
            or bool(algorithm.entropy_coef)
            or (self.needs_ref and algorithm.kl.place == "loss")
        )
        """False when a sample whose advantages are all 0 has no gradient."""

    def __call__(
        self,
        scores: Scores,
        samples: Sequence[LossInputs],
        batch: Batch,
        *,
        kl_coef: float,
        is_critic_alone: bool,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The micro-batch's share of the loss, and of its parts without gradient; `samples` are those of the batch."""
        if not batch.samples:
            # No token is trained, but gradients must flow through every weight on every rank, and from the same scores:
            # ZeRO-3 compares.
            idle = [score.sum() for score in scores if score is not None and score.requires_grad]
            return torch.stack(idle).sum() * 0.0, {}
        inputs = LossInputs.stack(samples, scores.logprobs, batch.num_trained)
        parts = {"loss/policy": self._aggregate(self._policy_loss(inputs), inputs.mask, batch)}
        if self.needs_ref and self._algorithm.kl.place == "loss":
            parts["loss/kl_penalty"] = kl_coef * self._aggregate(self._kl(scores, inputs, batch), inputs.mask, batch)
        if self._algorithm.entropy_coef:
            entropies_SN = to_rows(scores.entropies, batch.num_trained)[0]
            entropy = self._aggregate(entropies_SN, inputs.mask, batch)
            parts["loss/entropy_bonus"] = -self._algorithm.entropy_coef * entropy
        if is_critic_alone:
            parts = {name: part * 0.0 for name, part in parts.items()}
        if self.has_critic:
            parts["loss/value"] = self._config.critic.coef * self._value_loss(scores, inputs, batch)
        loss = torch.stack(list(parts.values())).sum()
        return loss, {name: part.detach() for name, part in parts.items()}

    def ratio_metrics(self, step: LossInputs) -> dict[str, float]:
        """How far the policy moved from the denominator of its ratios, over all trained tokens of a step.

        With a correction and one update a step the ratio is 1.
        """
        denominator_SN = step.sampling_logprobs
        if self._is_corrected:
            denominator_SN = step.logprobs if step.old_logprobs is None else step.old_logprobs
        return ratio_metrics(step.logprobs, denominator_SN, step.advantages, step.mask, **self._options)

    def mismatch_metrics(self, step: LossInputs) -> dict[str, float]:
        """Trainer before the step's first update against sampler; without `old_logprobs` it is given that update."""
        old_SN = step.logprobs if step.old_logprobs is None else step.old_logprobs
        return mismatch_metrics(old_SN, step.sampling_logprobs, step.mask, **self._correction())

    @property
    def _is_corrected(self) -> bool:
        return self._algorithm.correction.kind != "none"

    def _policy_loss(self, inputs: LossInputs) -> Tensor:
        """Of every trained token, [S, N]."""
        old_SN = inputs.sampling_logprobs
        if self._is_corrected:
            old_SN = inputs.logprobs.detach() if inputs.old_logprobs is None else inputs.old_logprobs
        token_loss_SN = token_policy_loss(
            self._algorithm.loss, inputs.logprobs, old_SN, inputs.advantages, inputs.mask, **self._loss_options
        )
        if self._is_corrected:
            token_loss_SN = token_loss_SN * importance_weights(
                old_SN, inputs.sampling_logprobs, inputs.mask, **self._correction()
            )
        return token_loss_SN

    def _correction(self) -> dict[str, Any]:
        correction = self._algorithm.correction
        return {"kind": correction.kind, "low": correction.low, "high": correction.high}

    def _kl(self, scores: Scores, inputs: LossInputs, batch: Batch) -> Tensor:
        if self.needs_full_kl:
            return to_rows(scores.full_kl, batch.num_trained)[0]
        return kl_penalty(inputs.logprobs, inputs.ref_logprobs, self._algorithm.kl.kind, mask=inputs.mask)

    def _value_loss(self, scores: Scores, inputs: LossInputs, batch: Batch) -> Tensor:
        critic = self._config.critic
        clip = math.inf if critic.value_clip is None else critic.value_clip
        values_SN = to_rows(scores.values, batch.num_trained)[0]
        token_loss_SN = value_loss(values_SN, inputs.old_values, inputs.returns, inputs.mask, clip=clip)
        return aggregate_loss(
            token_loss_SN,
            inputs.mask,
            "token_mean",
            num_loss_tokens=batch.num_loss_tokens,
            num_samples=batch.num_samples,
        )

    def _aggregate(self, token_loss_SN: Tensor, mask_SN: Tensor, batch: Batch) -> Tensor:
        return aggregate_loss(
            token_loss_SN,
            mask_SN,
            self._algorithm.aggregation,
            num_loss_tokens=batch.num_loss_tokens,
            num_samples=batch.num_samples,
            max_length=self._max_length,
        )
