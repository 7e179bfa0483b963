"""Reading what a program sends in place of its answers costs the training process next to nothing."""

import functools
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cpu_time import cpu_s

sys.path.insert(0, str(Path(__file__).parent))

from answers import LINES, SIZE, VALUES, program

from agent_rl.envs.code.call_tests import CallTask, parse_call_task
from agent_rl.sandbox.graders import CallGrader, Case
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox

MOST_S = 0.1
SLACK = 3
"""The machines of tests are shared; what these payloads cost before was ten times as much and more."""
MOST_BYTES = 50_000_000
LIMITS = Limits(wall_s=30.0, cpu_s=30, memory_mb=1024)
PROGRAMS = {name: program(source, is_value=True) for name, source in VALUES.items()}
PROGRAMS |= {name: program(source, is_value=False) for name, source in LINES.items()}
ROW = {
    "prompt": "Write f.",
    "tests": [{"function": "f", "args": [number], "expected": {"a": [number]}} for number in range(3)],
    "reference_solution": "def f(n):\n    return {'a': [n]}\n",
}


def bytes_here(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox.open(python=sys.executable, limits=LIMITS) as opened:
        yield opened


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_answer_holds_up_the_training_process(sandbox: Sandbox, name: str) -> None:
    grader = CallGrader("solution", [Case(function="f", expected={1}), Case(function="f", raises="ValueError")])
    scores: list[float] = []
    grade = functools.partial(grader.grade, sandbox, {"solution.py": PROGRAMS[name]})
    assert cpu_s(lambda: scores.append(grade().score), MOST_S) < MOST_S * SLACK
    assert bytes_here(grade) < SIZE + MOST_BYTES
    assert set(scores) == {0}


@pytest.mark.parametrize(
    "name", ["set of colliding integers", "sixteen alike", "values just within the cap", "torn lines"]
)
def test_no_answer_holds_up_a_code_task(sandbox: Sandbox, name: str) -> None:
    task: CallTask = parse_call_task(ROW, "row 1")
    judge = functools.partial(task.judge, sandbox, PROGRAMS[name])
    assert judge().verdict.score == 0
    assert cpu_s(judge, 2 * MOST_S) < 2 * MOST_S * SLACK  # the examples, then all tests


def test_honest_answers_of_ordinary_size_are_not_refused(sandbox: Sandbox) -> None:
    source = "def f(kind, n):\n"
    source += "    return {'set': set(range(n)), 'dict': {(k, k): [k] for k in range(n)}}.get(kind, 'a,' * n)\n"
    cases = [
        Case(function="f", args=("set", 9_000), expected=set(range(9_000))),
        Case(function="f", args=("dict", 3_000), expected={(k, k): [k] for k in range(3_000)}),
        Case(function="f", args=("text", 400_000), expected="a," * 400_000),
    ]
    assert CallGrader("solution", cases).grade(sandbox, {"solution.py": source}).full


def test_an_exception_is_of_one_kind_and_no_value(sandbox: Sandbox) -> None:
    every = "class E(KeyError, ValueError, TypeError, OSError):\n    pass\ndef f():\n    raise E\n"
    lying = """
class Meta(type):
    __mro__ = (ValueError, Exception)
    __name__ = "ValueError"
    def mro(cls):
        return [cls, LookupError, *super().mro()[1:]] if Exception in cls.__bases__ else super().mro()
class ValueError_(Exception, metaclass=Meta):
    __module__ = "builtins"
ValueError_.__qualname__ = "ValueError"
class ValueError(Exception):
    __module__ = "builtins"
    __class__ = KeyError
def f():
    raise ValueError
"""
    both = """
import json, os
for n in range(3):
    os.write(3, json.dumps({"item": {"case": n, "value": 1, "raised": "ValueError"}}).encode() + b"\\n")
os._exit(0)
"""
    kinds = ("ValueError", "KeyError", "LookupError")
    grader = CallGrader("solution", [Case(function="f", raises=kind, id=kind) for kind in kinds])
    passed = {
        name: [
            kind
            for kind, outcome in grader.grade(sandbox, {"solution.py": source}).per_test.items()
            if outcome == "passed"
        ]
        for name, source in {"every": every, "lying": lying, "both": both}.items()
    }
    assert passed == {"every": ["KeyError", "LookupError"], "lying": [], "both": []}


def test_a_comparison_that_fails_on_an_odd_answer_is_a_wrong_answer(sandbox: Sandbox) -> None:
    grader = CallGrader("solution", [Case(function="f", expected=1.5)], compare=lambda a, b: abs(a - b) < 1e-6)
    assert grader.grade(sandbox, {"solution.py": "def f():\n    return 1.5\n"}).full
    assert grader.grade(sandbox, {"solution.py": "def f():\n    return 'x'\n"}).score == 0
