"""Rows whose tests are calls of functions and the answers expected: `{"function": "add", "args": [1], "expected": 2}`.

The first tests are examples: the request shows them, and the report says what the program gave for one that fails. The
others are hidden. Expected answers never enter a process that runs the program, and what the report shows comes from a
process that was given the examples alone, so that no program can tell its author hidden inputs either.
"""

import builtins
import keyword
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agent_rl.code_tasks.base import (
    ALL_PASS,
    MODULE,
    NOT_ALL_HIDDEN_PASS,
    REFERENCE,
    CodeTask,
    Judged,
    check_syntax,
    parse_row,
)
from agent_rl.errors import DataError, UserError
from agent_rl.sandbox.graders import CallGrader, Case, Outcome
from agent_rl.sandbox.guest.codec import CodecError, Opaque, decode, encode, same
from agent_rl.sandbox.limits import Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.verdict import Verdict

MAX_SHOWN_CHARS = 100
"""Of a value or an error message in a report."""


def _check_name(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise ValueError(f"{name!r} is not a name in Python")
    return name


def _check_exception(name: str) -> str:
    kind = getattr(builtins, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ValueError(f"{name!r} is none of Python's own exceptions, such as 'ValueError'")
    return name


Name = Annotated[str, AfterValidator(_check_name)]
Source = Annotated[str, AfterValidator(check_syntax)]


class CallTest(BaseModel):
    """One call, and the answer or the exception it must give."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    function: Name
    args: list[Any]
    kwargs: dict[Name, Any] = Field(default_factory=dict)
    expected: Any = None
    raises: Annotated[str, AfterValidator(_check_exception)] | None = None

    @model_validator(mode="after")
    def _check_outcome(self) -> "CallTest":
        if self.raises is None and "expected" not in self.model_fields_set:
            raise ValueError("a test needs 'expected', or 'raises' with the name of an exception")
        if self.raises is not None and self.expected is not None:
            raise ValueError("a test has 'expected' or 'raises', not both")
        return self

    @property
    def call(self) -> str:
        """`add(1, b=2)`"""
        named = (f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{self.function}({', '.join([*map(repr, self.args), *named])})"

    @property
    def outcome(self) -> str:
        """`3`, or `ValueError`."""
        return self.raises or repr(self.expected)


class Metadata(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)

    num_examples: Annotated[int, Field(ge=0, strict=True)] = 1
    """Tests, from the first, that the model is shown."""


class CallRow(BaseModel):
    """A dataset row; other keys are for whoever reads them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt: Annotated[str, Field(min_length=1)]
    starter_code: Source = ""
    tests: Annotated[tuple[CallTest, ...], Field(min_length=1)]
    reference_solution: Annotated[Source, Field(min_length=1)]
    metadata: Metadata = Metadata()

    @model_validator(mode="after")
    def _check_hidden(self) -> "CallRow":
        shown, total = self.metadata.num_examples, len(self.tests)
        if shown >= total:
            raise ValueError(f"metadata.num_examples is {shown} of {total} tests; leave at least one test hidden")
        return self


class CallTask(CodeTask):
    """Made by `parse_call_task`."""

    def __init__(self, row: CallRow) -> None:
        """UserError when an argument is beyond the caps of what can be sent to a program."""
        self._row = row
        self._examples = row.tests[: row.metadata.num_examples]
        cases = [
            Case(
                function=test.function,
                args=tuple(test.args),
                kwargs=test.kwargs,
                expected=test.expected,
                raises=test.raises,
            )
            for test in row.tests
        ]
        self._grader = CallGrader(MODULE, cases, compare=partial(same, rel_tol=1e-9), keep=[f"{MODULE}.py"])
        self.request = _request(row, self._examples)

    def judge(self, sandbox: Sandbox, code: str) -> Judged:
        verdict = self._grader.grade(sandbox, {f"{MODULE}.py": code})
        return Judged(verdict=verdict, report=self._report(sandbox, code, verdict))

    def _report(self, sandbox: Sandbox, code: str, verdict: Verdict) -> str:
        if verdict.full:
            return ALL_PASS
        outcomes = list(verdict.per_test.values())  # in the order of the tests
        for number, test in enumerate(self._examples):
            if outcomes[number] is Outcome.FAILED:
                return f"{test.call} {self._given(sandbox, code, number)}, expected {test.outcome}"
            if outcomes[number] is not Outcome.PASSED:
                late = " in time" if verdict.status is Status.TIMEOUT else ""
                return f"{test.call} gave no answer{late}, expected {test.outcome}"
        shown = len(self._examples)
        return f"examples: {shown} of {shown} passed\n{NOT_ALL_HIDDEN_PASS}" if shown else NOT_ALL_HIDDEN_PASS

    def _given(self, sandbox: Sandbox, code: str, number: int) -> str:
        """What an example gives in a run that knows of no other test than the examples before it."""
        cases = [
            {
                "function": test.function,
                "args": encode(tuple(test.args)),
                "kwargs": encode(test.kwargs),
                "want_args": False,
            }
            for test in self._examples[: number + 1]
        ]
        run = sandbox.call("call_cases", {f"{MODULE}.py": code}, module=MODULE, cases=cases)
        for item in run.items:
            if isinstance(item, dict) and item.get("case") == number:
                return _shown_answer(item)
        return "gave no answer"

    def solutions(self) -> Mapping[str, str]:
        """Beside the reference: functions that do nothing, that raise, that know one answer, that know the examples."""
        wrong = {
            "returns nothing": self._for_each_function(lambda tests: "return None"),
            "raises": self._for_each_function(lambda tests: "raise RuntimeError"),
            "always the first answer": self._for_each_function(
                lambda tests: f"raise {tests[0].raises}" if tests[0].raises else f"return {tests[0].expected!r}"
            ),
        }
        if self._examples:
            wrong["knows the examples"] = self._for_each_function(
                lambda tests: "\n    ".join(_answer_known(test) for test in tests if test in self._examples) or "pass"
            )
        return {REFERENCE: self._row.reference_solution, **wrong}

    def _for_each_function(self, body: Callable[[list[CallTest]], str]) -> str:
        """A program with every function that is tested; `body` gets the tests of one."""
        names = dict.fromkeys(test.function for test in self._row.tests)
        tests = {name: [test for test in self._row.tests if test.function == name] for name in names}
        return "\n\n".join(f"def {name}(*args, **kwargs):\n    {body(tests[name])}" for name in names) + "\n"


def parse_call_task(row: dict[str, Any], where: str) -> CallTask:
    """Validate a dataset row; `where` (file and row) opens the sentence of a DataError."""
    parsed = parse_row(CallRow, row, where)
    try:
        return CallTask(parsed)
    except UserError as error:
        raise DataError(f"{where}: field 'tests': {error}; correct the row") from None


def _request(row: CallRow, examples: tuple[CallTest, ...]) -> str:
    parts = [row.prompt.strip()]
    if row.starter_code.strip():
        parts.append(row.starter_code.strip("\n"))
    if examples:
        lines = (
            f"{test.call} raises {test.raises}" if test.raises else f"{test.call} -> {test.outcome}"
            for test in examples
        )
        parts.append("\n".join(["Examples:", *lines]))
    return "\n\n".join(parts)


def _answer_known(test: CallTest) -> str:
    then = f"raise {test.raises}" if test.raises else f"return {test.expected!r}"
    return f"if (args, kwargs) == ({tuple(test.args)!r}, {test.kwargs!r}): {then}"


def _shown_answer(item: dict[str, Any]) -> str:
    """`gave 4` or `raised TypeError: ...`: the word of the program's process, so its shape is not relied on."""
    if "raised" in item:
        message = _one_line(str(item.get("message")))
        return f"raised {_one_line(str(item.get('type')))}" + (f": {message}" if message else "")
    if "value" not in item:
        return "gave an answer that is too large"
    try:
        value = decode(item["value"])
        shown = f"an object of type {value.type_name}" if isinstance(value, Opaque) else repr(value)
    except CodecError:
        return "gave no answer"
    except ValueError:  # an integer with more digits than Python writes
        shown = "a very large number"
    return f"gave {_one_line(shown)}"


def _one_line(text: str) -> str:
    """Short, on one line, and without what UTF-8 cannot store."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= MAX_SHOWN_CHARS else f"{line[:MAX_SHOWN_CHARS]}..."
