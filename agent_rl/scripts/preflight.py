"""`agent-rl preflight`: is this machine ready for a run? One line each: ok, warning or failed, and what to do.

    agent-rl preflight --config configs/nat_grpo.yaml
    agent-rl preflight --config configs/nat_grpo_8xh100.yaml --gpus 8 --server-gpus 4 --server-share 0.8 \\
        --launch configs/accelerate/zero3_offload_optimizer_4gpu.yaml

Starts the environment's checkers and ends them; writes nothing. Exit code 1 when anything failed.
"""

from pathlib import Path
from typing import Annotated

import typer

from agent_rl.scripts.common import make_app, run_app
from agent_rl.scripts.plan import GpuMemory, GpuName, Headroom, Overhead, Parallel, ServerGpus, ServerShare, said, times


def main(
    config: Annotated[Path, typer.Option(help="YAML file with the whole configuration.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")] = None,
    launch: Annotated[
        Path | None, typer.Option(help="Launcher's file of configs/accelerate/.", show_default="one process")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs that there must be.")] = None,
    gpu: GpuName = None,
    gpu_memory: GpuMemory = None,
    server_gpus: ServerGpus = None,
    tensor_parallel: Parallel = None,
    server_share: ServerShare = None,
    headroom: Headroom = None,
    overhead: Overhead = None,
) -> None:
    """Look at GPUs, packages, data, model, memory, disk, ports, interpreters and the sandbox."""
    from agent_rl.config import load_config
    from agent_rl.errors import UserError
    from agent_rl.planning.preflight import CheckStatus, MachineCheck
    from agent_rl.planning.preflight_run import all_checks, make_question

    settings = tuple(overrides or ())
    resolved = load_config(config, list(settings))
    question, why_not = None, ""
    try:
        question = make_question(
            config,
            settings,
            launch=launch,
            num_gpus=gpus,
            servers=said(num_gpus=server_gpus, tensor_parallel=tensor_parallel, share=server_share),
            **said(
                gpu=gpu,
                gpu_memory=gpu_memory,
                overhead=overhead,
                headroom=times(headroom, 0.01),
            ),
        )
    except UserError as error:
        why_not = str(error)
    counts = dict.fromkeys(CheckStatus, 0)

    def show(check: MachineCheck) -> None:
        counts[check.status] += 1
        print(f"{check.status:8} {check.name}: {check.text}", flush=True)

    for check in all_checks(resolved, question, why_not):
        show(check)
    print(", ".join(f"{number} {status}" for status, number in counts.items()))
    raise typer.Exit(1 if counts[CheckStatus.FAILED] else 0)


if __name__ == "__main__":
    run_app(make_app(main))
