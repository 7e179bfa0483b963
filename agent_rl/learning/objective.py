"""The loss of one micro-batch: policy, sampler correction, KL to a reference, entropy, value, put together by a config.

Not here: the formulas (`algorithms/`), log-probs (`scoring.py`), gradients (`update.py`).
Shape suffixes: `_S` sample of the micro-batch, `_N` trained token.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agent_rl.algorithms.losses import (
    aggregate_loss,
    importance_weights,
    kl_penalty,
    mismatch_metrics,
    ratio_metrics,
    token_policy_loss,
    value_loss,
)
from agent_rl.config import LOSS_KEYS, Config
from agent_rl.learning.batch import to_rows
from agent_rl.learning.logprob_model import Scores
from agent_rl.records import Batch

Columns = Mapping[str, Tensor]
"""What is known of the trained tokens of a micro-batch besides the model's scores, by name, [N] each."""


class Objective:
    """`loss, parts = objective(scores, columns, batch)`; which columns it reads says `needs_*`."""

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
        self.has_critic = algorithm.advantage == "gae"
        self.needs_ref = algorithm.kl.coef > 0
        self.needs_full_kl = self.needs_ref and algorithm.kl.kind == "full"
        self.has_full_kl_in_loss = self.needs_full_kl and algorithm.kl.place == "loss"
        self.needs_prox = algorithm.correction.kind != "none" and config.updates_per_step > 1
        self.reads_all_samples = (
            self.has_critic
            or algorithm.loss not in LOSS_KEYS
            or bool(algorithm.entropy_coef)
            or (self.needs_ref and algorithm.kl.place == "loss")
        )
        """False when a sample whose advantages are all 0 has no gradient."""

    def __call__(
        self, scores: Scores, columns: Columns, batch: Batch, *, kl_coef: float, is_critic_alone: bool
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The micro-batch's share of the loss, and of its parts without gradient."""
        if not batch.samples:
            # No token is trained, but gradients must flow through every weight on every rank, and from the same scores:
            # ZeRO-3 compares.
            idle = [score.sum() for score in scores if score is not None and score.requires_grad]
            return torch.stack(idle).sum() * 0.0, {}
        logprobs_SN, mask_SN = to_rows(scores.logprobs, batch.num_trained)
        rows = {name: to_rows(column, batch.num_trained)[0] for name, column in columns.items()}
        token_loss_SN = self._policy_loss(logprobs_SN, rows, mask_SN)
        parts = {"loss/policy": self._aggregate(token_loss_SN, mask_SN, batch)}
        if self.needs_ref and self._algorithm.kl.place == "loss":
            kl_SN = self._kl(scores, logprobs_SN, rows, mask_SN, batch)
            parts["loss/kl_penalty"] = kl_coef * self._aggregate(kl_SN, mask_SN, batch)
        if self._algorithm.entropy_coef:
            entropies_SN = to_rows(scores.entropies, batch.num_trained)[0]
            parts["loss/entropy_bonus"] = -self._algorithm.entropy_coef * self._aggregate(entropies_SN, mask_SN, batch)
        if is_critic_alone:
            parts = {name: part * 0.0 for name, part in parts.items()}
        if self.has_critic:
            parts["loss/value"] = self._config.critic.coef * self._value_loss(scores, rows, mask_SN, batch)
        loss = torch.stack(list(parts.values())).sum()
        return loss, {name: part.detach() for name, part in parts.items()}

    def ratio_metrics(self, scored: Columns) -> dict[str, float]:
        """Of all trained tokens of a step: rows of samples `logprobs`, `sampling_logprobs`, `advantages`, `mask`.

        With a correction and several updates also `prox_logprobs`, without several the ratio is 1.
        """
        logprobs_SN = scored["logprobs"]
        is_corrected = self._algorithm.correction.kind != "none"
        denominator_SN = scored.get("prox_logprobs", logprobs_SN) if is_corrected else scored["sampling_logprobs"]
        return ratio_metrics(logprobs_SN, denominator_SN, scored["advantages"], scored["mask"], **self._options)

    def mismatch_metrics(self, prox_SN: Tensor, sampling_SN: Tensor, mask_SN: Tensor) -> dict[str, float]:
        """Trainer before the step's first update against sampler."""
        return mismatch_metrics(prox_SN, sampling_SN, mask_SN, **self._correction())

    def _policy_loss(self, logprobs_SN: Tensor, rows: Mapping[str, Tensor], mask_SN: Tensor) -> Tensor:
        sampling_SN = rows["sampling_logprobs"]
        is_corrected = self._algorithm.correction.kind != "none"
        prox_SN = rows.get("prox_logprobs", logprobs_SN.detach()) if is_corrected else sampling_SN
        token_loss_SN = token_policy_loss(
            self._config.algorithm.loss, logprobs_SN, prox_SN, rows["advantages"], mask_SN, **self._options
        )
        if is_corrected:
            token_loss_SN = token_loss_SN * importance_weights(prox_SN, sampling_SN, mask_SN, **self._correction())
        return token_loss_SN

    def _correction(self) -> dict[str, Any]:
        correction = self._algorithm.correction
        return {"kind": correction.kind, "low": correction.low, "high": correction.high}

    def _kl(
        self, scores: Scores, logprobs_SN: Tensor, rows: Mapping[str, Tensor], mask_SN: Tensor, batch: Batch
    ) -> Tensor:
        if self.needs_full_kl:
            return to_rows(scores.full_kl, batch.num_trained)[0]
        return kl_penalty(logprobs_SN, rows["ref_logprobs"], self._algorithm.kl.kind, mask=mask_SN)

    def _value_loss(self, scores: Scores, rows: Mapping[str, Tensor], mask_SN: Tensor, batch: Batch) -> Tensor:
        critic = self._config.critic
        clip = math.inf if critic.value_clip is None else critic.value_clip
        values_SN = to_rows(scores.values, batch.num_trained)[0]
        token_loss_SN = value_loss(values_SN, rows["values"], rows["returns"], mask_SN, clip=clip)
        return aggregate_loss(
            token_loss_SN,
            mask_SN,
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
