"""Several environments in one run: `env.name: mixture`. A task names its environment, which gets its row and acts.

Prompts, tools, rewards and failure modes are those of the environment of the task. Rows are read from a file for each
environment, or from one file whose column `env` has the name. Not here: which tasks come next (`data/curriculum.py`),
the tools beside an environment's own (`opening.py`).
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain, zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from agent_rl.agent.messages import Message
from agent_rl.config import DataConfig, ToolsConfig, validate_section
from agent_rl.config.base import Section, written_as
from agent_rl.config.sections import DataPath
from agent_rl.data.tasks import ENV_COLUMN, Check, Task, read_split, read_tasks
from agent_rl.envs.base import AgentEnv, EnvFactory, Solution, StepResult
from agent_rl.envs.failure_modes import FailedEpisode, FailureRule
from agent_rl.envs.registry import make_env_factory
from agent_rl.envs.step_result import read_opening, read_step
from agent_rl.errors import ConfigError, DataError, nearest_or_all
from agent_rl.records import StopReason

NAME = "mixture"
_KEY = "env.options.environments"
EnvironmentName = Annotated[
    str, written_as(r"[A-Za-z0-9][A-Za-z0-9_-]*", "letters, digits, '_' and '-', first a letter or a digit")
]


def _as_section(given: Any) -> Any:
    return {"use": given} if isinstance(given, list | tuple) else given


class MixtureMemberOptions(Section):
    """One environment of the mixture."""

    name: str
    """As `env.name` of a run in this environment alone."""
    options: dict[str, Any] = Field(default_factory=dict)
    """As `env.options`."""
    tools: Annotated[ToolsConfig, BeforeValidator(_as_section)] = ToolsConfig()
    """As section `tools`; a list is its `use`, such as `[calculator]`. The section itself stays empty."""
    weight: Annotated[float, Field(gt=0.0)] = 1.0
    """Share of the training tasks, relative to the others'."""
    train_path: DataPath | None = None
    """As `data.train_path`; `task_id`s get the environment's name in front. Null only where `data.train_path` names
    rows with a column `env`."""
    eval_path: DataPath | None = None
    """As `data.eval_path`. Null where this environment is not evaluated."""
    columns: dict[str, str] = Field(default_factory=dict)
    """As `data.columns`, for these files."""


class MixtureOptions(Section):
    """`env.options` of `mixture`."""

    environments: Annotated[dict[EnvironmentName, MixtureMemberOptions], Field(min_length=1)]
    """The environments by names of your own, which metrics, reports and the column `env` have."""


@dataclass(slots=True, kw_only=True)
class MixtureMember:
    """One environment of a mixture: `MixtureMember(factory=EnvFactory(MyEnv), weight=2.0)`."""

    factory: EnvFactory
    weight: float = 1.0
    tools: ToolsConfig = field(default_factory=ToolsConfig)
    """Offered beside its own; opened by `opening.offer_tools`."""
    paths: Mapping[str, Path | str] = field(default_factory=dict)
    """Of its tasks, by split."""
    columns: Mapping[str, str] = field(default_factory=dict)


