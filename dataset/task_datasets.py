"""Task files as records with named fields, and a sampler over them: for looking at data and for own loops.

    ds = SearchTaskDataset.from_path("dataset/search_tasks/train.jsonl")
    ds[0].question, ds[0].to_env_task()

A run itself reads rows (`tasks.py`) and samples through a curriculum. Does not: check that a row suits an environment
(`EnvFactory.check_task`).
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from agent_rl.data.sampler import TaskSampler
from agent_rl.data.tasks import Task, find_task_file, read_tasks
from agent_rl.errors import DataError

_OTHERS = "others"
_TEXT = ((str,), "a text")
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "answer": ((str, int, float, list), "a text, a number, or a list of accepted ones"),
    "documents": ((list,), "a list"),
    "tests": ((list,), "a list"),
    "metadata": ((dict,), "an object"),
}
"""What fields hold that are no text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TaskRecord:
    task_id: str
    metadata: dict[str, Any] | None = None
    others: dict[str, Any] = field(default_factory=dict)
    """Keys of the row that have no field here, such as `level`."""

    @classmethod
    def from_row(cls, row: Task, where: str) -> Self:
        """The record of a row; DataError, opened by `where`, when a field is missing or of another kind."""
        own = {item.name: item for item in fields(cls) if item.name != _OTHERS}
        required = [name for name, item in own.items() if item.default is MISSING]
        missing = [name for name in required if row.get(name) is None]
        if missing:
            raise DataError(
                f"{where}: the row has no {missing[0]!r}; a {cls.__name__} needs {', '.join(required)}, add it"
            )
        known = {name: value for name, value in row.items() if name in own}
        for name, value in known.items():
            kinds, expected = _KINDS.get(name, _TEXT)
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
                raise DataError(f"{where}: {name!r} is {value!r:.60}; make it {expected}")
        return cls(**known, others={name: value for name, value in row.items() if name not in own})

    def to_env_task(self) -> Task:
        """The row that an environment takes; fields that are None are left out."""
        own = {item.name: getattr(self, item.name) for item in fields(self) if item.name != _OTHERS}
        return {name: value for name, value in own.items() if value is not None} | self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeTaskRow(_TaskRecord):
    """Code to be written and the tests that judge it."""

    prompt: str
    tests: list[dict[str, Any]]
    starter_code: str | None = None
    reference_solution: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTask(_TaskRecord):
    """A question, the answer or all accepted ones, and the passages to search in where the task brings its own."""

    question: str
    answer: str | float | list[str | float]
    documents: list[dict[str, Any]] | None = None


Record = TypeVar("Record", bound=_TaskRecord)


class _TaskDataset(Sequence[Record]):
    record: ClassVar[type[_TaskRecord]]

    def __init__(self, tasks: Sequence[Record]) -> None:
        self._tasks = tuple(tasks)

    @classmethod
    def from_path(cls, path: str | Path) -> Self:
        """Read any file that `read_tasks` reads; DataError with `file:line` or `file:row N` for what is wrong in it."""
        records: list[Record] = []
        read_tasks(path, lambda row, where: records.append(cls.record.from_row(row, where)))
        return cls(records)

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index):
        """A record, or a tuple of them for a slice."""
        return self._tasks[index]


class CodeTaskDataset(_TaskDataset[CodeTaskRow]):
    """The records of a file of code tasks."""

    record = CodeTaskRow


class SearchTaskDataset(_TaskDataset[SearchTask]):
    """The records of a file of questions; questions of mathematics are of the same kind."""

    record = SearchTask


def load_code_task_splits(folder: str | Path) -> tuple[CodeTaskDataset, CodeTaskDataset]:
    """The files `train` and `val` (else `eval`) of a folder, in any format; DataError when one is missing."""
    train, evaluation = find_task_file(folder, "train"), find_task_file(folder, "eval")
    return CodeTaskDataset.from_path(train), CodeTaskDataset.from_path(evaluation)


class CodeTaskSampler:
    """Samples records of a dataset of any kind, in file order or in seeded permutations; the same ones every time."""

    def __init__(self, dataset: Sequence[Record], shuffle: bool = False, seed: int = 0) -> None:
        """ValueError for a dataset without tasks."""
        self._dataset = dataset
        self._sampler = TaskSampler(len(dataset), seed=seed, shuffle=shuffle)

    def next(self, n: int) -> list[Record]:
        """The next `n` tasks; after the last one it begins again."""
        return [self._dataset[index] for index in self._sampler.next(n)]

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next samples, as plain JSON values."""
        return self._sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; CheckpointError when it is no such state, or of another dataset."""
        self._sampler.load_state_dict(state)
