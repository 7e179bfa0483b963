"""The model and the policy that a configuration names, and its tokenizer alone: the one place that knows all policies.

Not here: what they do, how a policy gets new weights (`sampler_sync.py`).
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.policies.hf_loading import load_causal_lm, load_config, load_hf_tokenizer
from agent_rl.policies.hf_model import ADAPTER_FILE, HuggingFaceModel
from agent_rl.policies.hf_policy import HuggingFacePolicy
from agent_rl.policies.in_process_policy import InProcessPolicy
from agent_rl.policies.minimind_policy import MiniMindPolicy, load_tokenizer
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.trained_model import TrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_model_and_policy(
    config: Config, backend: Backend, *, run_folder: Path, checkpoint: Path | None = None
) -> tuple[TrainedModel, BasePolicy]:
    """What is trained and what is drawn from, read from `model.path` or the model folder of a checkpoint of the run.

    With vLLM and ZeRO-3 the model is loaded as shards. Raises a UserError for what cannot be read, does not fit the
    configuration, or does not answer.
    """
    if config.policy.type != "vllm":
        policy = make_policy(config, device=backend.device, checkpoint=checkpoint)
        return policy.trained, policy
    from agent_rl.policies.make_vllm_policy import make_vllm_policy

    def load_model() -> TrainedModel:
        return HuggingFaceModel.from_pretrained(
            checkpoint or config.model.path,
            max_context=config.policy.max_context,
            loading=backend.sharded_loading(getattr(torch, config.model.dtype)),
            **_model_options(config, backend.device, checkpoint),
        )

    source = _base_source(config, checkpoint)
    return make_vllm_policy(config, backend, load_model, source=source, run_folder=run_folder)


def make_policy(config: Config, *, device: torch.device, checkpoint: Path | None = None) -> InProcessPolicy:
    """A policy that draws from the trained module in this process (`minimind` or `huggingface`).

    Raises a UserError for what cannot be read or does not fit the configuration.
    """
    source = checkpoint or config.model.path
    settings = {
        "max_batch_size": config.policy.max_batch_size,
        "max_context": config.policy.max_context,
        "max_cached_tokens": config.policy.max_cached_tokens,
        "agent_type": config.agent.type,
    }
    if config.policy.type == "minimind":
        return MiniMindPolicy.from_pretrained(source, dtype=config.model.dtype, device=device, **settings)
    return HuggingFacePolicy.from_pretrained(source, **_model_options(config, device, checkpoint), **settings)


def _model_options(config: Config, device: torch.device, checkpoint: Path | None) -> dict[str, object]:
    lora = config.model.lora
    if checkpoint is not None and lora.rank and not (checkpoint / ADAPTER_FILE).is_file():
        raise ConfigError(
            f"model.lora.rank = {lora.rank}, but {checkpoint} holds a model that was trained whole; set it to 0, or "
            "start another run with model.path there"
        )
    return {
        "dtype": config.model.dtype,
        "device": device,
        "attention": config.model.attention,
        "gradient_checkpointing": config.model.gradient_checkpointing,
        "lora": lora,
        "seed": config.run.seed,
    }


def _base_source(config: Config, checkpoint: Path | None) -> str:
    """What an engine beside the model loads: the base under adapters, which are sent to it later."""
    return config.model.path if config.model.lora.rank or checkpoint is None else str(checkpoint)


def load_reference_model(config: Config, backend: Backend) -> torch.nn.Module | None:
    """The frozen model of a KL penalty, read from `model.path`; None where none is needed.

    With adapters none is needed: switched off, they leave the model they were put into.
    """
    if config.algorithm.kl.coef == 0.0 or config.model.lora.rank:
        return None
    dtype = getattr(torch, config.model.dtype)
    if config.policy.type == "minimind":
        return MiniMindForCausalLM.from_pretrained(config.model.path, dtype=dtype).to(backend.device)
    source = config.model.path
    with backend.sharded_loading(dtype):
        model = load_causal_lm(source, load_config(source), dtype=dtype, attention=config.model.attention)
    return model.to(backend.device)


def load_policy_tokenizer(config: Config) -> "PreTrainedTokenizerBase":
    """The tokenizer of `model.path`, without the model."""
    if config.policy.type == "minimind":
        return load_tokenizer(Path(config.model.path))
    return load_hf_tokenizer(config.model.path)
