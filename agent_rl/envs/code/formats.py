"""The formats of rows, and which one a row has. Not here: the formats (`call_tests.py`, `assert_tests.py`,
`humaneval.py`)."""

from collections.abc import Callable
from typing import Any

from agent_rl.envs.code.assert_tests import parse_assert_task
from agent_rl.envs.code.call_tests import parse_call_task
from agent_rl.envs.code.humaneval import parse_humaneval
from agent_rl.envs.code.task import CodeTask
from agent_rl.errors import DataError

_EXPECTED = (
    "'tests' (calls, assert lines or a pytest text), 'test_list' (MBPP), or 'entry_point' and 'test' (HumanEval)"
)


def parse_any(row: dict[str, Any], where: str) -> CodeTask:
    """The row in the format that its keys show; DataError, opened by `where`, where they show none or several."""
    is_humaneval = bool(row.get("entry_point") and row.get("test"))
    found = [key for key in ("tests", "test_list") if row.get(key)] + ["test"] * is_humaneval
    if len(found) > 1:
        raise DataError(f"{where}: the row has tests in {found[0]!r} and in {found[1]!r}; keep one of them")
    match found:
        case ["test"]:
            return parse_humaneval(row, where)
        case ["tests"] if isinstance(row["tests"], list) and isinstance(row["tests"][0], dict):
            return parse_call_task(row, where)
        case ["tests" | "test_list"]:
            return parse_assert_task(row, where)
    raise DataError(f"{where}: the row has no tests; expected {_EXPECTED}; correct the row")


FORMATS: dict[str, Callable[[dict[str, Any], str], CodeTask]] = {
    "auto": parse_any,
    "calls": parse_call_task,
    "humaneval": parse_humaneval,
}
"""By the names of `env.options.format`."""
