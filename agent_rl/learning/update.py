"""One step of training on the episodes of one rollout: groups -> samples -> micro-batches -> loss -> optimizer steps.

The gradient does not depend on how the step is split into processes and micro-batches. An update whose loss or gradient
is not finite is not applied. Weights that need no gradient, as those below an adapter, are left alone.
Not here: episodes, the loop, checkpoints, when the inference engine gets the new weights.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_rl.algorithms.kl import KLController, kl_penalty
from agent_rl.config import Config
from agent_rl.distributed.backend import Backend, set_learning_rate
from agent_rl.distributed.parking import ParkedState
from agent_rl.errors import CheckpointError, TrainingStoppedError
from agent_rl.learning.logprob_model import Scores, make_logprob_model
from agent_rl.learning.objective import LossInputs, Objective
from agent_rl.learning.optimizer import learning_rate_at, make_optimizer
from agent_rl.learning.packing import move_batch, plan_micro_batches
from agent_rl.learning.reference import Reference
from agent_rl.learning.samples import StepSamples, assign_credit, collect_samples
from agent_rl.learning.step_stats import StepStats, Throughput, value_metrics
from agent_rl.modeling.tensor_files import load_tensors, save_tensors
from agent_rl.records import Batch, LoggedSample, TrainingSample, TrajectoryGroup

MAX_REFUSED_IN_A_ROW = 3
CRITIC_FILE = "critic.pt"


@dataclass(frozen=True, kw_only=True)
class UpdateResult:
    """What one step of training returns."""

    metrics: dict[str, float]
    """Those of docs/metrics.md but for rewards and episodes."""
    build_samples: Callable[[], list[LoggedSample]]

    @cached_property
    def samples(self) -> list[LoggedSample]:
        """All samples of the step, trained on or not; built when first read."""
        return self.build_samples()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoresBefore:
    """All samples of a step, scored before its first update: [n] per sample on the CPU; None where not needed."""

    logprobs: list[Tensor] | None = None
    """By the policy."""
    values: list[Tensor] | None = None
    """By the critic."""
    ref_logprobs: list[Tensor] | None = None
    """By the reference."""
    full_kl: list[Tensor] | None = None
    """Exact KL of the policy to the reference."""


class PolicyUpdater:
    """Owns the optimizer and changes the model in place; between updates the model is in eval mode."""

    def __init__(
        self, model: nn.Module, config: Config, backend: Backend, *, reference_model: nn.Module | None = None
    ) -> None:
        """`reference_model` is what the KL pulls to; without one the model's adapters are switched off for it."""
        self._config = config
        self._backend = backend
        config.check_functions()
        self._objective = Objective(config)
        self._kl = KLController(
            config.algorithm.kl.coef, target=config.algorithm.kl.target, horizon=config.algorithm.kl.horizon
        )
        self._sequence = backend.sequence_group(config.train.sequence_parallel)
        logprob_model = make_logprob_model(model, config, self._sequence)
        optimizer, self._rates = make_optimizer(logprob_model, config)
        self._is_packed = logprob_model.is_packed
        self._throughput = Throughput(logprob_model, config, backend)
        self._reference: Reference | None = None
        if self._objective.needs_ref:
            self._reference = Reference(model, reference_model, config, backend, self._sequence)
        self.module, self._optimizer = backend.prepare(logprob_model, optimizer)
        """The trained `LogprobModel`, wrapped as the processes need it."""
        if self._reference is not None:
            self._reference.prepare()
        self._parked: ParkedState | None = None
        self._num_refused_in_a_row = 0

    def update(self, groups: Sequence[TrajectoryGroup], *, step: int, rate_factor: float = 1.0) -> UpdateResult:
        """Train on `groups` at the learning rate of `step` (0 is the first) times `rate_factor`.

        All processes pass all groups. No update is made, and `optim/skipped` is 1, when all groups have zero variance
        or no loss or gradient was finite. Raises TrainingStoppedError when loss or gradient was not finite three
        updates in a row.
        """
        started = time.perf_counter()
        collected = collect_samples(groups)
        before = self._score_before(collected.samples)
        samples, returns = assign_credit(
            collected,
            self._config.algorithm,
            token_penalties=self._token_penalties(before) if collected.samples else None,
            values=before.values,
        )
        inputs = _loss_inputs(samples, before, returns)
        learning_rate = rate_factor * learning_rate_at(step, self._config.train)
        is_critic_alone = self._objective.has_critic and step < self._config.critic.warmup_steps
        set_learning_rate(
            self._optimizer,
            [0.0 if is_critic_alone and not is_critic else learning_rate * factor for is_critic, factor in self._rates],
        )
        stats = StepStats()
        for _ in range(self._config.train.epochs):
            for indices in _minibatches(collected, self._config.train.minibatches):
                self.train_minibatch(samples, indices, inputs, stats, is_critic_alone=is_critic_alone)
        stats = StepStats.merged(self._backend.all_gather_object(stats.on_cpu()))
        metrics = self._metrics(stats, inputs, before)
        self._adapt_kl(stats, metrics, num_episodes=len(collected.episodes))
        metrics |= self._throughput.metrics(stats, time.perf_counter() - started)
        metrics |= {
            "optim/learning_rate": learning_rate,
            "batch/num_samples": float(len(samples)),
            "batch/num_untrained_samples": float(collected.num_untrained),
        }
        logged = partial(stats.logged_samples, collected, samples, inputs, is_critic_alone=is_critic_alone)
        return UpdateResult(metrics=metrics, build_samples=logged)

    @torch.no_grad()
    def logprobs(self, samples: Sequence[TrainingSample]) -> list[list[float]]:
        """Log-probs of each sample's trained tokens, by the weights as they are now.

        Collective: every process passes the same samples and computes all of them.
        """
        found: dict[int, list[float]] = {}
        for batch in self._plan(samples, range(len(samples)), skip_zero_advantage=False, num_ranks=1):
            parts = self._scores(batch, with_kl=False).logprobs.float().cpu().split(batch.num_trained)
            found |= {index: part.tolist() for index, part in zip(batch.samples, parts, strict=True)}
        return [found[index] for index in range(len(samples))]

    def save_state(self, folder: Path) -> dict[Path, str]:
        """Write the optimizer's state and the critic below `folder`; collective.

        Returns the SHA-256 of the files that this process wrote.
        """
        written = self._backend.save_state(folder, self.module, self._optimizer)
        critic = self._backend.unwrap(self.module).critic
        if critic is not None and self._backend.kind != "deepspeed" and self._backend.is_main_process:
            written[folder / CRITIC_FILE] = save_tensors(critic.state_dict(), folder / CRITIC_FILE)
        return written

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote; collective. The policy's weights are restored under DeepSpeed only."""
        self.unpark()
        self._backend.load_state(folder, self.module, self._optimizer)
        critic = self._backend.unwrap(self.module).critic
        if critic is not None and self._backend.kind != "deepspeed":
            critic.load_state_dict(load_tensors(folder / CRITIC_FILE))

    def park(self) -> None:
        """Move the optimizer's state to the machine's memory, if configured; `unpark` before the next update."""
        if not self._config.train.offload_while_sampling:
            return
        if self._parked is None:
            self._parked = self._backend.parked_state(self._optimizer)
        if self._parked is not None:
            self._parked.park()

    def unpark(self) -> None:
        if self._parked is not None:
            self._parked.unpark()

    @property
    def policy_module(self) -> nn.Module:
        """The trained model within `module`; under ZeRO-3 its weights are shards."""
        return self._backend.unwrap(self.module).model

    def state_dict(self) -> dict[str, Any]:
        """What is the same on every process."""
        return {
            "critic": self._critic_kind(),
            "kl": self._kl.state_dict(),
            "num_refused_in_a_row": self._num_refused_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["critic"] != self._critic_kind():
            raise CheckpointError(
                f"the checkpoint's critic is {state['critic']}, this run's is {self._critic_kind()}; set "
                "algorithm.advantage and critic.backbone as they were, or start another run from its model folder"
            )
        self._kl.load_state_dict(state["kl"])
        self._num_refused_in_a_row = state["num_refused_in_a_row"]

    def _critic_kind(self) -> str:
        return self._config.critic.backbone if self._objective.has_critic else "none"

    def _score_before(self, samples: Sequence[TrainingSample]) -> ScoresBefore:
        """Score all samples by the weights before the step, and by the reference; every process gets all scores."""
        objective = self._objective
        is_in_reward = objective.needs_ref and self._config.algorithm.kl.place == "reward"
        needs_full_kl = objective.needs_full_kl and is_in_reward
        needed = {
            "logprobs": objective.needs_old_logprobs or (is_in_reward and not needs_full_kl),
            "values": objective.has_critic,
            "ref_logprobs": objective.needs_ref and not objective.needs_full_kl,
            "full_kl": needs_full_kl,
        }
        names = [name for name, is_needed in needed.items() if is_needed]
        if not names or not samples:
            return ScoresBefore()
        found: dict[str, dict[int, Tensor]] = {name: {} for name in names}
        with torch.no_grad():
            for batch in self._plan(samples, range(len(samples)), skip_zero_advantage=False):
                scores: dict[str, Tensor | None] = {}
                if names != ["ref_logprobs"]:
                    scores |= self._scores(batch, with_kl=needs_full_kl)._asdict()
                if "ref_logprobs" in names:
                    scores["ref_logprobs"] = self._reference.logprobs(batch)
                for name in names:
                    parts = scores[name].float().cpu().split(batch.num_trained)
                    found[name] |= dict(zip(batch.samples, parts, strict=True))
        shares = self._backend.all_gather_object(found)
        merged = {name: {k: v for share in shares for k, v in share[name].items()} for name in names}
        return ScoresBefore(**{name: [merged[name][index] for index in range(len(samples))] for name in names})

    def _scores(self, batch: Batch, *, with_kl: bool) -> Scores:
        """Forward pass; `with_kl` with the exact KL to the reference."""
        ref = self._reference.states_and_head(batch) if with_kl else None
        with self._backend.autocast(self._config.train.autocast):
            return self.module(move_batch(batch, self._backend.device), ref=ref)

    def _token_penalties(self, before: ScoresBefore) -> list[Tensor] | None:
        """KL in the reward, per sample; None where it is not in the reward."""
        kl = self._config.algorithm.kl
        if self._reference is None or kl.place != "reward":
            return None
        return [self._kl.coefficient * penalty for penalty in _kl_of_samples(before, kl.kind)]

    def _plan(
        self,
        samples: Sequence[TrainingSample],
        indices: Sequence[int],
        *,
        skip_zero_advantage: bool,
        num_ranks: int | None = None,
    ) -> list[Batch]:
        """This process's micro-batches of some of the samples; every process has the same number of them.

        With `num_ranks` 1 every process has all of them.
        """
        sharing = self._config.train.sequence_parallel
        num_ranks = num_ranks or self._backend.num_processes // sharing
        rank = self._backend.rank // sharing % num_ranks
        return plan_micro_batches(
            samples,
            indices,
            max_tokens=self._config.train.micro_batch_tokens,
            num_ranks=num_ranks,
            skip_zero_advantage=skip_zero_advantage,
            padded=not self._is_packed,
            share_prefixes=self._config.train.share_prefixes,
            attention_cost=self._throughput.attention_cost,
            only_rank=rank,
        )[rank]

    def train_minibatch(
        self,
        samples: Sequence[TrainingSample],
        indices: Sequence[int],
        inputs: Sequence[LossInputs],
        stats: StepStats,
        *,
        is_critic_alone: bool,
    ) -> None:
        """One optimizer step on the samples of a minibatch, unless none of them has a gradient."""
        batches = self._plan(samples, indices, skip_zero_advantage=not self._objective.reads_all_samples)
        if not batches:
            return
        loss = torch.zeros((), device=self._backend.device)
        self.module.train()  # Transformers recomputes activations in train mode only
        try:
            for number, batch in enumerate(batches):
                with self._backend.micro_step(self.module, is_last=number == len(batches) - 1):
                    loss += self._backward(batch, inputs, stats, is_critic_alone=is_critic_alone)
        finally:
            self.module.eval()
        result = self._backend.step(
            self.module,
            self._optimizer,
            max_grad_norm=self._config.train.max_grad_norm,
            is_loss_finite=bool(loss.isfinite()),
        )
        stats.grad_norms.append(result.grad_norm)
        stats.applied.append(result.applied)
        self._num_refused_in_a_row = 0 if result.applied else self._num_refused_in_a_row + 1
        if self._num_refused_in_a_row >= MAX_REFUSED_IN_A_ROW:
            raise TrainingStoppedError(
                f"loss or gradient was infinite or not a number {MAX_REFUSED_IN_A_ROW} updates in a row; lower "
                "train.learning_rate, or continue from the last checkpoint with another seed"
            )

    def _backward(
        self, batch: Batch, inputs: Sequence[LossInputs], stats: StepStats, *, is_critic_alone: bool
    ) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the loss."""
        scores = self._scores(batch, with_kl=self._objective.has_full_kl_in_loss)
        loss, parts = self._objective(
            scores,
            [inputs[index] for index in batch.samples],
            batch,
            kl_coef=self._kl.coefficient,
            is_critic_alone=is_critic_alone,
        )
        self._backend.backward(loss)
        if self._sequence is None or self._sequence.rank == 0:  # else it is in the statistics of another
            stats.add(batch, scores, parts)
        return loss.detach()

    def _metrics(self, stats: StepStats, inputs: Sequence[LossInputs], before: ScoresBefore) -> dict[str, float]:
        """Of all updates of the step and all processes."""
        metrics = stats.metrics()
        if not stats.scored:
            return metrics
        step = stats.inputs(inputs)
        metrics |= self._objective.ratio_metrics(step)
        # The first update computed its log-probs before it changed anything.
        first = step if step.old_logprobs is not None else stats.inputs(inputs, first_update=True)
        metrics |= self._objective.mismatch_metrics(first)
        if self._reference is not None:
            metrics |= {"loss/kl": self._mean_kl(stats, step, before), "loss/kl_coef": self._kl.coefficient}
        if step.old_values is not None:
            metrics |= value_metrics(step.old_values[step.mask], step.returns[step.mask])
        return metrics

    def _mean_kl(self, stats: StepStats, step: LossInputs, before: ScoresBefore) -> float:
        """KL to the reference per token: of all samples where it is in the reward, else of those trained on."""
        kl = self._config.algorithm.kl
        if kl.place == "reward":
            return float(torch.cat(_kl_of_samples(before, kl.kind)).mean())
        if kl.kind == "full":
            return float(torch.cat([sample.full_kl for sample in stats.scored]).mean())
        return float(kl_penalty(step.logprobs[step.mask], step.ref_logprobs[step.mask], kl.kind).mean())

    def _adapt_kl(self, stats: StepStats, metrics: dict[str, float], *, num_episodes: int) -> None:
        """Move the coefficient of the KL towards its target; not when all updates were refused, nor by a KL that is not
        finite, as it is where one of several updates was."""
        if stats.num_refused < len(stats.grad_norms) and math.isfinite(metrics.get("loss/kl", math.nan)):
            self._kl.update(metrics["loss/kl"], num_samples=num_episodes)


def _loss_inputs(
    samples: Sequence[TrainingSample], before: ScoresBefore, returns: Sequence[Tensor] | None
) -> list[LossInputs]:
    """What the loss reads of each sample's trained tokens, on the CPU."""

    def trained(sample: TrainingSample, values: Sequence[float]) -> Tensor:
        return torch.tensor([value for value, is_trained in zip(values, sample.loss_mask, strict=True) if is_trained])

    def at(column: Sequence[Tensor] | None, index: int) -> Tensor | None:
        return None if column is None else column[index].float()

    return [
        LossInputs(
            sampling_logprobs=trained(sample, sample.sampling_logprobs),
            advantages=trained(sample, sample.advantages),
            old_logprobs=at(before.logprobs, index),
            ref_logprobs=at(before.ref_logprobs, index),
            old_values=at(before.values, index),
            returns=at(returns, index),
        )
        for index, sample in enumerate(samples)
    ]


def _kl_of_samples(before: ScoresBefore, kind: str) -> list[Tensor]:
    """KL of each sample's tokens to the reference before the step; none without samples."""
    if kind == "full":
        return before.full_kl or []
    pairs = zip(before.logprobs or [], before.ref_logprobs or [], strict=True)
    return [kl_penalty(logprobs, ref_logprobs, kind) for logprobs, ref_logprobs in pairs]


def _minibatches(step: StepSamples, num_minibatches: int) -> list[list[int]]:
    """Samples of each minibatch; groups stay whole."""
    parts: list[list[int]] = [[] for _ in range(num_minibatches)]
    for index, episode in enumerate(step.episode_of):
        parts[step.group_of[episode] * num_minibatches // len(step.groups)].append(index)
    return parts
