"""`agent-rl preflight`: is this machine ready for a run? One line each: ok, warning or failed, and what to do.

    agent-rl preflight --config configs/nat_grpo.yaml
    agent-rl preflight --config configs/nat_grpo_8xh100.yaml --machine configs/machines/8xh100.yaml

Starts the environment's checkers and ends them; writes nothing. Exit code 1 when anything failed.
"""

from typing import TYPE_CHECKING

import typer

from agent_rl.scripts.plan import ConfigPath, MachineOverrides, MachinePath, Overrides

if TYPE_CHECKING:
    from agent_rl.config import Config
    from agent_rl.planning.preflight import MachineCheck


def main(
    config: ConfigPath,
    overrides: Overrides = None,
    machine: MachinePath = None,
    settings: MachineOverrides = None,
) -> None:
    """Look at GPUs, packages, data, model, memory, disk, ports, interpreters and the sandbox."""
    from agent_rl.config import load_config
    from agent_rl.errors import UserError
    from agent_rl.planning.machine import read_machine
    from agent_rl.planning.preflight import CheckStatus, MachineCheck
    from agent_rl.planning.preflight_run import all_checks, make_question

    resolved = load_config(config, overrides or [])
    wanted = read_machine(machine, settings or ())
    question, why_not = None, ""
    try:
        question = make_question(config, overrides or (), wanted)
    except UserError as error:
        why_not = str(error)
    counts = dict.fromkeys(CheckStatus, 0)

    def show(check: MachineCheck) -> None:
        counts[check.status] += 1
        print(f"{check.status:8} {check.name}: {check.text}", flush=True)

    for check in all_checks(resolved, question, why_not):
        show(check)
    if check := react_check(resolved):
        show(check)
    print(", ".join(f"{number} {status}" for status, number in counts.items()))
    raise typer.Exit(1 if counts[CheckStatus.FAILED] else 0)


def react_check(config: "Config") -> "MachineCheck | None":
    """Play the reference of a task with the toolkit's own agents, which need an interpreter more; None without one."""
    from agent_rl.data.tasks import read_tasks
    from agent_rl.envs.check_data import check_data
    from agent_rl.envs.registry import make_env_factory
    from agent_rl.errors import AgentRLError, UserError
    from agent_rl.planning.preflight import failed, ok

    if config.env.name != "nat_agent_creation":
        return None
    factory = make_env_factory(
        config.env.name, config.env.options | {"checkers": 1}, seed=config.run.seed, tools=config.tools
    )
    try:
        tasks = read_tasks(config.data.train_path)
    except UserError:
        return None  # the check of the tasks said it
    try:
        task = next((row for row in tasks if (row.get("workflow") or {}).get("kind") == "react"), None)
        if task is None:
            return None
        factory.start()
        try:
            played = next(iter(check_data(factory, [task], workers=1, group_by=lambda _task: "")))
        finally:
            factory.close()
    except AgentRLError as error:
        return failed("ReAct tasks", str(error))
    if not played.is_as_expected:
        return failed(
            "ReAct tasks", f"the reference of {played.task_id} does not succeed: {'; '.join(played.problems)}"
        )
    return ok("ReAct tasks", f"the reference of {played.task_id} succeeds")


if __name__ == "__main__":
    from agent_rl.scripts.common import run_app

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(help=__doc__)(main)
    run_app(app)
