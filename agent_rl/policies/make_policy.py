"""The trained model and the policy of a configuration, its reference model, and its tokenizer alone.

`policy.type` is a name in `config.engines.POLICIES` or the import path of a maker with the signature of `make_policy`.
Not here: what policies do, how a policy gets new weights (`core/policy_sync.py`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent_rl.config import Config
from agent_rl.config.engines import ENGINES, POLICIES
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.policies.four_bit import check_sharding
from agent_rl.policies.hf_loading import load_causal_lm, load_config, load_hf_tokenizer
from agent_rl.policies.hf_policy import ADAPTER_FILE, HuggingFaceModel, HuggingFacePolicy
from agent_rl.policies.in_process_policy import InProcessPolicy
from agent_rl.policies.minimind_policy import MiniMindModel, MiniMindPolicy, load_tokenizer
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.remote_policy import RemotePolicy
from agent_rl.policies.trained_model import TrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_policy(
    config: Config, backend: Backend, *, run_folder: Path, checkpoint: Path | None = None
) -> tuple[TrainedModel, BasePolicy]:
    """The model to train and the policy of `policy.type`, from `model.path` or the model folder of a checkpoint.

    Raises a UserError for what cannot be read, does not fit the configuration, or does not answer.
    """
    return POLICIES.get(config.policy.type)(config, backend, run_folder=run_folder, checkpoint=checkpoint)


def make_colocated(
    config: Config, backend: Backend, *, run_folder: Path, checkpoint: Path | None = None
) -> tuple[TrainedModel, BasePolicy]:
    """As `make_policy`, for policies that sample from the trained module."""
    if config.model.load_in_4bit:
        check_sharding(backend.zero_stage)
    policy = make_in_process_policy(config, device=backend.device, checkpoint=checkpoint)
    return policy.trained, policy


def make_in_process_policy(config: Config, *, device: torch.device, checkpoint: Path | None = None) -> InProcessPolicy:
    """A policy that samples from the trained module in this process (`minimind` or `huggingface`)."""
    source = checkpoint or config.model.path
    settings = {
        "max_batch_size": config.policy.max_batch_size,
        "max_context": config.policy.max_context,
        "max_cached_tokens": config.policy.max_cached_tokens,
        "share_contexts": config.policy.share_contexts,
        "agent_type": config.agent.type,
    }
    if config.policy.type == "minimind":
        of_model = {"dtype": config.model.dtype, **_template(config)}
        return MiniMindPolicy.from_pretrained(source, device=device, **of_model, **settings)
    return HuggingFacePolicy.from_pretrained(source, **_model_options(config, device, checkpoint), **settings)


def make_remote(
    config: Config, backend: Backend, *, run_folder: Path, checkpoint: Path | None = None
) -> tuple[TrainedModel, BasePolicy]:
    """As `make_policy`, for engines with weights of their own; under ZeRO-3 the model is loaded as shards."""

    def load_model() -> TrainedModel:
        return _load_hugging_face(config, backend, checkpoint)

    # An engine loads the base under adapters, which are sent to it later.
    source = config.model.path if config.model.lora.rank or checkpoint is None else str(checkpoint)
    make_engine = ENGINES.get(config.policy.type)
    model, engine = make_engine(config, backend, load_model, source=source, run_folder=run_folder)
    max_context = config.policy.max_context
    return model, RemotePolicy(engine, model.tokenizer, max_context=max_context, agent_type=config.agent.type)


def load_trained_model(config: Config, backend: Backend, *, checkpoint: Path | None = None) -> TrainedModel:
    """The model to train without anything that samples from it; errors as of `make_policy`.

    Under ZeRO-3 a Hugging Face model is loaded as shards.
    """
    if config.policy.type != "minimind":
        return _load_hugging_face(config, backend, checkpoint)
    return MiniMindModel.from_pretrained(
        checkpoint or config.model.path,
        dtype=config.model.dtype,
        device=backend.device,
        max_context=config.policy.max_context,
        **_template(config),
    )


def _load_hugging_face(config: Config, backend: Backend, checkpoint: Path | None) -> TrainedModel:
    if config.model.load_in_4bit:
        check_sharding(backend.zero_stage)
    return HuggingFaceModel.from_pretrained(
        checkpoint or config.model.path,
        max_context=config.policy.max_context,
        loading=backend.sharded_loading(getattr(torch, config.model.dtype)),
        **_model_options(config, backend.device, checkpoint),
    )


def _model_options(config: Config, device: torch.device, checkpoint: Path | None) -> dict[str, Any]:
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
        "load_in_4bit": config.model.load_in_4bit,
        "seed": config.run.seed,
        **_template(config),
    }


def load_reference_model(config: Config, backend: Backend) -> torch.nn.Module | None:
    """The frozen model of a KL penalty, read from `model.path`; None if the run needs none.

    With new adapters none is needed: switched off, they leave the model they were put into. ConfigError for adapters
    of `model.path`, which switched off leave another model than the run starts from.
    """
    if config.algorithm.kl.coef == 0.0:
        return None
    if config.model.lora.rank:
        if (Path(config.model.path) / ADAPTER_FILE).is_file():
            raise ConfigError(
                f"algorithm.kl.coef = {config.algorithm.kl.coef}: {config.model.path} holds adapters, and a KL with "
                "LoRA pulls to the model without any; set it to 0, or give model.path a whole model "
                f"(agent-rl export {config.model.path} --output-dir MERGED --merge)"
            )
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
        return load_tokenizer(Path(config.model.path), **_template(config))
    return load_hf_tokenizer(config.model.path, **_template(config))


def _template(config: Config) -> dict[str, Any]:
    names = ("chat_template_kwargs", "chat_template")
    return {name: getattr(config.model, name) for name in names}
