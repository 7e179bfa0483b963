"""One step of learning from one step's episodes: credit, micro-batches, losses, gradients, optimizer steps.

The gradient does not depend on how the step is cut into processes and micro-batches. An update whose loss or gradient
is not finite is not applied. Weights that need no gradient, as those below an adapter, are left alone.
Not here: episodes, the loop, checkpoints, when the sampler takes the new weights.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agent_rl.algorithms.estimators import ADVANTAGE_ESTIMATORS
from agent_rl.algorithms.losses import KLController, kl_penalty
from agent_rl.algorithms.policy_losses import POLICY_LOSSES
from agent_rl.config import Config
from agent_rl.distributed.backend import Backend, set_learning_rate
from agent_rl.errors import CheckpointError, TrainingStoppedError
from agent_rl.learning.batch import move_batch, select_column, to_rows
from agent_rl.learning.credit import StepSamples, assign_credit, collect_samples
from agent_rl.learning.logprob_model import LogprobModel, Scores, make_scorer
from agent_rl.learning.objective import Objective
from agent_rl.learning.packing import plan_micro_batches
from agent_rl.learning.reference import Reference
from agent_rl.learning.schedule import learning_rate_at
from agent_rl.learning.step_stats import ScoredSample, StepStats
from agent_rl.learning.throughput import Throughput
from agent_rl.modeling.sharding import full_shape
from agent_rl.records import Batch, LoggedSample, TrainingSample, TrajectoryGroup

MAX_REFUSED_IN_A_ROW = 3
CRITIC_FILE = "critic.pt"

Columns = dict[str, list[Tensor]]
"""By name, for every sample of the step what is known of its trained tokens, [n] on the CPU."""


class PolicyUpdater:
    """Owns the optimizer and changes the model in place; between updates the model is in eval mode."""

    def __init__(
        self, model: nn.Module, config: Config, backend: Backend, *, reference_model: nn.Module | None = None
    ) -> None:
        """`reference_model` is what the KL pulls to; without one the model's adapters are switched off for it."""
        self._config = config
        self._backend = backend
        self._objective = Objective(config)
        self._kl = KLController(
            config.algorithm.kl.coef, target=config.algorithm.kl.target, horizon=config.algorithm.kl.horizon
        )
        for registry, name in (
            (ADVANTAGE_ESTIMATORS, config.algorithm.advantage),
            (POLICY_LOSSES, config.algorithm.loss),
        ):
            registry.get(name)  # an unknown name is an error now and not after the first rollout
        scorer = make_scorer(model, config)
        groups, self._rates = _parameter_groups(scorer, config)
        optimizer = torch.optim.AdamW(groups, lr=config.train.learning_rate, betas=config.train.betas, fused=True)
        self._is_packed = scorer.is_packed
        self._throughput = Throughput(scorer, config, backend)
        self._reference = Reference(model, reference_model, config, backend) if self._objective.needs_ref else None
        self.module, self._optimizer = backend.prepare(scorer, optimizer)
        """What is trained, wrapped as the processes need it."""
        if self._reference is not None:
            self._reference.prepare()
        self._num_refused_in_a_row = 0

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        *,
        step: int,
        rate_factor: float = 1.0,
        observe: Callable[[list[LoggedSample]], None] | None = None,
    ) -> dict[str, float]:
        """Learn from `groups` at the learning rate of `step` (0 is the first) times `rate_factor`; returns metrics.

        All processes give all groups. No update is made, and `optim/skipped` is 1, when no group has signal or no loss
        or gradient was finite. `observe` is told of all samples, learned from or not.
        Raises TrainingStoppedError when loss or gradient was not finite three updates in a row.
        """
        started = time.perf_counter()
        algorithm = self._config.algorithm
        collected = collect_samples(groups)
        columns = self._score_before(collected.samples)
        penalties = self._token_penalties(columns) if algorithm.kl.place == "reward" else None
        samples, returns = assign_credit(
            collected, algorithm, token_penalties=penalties, values=columns.get("values") if columns else None
        )
        columns |= _known_columns(samples)
        if returns is not None:
            columns["returns"] = [column.float() for column in returns]
        learning_rate = rate_factor * learning_rate_at(step, self._config.train)
        is_critic_alone = self._objective.has_critic and step < self._config.critic.warmup_steps
        set_learning_rate(
            self._optimizer,
            [0.0 if is_critic_alone and not is_critic else learning_rate * factor for is_critic, factor in self._rates],
        )
        record = StepStats()
        for _ in range(self._config.train.epochs):
            for indices in _minibatches(collected, self._config.train.minibatches):
                self._update_once(samples, indices, columns, record, is_critic_alone=is_critic_alone)
        record = StepStats.merged(self._backend.all_gather_object(record.fetched()))
        metrics = self._metrics(record, columns, num_episodes=len(collected.episodes))
        metrics |= self._throughput.metrics(record, time.perf_counter() - started)
        if observe is not None:
            prox = columns.get("prox_logprobs")
            observe(record.learned(collected, samples, prox, is_critic_alone=is_critic_alone))
        return metrics | {
            "optim/learning_rate": learning_rate,
            "batch/num_samples": float(len(samples)),
            "batch/num_untrained_samples": float(collected.num_untrained),
        }

    @torch.no_grad()
    def logprobs(self, samples: Sequence[TrainingSample]) -> list[list[float]]:
        """Log-probs of each sample's trained tokens, by the weights as they are now.

        Collective: every process gives the same samples and computes all of them.
        """
        found: dict[int, list[float]] = {}
        for batch in self._plan(samples, range(len(samples)), skip_zero_advantage=False, num_ranks=1):
            parts = self._scores(batch, with_kl=False).logprobs.float().cpu().split(batch.num_trained)
            found |= {index: part.tolist() for index, part in zip(batch.samples, parts, strict=True)}
        return [found[index] for index in range(len(samples))]

    def save_state(self, folder: Path) -> None:
        """Write the optimizer's state and the critic below `folder`; collective."""
        self._backend.save_state(folder, self.module, self._optimizer)
        critic = self._backend.unwrap(self.module).critic
        if critic is not None and self._backend.kind != "deepspeed" and self._backend.is_main_process:
            torch.save(critic.state_dict(), folder / CRITIC_FILE)

    def load_state(self, folder: Path) -> None:
        """Restore what `save_state` wrote; collective. The policy's weights are restored under DeepSpeed only."""
        self._backend.load_state(folder, self.module, self._optimizer)
        critic = self._backend.unwrap(self.module).critic
        if critic is not None and self._backend.kind != "deepspeed":
            critic.load_state_dict(torch.load(folder / CRITIC_FILE, map_location="cpu", weights_only=True))

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

    def _score_before(self, samples: Sequence[TrainingSample]) -> Columns:
        """What the step's first weights and the reference say of all samples; every process gets all of it."""
        objective = self._objective
        is_in_reward = objective.needs_ref and self._config.algorithm.kl.place == "reward"
        wanted = [
            name
            for name, is_needed in (
                ("prox_logprobs", objective.needs_prox or (is_in_reward and not objective.needs_full_kl)),
                ("values", objective.has_critic),
                ("ref_logprobs", objective.needs_ref and not objective.needs_full_kl),
                ("ref_kl", objective.needs_full_kl and is_in_reward),
            )
            if is_needed
        ]
        if not wanted or not samples:
            return {}
        found: dict[str, dict[int, Tensor]] = {name: {} for name in wanted}
        with torch.no_grad():
            for batch in self._plan(samples, range(len(samples)), skip_zero_advantage=False):
                scored = self._scores_before(batch, wanted)
                for name, column in scored.items():
                    parts = column.float().cpu().split(batch.num_trained)
                    found[name] |= dict(zip(batch.samples, parts, strict=True))
        shares = self._backend.all_gather_object(found)
        merged = {name: {k: v for share in shares for k, v in share[name].items()} for name in wanted}
        return {name: [merged[name][index] for index in range(len(samples))] for name in wanted}

    def _scores_before(self, batch: Batch, wanted: Sequence[str]) -> dict[str, Tensor]:
        scored: dict[str, Tensor] = {}
        if {"prox_logprobs", "values", "ref_kl"} & set(wanted):
            scores = self._scores(batch, with_kl="ref_kl" in wanted)
            own = {"prox_logprobs": scores.logprobs, "values": scores.values, "ref_kl": scores.full_kl}
            scored = {name: column for name, column in own.items() if name in wanted}
        if "ref_logprobs" in wanted:
            scored["ref_logprobs"] = self._reference.logprobs(batch)
        return scored

    def _scores(self, batch: Batch, *, with_kl: bool) -> Scores:
        """Forward pass; `with_kl` with the exact KL to the reference."""
        ref = self._reference.rows(batch) if with_kl else None
        with self._backend.autocast(self._config.train.autocast):
            return self.module(move_batch(batch, self._backend.device), ref=ref)

    def _token_penalties(self, columns: Columns) -> list[Tensor] | None:
        """KL in the reward, per sample."""
        if self._reference is None:
            return None
        kind = self._config.algorithm.kl.kind
        if kind == "full":
            return [self._kl.coefficient * kl for kl in columns["ref_kl"]]
        pairs = zip(columns["prox_logprobs"], columns["ref_logprobs"], strict=True)
        return [self._kl.coefficient * kl_penalty(prox, ref, kind) for prox, ref in pairs]

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
        num_ranks = num_ranks or self._backend.num_processes
        rank = self._backend.rank % num_ranks
        return plan_micro_batches(
            samples,
            indices,
            max_tokens=self._config.train.micro_batch_tokens,
            num_ranks=num_ranks,
            skip_zero_advantage=skip_zero_advantage,
            padded=not self._is_packed,
            only_rank=rank,
        )[rank]

    def _update_once(
        self,
        samples: Sequence[TrainingSample],
        indices: Sequence[int],
        columns: Columns,
        record: StepStats,
        *,
        is_critic_alone: bool,
    ) -> None:
        """One optimizer step, unless no sample has a gradient."""
        batches = self._plan(samples, indices, skip_zero_advantage=not self._objective.reads_all_samples)
        if not batches:
            return
        loss = torch.zeros((), device=self._backend.device)
        self.module.train()  # Transformers recomputes activations in train mode only
        try:
            for number, batch in enumerate(batches):
                with self._backend.micro_step(self.module, is_last=number == len(batches) - 1):
                    loss += self._backward(batch, columns, record, is_critic_alone=is_critic_alone)
        finally:
            self.module.eval()
        result = self._backend.step(
            self.module,
            self._optimizer,
            max_grad_norm=self._config.train.max_grad_norm,
            is_loss_finite=bool(loss.isfinite()),
        )
        record.grad_norms.append(result.grad_norm)
        record.applied.append(result.applied)
        self._num_refused_in_a_row = 0 if result.applied else self._num_refused_in_a_row + 1
        if self._num_refused_in_a_row >= MAX_REFUSED_IN_A_ROW:
            raise TrainingStoppedError(
                f"loss or gradient was infinite or not a number {MAX_REFUSED_IN_A_ROW} updates in a row; lower "
                "train.learning_rate, or continue from the last checkpoint with another seed"
            )

    def _backward(self, batch: Batch, columns: Columns, record: StepStats, *, is_critic_alone: bool) -> Tensor:
        """Forward and backward of one micro-batch; returns its share of the loss."""
        device = self._backend.device
        of_batch = {name: select_column(column, batch).to(device) for name, column in columns.items()}
        scores = self._scores(batch, with_kl=self._objective.has_full_kl_in_loss)
        loss, parts = self._objective(
            scores, of_batch, batch, kl_coef=self._kl.coefficient, is_critic_alone=is_critic_alone
        )
        self._backend.backward(loss)
        record.add(batch, scores, parts)
        return loss.detach()

    def _metrics(self, record: StepStats, columns: Columns, *, num_episodes: int) -> dict[str, float]:
        """Of all updates of the step and all processes; moves the coefficient of the KL."""
        metrics = record.metrics()
        if not record.scored:
            return metrics
        flat, rows = _of_samples(record.scored, columns)
        metrics |= self._objective.ratio_metrics(rows)
        if "prox_logprobs" not in rows:
            # The first update's own pass, before it changed anything.
            _, rows = _of_samples([sample for sample in record.scored if not sample.num_updates_before], columns)
        prox_SN = rows.get("prox_logprobs", rows["logprobs"])
        metrics |= self._objective.mismatch_metrics(prox_SN, rows["sampling_logprobs"], rows["mask"])
        if self._reference is not None:
            metrics |= {"loss/kl": self._mean_kl(record, columns, flat), "loss/kl_coef": self._kl.coefficient}
            if record.num_refused < len(record.grad_norms):
                self._kl.update(metrics["loss/kl"], num_samples=num_episodes)
        if "values" in flat:
            metrics |= _value_metrics(flat["values"], flat["returns"])
        return metrics

    def _mean_kl(self, record: StepStats, columns: Columns, flat: dict[str, Tensor]) -> float:
        """KL to the reference per token: of all samples where it is in the reward, else of what was learned from."""
        kind = self._config.algorithm.kl.kind
        if self._config.algorithm.kl.place == "reward":
            if kind == "full":
                return float(torch.cat(columns["ref_kl"]).mean())
            return float(
                kl_penalty(torch.cat(columns["prox_logprobs"]), torch.cat(columns["ref_logprobs"]), kind).mean()
            )
        if kind == "full":
            return float(torch.cat([sample.full_kl for sample in record.scored]).mean())
        return float(kl_penalty(flat["logprobs"], flat["ref_logprobs"], kind).mean())


