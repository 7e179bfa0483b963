"""Rows whose tests are calls of functions and the answers expected: `{"function": "add", "args": [1], "expected": 2}`.

The first tests are examples: the request shows them, and the report says what the program gave for one that fails. The
others are hidden. Expected answers never enter a process that runs the program. What the report says of the examples
comes from a process that was given them alone; of the run with the hidden tests it says whether all pass and no more,
so that no program can tell its author hidden inputs.
"""

import builtins
import keyword
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from agent_rl.envs.code.task import (
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
from agent_rl.sandbox.graders import CallGrader, Case
from agent_rl.sandbox.guest.codec import CodecError, Hashing, Opaque, decode, same
from agent_rl.sandbox.limits import Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.verdict import Outcome, Verdict

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
        self._cases = [
            Case(
                function=test.function,
                args=tuple(test.args),
                kwargs=test.kwargs,
                expected=test.expected,
                raises=test.raises,
                id=f"{test.function}[{number}]",
            )
            for number, test in enumerate(row.tests)
        ]
        _TestGrader(self._cases)  # refuses what cannot be sent
        self.request = _request(row, self._examples)

    def judge(self, sandbox: Sandbox, code: str) -> Judged:
        files = {f"{MODULE}.py": code}
        if not self._examples:
            verdict = _TestGrader(self._cases).grade(sandbox, files)
            return Judged(verdict=verdict, report=ALL_PASS if verdict.full else NOT_ALL_HIDDEN_PASS)
        grader = _TestGrader(self._cases[: len(self._examples)])
        shown = grader.grade(sandbox, files)
        if shown.status is Status.TIMEOUT and Outcome.MISSING in shown.per_test.values():
            # The run of all tests would hang in the same example.
            all_tests = {case.id: shown.per_test.get(case.id, Outcome.MISSING) for case in self._cases}
            verdict = replace(shown, per_test=all_tests)
        else:
            verdict = _TestGrader(self._cases).grade(sandbox, files)
        return Judged(verdict=verdict, report=ALL_PASS if verdict.full else self._report(shown, grader.given))

    def _report(self, shown: Verdict, given: Mapping[str, dict[str, Any]]) -> str:
        for test, (name, outcome) in zip(self._examples, shown.per_test.items(), strict=True):
            if outcome is Outcome.FAILED:
                return f"{test.call} {_shown_answer(given[name])}, expected {test.outcome}"
            if outcome is not Outcome.PASSED:
                late = " in time" if shown.status is Status.TIMEOUT else ""
                return f"{test.call} gave no answer{late}, expected {test.outcome}"
        return f"examples: {shown.passed} of {shown.total} passed\n{NOT_ALL_HIDDEN_PASS}"

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


class _TestGrader(CallGrader):
    """A `CallGrader` of one program that remembers what was given."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__(MODULE, cases, compare=is_answer, keep=[f"{MODULE}.py"])
        self.given: dict[str, dict[str, Any]] = {}

    def _outcome(self, case: Case, answer: dict[str, Any], hashing: Hashing) -> Outcome:
        self.given[case.id] = answer
        return super()._outcome(case, answer, hashing)


def is_answer(actual: Any, expected: Any) -> bool:
    """`same`, with an allowance for rounding only in places where a float is expected."""
    if type(actual) is type(expected) and isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(map(is_answer, actual, expected))
    if type(actual) is type(expected) and isinstance(expected, dict):
        has_keys = same(dict.fromkeys(actual), dict.fromkeys(expected))
        return has_keys and all(name in actual and is_answer(actual[name], expected[name]) for name in expected)
    return same(actual, expected, rel_tol=1e-9 if isinstance(expected, float | complex) else 0.0)


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
