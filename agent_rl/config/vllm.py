"""The section about sampling with vLLM. Not here: what is trained, servers' own flags (`agent-rl serve-vllm`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from agent_rl.config.base import Seconds
from agent_rl.config.engines import EngineCapabilities, EngineSection

if TYPE_CHECKING:
    from agent_rl.config.root import Config


def _check_address(address: str) -> str:
    scheme, found, host = address.partition("://")
    if scheme not in ("http", "https") or not found or not host or "/" in host.rstrip("/"):
        raise ValueError(f"{address!r} is no address of a server; write it as http://127.0.0.1:8000")
    return address.rstrip("/")


class VLLMConfig(EngineSection):
    servers: tuple[Annotated[str, AfterValidator(_check_address)], ...] = ()
    """Addresses of servers that `agent-rl serve-vllm` started; empty: an engine inside every process."""
    router: Annotated[str, AfterValidator(_check_address)] | None = None
    """Address of an external router in front of `servers`: completions go there, with the header `X-Session-ID`;
    weights and checks go to each server. null: completions go to the servers."""
    weight_transfer: Literal["files", "nccl"] = "files"
    """How servers get new weights: `files` that both sides see, or `nccl` between GPUs, which they have to be started
    for. Adapters always go as files."""
    weight_folder: Path | None = None
    """Folder for these files, seen by trainer and servers; null: `weights` in the run's folder."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """Number format of generation; weights are converted as they are sent. null: `model.dtype`."""
    gpu_memory_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Of a GPU, for the weights and cache of an engine inside the process, where `policy.max_cached_tokens` is null."""
    sleep: bool = True
    """An engine inside the process frees its GPU memory while the trainer updates."""
    max_logprob_gap: Annotated[float, Field(gt=0.0)] | None = None
    """How far log-probs of probe tokens of trainer and engine may be apart after new weights were sent, else the run
    stops: on average, and ten times as far for one of them. At temperature 1 (below it the limit is divided by it);
    null: 1e-4 in float32, 0.1 in bfloat16."""
    request_timeout_s: Seconds = 1800.0
    """Longest wait for one completion, the server's queue included."""
    start_timeout_s: Seconds = 900.0
    """Longest wait for a server that does not answer, at the start and after it was lost."""

    def keys_without_effect(self) -> Mapping[str, str]:
        if self.servers:
            return dict.fromkeys(("gpu_memory_share", "sleep"), "with servers, only with an engine inside the process")
        of_servers = ("router", "weight_transfer", "weight_folder", "request_timeout_s", "start_timeout_s")
        return dict.fromkeys(of_servers, "without servers")

    def capabilities(self, config: "Config") -> EngineCapabilities:
        return EngineCapabilities(
            has_own_weights=True,
            supports_async=True,
            servers=self.servers,
            sends_files=bool(self.servers) and (self.weight_transfer == "files" or config.model.lora.rank > 0),
            weight_folder=self.weight_folder,
            dtype=self.dtype or config.model.dtype,
            needs_gpus=self.weight_transfer == "nccl",
            sleeps=self.sleep and not self.servers and not config.rollout.max_staleness,
            gpu_memory_share=self.gpu_memory_share,
            max_logprob_gap=self.max_logprob_gap,
        )

    def keys_without_effect_in(self, config: "Config") -> Mapping[str, str]:
        unused = {"policy.share_contexts": "with vLLM, whose prefix cache is always on"}
        if self.servers:
            for key in ("max_batch_size", "max_cached_tokens"):
                unused[f"policy.{key}"] = "with vllm.servers, which have their own; see agent-rl serve-vllm"
        elif config.rollout.max_staleness:
            unused["vllm.sleep"] = "with rollout.max_staleness, where the engine samples during updates"
        if config.model.lora.rank:
            unused["vllm.weight_transfer"] = "with adapters, which always go as files"
        return unused