def _of_samples(scored: Sequence[ScoredSample], columns: Columns) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The columns of some samples as an update saw them, with their log-probs: [N], and as rows [S, N] with a mask."""
    num_trained = [len(sample.logprobs) for sample in scored]
    flat = {name: torch.cat([column[sample.index] for sample in scored]) for name, column in columns.items()}
    flat["logprobs"] = torch.cat([sample.logprobs for sample in scored])
    rows = {name: to_rows(column, num_trained)[0] for name, column in flat.items()}
    return flat, rows | {"mask": to_rows(flat["logprobs"], num_trained)[1]}


def _known_columns(samples: Sequence[TrainingSample]) -> Columns:
    """What the samples themselves hold of their trained tokens."""

    def trained(sample: TrainingSample, values: Sequence[float]) -> Tensor:
        return torch.tensor([value for value, is_trained in zip(values, sample.loss_mask, strict=True) if is_trained])

    return {
        "sampling_logprobs": [trained(sample, sample.sampling_logprobs) for sample in samples],
        "advantages": [trained(sample, sample.advantages) for sample in samples],
    }


def _minibatches(step: StepSamples, num_minibatches: int) -> list[list[int]]:
    """Samples of each minibatch; groups stay whole."""
    parts: list[list[int]] = [[] for _ in range(num_minibatches)]
    for index, episode in enumerate(step.episode_of):
        parts[step.group_of[episode] * num_minibatches // len(step.groups)].append(index)
    return parts


def _value_metrics(values_N: Tensor, returns_N: Tensor) -> dict[str, float]:
    """How well the critic foresaw the returns before the step; explained variance is 0 for a constant."""
    variance = float(returns_N.var(correction=0))
    unexplained = float((returns_N - values_N).var(correction=0))
    return {
        "critic/value_mean": float(values_N.mean()),
        "critic/return_mean": float(returns_N.mean()),
        "critic/explained_variance": 1.0 - unexplained / variance if variance else 0.0,
    }


def _parameter_groups(scorer: LogprobModel, config: Config) -> tuple[list[dict[str, Any]], list[tuple[bool, float]]]:
    """Optimizer groups without empty ones; for each, whether it is the critic's, and its share of the learning rate.

    Weight decay is for matrices.
    """
    critic = {id(parameter) for parameter in scorer.critic.parameters()} if scorer.critic is not None else set()
    groups, rates = [], []
    for is_critic in (False, True):
        for is_matrix in (True, False):
            found = [
                parameter
                for parameter in scorer.parameters()
                if parameter.requires_grad
                and (len(full_shape(parameter)) > 1) == is_matrix
                and (id(parameter) in critic) == is_critic
            ]
            if found:
                groups.append({"params": found, "weight_decay": config.train.weight_decay if is_matrix else 0.0})
                factor = config.critic.learning_rate / config.train.learning_rate if is_critic else 1.0
                rates.append((is_critic, factor))
    return groups, rates
