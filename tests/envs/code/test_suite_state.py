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
from agent_rl.envs.code.suite_text import RightProgram, read_tests

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


def verdicts(text: str, program: str, reference: RightProgram | None = None) -> list[bool]:
    """Whether the program passes each test, run here and not in a sandbox; all share its module."""
    module = types.ModuleType("solution")
    exec(program, vars(module))
    before = sys.modules.get("solution")
    sys.modules["solution"] = module
    try:
        return [passes(test.source) for test in read_tests(text, reference=reference)]
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


# ---------------------------------------------------------------- honest texts

ADD = "def add(a, b):\n    return a + b\n"
NEXT = "def f(x):\n    return x + 1\n"
ITEMS = "ITEMS = []\npush = ITEMS.append\nsize = ITEMS.__len__\npop = ITEMS.pop\n"
SEEN = "L = []\nsubscribe = L.append\ndef publish(x):\n    for f in L:\n        f(x)\n"
BAG = "class Bag:\n    def __init__(self):\n        self.xs = []\n    def put(self, x):\n        self.xs.append(x)\n"
BAG += "    def size(self):\n        return len(self.xs)\ndef put(x, into=[]):\n    into[0].put(x)\n"
BAG += "def use(bag):\n    put.__defaults__ = ([bag],)\ndef balanced(text):\n    return not text\n"
TEST_A = "def test_a():\n    assert add(1, 2) == 3\n"
CASE = "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(add(1, 2), 3)\n"
MAIN = "if __name__ == '__main__':\n"
CHECK = "def check(a, b):\n    if a != b:\n        raise AssertionError\n"

