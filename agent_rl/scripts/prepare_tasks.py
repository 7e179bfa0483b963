"""Make the task files of an environment.

    python agent_rl/scripts/prepare_tasks.py --domain code --output-dir dataset/code_tasks
    python agent_rl/scripts/prepare_tasks.py --domain search --output-dir dataset/search_tasks
    python agent_rl/scripts/prepare_tasks.py --domain math --output-dir dataset/math_tasks
    python agent_rl/scripts/prepare_tasks.py --config configs/reasoning_gym.yaml --output-dir runs/reasoning_gym_tasks

Writes train.jsonl and eval.jsonl, the same bytes for the same seed; no task is in both, and demonstrations show none
of them. For search also corpus.jsonl, the passages that the questions are about, and with_documents.jsonl, a few rows
about another world that bring their passages with them. Files written by hand (handwritten.jsonl, gsm8k_format.jsonl)
stay as they are.
"""

import sys

if __name__ == "__main__":  # run by its path, where the package need not be installed
    sys.path.insert(0, __file__.rpartition("/agent_rl/")[0])

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_rl.errors import ConfigError
from agent_rl.scripts.common import make_app, read_config, run_app
from agent_rl.telemetry.files import make_folder, write_text

if TYPE_CHECKING:
    from agent_rl.envs.base import EnvFactory

_MAKES_NONE = "its environment makes no task files; see EnvFactory.task_files"


def main(
    output_dir: Annotated[Path, typer.Option(help="Folder the files are written to.")],
    domain: Annotated[
        str | None,
        typer.Option(
            help="Environment: nat, code, search, math, another name, or an import path such as my_env:MyEnv."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration whose environment and options they are for, instead of --domain.")
    ] = None,
    num_train: Annotated[int | None, typer.Option(min=1, help="Rows to train on; by default as shipped.")] = None,
    num_eval: Annotated[int | None, typer.Option(min=1, help="Rows held out; by default as shipped.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the tasks.")] = 0,
) -> None:
    start = time.monotonic()
    from agent_rl.data.tasks import write_tasks
    from agent_rl.envs.base import EnvFactory

    if (domain is None) == (config is None):
        raise ConfigError("name the environment by --domain, or by --config and its section env; one of the two")
    named, opened = _named(str(domain)) if config is None else _configured(config)
    files: Mapping[str, Sequence[dict[str, Any]]] = {}
    if type(opened).task_files is not EnvFactory.task_files:
        make_folder(output_dir, "--output-dir")
        with opened as factory:
            files = factory.task_files(seed, num_train, num_eval)
    if not files:
        raise ConfigError(f"{named}: {_MAKES_NONE}")
    for name, rows in files.items():
        path = output_dir / f"{name}.jsonl"
        if is_task := "task_id" in rows[0]:
            write_tasks(path, rows)
        else:
            write_text(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        print(f"{path}: {len(rows)} {'tasks' if is_task else 'rows'}{_levels(rows)}")
    num_tasks = sum(len(rows) for rows in files.values() if "task_id" in rows[0])
    print(f"{num_tasks} tasks in {time.monotonic() - start:.1f} s")


def _configured(config: Path) -> "tuple[str, EnvFactory]":
    """What the environment of a configuration is called in errors, and the environment."""
    from agent_rl.envs.registry import make_env_factory

    env = read_config(config).env
    return f"{config}: env.name = {env.name!r}", make_env_factory(env.name, env.options)


def _named(domain: str) -> "tuple[str, EnvFactory]":
    """The same without options. ConfigError, which says so, where it needs some, unless it makes no files anyway."""
    from agent_rl.envs.base import EnvFactory
    from agent_rl.envs.registry import DOMAINS, ENVIRONMENTS, make_env_factory

    named = f"--domain {domain}"
    try:
        return named, make_env_factory(domain)
    except ConfigError as error:
        maker = ENVIRONMENTS.get(DOMAINS.get(domain, domain))
        made = maker if isinstance(maker, type) else getattr(maker, "__annotations__", {}).get("return")
        if getattr(made, "task_files", None) is EnvFactory.task_files and made is not EnvFactory:
            raise ConfigError(f"{named}: {_MAKES_NONE}") from None
        said = str(error).removeprefix("config: ").partition("; ")[0]
        raise ConfigError(f"{named}: {said}, and options are read from a file; give --config instead") from None


def _levels(rows: Sequence[Mapping[str, Any]]) -> str:
    levels = Counter(row["level"] for row in rows if "level" in row)
    return f" ({', '.join(f'level {level} {levels[level]}' for level in sorted(levels))})" if levels else ""


app = make_app(main)

if __name__ == "__main__":
    run_app(app)
