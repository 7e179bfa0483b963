"""What a coding task is to its environment, whatever the format of its rows: a request, and tests that judge a program.

Not here: the formats (`call_tests.py`, `humaneval.py`), running a program for the model to see, rewards.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_rl.data.rows import no_column
from agent_rl.errors import DataError
from agent_rl.parsing import parse_module
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.verdict import Verdict

MODULE = "solution"
"""What the tests import the program as."""
REFERENCE = "reference"
"""Name of the one right program among `CodeTask.solutions`."""
ALL_PASS = "all tests pass"
NOT_ALL_HIDDEN_PASS = "not all hidden tests pass"

RowT = TypeVar("RowT", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What the tests say about a program."""

    verdict: Verdict
    report: str
    """What the model may know of it: about hidden tests only whether all of them pass."""


class CodeTask(ABC):
    """A row of a dataset, ready to judge programs."""

    request: str
    """What the model is asked."""

    def program(self, code: str) -> str:
        """The whole program that handed-in code stands for; the code is the end of it."""
        return code

    @abstractmethod
    def judge(self, sandbox: Sandbox, code: str) -> Judged:
        """Run every test on the program of `code`. Raises SandboxError when the sandbox itself failed."""

    @abstractmethod
    def solutions(self) -> Mapping[str, str]:
        """Code by name: `reference` passes all tests, and no other one does if the tests are worth anything."""


def parse_row(model: type[RowT], row: dict[str, Any], where: str) -> RowT:
    """Validate a dataset row; DataError with the first wrong field, opened by `where` (file and row)."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "missing" and len(first["loc"]) == 1:
            raise no_column(row, str(first["loc"][0]), where) from None
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        of_field = f" field {field!r}:" if field else ""
        raise DataError(f"{where}:{of_field} {message[0].lower()}{message[1:]}; correct the row") from None


def check_syntax(source: str) -> str:
    """The source as it is; ValueError when it is not Python. For texts of a dataset, never for what a model wrote."""
    try:
        parse_module(source)
    except SyntaxError as error:
        raise ValueError(f"it is not Python, {error.msg} in line {error.lineno}") from None
    return source
