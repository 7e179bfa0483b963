"""`agent-rl plan`: what a run needs of GPUs and machines, and how long a step takes, before anyone pays for them.

    agent-rl plan --config configs/nat_grpo_8xh100.yaml --machine configs/machines/8xh100.yaml --set gpus=4
    agent-rl plan --config configs/nat_grpo.yaml run.device=cpu

Arithmetic only: nothing is loaded, started or written. Exit code 0: it fits, 1: it does not, 2: a mistake in the input.

    agent-rl plan --config configs/nat_grpo_1gpu.yaml --verify

With `--verify` updates are run on fake tensors beside it. Exit code 0: the plan is within 10 % of them in every phase,
1: it is not.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

ConfigPath = Annotated[Path, typer.Option(help="YAML file with the whole configuration.")]
Overrides = Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")]
MachinePath = Annotated[
    Path | None,
    typer.Option(
        "--machine",
        help="YAML file of a machine, or a name of configs/machines/ such as 8xh100; docs/planning.md has its keys.",
        show_default="H100",
    ),
]
MachineOverrides = Annotated[
    list[str] | None, typer.Option("--set", help="key=value of the machine file, such as gpus=4; repeatable.")
]


def main(
    config: ConfigPath,
    overrides: Overrides = None,
    machine: MachinePath = None,
    settings: MachineOverrides = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Also run the update on fake tensors and compare by phase; exit code 0: within 10 %, 1: not. "
            "Takes a minute or two on one core.",
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,
) -> None:
    """Show per GPU and phase what a run needs, whether it fits, and how long a step takes; all of it is an estimate."""
    from rich.console import Console

    from agent_rl.planning.machine import read_machine
    from agent_rl.planning.plan import make_plan, read_run
    from agent_rl.planning.report import as_data, show

    plan = make_plan(read_run(config, overrides or (), read_machine(machine, settings or ())))
    console = Console(width=None if sys.stdout and sys.stdout.isatty() else 120)
    data = as_data(plan)
    if not as_json:
        show(plan, console)
    is_right = plan.fits
    if verify:
        from agent_rl.planning import verify as fake_run
        from agent_rl.planning.fake.report import show_verification, verification_data

        found = fake_run.verify(plan)
        is_right = not found.differing
        data["verification"] = verification_data(found)
        if not as_json:
            show_verification(found, console)
    if as_json:
        print(json.dumps(data, indent=2))
    raise typer.Exit(0 if is_right else 1)
