"""The fixed settings of a server, and the check that they fit a run.

`agent-rl serve-vllm` gives a server a second name with its settings, which the server lists among its models:
`settings/dtype=bfloat16/head_dtype=bfloat16/lora_rank=0/weight_transfer=files`. Not here: reading the list
(`server_checks.py`).
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from agent_rl.errors import ConfigError

GPU_MEMORY_SHARE = 0.85
"""Share of each GPU that a server takes by default."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Largest adapter ranks that vLLM can be started for."""
_PREFIX = "settings/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Of a server as it was started, or as a run needs it."""

    dtype: str
    head_dtype: str
    """Of the output layer's products."""
    lora_rank: int
    """Largest rank of an adapter; 0: none."""
    weight_transfer: str
    """`files`, or `nccl`, which takes files as well."""


def name_of(settings: ServerSettings) -> str:
    """The name with the settings."""
    values = (f"{name}={value}" for name, value in asdict(settings).items())
    return _PREFIX + "/".join(values)


def read_settings(names: Iterable[str]) -> ServerSettings:
    """The settings in the names of a server's models. ValueError if none has them."""
    for name in names:
        if name.startswith(_PREFIX):
            values = dict(part.split("=") for part in name.removeprefix(_PREFIX).split("/"))
            return ServerSettings(**values | {"lora_rank": int(values["lora_rank"])})
    raise ValueError("it does not report what it was started with")


def check_settings(address: str, found: ServerSettings, needed: ServerSettings) -> None:
    """ConfigError, naming the flag, for a server that this run cannot sample from."""
    if found.dtype != needed.dtype:
        raise ConfigError(
            f"vllm.servers: {address} samples in {found.dtype}, this run expects {needed.dtype}; start it with "
            f"`agent-rl serve-vllm --dtype {needed.dtype}`"
        )
    if found.head_dtype != needed.head_dtype:
        flag = f"with --head-dtype {needed.head_dtype}" if needed.head_dtype != needed.dtype else "without --head-dtype"
        raise ConfigError(
            f"vllm.servers: {address} computes its output layer in {found.head_dtype}, this run expects "
            f"{needed.head_dtype} (model.head_dtype); start it {flag}"
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
