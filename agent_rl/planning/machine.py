"""A machine and what a plan assumes of it and of the episodes: one YAML file of flat keys, and `key=value` overrides.

Does not: look at a machine (`preflight.py`), know GPUs by name (`gpus.py`). Imports neither torch nor vLLM.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field

from agent_rl.config import apply_override, read_yaml, validate_section
from agent_rl.config.base import Positive, Section
from agent_rl.errors import ConfigError
from agent_rl.inference.vllm.server.settings import GPU_MEMORY_SHARE
from agent_rl.resources import find, folder

GIB = 2**30
MOST_GIB = 100_000
"""More than any machine has."""
_FOLDER = "configs/machines"
Share = Annotated[float, Field(gt=0.0, le=1.0)]
Rate = Annotated[float, Field(ge=0.1)]


class Machine(Section):
    """`Machine(gpus=8, gpu="H100")`; `read_machine` makes one of a file of `configs/machines/`.

    The line below a key is its help, and its row in docs/planning.md.
    """

    launch: Path | None = None
    """Launcher's file of configs/accelerate/; null: one process."""
    gpus: Positive | None = None
    """GPUs that exist; null: as many as the run needs."""
    gpu: Annotated[str, BeforeValidator(str)] = "H100"
    """Their name, such as H200 or A100."""
    gpu_memory_gib: Annotated[float, Field(ge=1.0, le=MOST_GIB)] | None = None
    """Of one GPU; null: as the name implies."""
    memory_gib: Annotated[float, Field(gt=0.0, le=MOST_GIB)] | None = None
    """Main memory of one machine; null: not checked. Required with offloading."""
    server_gpus: Positive | None = None
    """GPUs of all vllm.servers together; null: one each."""
    tensor_parallel: Positive | None = None
    """GPUs of one server; null: server_gpus over the number of servers."""
    server_share: Annotated[float, Field(ge=0.1, le=0.99)] = GPU_MEMORY_SHARE
    """--gpu-memory-share of agent-rl serve-vllm."""
    headroom: Annotated[float, Field(ge=0.0, le=0.9)] = 0.1
    """Share of every memory that must stay free."""
    overhead_gib: Annotated[float, Field(ge=0.0, le=MOST_GIB)] = 2.5
    """Libraries, CUDA context and NCCL on every GPU. Assumed, not measured."""
    prompt_tokens: Positive | None = None
    """Mean length of an episode's first prompt; null: 1/4 of the window."""
    new_tokens: Positive | None = None
    """Generated in an episode, mean over all turns together; null: 1/4 of the window."""
    tool_tokens: Annotated[int, Field(ge=0)] | None = None
    """Read from tools in an episode, mean over all turns together; null: 1/8 of the window."""
    turns: Annotated[float, Field(ge=1.0)] | None = None
    """Of an episode, mean; null: half of rollout.max_turns. A turn reads its context again if the cache dropped it."""
    mfu: Share = 0.35
    """Share of the peak that matrix products reach, recomputation included."""
    hbm: Share = 0.6
    """Share of the GPU memory's bandwidth that generation reaches."""
    busy: Share = 0.7
    """Share of the batch slots that generate, over a step; episodes do not end together."""
    link_gb_s: Rate | None = None
    """Between GPUs that train; null: 150 (NVLink), on several machines 20 (200 Gbit/s a GPU, four fifths reached)."""
    sync_gb_s: Rate = 8.0
    """From the trainer to the inference engine, where weights go from GPU to GPU."""
    files_gb_s: Rate = 2.0
    """Writing weights as files, and reading them by each server."""
    pcie_gb_s: Rate = 25.0
    """Between a GPU and the machine's memory."""
    host_gb_s: Rate = 200.0
    """A machine's memory."""
    disk_gb_s: Rate = 1.0
    """The file system of checkpoints."""


def read_machine(path: Path | None, overrides: Sequence[str] = ()) -> Machine:
    """The machine of a file, the shipped one of that name, or of defaults alone, with `key=value` overrides.

    ConfigError for whatever is wrong.
    """
    file = None if path is None else _file(find(path))
    raw = {} if file is None else read_yaml(file, example=f"{_FOLDER}/8xh100.yaml")
    for text in overrides:
        apply_override(raw, text, form="key=value", example="gpus=4")
    return validate_section(Machine, raw, source="--set" if file is None else str(file), prefix="")


def _file(path: Path) -> Path | None:
    """The file itself, or the shipped one that is meant by a bare name; None for the name of the default GPU."""
    if path.exists() or len(path.parts) > 1 or path.suffix:
        return path
    name = path.name.lower()
    if name == Machine().gpu.lower():
        return None
    shipped = find(Path(_FOLDER, f"{name}.yaml"))
    if shipped.is_file():
        return shipped
    names = sorted(each.stem for each in (folder() / _FOLDER).glob("*.yaml"))
    raise ConfigError(
        f"--machine {path}: no such file; name a YAML file, or a shipped one ({', '.join(names)}); "
        "a GPU is named by --set gpu=NAME"
    )
