"""`agent-rl nat`: tools for your own NeMo Agent Toolkit projects.

    agent-rl nat validate path/to/project
    agent-rl nat validate path/to/project --cases my_cases.jsonl --json report.json
    agent-rl nat plan "Convert km, miles and metres, two decimals" planner.source=gemini

The project runs in the sandbox, through the toolkit of `.venv-nat`; nothing in its folder is changed.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_rl.envs.nat.create.commands import plan

if TYPE_CHECKING:
    from agent_rl.envs.nat.judge.report import ValidationReport

app = typer.Typer(no_args_is_help=True, help="Tools for NeMo Agent Toolkit projects.")
_WHY_NOT = {
    "behaviour": "no case with a target (--cases or --spec)",
    "workflow": "no case without a target (--cases or --spec)",
    "mcp": "--no-mcp",
    "tests": "--no-tests",
}


@app.callback()
def nat() -> None:
    """Tools for NeMo Agent Toolkit projects."""


app.command("plan")(plan)


@app.command("validate")
def validate(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="The folder with pyproject.toml.")
    ],
    spec: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Judge it against a task, with hidden cases, as in training."),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help='JSONL: {"input": ..., "expected": ..., "target": ...}.'),
    ] = None,
    json_path: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write the report as JSON; `-` prints nothing else.")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="PATH", help="The only configuration to look at, relative to DIR.")
    ] = None,
    no_mcp: Annotated[bool, typer.Option("--no-mcp", help="Leave the MCP server alone.")] = False,
    no_tests: Annotated[bool, typer.Option("--no-tests", help="Leave the project's tests alone.")] = False,
) -> None:
    """Check a project, run it in the sandbox, and report what is missing.

    Exit code 0: no check lost a point. 1: one did. 2: the project could not be checked.
    """
    from agent_rl.envs.nat.factory.user_test_cases import read_cases, read_spec
    from agent_rl.envs.nat.judge.toolkit import DEFAULT_LIMITS, NatToolkit
    from agent_rl.envs.nat.judge.validator.validate import PROJECT_LIMITS, validate_folder
    from agent_rl.errors import DataError, UserError

    if spec and (cases or config or no_mcp or no_tests):
        raise UserError("--spec decides what is looked at; leave out --cases, --config, --no-mcp and --no-tests")
    task = read_spec(spec) if spec else None
    user_cases = read_cases(cases) if cases else ()
    with NatToolkit.open(limits=DEFAULT_LIMITS if spec else PROJECT_LIMITS) as toolkit:
        report = validate_folder(
            toolkit, folder, spec=task, cases=user_cases, config=config, with_mcp=not no_mcp, with_tests=not no_tests
        )
    text = report.model_dump_json(indent=2)
    if json_path and json_path != "-":
        try:
            Path(json_path).write_text(f"{text}\n", encoding="utf-8")
        except OSError as error:
            raise DataError(f"{json_path}: cannot be written ({error.strerror}); check the path") from None
    if json_path == "-":
        print(text)
    else:
        show(report)
    raise typer.Exit(1 if report.problems else 0)


def show(report: "ValidationReport") -> None:
    """Print the table, with the stages that were not run, and the verdict in a line."""
    from rich.console import Console
    from rich.text import Text

    table = report.table()
    for stage in report.skipped:
        table.add_row(stage, "not run", Text("-", "dim"), Text(_WHY_NOT[stage], "dim"))
    console = Console()
    console.print(table)
    num_lost = len(report.problems)
    if num_lost:
        names = [f"{each.stage}, {each.name}" for each in report.points if each.score < 1.0]
        names += [f"{component} (gate)" for component in report.gates]
        verdict = f"{num_lost} point{'s' * (num_lost > 1)} lost: {'; '.join(names)}"
    else:
        verdict = f"complete; not run: {', '.join(report.skipped)}" if report.skipped else "complete"
    console.print(Text(verdict), soft_wrap=True)