HONEST = [
    # what is done to the program, seen in objects of the text
    (SEEN, "out = []\nsubscribe(out.append)\npublish(3)\nassert out == [3]\nassert len(out) == 1\n", 2),
    (
        SEEN,
        "seen = []\ndef on(x):\n    seen.append(x)\nsubscribe(on)\npublish(1)\nassert seen == [1]\n"
        "publish(2)\nassert seen == [1, 2]\n",
        2,
    ),
    (
        "def solve(x):\n    print(x)\n",
        "import io, sys\nbuf = io.StringIO()\nold = sys.stdout\nsys.stdout = buf\nsolve(3)\nsys.stdout = old\n"
        "assert buf.getvalue() == '3\\n'\nassert buf.getvalue().strip() == '3'\n",
        2,
    ),
    (BAG, "b = Bag()\nuse(b)\nput('a')\nassert b.size() == 1\nassert b.xs == ['a']\n", 2),
    (BAG, "s = Bag()\ns.put(1)\nassert s.size() == 1\nt = Bag()\nt.put(1)\nt.put(2)\nassert t.size() == 2\n", 2),
    (BAG, "s = Bag()\ns.put(1)\nassert s.size() == 1\nassert balanced('')\n", 2),
    (
        "def make(n):\n    return list(range(n))\ndef total(xs):\n    return sum(xs)\n",
        "xs = make(3)\nxs.append(9)\nassert total(xs) == 12\nassert make(2) == [0, 1]\n",
        2,
    ),
    ("def f(x):\n    return x\n", "r = f([3, 1])\nr.sort()\nassert r == [1, 3]\nassert f([]) == []\n", 2),
    (NEXT, "r = f(1)\nprint(r)\nassert r == 2\nassert f(2) == 3\n", 2),
    ("def f(x):\n    return [x]\n", "r = f(1)\nfor x in r:\n    print(x)\nassert r == [1]\nassert f(2) == [2]\n", 2),
    (
        "def f(n):\n    return set(range(n))\n",
        "r = sorted(f(3))\nr.reverse()\nassert r == [2, 1, 0]\nassert sorted(f(1)) == [0]\n",
        2,
    ),
    (
        "def trace(c):\n    return lambda f: c.append\n",
        "calls = []\n@trace(calls)\ndef g(x):\n    return x\ng(1)\nassert calls == [1]\ng(2)\nassert calls == [1, 2]\n",
        2,
    ),
    (
        "N = [0]\ndef reset():\n    N[0] = 0\ndef f(n):\n    N[0] += 1\n    return n\ndef calls():\n    return N[0]\n",
        "reset()\nassert f(3) == 3\nassert calls() == 1\nreset()\nassert calls() == 0\nassert f(1) == 1\n",
        4,
    ),
    (
        "B = {}\ncreate = B.__setitem__\nbalance = B.get\ndef move(a, b, x):\n    B[a] -= x\n    B[b] += x\n",
        "create('a', 9)\ncreate('b', 0)\nmove('a', 'b', 5)\nassert balance('a') == 4\nassert balance('b') == 5\n",
        2,
    ),
    ("V = []\ninit = V.append\nget = V.__len__\n", f"init(0)\nq = 1\n{TEST_A.replace('add(1, 2) == 3', 'get()')}", 1),
    (
        ITEMS,
        "for n in range(3):\n    push(n)\ndef test_a():\n    assert size() == 3\ndef test_b():\n    assert pop()\n",
        2,
    ),
    # what checks nothing
    (ADD, "assert add(1, 2) == 3\nprint(add(1, 2))\nprint('ok')\n", 1),
    (ADD, "import time\nt = time.time()\nassert add(1, 2) == 3\nadd(5, 6)\nprint(time.time() - t)\n", 1),
    (
        ADD,
        "cases = [(1, 2)]\nfor a, b in cases:\n    assert add(a, b) == 3\nfor x in cases:\n    print(add(*x[:2]))\n",
        1,
    ),
    (
        "class Node(list):\n    pass\ndef insert(root, x):\n    root.append(x)\n",
        "def build(xs):\n    if not xs:\n        raise ValueError\n    root = Node(xs[:1])\n    for x in xs[1:]:\n"
        "        insert(root, x)\n    return root\nroot = build([2, 1])\ninsert(root, 4)\nassert root == [2, 1, 4]\n",
        1,
    ),
    (
        ADD,
        "import pytest\ndef checked(x):\n    if x is None:\n        pytest.fail()\n    return x\n"
        "x = checked(add(1, 2))\ndef test_a():\n    assert x == 3\nadd(5, 5)\n",
        1,
    ),
    # what a script does beside its tests
    (
        ADD,
        f"{TEST_A}def main():\n    assert add(1, 3) == 4\n    return 0\n{MAIN}    import sys\n    sys.exit(main())\n",
        1,
    ),
    (
        ADD,
        f"{TEST_A}def main():\n    n = int(input())\n    if n < 0:\n        raise ValueError\n    print(add(n, n))\n"
        f"{MAIN}    main()\n",
        1,
    ),
    (
        ADD,
        "assert add(1, 2) == 3\ndef parse(argv):\n    if len(argv) < 3:\n        raise SystemExit('usage')\n"
        f"    return argv[1:3]\n{MAIN}    import sys\n    print(add(*parse(sys.argv)))\n",
        1,
    ),
    (ITEMS, f"def test_a():\n    assert size() == 0\n{MAIN}    push(5)\n    assert pop() == 5\n", 1),
    (ADD, f"{CASE}{MAIN}    assert add(0, 0) == 0\n    unittest.main()\n", 1),
    (
        ADD,
        f"{TEST_A}def run():\n    for t in (test_a,):\n        try:\n            t()\n        except AssertionError:\n"
        f"            raise SystemExit(1)\n{MAIN}    run()\n",
        1,
    ),
    (
        ADD,
        f"{CASE}def suite():\n    return unittest.TestSuite([T('test_a')])\n{MAIN}    suite().debug()\n",
        1,
    ),
    (ADD, f"{TEST_A}test_a()\n{MAIN}    test_a()\n    print('all passed')\n", 1),
    # what fails without an assert of its own
    (ADD, "def check(candidate):\n    assert candidate(2, 2) == 4\n\ncheck(add)\n", 1),
    (
        NEXT,
        "def close(a, b):\n    return abs(a - b) < 1\n" + CHECK + "check(close(f(1), 2), True)\ncheck(f(2), 3)\n",
        2,
    ),
    (SEEN, CHECK + "out = []\nsubscribe(out.append)\npublish(3)\ncheck(out, [3])\ncheck(len(out), 1)\n", 2),
    (NEXT, "def check():\n    from solution import f\n    assert f(1) == 2\ncheck()\n", 1),
    (NEXT, "import numpy as np\nnp.testing.assert_allclose(f(1.0), 2.0)\nassert f(2) == 3\n", 2),
    (
        "async def f(x):\n    return x\n",
        "import asyncio\nasync def main():\n    assert await f(1) == 1\nasyncio.run(main())\n",
        1,
    ),
    (
        "def f(x):\n    return [][x]\n",
        "try:\n    f(1)\n    assert False\nexcept IndexError:\n    pass\ntry:\n    f(2)\nexcept IndexError:\n    pass\n"
        "else:\n    raise AssertionError\n",
        2,
    ),
    (
        "def solve():\n    print(int(input()))\n",
        "from unittest.mock import patch\nwith patch('builtins.input', lambda: '1'), patch('builtins.print') as p:\n"
        "    solve()\np.assert_called_with(1)\nassert p.call_count == 1\n",
        2,
    ),
    # nothing but a script
    (ADD, f"def main():\n    assert add(1, 2) == 3\n{MAIN}    main()\n", 1),
    (
        ADD,
        f"import sys\ndef main(argv):\n    assert add(1, 2) == 3\n    return 0\n{MAIN}    sys.exit(main(sys.argv))\n",
        1,
    ),
]


@pytest.mark.parametrize(("program", "text", "num_tests"), HONEST)
def test_a_right_program_passes_what_plain_python_passes(program: str, text: str, num_tests: int) -> None:
    module = types.ModuleType("solution")
    exec(program, vars(module))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "solution", module)
        exec(text, {**vars(module)})
    for reference in (None, RightProgram(program)):
        assert verdicts(text, program, reference) == [True] * num_tests


@pytest.mark.parametrize("text", [POPS, LOOP, ERROR])
def test_the_sandbox_judges_so_too(factory: CodeExecEnvFactory, text: str) -> None:
    row = {"task_id": "s", "prompt": "Write a class Stack.", "tests": text, "solution": STACK}
    outcomes = check_data(factory, [row], workers=1, group_by=lambda task: "")
    assert [each.solution for each in outcomes if each.succeeded] == ["reference"]
    assert run(begun(factory, row), STACK).reward == 1.0
