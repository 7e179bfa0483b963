"""A policy for using a model as it is: no update will follow, so no weights are sent and no module is kept beside vLLM.

`minimind` and `huggingface` read the model in this process. `vllm` with `vllm.servers` reads the tokenizer only and
samples from the weights that the servers have; without servers the engine inside this process reads the model itself.
Not here: training and evaluating with weights that are sent (`core/checkpoint_policy.py`).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.policies.hf_loading import check_tokens, load_config, load_hf_tokenizer
from agent_rl.policies.hf_policy import base_of_adapter
from agent_rl.policies.make_policy import make_in_process_policy
from agent_rl.policies.model_source import ModelSource
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.remote_policy import RemotePolicy
from agent_rl.policies.trained_model import check_window

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from agent_rl.inference.base import RemoteEngine
    from agent_rl.inference.vllm.server_engine import ServerEngine
    from agent_rl.inference.vllm.servers import VLLMServers
    from agent_rl.inference.vllm.weight_check import WeightCheck


def open_served_policy(source: ModelSource) -> BasePolicy:
    """The policy of `policy.type`, ready to sample; the caller closes it.

    Raises a UserError for what cannot be read or does not answer, and for servers whose weights a run changes.
    """
    config = source.config
    if config.policy.type in ("minimind", "huggingface"):
        device = Backend(config.run.device, timeout_s=config.run.timeout_s).device
        return make_in_process_policy(config, device=device, checkpoint=source.weights)
    if config.policy.type != "vllm":
        raise ConfigError(
            f"policy.type is {config.policy.type!r}; a model is served by minimind, huggingface or vllm, so choose one"
        )
    if not config.vllm.servers:
        return _open_inside(source)
    from agent_rl.inference.vllm.server_answers import FIRST_LABEL

    with _opened_servers(source) as (servers, tokenizer):
        for address in servers.addresses:
            label = servers.get(address, "/weight_info")["weight_version"]
            if label != FIRST_LABEL:
                raise ConfigError(
                    f"vllm.servers: {address} has weights that a run sent it ({label!r}); start servers of their own "
                    "with `agent-rl serve-vllm --model` and the model to serve"
                )
        return _policy(config, _engine_of(servers, config, FIRST_LABEL), tokenizer)


def open_checked_policy(source: ModelSource) -> "tuple[BasePolicy, WeightCheck]":
    """The policy of `vllm.servers`, and what comparing their weights with the model's files showed.

    Weights that a run sent will do, if they are the model's. Raises a UserError as `open_served_policy` does, and for
    servers whose weights are others.
    """
    from agent_rl.inference.vllm.weight_check import check_weights

    config = source.config
    with _opened_servers(source) as (servers, tokenizer):
        files, dtype = source.weights or config.model.path, getattr(torch, config.engine.dtype)
        check = check_weights(servers, files, name=source.name, dtype=dtype)
        return _policy(config, _engine_of(servers, config, check.label), tokenizer), check


@contextmanager
def _opened_servers(source: ModelSource) -> "Iterator[tuple[VLLMServers, PreTrainedTokenizerBase]]":
    """Servers that answer, and the model's tokenizer; closed only where the block raises."""
    from agent_rl.inference.vllm.make_engine import opened_servers, wait_for_servers

    if source.base_digest() is not None:
        raise ConfigError(
            f"{source.name} holds adapters, which servers sample with only in training; leave out vllm.servers, or "
            "use policy.type 'huggingface'"
        )
    tokenizer = _load_tokenizer(source)
    with opened_servers(source.config) as servers:
        wait_for_servers(servers, source.config, lora_rank=0, weight_transfer="files")
        yield servers, tokenizer


def _engine_of(servers: "VLLMServers", config: Config, label: str) -> "ServerEngine":
    """Weights of another `label` are noticed from now on, and their tokens refused."""
    from agent_rl.inference.vllm.server_answers import read_label
    from agent_rl.inference.vllm.server_engine import ServerEngine

    servers.pool.weight_version = read_label(servers.addresses[0], label)
    servers.pool.weight_label = label
    return ServerEngine(servers, None, max_gap=config.max_logprob_gap)


def _open_inside(source: ModelSource) -> RemotePolicy:
    from agent_rl.inference.vllm.engine_start import check_installed
    from agent_rl.inference.vllm.make_engine import check_device, engine_options

    config = source.config
    check_device(config)
    check_installed()
    from agent_rl.inference.vllm.engine import VLLMEngine

    adapters = source.weights if source.base_digest() is not None else None
    base = str(source.weights or config.model.path)
    if adapters is not None:
        base = base_of_adapter(adapters, config.model.lora)
    shape = load_config(base).get_text_config()
    check_window(config.policy.max_context, getattr(shape, "max_position_embeddings", None), base)
    tokenizer = _load_tokenizer(source)
    check_tokens(tokenizer, shape.vocab_size, source.name)
    options = engine_options(config, base, lora_rank=config.model.lora.rank if adapters is not None else 0)
    engine = VLLMEngine(options, where="the engine in this process")
    if adapters is not None:
        _load_adapters(engine, adapters)
    return _policy(config, engine, tokenizer)


def _load_adapters(engine: "RemoteEngine", folder: Path) -> None:
    with ExitStack() as after_failure:
        after_failure.callback(engine.close)
        engine.pause()
        engine.load_adapter(folder, 0)
        engine.flush()
        engine.resume(0)
        after_failure.pop_all()


def _load_tokenizer(source: ModelSource) -> "PreTrainedTokenizerBase":
    model = source.config.model
    return load_hf_tokenizer(source.weights or model.path, model.chat_template_kwargs, model.chat_template)


def _policy(config: Config, engine: "RemoteEngine", tokenizer: "PreTrainedTokenizerBase") -> RemotePolicy:
    return RemotePolicy(engine, tokenizer, max_context=config.policy.max_context, agent_type=config.agent.type)
