"""`agent-rl preflight`: is this machine ready for a run? One line each: ok, warning or failed, and what to do.

    agent-rl preflight --config configs/nat_grpo.yaml
    agent-rl preflight --config configs/nat_grpo_8xh100.yaml --machine configs/machines/8xh100.yaml

Starts the environment's checkers and ends them; writes nothing. Exit code 1 when anything failed.
"""

import typer

from agent_rl.scripts.commands.plan import ConfigPath, MachineOverrides, MachinePath, Overrides
from agent_rl.scripts.common import read_config


def main(
    config: ConfigPath, overrides: Overrides = None, machine: MachinePath = None, settings: MachineOverrides = None
) -> None:
    """Look at GPUs, packages, data, model, memory, disk, ports, interpreters and the sandbox."""
    from agent_rl.errors import UserError
    from agent_rl.planning.machine import read_machine
    from agent_rl.planning.preflight import CheckStatus
    from agent_rl.planning.preflight_run import all_checks, read_run_here

    resolved = read_config(config, overrides or [])
    wanted = read_machine(machine, settings or ())
    run, why_not = None, ""
    try:
        run = read_run_here(config, overrides or (), wanted)
    except UserError as error:
        why_not = str(error)
    counts = dict.fromkeys(CheckStatus, 0)
    for check in all_checks(resolved, run, why_not):
        counts[check.status] += 1
        print(f"{check.status:8} {check.name}: {check.text}", flush=True)
    print(", ".join(f"{number} {status}" for status, number in counts.items()))
    raise typer.Exit(1 if counts[CheckStatus.FAILED] else 0)
