"""What earlier tests of a text do to objects is there for later ones, and their verdicts are not."""

import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from sandboxes import code_factory_or_skip
from test_code_exec_env import begun, run

from agent_rl.envs.check_data import check_data
from agent_rl.envs.code.env import CodeExecEnvFactory
from agent_rl.envs.code.suite_text import read_tests

STACK = """class Stack:
    def __init__(self):
        self.items, self.asked = [], 0
    def push(self, item):
        self.items.append(item)
    def pop(self):
        return self.items.pop()
    def is_empty(self):
        self.asked += 1
        if self.asked > 100:
            raise SystemExit("asked without end")
        return not self.items
"""
NESTED = (
    "s = Stack()\nif s:\n    with pytest.raises(KeyError):\n        s.push({}[1])\n    s.push(1)\nassert s.pop() == 1\n"
)
POPS = "s = Stack()\ns.push(1)\ns.push(2)\nassert s.pop() == 2\nassert s.pop() == 1\nassert s.is_empty()\n"
LOOP = "s = Stack()\ns.push(1)\nwhile not s.is_empty():\n    assert s.pop() == 1\nassert s.is_empty()\n"
ERROR = "s = Stack()\ns.push(1)\nassert s.pop() == 1\nwith pytest.raises(IndexError):\n    s.pop()\n    s.push(5)\n"
ERROR += "assert s.is_empty()\ns.push(3)\nassert s.pop() == 3\n"


@pytest.fixture(scope="module")
def factory() -> Iterator[CodeExecEnvFactory]:
    with code_factory_or_skip(workers=1, time_limit_s=6.0, memory_mb=128) as opened:
        yield opened


def verdicts(text: str, program: str) -> list[bool]:
    """Whether the program passes each test, run here and not in a sandbox; all share its module."""
    module = types.ModuleType("solution")
    exec(program, vars(module))
    before = sys.modules.get("solution")
    sys.modules["solution"] = module
    try:
        return [passes(test.source) for test in read_tests(text)]
    finally:
        sys.modules.pop("solution") if before is None else sys.modules.update(solution=before)


def passes(source: str) -> bool:
    names: dict[str, Any] = {}
    try:
        exec(source, names)
        for name, test in list(names.items()):
            if name.startswith("test"):
                test()
    except BaseException:
        return False
    return True


@pytest.mark.parametrize(
    ("text", "num_tests"),
    [
        (POPS, 3),
        (LOOP, 2),
        (ERROR, 4),
        (NESTED, 2),
        ("s = Stack()\nfor n in (1, 2):\n    assert s.push(n) is None\nassert s.pop() == 2\n", 2),
        ("a = Stack()\nb = a\na.push(1)\nassert a.pop() == 1\nassert b.is_empty()\n", 2),
        ("s = Stack()\ndef pop():\n    return s.pop()\ns.push(1)\nassert pop() == 1\nassert s.is_empty()\n", 2),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1\ndef test_empty():\n    assert s.is_empty()\n", 2),
    ],
)
def test_a_right_program_passes_where_tests_change_what_later_ones_see(text: str, num_tests: int) -> None:
    assert verdicts(text, STACK) == [True] * num_tests


def test_a_program_of_functions_that_is_set_back_passes() -> None:
    program = "ITEMS = []\nreset = ITEMS.clear\ndef add(x):\n    ITEMS.append(x)\n    return len(ITEMS)\n"
    assert verdicts("reset()\nassert add(1) == 1\nassert add(1) == 2\nassert add(1) == 3\n", program) == [True] * 3


@pytest.mark.parametrize(
    ("text", "num_tests"),
    [
        ("push(1)\nassert size() == 1\npush(2)\nassert size() == 2\n", 2),
        ("x = push(1)\nassert size() == 1\ny = push(2)\nassert size() == 2\n", 2),
        ("for n in (1, 2):\n    push(n)\nassert pop() == 2\nassert pop() == 1\nassert size() == 0\n", 3),
        ("push(1)\ndef test_a():\n    assert size() == 1\ndef test_b():\n    assert pop() == 1 and not size()\n", 2),
        ("xs = [1]\npush(xs)\nassert size() == 1\nassert pop() == [1]\nassert size() == 0\n", 3),
    ],
)
def test_what_is_done_to_the_program_is_done_once(text: str, num_tests: int) -> None:
    program = "ITEMS = []\npop = ITEMS.pop\nsize = ITEMS.__len__\npush = ITEMS.append\n"
    assert verdicts(text, program) == [True] * num_tests


