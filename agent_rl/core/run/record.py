"""What `config.yaml` of a run says where an environment or rows were given in Python, in place of the configuration's.

`env.name` is then `python:own_env:ManyCalls` and `data.train_path` `python:16 rows, sha256 3f9c01ab4e5d6f70`: no
command takes these for an environment or a file. Not here: writing the file (`run_folder.py`).
"""

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from agent_rl.config import Config, flatten
from agent_rl.config.load import read_yaml
from agent_rl.config.sections import GIVEN_IN_PYTHON
from agent_rl.config.tools import ToolsConfig
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory
from agent_rl.errors import CheckpointError

_NAMES_ENVIRONMENT = re.compile(r"env\.(options\.environments\.[^.]+\.)?name")


def recorded_config(
    config: Config,
    *,
    env: Any,
    are_tools_given: bool,
    train_rows: Sequence[Task] | None,
    eval_rows: Sequence[Task] | None,
) -> Config:
    """The configuration as it was used: `env` and rows that are not None were given in Python.

    No rows at all are recorded as none. With `are_tools_given` the environment is offered the configuration's tools.
    """
    sections: dict[str, Any] = {}
    if env is not None:
        sections["env"] = config.env.model_copy(update={"name": f"{GIVEN_IN_PYTHON}{name_of(env)}", "options": {}})
        if not are_tools_given:
            sections["tools"] = ToolsConfig()
    paths = {}
    for key, rows in (("train_path", train_rows), ("eval_path", eval_rows)):
        if rows is not None:
            paths[key] = f"{GIVEN_IN_PYTHON}{_rows_in_words(rows)}" if rows else None
    if paths:
        sections["data"] = config.data.model_copy(update=paths)
    return config.model_copy(update=sections) if sections else config


def name_of(env: Any) -> str:
    """`own_env:ManyCalls`, of a class, a factory or a function that makes environments."""
    while True:
        if isinstance(env, EnvFactory) and type(env) is EnvFactory and env.make is not None:
            env = env.make
        elif isinstance(env, partial):
            env = env.func
        else:
            break
    made = env if inspect.isclass(env) or inspect.isroutine(env) else type(env)
    module = made.__module__
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(file).stem if file else module
    return f"{module}:{made.__qualname__}"


def check_same_environment(config: Config, checkpoint: Path) -> None:
    """CheckpointError where the run of `checkpoint` had another environment than `config`, as it is recorded."""
    file = run_config_of(checkpoint)
    if file is None:
        return
    recorded = flatten(read_yaml(file))
    for key, ours in flatten({"env": config.env.model_dump(mode="json")}).items():
        theirs = recorded.get(key)
        if _NAMES_ENVIRONMENT.fullmatch(key) and theirs is not None and theirs != ours:
            raise CheckpointError(
                f"checkpoint.resume: {checkpoint} is of a run in the environment {theirs!r}, and this run is in "
                f"{ours!r} ({key}); to go on with its weights in another environment, start a new run with "
                f"model.path={checkpoint}/model"
            )


def run_config_of(checkpoint: Path) -> Path | None:
    """`config.yaml` of the run that a checkpoint `RUN/checkpoints/step_00020` is of; None where there is none."""
    for folder in (checkpoint.absolute().parent, checkpoint.resolve().parent):  # it may be a link, there or here
        file = folder.parent / "config.yaml"
        if folder.name == "checkpoints" and file.is_file():
            return file
    return None


def _rows_in_words(rows: Sequence[Task]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
    return f"{len(rows)} rows, sha256 {digest.hexdigest()[:16]}"
