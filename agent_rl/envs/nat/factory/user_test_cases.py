"""Read what a user gives the validator beside the project: a generated spec, or their own test cases.

A case is one line of JSON: `{"input": "2 km", "expected": "2000 m"}` tests the workflow, `{"target": "scaler", "input":
{"value": 2, "unit": "km"}, "expected": "2000 m"}` a function. Nothing here runs a project.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent_rl.envs.nat.factory.cases import WORKFLOW
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.judge.report import Point, Stage, point
from agent_rl.envs.nat.spec import NATSpec, Record
from agent_rl.errors import DataError

_NO_ANSWER = {
    "exception": "raised {}",
    "missing": "gave nothing: there is no function {}",
    "not_json": "gave {}, which is no JSON value",
}
"""The only key of what stands in place of an answer -> what it means."""


class _CaseRow(Record):
    input: str | dict[str, Any]
    expected: str
    target: str = WORKFLOW


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTestCase:
    """One question with its answer."""

    where: str
    """`file:line`, for evidence."""
    target: str
    """A function, as the toolkit calls it, or `WORKFLOW`."""
    inputs: dict[str, Any]
    """By argument; the bare text for a workflow has one entry of any name."""
    expected: str


def read_spec(path: Path) -> NATSpec:
    """The spec in a JSON file, or in a task file of one row. Raises DataError."""
    try:
        row = json.loads(_text(path))
    except ValueError as error:
        raise DataError(f"{path}: not one JSON value ({error}); give a file that holds one task") from None
    if not isinstance(row, dict):
        raise DataError(f"{path}: expected a JSON object, got a {type(row).__name__}; give a file that holds one task")
    return parse_spec(row, str(path))


def read_cases(path: Path) -> tuple[UserTestCase, ...]:
    """The cases in a JSONL file; blank lines are skipped. Raises DataError with file and line."""
    lines = enumerate(_text(path).split("\n"), start=1)
    cases = tuple(_case(line, f"{path}:{number}") for number, line in lines if line.strip())
    if not cases:
        raise DataError(f"{path}: the file holds no case; write one JSON object on each line")
    return cases


def parse_cases(rows: Sequence[Any], where: str) -> tuple[UserTestCase, ...]:
    """The cases in JSON values; `where` stands for a file in errors. Raises DataError with the place from 1 on."""
    return tuple(_parsed(row, f"{where}:{number}") for number, row in enumerate(rows, start=1))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8") from None


def _case(line: str, where: str) -> UserTestCase:
    try:
        return _parsed(json.loads(line), where)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not valid JSON ({error.msg}, column {error.colno}); write one object on each line"
        ) from None


def _parsed(value: Any, where: str) -> UserTestCase:
    if isinstance(value, list):
        raise DataError(f"{where}: got a list, expected one case; write every case on a line of its own, without [ ]")
    try:
        row = _CaseRow.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "the line"
        raise DataError(
            f"{where}: {field!r}: {_said(first)}; "
            'expected {"input": text or object, "expected": text, "target": a function, if it is not the workflow}'
        ) from None
    if row.target == WORKFLOW and row.input == {}:
        raise DataError(f"{where}: 'input' is empty; give the workflow a text or its arguments")
    if row.target != WORKFLOW and isinstance(row.input, str):
        raise DataError(f"{where}: 'input' is a text, but a function takes arguments; write them as an object")
    inputs = {"input": row.input} if isinstance(row.input, str) else row.input
    return UserTestCase(where=where, target=row.target, inputs=inputs, expected=row.expected)


def _said(error: Mapping[str, Any]) -> str:
    """Pydantic's complaint, without the class that the row should become."""
    is_whole = error["type"] in ("model_type", "dict_type")
    return "input should be an object" if is_whole else str(error["msg"]).lower()


def judge(cases: Sequence[UserTestCase], answers: Sequence[Any], error: str | None) -> list[Point]:
    """A point for each target. An answer that is no text is compared as JSON text, one that is not there is wrong.

    `error` is what ended the run, if anything did.
    """
    given = [*answers, *([None] * (len(cases) - len(answers)))]
    points = []
    for target in dict.fromkeys(case.target for case in cases):
        own = [(case, answer) for case, answer in zip(cases, given, strict=False) if case.target == target]
        wrong = [(case, answer) for case, answer in own if _is_none(answer) or _text_of(answer) != case.expected]
        evidence = f"{len(own) - len(wrong)} of {len(own)} right"
        if wrong:
            case, answer = wrong[0]
            because = f" ({error})" if error and answer is None else ""
            evidence += f"; {Path(case.where).name} {_describe(answer)}{because}, expected {case.expected[:100]!r}"
        stage: Stage = "workflow" if target == WORKFLOW else "behaviour"
        name = "cases" if target == WORKFLOW else f"{target}, cases"
        points.append(point(stage, name, 1 - len(wrong) / len(own), evidence))
    return sorted(points, key=lambda each: each.stage)


def _is_none(answer: Any) -> bool:
    return answer is None or (isinstance(answer, dict) and len(answer) == 1 and next(iter(answer)) in _NO_ANSWER)


def _text_of(answer: Any) -> str:
    """A text as it is, another value as JSON; a forged one may be nested too deep for that."""
    try:
        return answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    except RecursionError:
        return "a value nested too deep to show"


def _describe(answer: Any) -> str:
    if answer is None:
        return "gave nothing"
    if _is_none(answer):
        ((kind, what),) = answer.items()
        return _NO_ANSWER[kind].format(_text_of(what)[:120])
    return f"gave {_text_of(answer)[:100]!r}"
