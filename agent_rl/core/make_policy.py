"""The policy that a configuration names, and its tokenizer alone: the one place that knows all policies.

Not here: what they do.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent_rl.config import Config
from agent_rl.core.hf_loading import load_causal_lm, load_config, load_hf_tokenizer
from agent_rl.core.hf_policy import ADAPTER_FILE, HuggingFacePolicy
from agent_rl.core.in_process_policy import InProcessPolicy
from agent_rl.core.minimind_policy import MiniMindPolicy, load_tokenizer
from agent_rl.errors import ConfigError
from model.model_minimind import MiniMindForCausalLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_policy(config: Config, *, device: torch.device, checkpoint: Path | None = None) -> InProcessPolicy:
    """Read the policy from `model.path`, or from the model folder of a checkpoint of the same run.

    Raises a UserError for what cannot be read or does not fit the configuration.
    """
    source = checkpoint or config.model.path
    sizes = {
        "max_batch_size": config.policy.max_batch_size,
        "max_context": config.policy.max_context,
        "max_cached_tokens": config.policy.max_cached_tokens,
    }
    if config.policy.type == "minimind":
        return MiniMindPolicy.from_pretrained(source, dtype=config.model.dtype, device=device, **sizes)
    lora = config.model.lora
    if checkpoint is not None and lora.rank and not (checkpoint / ADAPTER_FILE).is_file():
        raise ConfigError(
            f"model.lora.rank = {lora.rank}, but {checkpoint} holds a model that was trained whole; set it to 0, or "
            "start another run with model.path there"
        )
    return HuggingFacePolicy.from_pretrained(
        source,
        dtype=config.model.dtype,
        device=device,
        attention=config.model.attention,
        gradient_checkpointing=config.model.gradient_checkpointing,
        lora=lora,
        seed=config.run.seed,
        **sizes,
    )


def load_reference_model(config: Config, *, device: torch.device) -> torch.nn.Module | None:
    """The frozen model of a KL penalty, read from `model.path`; None where none is needed.

    With adapters none is needed: switched off, they leave the model they were put into.
    """
    if config.algorithm.kl.coef == 0.0 or config.model.lora.rank:
        return None
    dtype = getattr(torch, config.model.dtype)
    if config.policy.type == "minimind":
        return MiniMindForCausalLM.from_pretrained(config.model.path, dtype=dtype).to(device)
    source = config.model.path
    return load_causal_lm(source, load_config(source), dtype=dtype, attention=config.model.attention).to(device)


def load_policy_tokenizer(config: Config) -> "PreTrainedTokenizerBase":
    """The tokenizer of `model.path`, without the model."""
    if config.policy.type == "minimind":
        return load_tokenizer(Path(config.model.path))
    return load_hf_tokenizer(config.model.path)
