"""Rows whose tests are assert lines or a pytest text: MBPP's, and others with `tests` as a text or a list of texts.

Each test is a file of its own, judged in another process than the program's: a proxy calls the program, and plain data
comes back. The first tests are examples. The request shows them, and what a report says of them comes from processes
without a hidden test; of those it says whether all pass and no more. Not here: taking a text apart
(`suite_text.py`), reading the files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from agent_rl.envs.code.humaneval import OFF_BY_ONE
from agent_rl.envs.code.suite_text import RightProgram, SingleTest, parsed, read_tests
from agent_rl.envs.code.task import ALL_PASS, MODULE, NOT_ALL_HIDDEN_PASS, REFERENCE, CodeTask, Judged
from agent_rl.errors import DataError
from agent_rl.sandbox.freeze import Flag
from agent_rl.sandbox.graders import SplitPytestGrader
from agent_rl.sandbox.limits import Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.verdict import Outcome, Verdict
from agent_rl.sandbox.workspace import WorkspaceError, validate_files
from agent_rl.tools.workspace_tools import failure

PROMPTS = ("prompt", "question", "text")
SOLUTIONS = ("reference_solution", "solution", "code")
"""Keys of a row; the first that is there and not empty counts."""
TESTS = ("tests", "test_list", "challenge_test_list")
"""The tests are those of all of them, in this order."""
SETUP = ("test_imports", "test_setup_code")
Read = TypeVar("Read")

_FILE = f"{MODULE}.py"
_NOT_PLAIN = "answers must be plain data: numbers, texts, lists, tuples, sets, dictionaries"
_WRONG = {
    "returns nothing": "return None",
    "raises": "raise RuntimeError",
    # Of `assert ordered(xs) == sorted(xs)`, where `xs` is the program's to change.
    "empties its argument": "args[0].clear()\n    return args[0]",
}


class AssertTask(CodeTask):
    """Made by `parse_assert_task`."""

    def __init__(self, request: str, tests: Sequence[SingleTest], num_examples: int, reference: str) -> None:
        width = len(str(len(tests)))  # files are run in the order of their names
        self._tests = {f"test_{number:0{width}}.py": test for number, test in enumerate(tests, start=1)}
        self._examples = dict(list(self._tests.items())[:num_examples])
        self._names = list(dict.fromkeys(name for test in tests for name in test.names))
        self._reference = reference
        shown = ["Examples of the tests:", *(test.shown for test in self._examples.values())]
        self.request = "\n".join([request, "", *(shown if self._examples else ["The tests use:", *self._names])])

    def judge(self, sandbox: Sandbox, code: str) -> Judged:
        verdict = _grade(self._tests, sandbox, code)
        outcomes = verdict.per_test.items()
        failed = [f"failed: {self._tests[path].shown}" for path, outcome in outcomes if outcome is not Outcome.PASSED]
        verdict = replace(verdict, evidence="\n".join([*failed[:3], verdict.evidence]).strip())
        return Judged(verdict=verdict, report=ALL_PASS if verdict.full else self._report(sandbox, code))

    def _report(self, sandbox: Sandbox, code: str) -> str:
        """Of a program that fails a test; from runs that hold no hidden one."""
        if not self._examples:
            return NOT_ALL_HIDDEN_PASS
        shown = _grade(self._examples, sandbox, code)
        for path, test in self._examples.items():
            if shown.per_test[path] is not Outcome.PASSED:
                return "\n".join([f"failed: {test.shown}", *_reason(test, shown, sandbox, code)])
        return f"examples: {shown.passed} of {shown.total} passed\n{NOT_ALL_HIDDEN_PASS}"

    def solutions(self) -> Mapping[str, str]:
        """The reference, where there is one, and with every answer of one function changed; functions that do nothing,
        that raise, that empty what they are given."""
        wrong = {
            name: "\n".join(f"def {function}(*args, **kwargs):\n    {body}\n" for function in self._names)
            for name, body in _WRONG.items()
        }
        if not self._reference:
            return wrong
        functions = RightProgram(self._reference).functions
        changed = [self._reference + OFF_BY_ONE.format(name=name) for name in self._names if name in functions]
        return {REFERENCE: self._reference, **wrong, **({"off by one": changed[0]} if changed else {})}


def parse_assert_task(row: dict[str, Any], where: str) -> AssertTask:
    """Check a dataset row; `where` (file and row) opens the sentence of a DataError."""
    try:
        return _parse(row)
    except ValueError as error:
        raise DataError(f"{where}: {error}; correct the row") from None
    except (RecursionError, MemoryError):
        raise DataError(f"{where}: its Python is nested too deeply to be read; write it with fewer brackets") from None


def _parse(row: dict[str, Any]) -> AssertTask:
    prompt, _ = _first_text(row, PROMPTS)
    if not prompt.strip():
        raise ValueError("the row has no request, a text in 'prompt', 'question' or 'text'")
    starter, _ = _first_text(row, ("starter_code",))
    reference, key = _first_text(row, SOLUTIONS)
    if reference:
        _at(key, RightProgram, reference)
    setup = "\n".join(text for key in SETUP for text in _texts(row, key))
    _at(SETUP[-1], parsed, setup)
    tests: list[SingleTest] = []
    for key in TESTS:
        for number, text in enumerate(_texts(row, key), start=1):
            tests += _at(f"{key}.{number}" if isinstance(row[key], list) else key, _read, text, setup, reference)
    try:
        validate_files({f"test_{number}.py": test.source for number, test in enumerate(tests, start=1)})
    except WorkspaceError as error:
        raise ValueError(f"each of its {len(tests)} tests is a file, and {error}") from None
    request = "\n\n".join(filter(None, [prompt.strip(), starter.strip("\n")]))
    return AssertTask(request, tests, _num_examples(row, len(tests)), reference)


@lru_cache(maxsize=2048)
def _read(text: str, setup: str, reference: str) -> tuple[SingleTest, ...]:
    """Read once for all episodes of a task."""
    return tuple(read_tests(text, setup=setup, reference=RightProgram(reference) if reference else None))


def _num_examples(row: dict[str, Any], num_tests: int) -> int:
    """Of the tests, from the first: `metadata.num_examples`, without it one where that leaves a hidden test."""
    metadata = row.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ValueError(f"field 'metadata': got {metadata!r:.60}, expected an object")
    number = metadata.get("num_examples", int(num_tests > 1))
    if type(number) is not int or number < 0:
        raise ValueError(f"field 'metadata.num_examples': got {number!r:.60}, expected a whole number from 0")
    if number >= num_tests:
        raise ValueError(f"metadata.num_examples is {number} of {num_tests} tests; leave at least one test hidden")
    return number


def _first_text(row: dict[str, Any], keys: Sequence[str]) -> tuple[str, str]:
    """The text of the first key that has one, and the key."""
    key = next((key for key in keys if row.get(key)), keys[0])
    value = row.get(key) or ""
    if not isinstance(value, str):
        raise ValueError(f"field {key!r}: got {value!r:.60}, expected a text")
    return value, key


def _texts(row: dict[str, Any], key: str) -> list[str]:
    """A text, or a list of them, as a list."""
    value = row.get(key) or []
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise ValueError(f"field {key!r}: got {value!r:.60}, expected a text or a list of texts")
    return texts


def _at(field: str, read: Callable[..., Read], *args: Any) -> Read:
    """What `read` gives; the sentence of its ValueError begins with the field."""
    try:
        return read(*args)
    except ValueError as error:
        raise ValueError(f"field {field!r}: {error}") from None


# ---------------------------------------------------------------- judging


def _grade(tests: Mapping[str, SingleTest], sandbox: Sandbox, code: str) -> Verdict:
    sources = {path: test.source for path, test in tests.items()}
    return SplitPytestGrader.by_file(sources, [MODULE], keep=[_FILE]).grade(sandbox, {_FILE: code})


def _reason(test: SingleTest, shown: Verdict, sandbox: Sandbox, code: str) -> list[str]:
    """Why a program fails an example, from a run of both together: the program's own word, for the model alone."""
    if not test.alone:
        return []
    run = sandbox.run_python(test.alone, files={_FILE: code})
    if run.status is Status.OK:
        return [_NOT_PLAIN] if Flag.ANSWER_NOT_PLAIN in shown.flags else []
    return failure(run, sandbox.limits, num_lines_before=run.stderr.count("\n"))
