"""One optimizer step from one step's episodes: advantages, samples, micro-batches, losses, gradients.

The gradient does not depend on how the step is cut into micro-batches. A step whose loss or gradient is not finite is
not applied. Weights that need no gradient, as those below an adapter, are left alone.
Not here: episodes, the loop, checkpoints, when the sampler takes the new weights.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from agent_rl.algorithms.advantages import ESTIMATORS
from agent_rl.algorithms.losses import aggregate_loss, policy_loss, ratio_metrics
from agent_rl.config import AlgorithmConfig, Config, TrainConfig
from agent_rl.core.batch import build_samples, make_micro_batches
from agent_rl.core.scoring import TokenScorer
from agent_rl.distributed.backend import Backend
from agent_rl.errors import AgentRLError
from agent_rl.records import Batch, TrainingSample, TrajectoryGroup

MAX_NONFINITE_IN_A_ROW = 3


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """Learning rate of step 0 .. `steps - 1`: linear warm-up to the peak, then linear to the final value.

    Step `warmup_steps` has the peak and step `steps - 1` the final value; with one step and no warm-up, the peak.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / (config.warmup_steps + 1)
    num_falling = config.steps - 1 - config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / num_falling) if num_falling > 0 else 0.0
    return config.learning_rate + progress * (config.final_learning_rate - config.learning_rate)


def samples_of_groups(
    groups: Sequence[TrajectoryGroup], algorithm: AlgorithmConfig
) -> tuple[list[TrainingSample], int]:
    """All training samples of a step, advantages set group by group, and how many had no trained token."""
    samples: list[TrainingSample] = []
    num_untrained = 0
    for group in groups:
        rewards_G = [trajectory.reward for trajectory in group.trajectories]
        advantages_G = ESTIMATORS[algorithm.advantage](rewards_G, scale_by_std=algorithm.scale_by_std)
        more, dropped = build_samples(group, advantages_G)
        samples += more
        num_untrained += dropped
    return samples, num_untrained


class PolicyUpdater:
    """Owns the optimizer and changes the model in place; between updates the model is in eval mode."""

    def __init__(self, model: torch.nn.Module, config: Config, backend: Backend, *, pad_id: int) -> None:
        self._config = config
        self._backend = backend
        self._pad_id = pad_id
        scorer = TokenScorer(model, temperature=config.policy.temperature)
        trained = [parameter for parameter in scorer.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.dim() > 1]
        vectors = [parameter for parameter in trained if parameter.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": config.train.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=config.train.learning_rate, betas=config.train.betas, fused=True)
        self._scorer, self._optimizer = backend.prepare(scorer, optimizer)
        self._num_nonfinite_in_a_row = 0

    def update(self, groups: Sequence[TrajectoryGroup], *, step: int) -> dict[str, float]:
        """One optimizer step, at the learning rate of `step` (0 is the first); returns metrics.

        No step is made, and `optim/skipped` is 1, when no group has signal or loss or gradient is not finite.
        Raises AgentRLError when that happened three times in a row.
        """
        started = time.perf_counter()
        learning_rate = learning_rate_at(step, self._config.train)
        samples, num_untrained = samples_of_groups(groups, self._config.algorithm)
        batches = make_micro_batches(
            samples, max_tokens=self._config.train.micro_batch_tokens, pad_id=self._pad_id, skip_zero_advantage=True
        )
        metrics = self._accumulate(batches)
        metrics |= self._apply(learning_rate, metrics["loss/policy"]) if batches else {"optim/skipped": 1.0}
        num_read = sum(batch.token_ids.numel() for batch in batches)
        return metrics | {
            "optim/learning_rate": learning_rate,
            "batch/num_samples": float(len(samples)),
            "batch/num_untrained_samples": float(num_untrained),
            "batch/num_micro_batches": float(len(batches)),
            "batch/num_loss_tokens": float(sum(int(batch.loss_mask.sum()) for batch in batches)),
            "perf/update_tokens_per_s": num_read / (time.perf_counter() - started),
        }

    def state_dict(self) -> dict[str, Any]:
        return {"optimizer": self._optimizer.state_dict(), "num_nonfinite_in_a_row": self._num_nonfinite_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._num_nonfinite_in_a_row = state["num_nonfinite_in_a_row"]

    def _accumulate(self, batches: Sequence[Batch]) -> dict[str, float]:
        """Add up the gradients of all micro-batches; metrics over the trained tokens of the step."""
        if not batches:
            return {}
        algorithm = self._config.algorithm
        self._optimizer.zero_grad()
        loss = 0.0
        rows: list[tuple[torch.Tensor, ...]] = []
        self._scorer.train()  # Transformers recomputes activations in train mode only
        try:
            for batch in batches:
                share, *columns = self._backward(batch)
                loss += share
                rows.append(tuple(columns))
        finally:
            self._scorer.eval()
        logprobs_N, entropies_N, sampling_logprobs_N, advantages_N = (
            torch.cat(column) for column in zip(*rows, strict=True)
        )
        metrics = ratio_metrics(
            logprobs_N,
            sampling_logprobs_N,
            advantages_N,
            torch.ones_like(logprobs_N),
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
        )
        return metrics | {"loss/policy": loss, "policy/entropy": float(entropies_N.mean())}

    def _backward(self, batch: Batch) -> tuple[float, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Forward and backward of one micro-batch.

        Returns its share of the loss and, for its trained tokens, trainer log-probs, entropies, sampling log-probs and
        advantages, each [N].
        """
        device, algorithm = self._backend.device, self._config.algorithm
        token_ids_BT, mask_BT = batch.token_ids.to(device), batch.loss_mask.to(device)
        sampling_logprobs_BT, advantages_BT = batch.sampling_logprobs.to(device), batch.advantages.to(device)
        with self._backend.autocast(self._config.train.autocast):
            logprobs_N, entropies_N = self._scorer(token_ids_BT, mask_BT)
        logprobs_BT = torch.zeros_like(sampling_logprobs_BT).masked_scatter(mask_BT, logprobs_N)
        token_loss_BT = policy_loss(
            logprobs_BT,
            sampling_logprobs_BT,
            advantages_BT,
            mask_BT,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
        )
        loss = aggregate_loss(
            token_loss_BT,
            mask_BT,
            algorithm.aggregation,
            num_loss_tokens=batch.num_loss_tokens,
            num_samples=batch.num_samples,
        )
        self._backend.backward(loss)
        detached = (logprobs_N.detach(), entropies_N, sampling_logprobs_BT[mask_BT], advantages_BT[mask_BT])
        return float(loss.detach()), *detached

    def _apply(self, learning_rate: float, loss: float) -> dict[str, float]:
        """Clip, step, and forget the gradients; leave the weights alone when loss or gradient is not finite."""
        grad_norm = self._backend.clip_grad_norm(self._scorer.parameters(), self._config.train.max_grad_norm)
        # The loss too: the clip passes no gradient on where the ratio is not a number.
        is_finite = math.isfinite(grad_norm) and math.isfinite(loss)
        if is_finite:
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
            self._num_nonfinite_in_a_row = 0
        else:
            self._num_nonfinite_in_a_row += 1
        self._optimizer.zero_grad()
        if self._num_nonfinite_in_a_row >= MAX_NONFINITE_IN_A_ROW:
            raise AgentRLError(
                f"loss or gradient was infinite or not a number {MAX_NONFINITE_IN_A_ROW} steps in a row; lower "
                "train.learning_rate, or continue from the last checkpoint with another seed"
            )
        return {
            "optim/grad_norm": grad_norm,
            "optim/skipped": float(not is_finite),
            "optim/nonfinite": float(not is_finite),
        }
