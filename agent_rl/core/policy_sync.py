"""How what draws gets the trainer's new weights: it reads the trained module itself, or they are sent to it.

Not here: gathering, sending and proving (`distributed/weight_sync.py`), when it is done (the trainer).
"""

import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.weight_sync import NUM_PROBE_TOKENS, WeightSync
from agent_rl.learning.update import PolicyUpdater
from agent_rl.policies.in_process_policy import InProcessPolicy
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.remote_policy import RemotePolicy
from agent_rl.policies.trained_model import TrainedModel, save_trained
from agent_rl.records import TrainingSample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE_PROMPT = 192
"""Tokens of the prompt that new weights are proved with: more than vLLM's largest cache block."""


class PolicySync(Protocol):
    """Between an update and the next rollout."""

    def sync_weights(self, version: int) -> dict[str, float]:
        """Draw from the weights as they are now and call them `version`; metrics. Collective."""

    def reset_prefix_cache(self, version: int) -> None:
        """Drop what is cached of prompts, where a resumed run could not have it."""

    def offload(self) -> None:
        """An update comes next; nothing is drawn before `sync_weights`, unless episodes are played during updates."""


class ColocatedWeights:
    """The policy draws from the trained module or, where that is shards, from a whole replica in every process."""

    def __init__(self, policy: InProcessPolicy, updater: PolicyUpdater, backend: Backend) -> None:
        self._policy = policy
        self._updater = updater
        self._backend = backend

    def sync_weights(self, version: int) -> dict[str, float]:
        if self._backend.zero_stage == 3:
            self._backend.copy_weights(self._updater.policy_module, self._policy.model)
        self._policy.refresh_weights(version)
        return {}

    def reset_prefix_cache(self, version: int) -> None:
        self._policy.refresh_weights(version)

    def offload(self) -> None:
        """There is one copy of the weights; what the cache holds stays for the next rollout."""


class RemoteWeights:
    """The policy has weights of its own, which are sent to it after every update and proved to be drawn from."""

    def __init__(
        self,
        policy: RemotePolicy,
        model: TrainedModel,
        updater: PolicyUpdater,
        config: Config,
        backend: Backend,
        *,
        folder: Path,
    ) -> None:
        """`folder` is for the files of adapters."""
        self._policy = policy
        self._model = model
        self._backend = backend
        self._updater = updater
        self._folder = folder if config.model.lora.rank else None
        self._sync = WeightSync(
            backend,
            policy.sampler,
            dtype=getattr(torch, config.model.dtype),
            probe_ids=probe_prompt(model.tokenizer, config.policy.max_context),
            temperature=config.policy.temperature,
            max_gap=config.max_logprob_gap,
        )

    def sync_weights(self, version: int) -> dict[str, float]:
        if self._folder is not None:
            return self._sync.sync_adapter(
                self._write_adapter, self._folder, version, trainer_logprobs=self._trainer_logprobs
            )
        return self._sync.sync(self._updater.policy_module, version, trainer_logprobs=self._trainer_logprobs)

    def reset_prefix_cache(self, version: int) -> None:
        """No run with vLLM is repeated bit for bit, so nothing needs to be forgotten."""

    def offload(self) -> None:
        if not self._policy.sampler.is_shared:
            self._sync.together(self._policy.sampler.release_memory)

    def _write_adapter(self, folder: Path) -> None:
        save_trained(self._model, self._updater.policy_module, self._backend, folder)

    def _trainer_logprobs(self, samples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Log-probs of the second ids after the first."""
        return self._updater.logprobs([_as_sample(prompt_ids, token_ids) for prompt_ids, token_ids in samples])


def probe_prompt(tokenizer: "PreTrainedTokenizerBase", max_context: int) -> tuple[int, ...]:
    """Ordinary ids of the tokenizer, always the same, with room for what is drawn after them."""
    special = set(tokenizer.all_special_ids)
    ordinary = [token for token in range(tokenizer.vocab_size) if token not in special]
    return tuple(random.Random(0).choices(ordinary, k=max(1, min(PROBE_PROMPT, max_context - NUM_PROBE_TOKENS))))


def make_policy_sync(
    config: Config,
    policy: BasePolicy,
    model: TrainedModel,
    updater: PolicyUpdater,
    backend: Backend,
    *,
    folder: Path,
) -> PolicySync:
    """What the policy needs; `folder` is where adapters are written for vLLM."""
    if isinstance(policy, RemotePolicy):
        return RemoteWeights(policy, model, updater, config, backend, folder=folder)
    return ColocatedWeights(policy, updater, backend)


def module_to_train(model: TrainedModel, policy: BasePolicy, backend: Backend) -> nn.Module:
    """The model's module, or a copy of it where the policy goes on drawing from the whole one (ZeRO-3)."""
    is_drawn_from = isinstance(policy, InProcessPolicy)
    return copy.deepcopy(model.module) if is_drawn_from and backend.zero_stage == 3 else model.module


def _as_sample(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> TrainingSample:
    num_prompt, num_drawn = len(prompt_ids), len(token_ids)
    return TrainingSample(
        token_ids=(*prompt_ids, *token_ids),
        loss_mask=(0,) * num_prompt + (1,) * num_drawn,
        sampling_logprobs=(0.0,) * (num_prompt + num_drawn),
        advantages=(0.0,) * (num_prompt + num_drawn),
    )
