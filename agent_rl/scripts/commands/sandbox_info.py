"""`agent-rl sandbox describe`: which isolation works on this machine, and what it enforces.

Starts a sandbox of every tier to find out, and stops it. Changes nothing.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from agent_rl.errors import SandboxError, UserError
from agent_rl.sandbox.limits import Capability
from agent_rl.sandbox.sandbox import AUTO_TIERS, TIERS, Sandbox

app = typer.Typer(no_args_is_help=True, help="The sandbox that runs what a policy wrote.")


@app.callback()
def sandbox() -> None:
    """The sandbox that runs what a policy wrote."""


@app.command("describe")
def describe(
    python: Annotated[
        Path | None, typer.Option(help="Interpreter to run the work with.", show_default="this one")
    ] = None,
) -> None:
    """Try every isolation tier here and print what each enforces."""
    found = {tier: _try(tier, python or Path(sys.executable)) for tier in TIERS}
    table = Table("capability", *TIERS, title="Isolation on this machine")
    for capability in Capability:
        marks = (
            "n/a" if isinstance(about, str) else "yes" if capability in about["enforced"] else "no"
            for about in found.values()
        )
        table.add_row(capability.value, *marks)
    console = Console()
    console.print(table)
    used = next((tier for tier in AUTO_TIERS if isinstance(found[tier], dict)), None)
    for tier, about in found.items():
        if isinstance(about, dict):
            kind = "opt-in" if tier not in AUTO_TIERS else "used by default" if tier == used else "works"
            text = f"{kind}; memory of the whole tree: {about['memory']}"
        else:
            text = f"not here: {about}"
        console.print(f"{tier}: {text}", soft_wrap=True, highlight=False)
    if used is None:
        raise UserError(
            "neither namespaces nor landlock works here; allow unprivileged user namespaces, or name the tier rlimits, "
            "which contains accidents but no attack"
        )


def _try(tier: str, python: Path) -> dict[str, Any] | str:
    """What `describe()` says, or why the tier does not work."""
    try:
        # No jobs: nothing has to be installed in the interpreter.
        with Sandbox.open(python=python, tier=tier, jobs=[]) as opened:
            return opened.describe()
    except SandboxError as error:
        return str(error).removeprefix(f"no isolation tier works on this machine: {tier}: ")
