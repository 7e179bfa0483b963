"""Weight sync from trainer to inference engine: colocated (it shares the module) or remote (weights are sent).

Not here: gathering, sending and verifying (`distributed/weight_sync.py`), when it is done (the trainer).
"""

import copy
import inspect
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.weight_sync import NUM_PROBE_TOKENS, WeightSync
from agent_rl.inference.base import RemoteEngine
from agent_rl.learning.update import PolicyUpdater
from agent_rl.policies.in_process_policy import InProcessPolicy
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.trained_model import TrainedModel, save_trained
from agent_rl.records import TrainingSample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROBE_PROMPT = 192
"""Tokens of the prompt that verifies new weights: more than the largest cache block of an engine (vLLM: 128)."""


class PolicySync(Protocol):
    """Between an update and the next rollout."""

    def sync_weights(self, version: int) -> dict[str, float]:
        """Make the engine sample from the weights as they are now, as `version`; metrics. Collective."""

    def reset_prefix_cache(self, version: int) -> None:
        """Drop cached prompts, which a resumed run would not have."""

    def offload(self) -> None:
        """Free the engine's memory for an update, until `sync_weights`; not called if episodes run during updates."""


class ColocatedWeights:
    """The policy samples from the trained module or, if that is sharded, from a whole replica in every process."""

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
        """Does nothing: there is one copy of the weights, and the cache stays for the next rollout."""


class RemoteWeights:
    """The engine has weights of its own, which are sent to it after every update and verified."""

    def __init__(
        self,
        engine: RemoteEngine,
        model: TrainedModel,
        updater: PolicyUpdater,
        config: Config,
        backend: Backend,
        *,
        folder: Path,
    ) -> None:
        """`folder` is for the files of adapters."""
        self._engine = engine
        self._model = model
        self._backend = backend
        self._updater = updater
        self._folder = folder if config.model.lora.rank else None
        self._sync = WeightSync(
            backend,
            engine,
            dtype=getattr(torch, config.engine.dtype),
            probe_ids=probe_prompt(model.tokenizer, config.policy.max_context),
            temperature=config.policy.temperature,
            max_gap=config.max_logprob_gap,
        )

    def sync_weights(self, version: int) -> dict[str, float]:
        self._updater.park()  # before the engine takes its memory back
        if self._folder is not None:
            write = partial(save_trained, self._model, self._updater.policy_module, self._backend)
            return self._sync.sync_adapter(write, self._folder, version, trainer_logprobs=self._trainer_logprobs)
        return self._sync.sync(self._updater.policy_module, version, trainer_logprobs=self._trainer_logprobs)

    def reset_prefix_cache(self, version: int) -> None:
        """Does nothing: no run with a remote engine repeats bit for bit."""

    def offload(self) -> None:
        if not self._engine.is_shared:
            self._sync.together(self._engine.sleep)
        self._updater.unpark()

    def _trainer_logprobs(self, samples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
        """Log-probs of the second ids after the first."""
        return self._updater.logprobs([_as_sample(prompt_ids, token_ids) for prompt_ids, token_ids in samples])


def probe_prompt(tokenizer: "PreTrainedTokenizerBase", max_context: int) -> tuple[int, ...]:
    """Ids of an ordinary text, always the same, with room for the probe tokens after them.

    Ordinary, because after random ids a model's log-probs depend on rounding much more than in training.
    """
    num_ids = max(1, min(PROBE_PROMPT, max_context - NUM_PROBE_TOKENS))
    ids = tokenizer.encode(inspect.getsource(textwrap), add_special_tokens=False)
    return tuple(ids[:num_ids])


def make_policy_sync(
    config: Config,
    policy: BasePolicy,
    model: TrainedModel,
    updater: PolicyUpdater,
    backend: Backend,
    *,
    run_folder: Path,
) -> PolicySync:
    """The weight sync that the policy needs; adapters are written to the engine's weight folder."""
    if policy.remote_engine is not None:
        folder = config.engine.weight_folder or run_folder / "weights"
        return RemoteWeights(policy.remote_engine, model, updater, config, backend, folder=folder)
    return ColocatedWeights(policy, updater, backend)


def module_to_train(model: TrainedModel, policy: BasePolicy, backend: Backend) -> nn.Module:
    """The model's module, or a copy of it if the policy keeps sampling from the whole one (ZeRO-3)."""
    is_colocated = policy.remote_engine is None
    return copy.deepcopy(model.module) if is_colocated and backend.zero_stage == 3 else model.module


def _as_sample(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> TrainingSample:
    num_prompt, num_sampled = len(prompt_ids), len(token_ids)
    return TrainingSample(
        token_ids=(*prompt_ids, *token_ids),
        loss_mask=(0,) * num_prompt + (1,) * num_sampled,
        sampling_logprobs=(0.0,) * (num_prompt + num_sampled),
        advantages=(0.0,) * (num_prompt + num_sampled),
    )
