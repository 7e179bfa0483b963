"""The vLLM engine that a configuration names: one inside this process, or clients of servers.

Imported only if the configuration names vLLM. Not here: the policy around it, the model that is trained.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.inference.base import RemoteEngine
from agent_rl.inference.vllm.engine_start import EngineOptions, check_installed
from agent_rl.inference.vllm.server_engine import ServerEngine
from agent_rl.inference.vllm.servers import VLLMServers
from agent_rl.inference.vllm.transports import FileTransport, NCCLTransport, Transport

if TYPE_CHECKING:
    from agent_rl.inference.vllm.engine import VLLMEngine

ModelT = TypeVar("ModelT")


def make_engine(
    config: Config, backend: Backend, load_model: Callable[[], ModelT], *, source: str, run_folder: Path
) -> tuple[ModelT, RemoteEngine]:
    """The model, which `load_model` reads only once vLLM is known to be available, and the engine.

    `source` is what an engine inside this process loads before it is sent weights. Raises ConfigError when vLLM is
    missing, or a server does not answer or was started with other settings.
    """
    if not config.vllm.servers:
        check_device(config)
        if backend.device.type == "cuda":
            check_overlap(config)
        check_installed()
        return load_model(), _in_process(config, backend, source)
    with opened_servers(config, first=backend.rank) as servers:
        transport = _transport(config, backend, run_folder) if backend.is_main_process else None
        wait_for_servers(servers, config, lora_rank=config.model.lora.rank, weight_transfer=config.vllm.weight_transfer)
        model = load_model()
    return model, ServerEngine(servers, transport, max_gap=config.max_logprob_gap)


@contextmanager
def opened_servers(config: Config, *, first: int = 0) -> Iterator[VLLMServers]:
    """The clients of `vllm.servers`, closed only where the block raises; `first` is the server to begin with."""
    servers = VLLMServers(
        config.vllm.servers,
        request_timeout_s=config.vllm.request_timeout_s,
        start_timeout_s=config.vllm.start_timeout_s,
        first=first,
        router=config.vllm.router,
    )
    try:
        yield servers
    except BaseException:
        servers.close()
        raise


def wait_for_servers(
    servers: VLLMServers, config: Config, *, lora_rank: int, weight_transfer: Literal["files", "nccl"]
) -> None:
    """Until they answer; ConfigError for one that was started with other settings."""
    servers.wait_until_up(
        max_context=config.policy.max_context,
        dtype=config.engine.dtype,
        head_dtype=config.model.head_dtype,
        lora_rank=lora_rank,
        weight_transfer=weight_transfer,
    )


def check_device(config: Config) -> None:
    """ConfigError for a GPU that an engine inside a process would not be on."""
    if config.run.device.startswith("cuda:"):
        raise ConfigError(
            f"run.device = {config.run.device!r}: vLLM's engine inside the process takes the first GPU that it "
            "sees; set run.device=cuda and CUDA_VISIBLE_DEVICES"
        )


def check_overlap(config: Config) -> None:
    """ConfigError for an engine inside a process on a GPU that is to sample during updates."""
    if config.rollout.max_staleness and not config.vllm.servers:
        raise ConfigError(
            f"rollout.max_staleness = {config.rollout.max_staleness}: inside one process the kernels of vLLM and "
            "trainer queue up one behind the other, so nothing runs at the same time; start servers and set "
            "vllm.servers, or set max_staleness to 0"
        )


def _transport(config: Config, backend: Backend, run_folder: Path) -> Transport:
    if config.vllm.weight_transfer == "nccl":
        if backend.device.type != "cuda":
            raise ConfigError(
                f"vllm.weight_transfer = 'nccl' sends from GPU to GPU, this run trains on {backend.device}; use files"
            )
        return NCCLTransport()
    return FileTransport(config.engine.weight_folder or run_folder / "weights")


def _in_process(config: Config, backend: Backend, source: str) -> "VLLMEngine":
    from agent_rl.inference.vllm.engine import VLLMEngine

    options = engine_options(config, source, sleep=config.engine.sleeps, lora_rank=config.model.lora.rank)
    return VLLMEngine(options, where=f"process {backend.rank}")


def engine_options(config: Config, source: str, *, sleep: bool = False, lora_rank: int = 0) -> EngineOptions:
    """Those of an engine inside this process that loads `source`."""
    return EngineOptions(
        model=source,
        dtype=config.engine.dtype,
        head_dtype=config.model.head_dtype,
        max_context=config.policy.max_context,
        max_batch_size=config.policy.max_batch_size,
        max_cached_tokens=config.policy.max_cached_tokens,
        gpu_memory_share=config.vllm.gpu_memory_share,
        sleep=sleep,
        lora_rank=lora_rank,
        seed=config.run.seed,
    )