class MixtureFactory(EnvFactory):
    """Makes environments that become, at `reset`, the one that the task names; owns and closes all factories."""

    def __init__(self, members: Mapping[str, MixtureMember]) -> None:
        super().__init__(lambda: MixtureEnv(self))
        self.members = dict(members)
        self.environments = MappingProxyType({name: each.weight for name, each in self.members.items()})
        self.may_be_remote = all(each.factory.may_be_remote for each in self.members.values())
        self.failure_rules = tuple(
            FailureRule(rule.label, rule.meaning, _in_environment(name, rule.holds))
            for name, each in self.members.items()
            for rule in each.factory.failure_rules
        )

    def factory_of(self, task: Task) -> tuple[EnvFactory, Task]:
        own = {column: value for column, value in task.items() if column != ENV_COLUMN}
        return self.members[task[ENV_COLUMN]].factory, own

    def check_task(self, task: Task, where: str) -> None:
        name = task.get(ENV_COLUMN)
        if not isinstance(name, str) or name not in self.members:
            hint = nearest_or_all(str(name), self.members)
            raise DataError(f"{where}: {ENV_COLUMN} is {name!r:.80}; make it the name of an environment{hint}")
        factory, own = self.factory_of(task)
        factory.check_task(own, where)

    # Tasks

    def read_tasks(self, data: DataConfig, split: Literal["train", "eval"], check: Check | None = None) -> list[Task]:
        """In turn a task of each environment, so that the top of the list has some of all.

        ConfigError where a path is missing, or given twice; an environment need not have held-out tasks.
        """
        check, key = check or self.check_task, f"{split}_path"
        paths = {name: each.paths[split] for name, each in self.members.items() if split in each.paths}
        if getattr(data, key) is not None:
            if paths:
                name, path = next(iter(paths.items()))
                raise ConfigError(
                    f"data.{key} is {str(getattr(data, key))!r:.80}, and {_KEY}.{name}.{key} is {str(path)!r:.80}; "
                    "give one of them"
                )
            return _in_turn(read_split(data, split, check), self.members)
        missing = [name for name in self.members if name not in paths]
        if missing and (split == "train" or not paths):
            raise ConfigError(
                f"{_KEY}.{missing[0]}.{key} is missing, the file or dataset of its tasks; add it, or name in "
                f"data.{key} one file for all environments, with a column {ENV_COLUMN!r}"
            )
        if data.columns:
            raise ConfigError(f"data.columns has no effect on files of single environments; move it to {_KEY}.NAME")
        rows = [row for name, path in paths.items() for row in self._read(name, path, check)]
        return _in_turn(rows, self.members)

    def _read(self, name: str, path: Path | str, check: Check) -> list[Task]:
        def named(row: Task) -> Task:
            return {**row, "task_id": f"{name}/{row['task_id']}", ENV_COLUMN: name}

        def check_named(row: Task, where: str) -> None:
            if row.get(ENV_COLUMN, name) != name:
                raise DataError(
                    f"{where}: {ENV_COLUMN} is {row[ENV_COLUMN]!r:.80}, and the file is of the environment {name!r}; "
                    f"leave the column out, or rename it in {_KEY}.{name}.columns"
                )
            check(named(row), where)

        return [named(row) for row in read_tasks(path, check_named, columns=self.members[name].columns)]

    def task_source(self, data: DataConfig, split: Literal["train", "eval"]) -> str:
        named = [f"{each.paths[split]} ({name})" for name, each in self.members.items() if split in each.paths]
        return ", ".join(named) or super().task_source(data, split)

    def solutions(self, task: Task) -> list[Solution]:
        factory, own = self.factory_of(task)
        return factory.solutions(own)

    def preflight_tasks(self, tasks: Sequence[Task]) -> dict[str, Task]:
        by_id = {task["task_id"]: task for task in tasks}
        return {
            f"{name}: {what}": by_id[own["task_id"]]
            for name, each in self.members.items()
            for what, own in each.factory.preflight_tasks(
                [self.factory_of(task)[1] for task in tasks if task[ENV_COLUMN] == name]
            ).items()
        }

    # Resources

    def start(self) -> None:
        for each in self.members.values():
            each.factory.start()

    def describe(self) -> dict[str, Any]:
        found = {name: each.factory.describe() for name, each in self.members.items()}
        summaries = [f"{name}: {about['summary']}" for name, about in found.items() if about.get("summary")]
        return {"environments": found, **({"summary": "; ".join(summaries)} if summaries else {})}

    def counters(self) -> Mapping[str, float]:
        """Of all environments together."""
        total: Counter[str] = Counter()
        for each in self.members.values():
            total.update(each.factory.counters())  # type: ignore[arg-type]
        return dict(total)

    def part_weights(self) -> Mapping[str, float]:
        return dict(chain.from_iterable(each.factory.part_weights().items() for each in self.members.values()))

    def compared_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Without paths, whose tasks are compared themselves, and without weights, which only training knows."""
        found = {}
        for name, given in options.get("environments", {}).items():
            inner = self.members[name].factory if name in self.members else EnvFactory()
            found[name] = {key: given[key] for key in ("name", "tools") if key in given}
            found[name]["options"] = inner.compared_options(given.get("options") or {})
            search = ToolsConfig.model_validate(_as_section(given.get("tools") or {})).search
            if search.corpus_path is not None:
                found[name]["corpus_sha256"] = _digest_of(search.corpus_path)
        return {"environments": found}

    def close(self) -> None:
        with ExitStack() as stack:
            for each in self.members.values():
                stack.callback(each.factory.close)


class MixtureEnv(AgentEnv):
    """One episode of the environment that its task names."""

    def __init__(self, factory: MixtureFactory) -> None:
        self._factory = factory
        self._inner: AgentEnv | None = None

    def reset(self, task: Task) -> list[Message]:
        factory, own = self._factory.factory_of(task)
        self._inner = factory()
        self._inner.case_seed = self.case_seed
        messages = read_opening(self._inner.reset(own), self._inner)
        self.tools = self._inner.tools
        return messages

    def step(self, message: Message) -> StepResult:
        assert self._inner is not None, "reset comes first"
        result = read_step(self._inner.step(message), self._inner)
        self.tools = self._inner.tools
        return result

    def truncate(self, reason: StopReason) -> StepResult:
        assert self._inner is not None, "reset comes first"
        self._inner.unanswered = self.unanswered
        return read_step(self._inner.truncate(reason), self._inner, "truncate")

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


def make_mixture_factory(options: dict[str, Any], seed: int) -> MixtureFactory:
    """`env.name: mixture`; every environment gets the run's seed."""
    checked = validate_section(MixtureOptions, options, source="config", prefix="env.options")
    members = {}
    for name, each in checked.environments.items():
        if each.name == NAME:
            raise ConfigError(f"{_KEY}.{name}.name is {NAME!r}; a mixture holds no other one, list all in the first")
        with errors_of(name):
            factory = make_env_factory(each.name, each.options, seed=seed)
        paths = {"train": each.train_path, "eval": each.eval_path}
        members[name] = MixtureMember(
            factory=factory,
            weight=each.weight,
            tools=each.tools,
            paths={split: path for split, path in paths.items() if path is not None},
            columns=each.columns,
        )
    return MixtureFactory(members)


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """A ConfigError of the block begins with the environment that it is about."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"environment {name!r}: {error}") from error


def _digest_of(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); correct the path") from None


def _in_turn(tasks: Sequence[Task], names: Mapping[str, Any]) -> list[Task]:
    """The first task of each environment, then the second of each."""
    by_env = [[task for task in tasks if task[ENV_COLUMN] == name] for name in names]
    return [task for turn in zip_longest(*by_env) for task in turn if task is not None]


def _in_environment(name: str, holds: Callable[[FailedEpisode], bool]) -> Callable[[FailedEpisode], bool]:
    return lambda episode: episode.record.get(ENV_COLUMN) == name and holds(episode)
