"""What a server was started with and cannot change, and whether that serves a run.

`agent-rl serve-vllm` gives a server a second name that spells it out, which the server lists among its models:
`settings/dtype=bfloat16/lora_rank=0/weight_transfer=files`. Not here: asking for the list (`server_checks.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from agent_rl.errors import ConfigError

GPU_MEMORY_SHARE = 0.85
"""Of each GPU of a server, unless it is told otherwise."""
_PREFIX = "settings/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Of a server as it was started, or as a run needs it."""

    dtype: str
    lora_rank: int
    """Largest rank of an adapter; 0: none."""
    weight_transfer: str
    """`files`, or `nccl`, which takes files as well."""


def name_of(settings: ServerSettings) -> str:
    """The name that tells them."""
    return f"{_PREFIX}dtype={settings.dtype}/lora_rank={settings.lora_rank}/weight_transfer={settings.weight_transfer}"


def read_settings(names: Iterable[str]) -> ServerSettings:
    """From the names of a server's models. ValueError when none of them tells."""
    for name in names:
        if name.startswith(_PREFIX):
            told = dict(part.split("=") for part in name.removeprefix(_PREFIX).split("/"))
            return ServerSettings(**told | {"lora_rank": int(told["lora_rank"])})
    raise ValueError("it does not tell what it was started with")


def check_settings(address: str, found: ServerSettings, needed: ServerSettings) -> None:
    """ConfigError, naming the flag, for a server that this run cannot draw from."""
    if found.dtype != needed.dtype:
        raise ConfigError(
            f"vllm.servers: {address} draws in {found.dtype}, model.dtype is {needed.dtype}; start it with "
            f"`agent-rl serve-vllm --dtype {needed.dtype}`"
        )
    if found.lora_rank < needed.lora_rank:
        what = f"adapters up to rank {found.lora_rank}" if found.lora_rank else "no adapters (rank 0)"
        raise ConfigError(
            f"vllm.servers: {address} serves {what}, model.lora.rank is {needed.lora_rank}; start it with "
            f"`agent-rl serve-vllm --lora-rank {needed.lora_rank}`"
        )
    if needed.weight_transfer == "nccl" and found.weight_transfer != "nccl":
        raise ConfigError(
            f"vllm.servers: {address} takes weights as {found.weight_transfer}, this run sends them by nccl "
            "(vllm.weight_transfer); start it with `agent-rl serve-vllm --weight-transfer nccl`"
        )
