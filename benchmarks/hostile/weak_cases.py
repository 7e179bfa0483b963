"""How many tasks have hidden cases too weak for rules one step away: `python benchmarks/hostile/weak_cases.py FILES`.

Every task is asked as its checker asks it, but of neighbours: rules, settings, programs and workflows that differ from
the right ones by one step. A neighbour survives when all hidden cases call it right although it differs on some of
`--fresh` inputs that are sampled anew. Prints survivors by family and by kind of step; it measures, so it exits with 0.

    python benchmarks/hostile/weak_cases.py dataset/nat_tasks/starter/val.jsonl --show 20
    python benchmarks/hostile/weak_cases.py dataset/code_tasks/eval.jsonl

Neighbours are written apart from the code that chooses the cases. Mutants of references run in this process.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from weak_code import code_subjects
from weak_nat import nat_subjects
from weakness import Finding, examine

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.errors import UserError

Job = tuple[dict[str, Any], int, int]
"""A row, the seed of its hidden cases, the number of fresh inputs."""
RATES = (0.01, 0.05)
CONSOLE = Console(width=140, highlight=False)


def main(
    files: Annotated[list[Path], typer.Argument(help="Task files of the environments nat or code_exec.")],
    limit: Annotated[int, typer.Option(help="Tasks of each file, evenly spread; 0 for all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the hidden cases.")] = 0,
    fresh: Annotated[int, typer.Option(help="Fresh inputs for each tool.")] = 300,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    show: Annotated[int, typer.Option(help="Survivors to print in words, the most frequent difference first.")] = 0,
    family: Annotated[str, typer.Option(help="Only tasks of this family.")] = "",
) -> None:
    """Measure task files."""
    for path in files:
        try:
            rows = [row for row in read_tasks(path) if family in ("", _family(row))]
        except UserError as error:
            typer.echo(error, err=True)
            raise typer.Exit(2) from None
        rows = rows[:: max(1, len(rows) // limit)][:limit] if limit else rows
        started = time.perf_counter()
        findings = measure([(row, seed, fresh) for row in rows], jobs)
        seconds = time.perf_counter() - started
        CONSOLE.print(f"{path}: hidden cases of seed {seed}, {fresh} fresh inputs, {seconds:.0f} s")
        CONSOLE.print(table_of(findings, "family", lambda finding: finding.family))
        CONSOLE.print(table_of(list(_by_kind(findings)), "kind of step", lambda finding: finding.family))
        for line in shown(findings, show):
            CONSOLE.print(line, soft_wrap=True, markup=False)


def _family(row: dict[str, Any]) -> str:
    return row.get("family") or row.get("metadata", {}).get("family", "")


def measure(work: list[Job], jobs: int) -> list[Finding]:
    """What was found of each row, in their order; rows that cannot be measured are left out."""
    if jobs < 2:
        found = list(map(find, work))
    else:
        with multiprocessing.get_context("spawn").Pool(jobs) as pool:
            found = pool.map(find, work, chunksize=1)
    return [finding for finding in found if finding is not None]


def find(job: Job) -> Finding | None:
    """Examine one row."""
    row, seed, num_fresh = job
    if "workflow" in row:
        spec = parse_spec(row, "the row")
        return examine(spec.task_id, spec.family, nat_subjects(spec, seed, num_fresh))
    subjects = list(code_subjects(row, seed, num_fresh))
    return examine(row["task_id"], _family(row), subjects) if subjects else None


def _by_kind(findings: Iterable[Finding]) -> Iterable[Finding]:
    """The findings taken apart by the kind of step, in place of the family."""
    for finding in findings:
        for kind, number in finding.num_tried.items():
            survivors = tuple(each for each in finding.survivors if each.kind == kind)
            yield Finding(task_id=finding.task_id, family=kind, num_tried={kind: number}, survivors=survivors)


def table_of(findings: list[Finding], title: str, group: Callable[[Finding], str]) -> Table:
    table = Table()
    columns = ["tasks", "neighbours", "survivors", *(f"that differ on {rate:.0%}" for rate in RATES)]
    columns += ["tasks with a survivor", *(f"with one of {rate:.0%}" for rate in RATES)]
    table.add_column(title)
    for column in columns:
        table.add_column(column, justify="right")
    for name in sorted({group(finding) for finding in findings}):
        table.add_row(name, *_cells([finding for finding in findings if group(finding) == name]))
    table.add_section()
    table.add_row("all", *_cells(findings))
    return table


def _cells(findings: list[Finding]) -> list[str]:
    tasks: dict[str, list[float]] = {finding.task_id: [] for finding in findings}
    for finding in findings:
        tasks[finding.task_id] += [each.rate for each in finding.survivors]
    num_tried = sum(sum(finding.num_tried.values()) for finding in findings)
    rates = [rate for own in tasks.values() for rate in own]
    num_over = [sum(rate >= least for rate in rates) for least in (0.0, *RATES)]
    num_tasks = [sum(any(rate >= least for rate in own) for own in tasks.values()) for least in (0.0, *RATES)]
    shares = [f"{number} ({number / max(1, len(tasks)):.0%})" for number in num_tasks]
    return [str(len(tasks)), f"{num_tried:,}", *map(str, num_over), *shares]


def shown(findings: list[Finding], number: int) -> list[str]:
    """The first survivors in words, those that differ most often first."""
    survivors = sorted((each for finding in findings for each in finding.survivors), key=lambda each: -each.rate)
    return [
        f"{each.task_id} {each.subject}, {each.kind}: {each.words}; differs on {each.rate:.1%}, e.g. {each.shown}"
        for each in survivors[:number]
    ]


if __name__ == "__main__":
    typer.run(main)
