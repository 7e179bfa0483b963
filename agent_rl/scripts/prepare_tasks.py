"""Make the task files of one of the other kinds of agents: code, search or math.

    python agent_rl/scripts/prepare_tasks.py --domain code --output-dir dataset/code_tasks
    python agent_rl/scripts/prepare_tasks.py --domain search --output-dir dataset/search_tasks
    python agent_rl/scripts/prepare_tasks.py --domain math --output-dir dataset/math_tasks

Writes train.jsonl and eval.jsonl, the same bytes for the same seed; no task is in both, and demonstrations show none
of them. For search also corpus.jsonl, the passages that the questions are about, and with_documents.jsonl, a few rows
about another world that bring their passages with them. Files written by hand (handwritten.jsonl, gsm8k_format.jsonl)
stay as they are.
"""

import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_rl.errors import ConfigError
from agent_rl.scripts.common import TaskDomain, make_folder, run_app

if TYPE_CHECKING:
    from agent_rl.data.tasks import Task

DEFAULT_COUNTS: dict[TaskDomain, tuple[int, int]] = {"code": (400, 120), "search": (300, 100), "math": (400, 150)}
"""Rows in train and in eval."""
NUM_WITH_DOCUMENTS = 20

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    domain: Annotated[TaskDomain, typer.Option(help="Kind of tasks.")],
    output_dir: Annotated[Path, typer.Option(help="Folder the files are written to.")],
    num_train: Annotated[int | None, typer.Option(min=1, help="Rows to train on; by default as shipped.")] = None,
    num_eval: Annotated[int | None, typer.Option(min=1, help="Rows held out; by default as shipped.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
) -> None:
    start = time.monotonic()
    from agent_rl.data.tasks import write_tasks

    make_folder(output_dir, "--output-dir")
    default_train, default_eval = DEFAULT_COUNTS[domain]
    sets = task_sets(domain, num_train or default_train, num_eval or default_eval, seed)
    for name, rows in sets.items():
        path = output_dir / f"{name}.jsonl"
        write_tasks(path, rows)
        levels = Counter(row["level"] for row in rows)
        print(f"{path}: {len(rows)} tasks ({', '.join(f'level {k} {levels[k]}' for k in sorted(levels))})")
    if domain == "search":
        passages = corpus(seed)
        path = output_dir / "corpus.jsonl"
        path.write_bytes("".join(passages).encode())
        print(f"{path}: {len(passages)} passages")
    print(f"{sum(map(len, sets.values()))} tasks in {time.monotonic() - start:.1f} s")


def task_sets(domain: TaskDomain, num_train: int, num_eval: int, seed: int) -> "dict[str, list[Task]]":
    """Rows by the name of their file. ConfigError when the generator has not as many."""
    generate: Any
    if domain == "code":
        from agent_rl.envs.code import generate
    elif domain == "search":
        from agent_rl.envs.search import generate
    else:
        from agent_rl.envs.math import generate
    train = _take(generate.generate_tasks(seed, ["train"]), num_train, "--num-train")
    sets = {"train": train, "eval": _take(generate.generate_tasks(seed, ["eval"]), num_eval, "--num-eval")}
    if domain == "search":
        splits = ["eval"]
        world = generate.world_of(seed + 1, splits)
        rows = itertools.islice(generate.generate_tasks(seed + 1, splits), NUM_WITH_DOCUMENTS)
        sets["with_documents"] = [generate.with_documents(row, world, seed) for row in rows]
    return sets


def corpus(seed: int) -> list[str]:
    """The passages of the world that the questions of a seed are about, one JSON object and a line break each."""
    from agent_rl.envs.search.generate import world_of

    return [f"{json.dumps(each, ensure_ascii=False)}\n" for each in world_of(seed, ["train"]).passages]


def _take(rows: "Iterator[Task]", count: int, option: str) -> "list[Task]":
    taken = list(itertools.islice(rows, count))
    if len(taken) < count:
        raise ConfigError(f"{option} is {count}, but only {len(taken)} different tasks were found; ask for fewer")
    return taken


if __name__ == "__main__":
    run_app(app)
