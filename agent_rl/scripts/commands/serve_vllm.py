"""`agent-rl serve-vllm`: vLLM servers that a run samples from.

    agent-rl serve-vllm --model path/to/model --num-servers 4 --devices 4,5,6,7

Prints the addresses to put into `vllm.servers`, starts servers again that die, and ends them all with Ctrl-C.
"""

import signal
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from agent_rl.inference.vllm.server.settings import GPU_MEMORY_SHARE


def main(
    model: Annotated[str, typer.Option(help="Folder in Hugging Face format, or a hub name.")],
    num_servers: Annotated[int, typer.Option(min=1, help="Servers, on consecutive ports.")] = 1,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="GPUs of one server.")] = 1,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than the machine's own need a key in AGENT_RL_VLLM_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the first server.")] = 8000,
    max_context: Annotated[int, typer.Option(min=2, help="Window in tokens; at least policy.max_context.")] = 8192,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Completions a server samples at the same time.")] = 128,
    dtype: Annotated[Literal["bfloat16", "float32"], typer.Option(help="Number format of the weights.")] = "bfloat16",
    head_dtype: Annotated[
        Literal["float32"] | None,
        typer.Option(help="Of the output layer's products, as in model.head_dtype.", show_default="as --dtype"),
    ] = None,
    gpu_memory_share: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="Of each GPU's memory; new weights need some of the rest.")
    ] = GPU_MEMORY_SHARE,
    devices: Annotated[
        str, typer.Option(help="GPUs to use, as in CUDA_VISIBLE_DEVICES.", show_default="all visible")
    ] = "",
    weight_transfer: Annotated[
        Literal["files", "nccl"], typer.Option(help="How a run may send weights: as files, or between GPUs as well.")
    ] = "files",
    lora_rank: Annotated[int, typer.Option(min=0, help="Largest rank of an adapter; 0 serves none.")] = 0,
    log_dir: Annotated[Path, typer.Option(help="Folder for what the servers print.")] = Path("runs/serve_vllm"),
) -> None:
    """Start vLLM servers and watch them until Ctrl-C (exit code 130) or SIGTERM (0)."""
    import contextlib
    import threading

    from agent_rl.inference.vllm.server.launch import ServerSupervisor
    from agent_rl.inference.vllm.server.launch_plan import ServeOptions, plan_servers, visible_gpus

    options = ServeOptions(
        model=model,
        num_servers=num_servers,
        tensor_parallel=tensor_parallel,
        host=host,
        port=port,
        max_context=max_context,
        max_batch_size=max_batch_size,
        dtype=dtype,
        head_dtype=head_dtype,
        gpu_memory_share=gpu_memory_share,
        devices=tuple(name.strip() for name in devices.split(",") if name.strip()),
        weight_transfer=weight_transfer,
        lora_rank=lora_rank,
        log_dir=log_dir,
    )
    say = partial(print, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    plans = plan_servers(options, gpus=visible_gpus())
    with contextlib.closing(ServerSupervisor(plans, say=say)) as supervisor:
        say(f"starting {num_servers} server{'s' * (num_servers > 1)}; what they print goes to {log_dir}")
        supervisor.start(timeout_s=float("inf"))
        say(f"vllm.servers: [{', '.join(plan.address for plan in plans)}]")
        supervisor.watch(threading.Event())
