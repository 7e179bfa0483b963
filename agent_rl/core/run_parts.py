"""The parts of a training run, opened from a configuration: tasks, environments, model, policy, run folder.

What was opened is closed again where a later part fails. Not here: what is done with them (`trainer_grpo.py`).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from agent_rl.config import Config, CurriculumConfig
from agent_rl.core.run.record import check_same_environment, recorded_config
from agent_rl.core.run_folder import RunFolder
from agent_rl.data.curriculum import level_of
from agent_rl.data.tasks import Check, Task, as_tasks
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checkpoint import MODEL_FOLDER, verify_checkpoint
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.envs.opening import GivenTools, open_environment
from agent_rl.policies.make_policy import make_policy
from agent_rl.rollout.rollout import SourceMaker
from agent_rl.rollout.window import check_windows
from agent_rl.telemetry.trackers import check_trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A configuration, and what replaces parts of it."""

    config: Config
    env_factory: EnvFactory | Callable[[], AgentEnv] | None = None
    """None: the environment of the configuration."""
    train_rows: Any = None
    """Anything that `as_tasks` takes; None: the tasks of `data.train_path`."""
    eval_rows: Any = None
    """Likewise; empty: none. None: those of `data.eval_path`, but none beside training rows given here."""
    given_tools: GivenTools | None = None
    """Not None: `env_factory` is offered the tools of the configuration, some of which these are."""
    are_in_config: bool = False
    """Whether the configuration names the environment given here, and the file of rows that it has a path of."""
    make_source: SourceMaker | None = None
    """Makes what gives the steps their groups; None: a rollout over the training tasks."""
    names: tuple[str, str] = ("train_tasks", "eval_tasks")
    """Of training and held-out rows, in errors."""


@contextmanager
def opened_parts(request: RunRequest) -> Iterator[dict[str, Any]]:
    """The parts as keyword arguments of `GRPOTrainer.from_parts`, for a block that hands them on to their owner; they
    are closed where the block raises.

    UserError for anything the user can fix. Nothing is written.
    """
    config = request.config
    config.check_functions()
    backend = Backend(config.run.device, timeout_s=config.run.timeout_s)
    backend.on_main(lambda: check_trackers(config.log.trackers))  # a large model would be read first
    with ExitStack() as opened:
        factory = opened.enter_context(open_environment(config, request.env_factory, given_tools=request.given_tools))
        train_tasks, eval_tasks = _tasks(request, factory)
        run = backend.on_main(lambda: RunFolder.open(config))  # after what is wrong with a run of any name
        run = _with_record(run, request, train_tasks, eval_tasks)
        if run.resume_from is not None:
            check_same_environment(run.record or config, run.resume_from)
        if run.resume_from is not None:
            verify_checkpoint(run.resume_from, backend)
        checkpoint = run.resume_from / MODEL_FOLDER if run.resume_from else None
        model, policy = make_policy(config, backend, run_folder=run.path, checkpoint=checkpoint)
        opened.callback(policy.close)
        factory.start()
        check_windows(factory, train_tasks, policy)
        yield {
            "model": model,
            "policy": policy,
            "backend": backend,
            "env_factory": factory,
            "train_tasks": train_tasks,
            "eval_tasks": eval_tasks[: config.data.max_eval_tasks],
            "run": run,
            "make_source": request.make_source,
        }
        opened.pop_all()  # their owner closes them


def _with_record(
    run: RunFolder, request: RunRequest, train_tasks: Sequence[Task], eval_tasks: Sequence[Task]
) -> RunFolder:
    """The folder, with the configuration as it is used."""
    data = request.config.data
    is_train_given = request.train_rows is not None and not (request.are_in_config and data.train_path)
    is_eval_given = is_train_given or (request.eval_rows is not None and not (request.are_in_config and data.eval_path))
    record = recorded_config(
        request.config,
        env=None if request.are_in_config else request.env_factory,
        are_tools_given=request.given_tools is not None,
        train_rows=train_tasks if is_train_given else None,
        eval_rows=eval_tasks if is_eval_given else None,
    )
    return replace(run, record=record, working_folder=os.getcwd())


def _tasks(request: RunRequest, factory: EnvFactory) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks."""
    config, train_rows, eval_rows = request.config, request.train_rows, request.eval_rows
    check, columns = _train_check(factory, config.data.curriculum), config.data.columns
    if train_rows is None:
        train_tasks = factory.read_tasks(config.data, "train", check)
    else:
        train_tasks = as_tasks(train_rows, request.names[0], check, columns=columns)
    if eval_rows is None and train_rows is None and config.eval.temperatures:
        return train_tasks, factory.read_tasks(config.data, "eval")
    if eval_rows is None or (isinstance(eval_rows, list | tuple) and not eval_rows):
        return train_tasks, []
    return train_tasks, as_tasks(eval_rows, request.names[1], factory.check_task, columns=columns)


def _train_check(factory: EnvFactory, curriculum: CurriculumConfig) -> Check:
    """The check of a row of the training file: the environment's, and a level where the curriculum needs one."""

    def check(task: Task, where: str) -> None:
        factory.check_task(task, where)
        if curriculum.mode != "off":
            level_of(task, where, curriculum)

    return check
