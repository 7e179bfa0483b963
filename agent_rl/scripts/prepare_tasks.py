"""Make the task files of an environment.

    python agent_rl/scripts/prepare_tasks.py --domain code --output-dir dataset/code_tasks
    python agent_rl/scripts/prepare_tasks.py --domain search --output-dir dataset/search_tasks
    python agent_rl/scripts/prepare_tasks.py --domain math --output-dir dataset/math_tasks

Writes train.jsonl and eval.jsonl, the same bytes for the same seed; no task is in both, and demonstrations show none
of them. For search also corpus.jsonl, the passages that the questions are about, and with_documents.jsonl, a few rows
about another world that bring their passages with them. Files written by hand (handwritten.jsonl, gsm8k_format.jsonl)
stay as they are.
"""

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_rl.errors import ConfigError
from agent_rl.scripts.common import Domain, make_app, run_app
from agent_rl.telemetry.files import make_folder, write_text


def main(
    domain: Domain,
    output_dir: Annotated[Path, typer.Option(help="Folder the files are written to.")],
    num_train: Annotated[int | None, typer.Option(min=1, help="Rows to train on; by default as shipped.")] = None,
    num_eval: Annotated[int | None, typer.Option(min=1, help="Rows held out; by default as shipped.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
) -> None:
    start = time.monotonic()
    from agent_rl.data.tasks import write_tasks
    from agent_rl.envs.registry import make_env_factory

    make_folder(output_dir, "--output-dir")
    files = make_env_factory(domain).task_files(seed, num_train, num_eval)
    if not files:
        raise ConfigError(f"--domain {domain}: its environment makes no task files; see EnvFactory.task_files")
    for name, rows in files.items():
        path = output_dir / f"{name}.jsonl"
        if is_task := "task_id" in rows[0]:
            write_tasks(path, rows)
        else:
            write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        print(f"{path}: {len(rows)} {'tasks' if is_task else 'rows'}{_levels(rows)}")
    num_tasks = sum(len(rows) for rows in files.values() if "task_id" in rows[0])
    print(f"{num_tasks} tasks in {time.monotonic() - start:.1f} s")


def _levels(rows: Sequence[Mapping[str, Any]]) -> str:
    levels = Counter(row["level"] for row in rows if "level" in row)
    return f" ({', '.join(f'level {level} {levels[level]}' for level in sorted(levels))})" if levels else ""


app = make_app(main)

if __name__ == "__main__":
    run_app(app)
