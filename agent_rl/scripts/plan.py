"""`agent-rl plan`: what a run needs of GPUs and machines, and how long a step takes, before anybody pays for them.

    agent-rl plan --config configs/nat_grpo_8xh100.yaml --gpus 8 --gpu H100 --machine-memory 2000 \\
        --launch configs/accelerate/zero3_offload_optimizer_4gpu.yaml --server-gpus 4 --server-share 0.8
    agent-rl plan --config configs/nat_grpo.yaml run.device=cpu

Arithmetic only: nothing is loaded, started or written. Exit code 0: it fits, 1: it does not, 2: the question is wrong.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_rl.inference.vllm.server.settings import GPU_MEMORY_SHARE

if TYPE_CHECKING:
    from agent_rl.planning.answer import RunPlan


def _option(text: str, *names: str, **others: Any) -> Any:
    return typer.Option(*names, help=text, **others)


_SHARE = {"min": 0.01, "max": 1.0}
ConfigPath = Annotated[Path, _option("YAML file with the whole configuration.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")]
Launch = Annotated[Path | None, _option("Launcher's file of configs/accelerate/.", show_default="one process")]
Gpus = Annotated[int | None, _option("GPUs that there are.", min=1, show_default="as many as are asked for")]
GpuName = Annotated[str | None, _option("Their name, such as H200 or A100.", show_default="H100")]
GpuMemory = Annotated[float | None, _option("GiB of one of them.", min=1, show_default="as the name says")]
MachineMemory = Annotated[
    float | None, _option("GiB of one machine's memory.", min=1, show_default="not judged; needed with offloading")
]
ServerGpus = Annotated[int | None, _option("GPUs of all vllm.servers together.", min=1, show_default="one each")]
Parallel = Annotated[int | None, _option("GPUs of one server.", min=1, show_default="from --server-gpus")]
ServerShare = Annotated[
    float | None,
    _option(
        "--gpu-memory-share of agent-rl serve-vllm.", min=0.1, max=0.99, show_default=f"its own, {GPU_MEMORY_SHARE}"
    ),
]
Headroom = Annotated[float | None, _option("Percent that must be left everywhere.", min=0, max=90, show_default="10")]
Overhead = Annotated[float | None, _option("GiB of libraries, CUDA and NCCL on a GPU.", min=0, show_default="2.5")]
PromptTokens = Annotated[int | None, _option("Of an episode's first prompt.", min=1, show_default="1/4 of the window")]
NewTokens = Annotated[int | None, _option("Drawn in an episode.", min=1, show_default="1/4 of the window")]
ToolTokens = Annotated[int | None, _option("From tools in an episode.", min=0, show_default="1/8 of the window")]
Turns = Annotated[float | None, _option("Of an episode.", min=1, show_default="half of rollout.max_turns")]
Mfu = Annotated[float | None, _option("Share of the peak that products reach.", show_default="0.35", **_SHARE)]
Bandwidth = Annotated[
    float | None, _option("Share of the GPU memory's bandwidth that drawing reaches.", show_default="0.6", **_SHARE)
]
BusySlots = Annotated[float | None, _option("Share of slots that draw, over a step.", show_default="0.7", **_SHARE)]
Link = Annotated[
    float | None, _option("GB/s between GPUs that train.", min=0.1, show_default="150; on several machines 20")
]
Sync = Annotated[float | None, _option("GB/s from the trainer to the servers, by nccl.", min=0.1, show_default="8")]
Files = Annotated[float | None, _option("GB/s of weights as files, to and from.", min=0.1, show_default="2")]
AsJson = Annotated[bool, _option("Print the plan as JSON and nothing else.", "--json")]


def main(
    config: ConfigPath,
    overrides: Overrides = None,
    launch: Launch = None,
    gpus: Gpus = None,
    gpu: GpuName = None,
    gpu_memory: GpuMemory = None,
    machine_memory: MachineMemory = None,
    server_gpus: ServerGpus = None,
    tensor_parallel: Parallel = None,
    server_share: ServerShare = None,
    headroom: Headroom = None,
    overhead: Overhead = None,
    mean_prompt_tokens: PromptTokens = None,
    mean_new_tokens: NewTokens = None,
    mean_tool_tokens: ToolTokens = None,
    mean_turns: Turns = None,
    mfu: Mfu = None,
    hbm_utilisation: Bandwidth = None,
    busy_slots: BusySlots = None,
    link_gb_s: Link = None,
    sync_gb_s: Sync = None,
    files_gb_s: Files = None,
    as_json: AsJson = False,
) -> None:
    """Say per GPU and phase what a run needs, whether it fits, and how long a step takes; all of it is an estimate."""
    from agent_rl.planning.answer import make_plan
    from agent_rl.planning.question import ask

    question = ask(
        config,
        tuple(overrides or ()),
        launch=launch,
        num_gpus=gpus,
        servers=said(num_gpus=server_gpus, tensor_parallel=tensor_parallel, share=server_share),
        **said(gpu=gpu, gpu_memory=gpu_memory, machine_memory=machine_memory),
        **said(overhead=overhead, headroom=times(headroom, 0.01)),
    )
    assumed = {
        "prompt_tokens": mean_prompt_tokens,
        "new_tokens": mean_new_tokens,
        "tool_tokens": mean_tool_tokens,
        "mfu": mfu,
        "hbm": hbm_utilisation,
        "busy": busy_slots,
        "turns": mean_turns,
        "link": times(link_gb_s, 1e9),
        "sync": times(sync_gb_s, 1e9),
        "files": times(files_gb_s, 1e9),
    }
    plan = make_plan(question, assumed)
    _print(plan, as_json=as_json)
    raise typer.Exit(0 if plan.fits else 1)


def said(**options: Any) -> dict[str, Any]:
    """The options that were given; what is not has its default where it is used."""
    return {name: value for name, value in options.items() if value is not None}


def times(number: float | None, factor: float) -> float | None:
    """In the planner's units; None stays."""
    return None if number is None else factor * number


def _print(plan: "RunPlan", *, as_json: bool) -> None:
    import json

    from rich.console import Console

    from agent_rl.planning.report import as_data, show

    if as_json:
        print(json.dumps(as_data(plan), indent=2))
    else:
        show(plan, Console(width=None if sys.stdout.isatty() else 120))
