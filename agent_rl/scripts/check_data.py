"""Check task files without a model: every reference solution must succeed, and no negative one may.

    agent-rl check-data dataset/nat_tasks/val.jsonl --sample 50
    agent-rl check-data --config configs/code_exec_grpo.yaml dataset/code_tasks/eval.jsonl

Runs the solutions in the environment itself and prints the rows that fail, and a table by family. Exit code 1
when a reference fails, or when more than 2 % of the negative solutions pass.
"""

import sys

if __name__ == "__main__":  # run by its path, where the package need not be installed
    sys.path.insert(0, __file__.rpartition("/agent_rl/")[0])

import random
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agent_rl.scripts.common import make_app, read_config, run_app

if TYPE_CHECKING:
    from agent_rl.data.tasks import Task
    from agent_rl.envs.check_data import SolutionOutcome

MIN_CAUGHT = 0.98
_NUM_SHOWN = 20


def main(
    datasets: Annotated[list[Path], typer.Argument(help="Task files, such as .jsonl or .parquet.")],
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration whose environment and tools they belong to; without it, NAT tasks."),
    ] = None,
    sample: Annotated[int, typer.Option(min=0, help="Check only this many tasks of each file; 0 is all.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the sample, the negative solutions and the hidden cases.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Solutions run at the same time.")] = 4,
) -> None:
    from agent_rl.data.tasks import read_tasks
    from agent_rl.envs.check_data import check_data
    from agent_rl.envs.opening import offer_tools
    from agent_rl.envs.registry import make_env_factory
    from agent_rl.errors import DataError

    if config is None:
        opened, columns = make_env_factory("nat_agent_creation", seed=seed), None
    else:
        loaded = read_config(config)
        opened = offer_tools(make_env_factory(loaded.env.name, loaded.env.options, seed=seed), loaded.tools)
        columns = loaded.data.columns
    tasks = []
    with opened as factory:

        def check(task: "Task", where: str) -> None:
            if config is None and "family" not in task:
                raise DataError(
                    f"{where}: the row is no NAT task (it has no 'family'), which rows are read as without --config; "
                    "give --config with the configuration that they belong to"
                )
            factory.check_task(task, where)

        for path in datasets:
            rows = read_tasks(path, check, columns=columns)
            indices = range(len(rows))
            chosen = sorted(random.Random(seed).sample(indices, sample)) if 0 < sample < len(rows) else indices
            tasks += [rows[index] for index in chosen]
        if not factory.solutions(tasks[0]):
            raise DataError(
                f"{datasets[0]}: its environment has no solutions to check it with; see EnvFactory.solutions"
            )
        factory.start()
        outcomes = list(_shown(check_data(factory, tasks, workers=workers, group_by=_group)))
    if not report(outcomes):
        raise typer.Exit(1)


def _group(task: "Task") -> str:
    metadata = task.get("metadata") or {}
    return str(
        task.get("family") or metadata.get("family") or (f"level {task['level']}" if "level" in task else "tasks")
    )


def _shown(outcomes: "Iterable[SolutionOutcome]") -> "Iterator[SolutionOutcome]":
    """Pass outcomes on, counting them on a terminal and printing those that are not as they should be."""
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    num_shown = 0
    columns = (TextColumn("solutions run"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task("", total=None)
        for each in outcomes:
            progress.advance(task)
            if not each.is_as_expected and num_shown < _NUM_SHOWN:
                num_shown += 1
                verdict = "should succeed" if each.succeeds else "should not succeed"
                problems = "; ".join(each.problems[:3])
                progress.console.print(
                    f"{each.task_id} ({each.group}), {each.solution}: {verdict}; {problems}", markup=False
                )
            yield each


def report(outcomes: "list[SolutionOutcome]") -> bool:
    """Print the table by family; True when the data holds."""
    from rich.console import Console
    from rich.table import Table

    groups = defaultdict(list)
    for each in outcomes:
        groups[each.group].append(each)
    table = Table("family", title="Scripted solutions", title_justify="left")
    for name in ("references that succeed", "negative ones that do not", "rare faults that hidden cases find"):
        table.add_column(name, justify="right")
    for name, members in [*sorted(groups.items()), ("all", outcomes)]:
        right = [each.succeeded for each in members if each.succeeds]
        wrong = [not each.succeeded for each in members if not each.succeeds]
        subtle = [_found(each) for each in members if each.solution.startswith("subtle")]
        table.add_row(name, _share(right), _share(wrong), _share(subtle))
    Console(width=120).print(table)
    wrong = [not each.succeeded for each in outcomes if not each.succeeds]
    return all(each.succeeded for each in outcomes if each.succeeds) and sum(wrong) >= MIN_CAUGHT * len(wrong)


def _found(each: "SolutionOutcome") -> bool:
    """Whether answers to hidden cases were wrong, whatever the solution's own tests say."""
    return min(each.reward_parts.get("share/behaviour", 1.0), each.reward_parts.get("share/workflow", 1.0)) < 1.0


def _share(outcomes: list[bool]) -> str:
    return f"{sum(outcomes)} of {len(outcomes)} ({100 * sum(outcomes) / len(outcomes):.1f} %)" if outcomes else "-"


app = make_app(main)

if __name__ == "__main__":
    run_app(app)