def test_a_list_that_the_program_sorts_in_place_shows_in_the_next_test() -> None:
    text = "xs = [3, 1]\nassert arrange(xs) is None\nassert xs == [1, 3]\n"
    assert verdicts(text, "def arrange(xs):\n    xs.sort()\n") == [True, True]
    assert verdicts(text, "def arrange(xs):\n    pass\n") == [True, False]
    assert verdicts(text, "") == [False, False]


def test_a_name_that_an_assert_or_an_expected_error_binds_is_no_name_of_the_program() -> None:
    first, second = read_tests("assert (n := f(3)) == 9\nassert g(n) == 10\n")
    assert (first.names, second.names) == (("f",), ("f", "g"))
    program = "def f(n):\n    return n * n\ndef g(n):\n    return n + 1\n"
    assert verdicts("assert (n := f(3)) == 9\nassert g(n) == 10\n", program) == [True, True]
    text = "with pytest.raises(ValueError) as caught:\n    f(-1)\nassert 'negative' in str(caught.value)\n"
    assert verdicts(text, "def f(n):\n    raise ValueError('negative')\n") == [True, True]


def test_a_wrong_answer_fails_its_own_test_alone() -> None:
    assert verdicts(POPS, STACK.replace("self.items.pop()", "self.items.pop() and 2")) == [True, False, True]
    assert verdicts(ERROR, STACK.replace("pop()\n", "pop() if self.items else None\n")) == [True, False, False, True]
    text = "xs = [3, 1]\nassert first(xs) == 3\nassert last(xs) == 1\n"
    assert verdicts(text, "def first(xs):\n    return 0\ndef last(xs):\n    return xs[-1]\n") == [False, True]
    assert verdicts(text, "def first(xs):\n    raise SystemExit\ndef last(xs):\n    return xs[-1]\n") == [False, True]
    assert verdicts(text, "def last(xs):\n    return xs[-1]\n") == [False, True]


def test_a_loop_that_a_wrong_answer_ended_ends_in_later_tests_too() -> None:
    never_empty = STACK.replace("return not self.items", "return False").replace("return self.items.pop()", "return 0")
    assert verdicts(LOOP + "assert s.asked == 2\n", never_empty) == [False, False, True]


@pytest.mark.parametrize(
    "text",
    [
        "assert f(1) == 1\nassert f(2) == 2\n",
        "n = 3\nassert f(n) == 1\nassert f(n + 1) == 2\n",
        "xs = [1]\nassert f(xs) == 1\nxs = [2]\nassert f(xs) == 2\n",
        "def twice(x):\n    return f(f(x))\nassert twice(1) == 1\nassert twice(2) == 2\n",
        "import math\nassert f(math.pi) == 1\nassert f(math.e) == 2\n",
        "for x, y in [(1, 1)]:\n    assert f(x) == y\nfor x, y in [(2, 2)]:\n    assert f(x) == y\n",
        "assert all(f(x) == x for x in (1, 2))\nassert all(f(x) == x for x in (3, 4))\n",
        "with pytest.raises(ValueError):\n    f(0)\nassert f(2) == 2\n",
    ],
)
def test_calls_that_no_later_test_can_see_are_made_once(text: str) -> None:
    """A call may take long, or have no end."""
    _, second = read_tests(text)
    assert "try" not in second.source


def test_errors_expected_in_a_loop_are_a_test() -> None:
    text = "for n in (-1, -2):\n    with pytest.raises(ValueError):\n        f(n)\nassert f(1) == 1\n"
    assert verdicts(text, "def f(n):\n    return n\n") == [False, True]


@pytest.mark.parametrize("text", [POPS, LOOP, ERROR])
def test_the_sandbox_judges_so_too(factory: CodeExecEnvFactory, text: str) -> None:
    row = {"task_id": "s", "prompt": "Write a class Stack.", "tests": text, "solution": STACK}
    outcomes = check_data(factory, [row], workers=1, group_by=lambda task: "")
    assert [each.solution for each in outcomes if each.succeeded] == ["reference"]
    assert run(begun(factory, row), STACK).reward == 1.0
