"""Rows of the HumanEval format: the head of a function, and a `check(candidate)` full of assertions.

The program runs in one process and the assertions in another, where a proxy calls it and plain data comes back, so a
program can neither read what is asserted nor answer for it. Helper functions of the prompt exist on both sides. Nothing
but whether all assertions hold is reported. Not here: reading the files.
"""

import re
import textwrap
from collections.abc import Mapping
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
from agent_rl.sandbox.graders import SplitPytestGrader
from agent_rl.sandbox.sandbox import Sandbox

_CHECKS = "humaneval_checks"
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import\b[ \t]*(?:\([^()]*\))?[^\n]*", re.MULTILINE)
_BLOCK_HEAD = re.compile(r":\s*(?:#.*)?$")
_TEST = """from {checks} import check
from {module} import {name}


def test_check():
    check({name})
"""
OFF_BY_ONE = """

import types as _types


def _off_by_one(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, list):
        return value + (value[-1:] or [0])
    if isinstance(value, tuple):
        return (_off_by_one(value[0]), *value[1:]) if value else (0,)
    if isinstance(value, dict):
        return {{**value, "x": 1}}
    return 0 if value is None else None


_own = dict(globals())  # so that a function that calls itself is wrong once only
_right = _own["{name}"] = _types.FunctionType(
    {name}.__code__, _own, "{name}", {name}.__defaults__, {name}.__closure__
)


def {name}(*args, **kwargs):
    return _off_by_one(_right(*args, **kwargs))
"""
"""Behind a function, changes every answer of it by one."""


class HumanEvalRow(BaseModel):
    """A dataset row; other keys are for whoever reads them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    prompt: Annotated[str, Field(min_length=1), AfterValidator(check_syntax)]
    entry_point: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]
    canonical_solution: Annotated[str, Field(min_length=1)]
    test: Annotated[str, Field(min_length=1), AfterValidator(check_syntax)]

    @model_validator(mode="after")
    def _check_parts(self) -> "HumanEvalRow":
        if not _defines(self.prompt, self.entry_point):
            raise ValueError(f"the prompt defines no function {self.entry_point!r}, which entry_point names")
        if not _defines(self.test, "check"):
            raise ValueError("test defines no function check(candidate)")
        try:
            check_syntax(self.prompt + self.canonical_solution)
        except ValueError as error:
            raise ValueError(f"canonical_solution does not continue the prompt: {error}") from None
        return self


class HumanEvalTask(CodeTask):
    """Made by `parse_humaneval`."""

    def __init__(self, row: HumanEvalRow) -> None:
        self._row = row
        self.request = f"Complete this function:\n\n{row.prompt.strip()}"
        tests = {
            # With the canonical solution, for assertions that name the function itself (HumanEval/33).
            f"{_CHECKS}.py": f"{row.prompt}{row.canonical_solution}\n\n{row.test}",
            "test_humaneval.py": _TEST.format(checks=_CHECKS, module=MODULE, name=row.entry_point),
        }
        self._grader = SplitPytestGrader(tests, ["test_humaneval.py::test_check"], [MODULE], keep=[f"{MODULE}.py"])

    def program(self, code: str) -> str:
        """The prompt, then the code: a whole function that takes the place of the prompt's, or the body of that one.

        A body whose first line is not indented is indented. Imports from `__future__`, which have to be first, are
        moved there.
        """
        name = self._row.entry_point
        future = "".join(f"{found[0]}\n" for found in _FUTURE.finditer(code))
        code = _FUTURE.sub(lambda found: "\n" * found[0].count("\n"), code)
        is_whole = _defines(code, name) or re.search(rf"^{name}[ \t]*(?::[^=\n]+)?=[ \t]*lambda\b", code, re.MULTILINE)
        return future + self._row.prompt.rstrip(" \n") + "\n" + (code if is_whole else _indented(code))

    def judge(self, sandbox: Sandbox, code: str) -> Judged:
        verdict = self._grader.grade(sandbox, {f"{MODULE}.py": self.program(code)})
        return Judged(verdict=verdict, report=ALL_PASS if verdict.full else NOT_ALL_HIDDEN_PASS)

    def solutions(self) -> Mapping[str, str]:
        """The canonical body; an empty one; the canonical function with every answer changed by one."""
        row = self._row
        changed = row.prompt + row.canonical_solution + OFF_BY_ONE.format(name=row.entry_point)
        return {REFERENCE: row.canonical_solution, "empty body": "    pass\n", "off by one": changed}


def parse_humaneval(row: dict[str, Any], where: str) -> HumanEvalTask:
    """Validate a dataset row; `where` (file and row) opens the sentence of a DataError."""
    return HumanEvalTask(parse_row(HumanEvalRow, row, where))


def _indented(body: str) -> str:
    """The body of a function at its place. If only the first line has lost its indentation, only that is fixed.

    The text is not parsed: a model wrote it.
    """
    start = len(body) - len(body.lstrip("\n"))
    first, *later = body[start:].split("\n")
    if first[:1].isspace():
        return body
    indents = [len(line) - len(line.lstrip()) for line in map(str.expandtabs, later) if line.strip()]
    is_all_later_indented = bool(indents) and min(indents) >= 4
    if is_all_later_indented and not (_BLOCK_HEAD.search(first) and indents[0] == 4):
        return f"{body[:start]}    {body[start:]}"
    return textwrap.indent(body, "    ")


def _defines(source: str, name: str) -> bool:
    """Whether a function of that name is defined at the left margin; the text is not parsed."""
    return re.search(rf"^(?:async[ \t]+)?def[ \t]+{name}\b", source, re.MULTILINE) is not None
