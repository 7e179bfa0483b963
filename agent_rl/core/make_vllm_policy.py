"""The vLLM policy that a configuration names: an engine inside this process, or clients of servers.

Imported only where a configuration asks for vLLM. Not here: the model that is trained.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.config import Config
from agent_rl.core.vllm_policy import VLLMPolicy
from agent_rl.distributed.backend import Backend
from agent_rl.vllm_backend.server_sampler import ServerSampler
from agent_rl.vllm_backend.servers import VLLMServers
from agent_rl.vllm_backend.transports import FileTransport, NCCLTransport

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_vllm_policy(
    config: Config, backend: Backend, tokenizer: "PreTrainedTokenizerBase", *, source: str, run_folder: Path
) -> VLLMPolicy:
    """`source` is what an engine inside this process loads before it is sent weights.

    Raises ConfigError when vLLM is missing, or a server does not answer or was started with other settings.
    """
    if not config.vllm.servers:
        return _with_engine(config, backend, tokenizer, source)
    servers = VLLMServers(
        config.vllm.servers,
        request_timeout_s=config.vllm.request_timeout_s,
        start_timeout_s=config.vllm.start_timeout_s,
    )
    try:
        servers.wait_until_up(max_context=config.policy.max_context)
        transport = _transport(config, backend, run_folder) if backend.is_main_process else None
        sampler = ServerSampler(servers, transport, max_gap=config.max_logprob_gap)
    except BaseException:
        servers.close()
        raise
    return VLLMPolicy(servers, sampler, tokenizer, max_context=config.policy.max_context)


def _transport(config: Config, backend: Backend, run_folder: Path) -> FileTransport | NCCLTransport:
    kind = config.vllm.weight_transfer
    if kind == "auto":
        kind = "nccl" if backend.device.type == "cuda" and not config.model.lora.rank else "files"
    if kind == "nccl":
        return NCCLTransport()
    return FileTransport(config.vllm.weight_folder or run_folder / "weights")


def _with_engine(config: Config, backend: Backend, tokenizer: "PreTrainedTokenizerBase", source: str) -> VLLMPolicy:
    from agent_rl.vllm_backend.engine import VLLMEngine

    engine = VLLMEngine(
        source,
        dtype=config.model.dtype,
        max_context=config.policy.max_context,
        max_batch_size=config.policy.max_batch_size,
        max_cached_tokens=config.policy.max_cached_tokens,
        gpu_memory_share=config.vllm.gpu_memory_share,
        sleep=config.vllm.sleep and not config.rollout.max_staleness,
        lora_rank=config.model.lora.rank,
        seed=config.run.seed,
        where=f"process {backend.rank}",
    )
    return VLLMPolicy(engine, engine, tokenizer, max_context=config.policy.max_context)
