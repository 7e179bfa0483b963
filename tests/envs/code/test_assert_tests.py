"""Rows with assert lines and pytest texts: what is read, shown and judged, programs that cheat, rows that are none."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hostile_files import HOSTILE, load
from sandboxes import code_factory_or_skip
from test_code_exec_env import answers, begun, replies, run

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.check_data import check_data
from agent_rl.envs.code.env import CodeExecEnvFactory
from agent_rl.envs.code.formats import parse_any
from agent_rl.envs.code.suite_text import read_tests
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import DataError
from agent_rl.sandbox.freeze import Flag

COUNT: dict[str, Any] = {
    "task_id": 1,
    "text": "Write a function to count how often a letter occurs in a word, whatever its case.",
    "code": "def letter_count(word, letter):\r\n    return word.lower().count(letter.lower())",
    "test_list": [
        'assert letter_count("Banana", "a") == 3',
        'assert letter_count("Oslo", "o") == 2',
        'assert letter_count("", "z") == 0',
    ],
    "test_setup_code": "",
    "challenge_test_list": ['assert letter_count("aAaA", "A") == 4'],
}
DISTANCE: dict[str, Any] = {
    "task_id": 2,
    "prompt": "Write a function to find the distance between two points of the plane.",
    "code": "import math\ndef distance(p, q):\n    return math.hypot(p[0] - q[0], p[1] - q[1])",
    "test_list": [
        "assert math.isclose(distance((0, 0), (3, 4)), 5.0)",
        "assert math.isclose(distance(origin, (2, 2)), root(8))",
    ],
    "test_imports": ["from math import sqrt as root"],
    "test_setup_code": "origin = (0, 0)",
}
EVEN_SUM: dict[str, Any] = {
    "task_id": 3,
    "text": "Write a function to add up the even numbers of a list.",
    "code": "def sum(xs):\n    total = 0\n    for x in xs:\n        total += x if x % 2 == 0 else 0\n    return total",
    "test_list": ["assert sum([1, 2, 3, 4]) == 6", "assert sum([5]) == 0"],
    "test_setup_code": None,
    "challenge_test_list": [],
}
STACK: dict[str, Any] = {
    "task_id": "stack",
    "question": "Write a class Stack with push, pop and size; pop of an empty one raises IndexError.",
    "solution": "class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, item):\n"
    "        self.items.append(item)\n    def pop(self):\n        return self.items.pop()\n"
    "    def size(self):\n        return len(self.items)\n",
    "tests": """from __future__ import annotations
import pytest
from solution import *


def filled(number: int):
    stack = Stack()
    for item in range(number):
        stack.push(item)
    return stack


@pytest.mark.parametrize("number", [1, 4])
def test_pop(number):
    assert filled(number).pop() == number - 1


class TestSize:
    @pytest.fixture
    def three(self):
        return filled(3)

    def test_size(self, three):
        assert three.size() == 3

    def test_pop_of_an_empty_one(self):
        with pytest.raises(IndexError):
            filled(0).pop()


if __name__ == "__main__":
    pytest.main()
""",
}
SCRIPT: dict[str, Any] = {
    "task_id": "double",
    "prompt": "Write a function double.",
    "starter_code": "def double(x):\n    pass\n",
    "reference_solution": "def double(x):\n    return 2 * x\n",
    "tests": "x = double(2)\nassert x == 4\nfor n in (0, 7):\n    x += n\n    assert double(n) == n + n\n"
    "assert x == 11 and double('a') == 'aa'\n",
}
ROWS = [COUNT, DISTANCE, EVEN_SUM, STACK, SCRIPT]
RIGHT = COUNT["code"]


@pytest.fixture(scope="module")
def factory() -> Iterator[CodeExecEnvFactory]:
    with code_factory_or_skip(workers=1, time_limit_s=6.0, memory_mb=128) as opened:
        yield opened


def changed(row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**row, **fields}.items() if value is not ...}


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize(
    ("row", "request_text"),
    [
        (COUNT, f'{COUNT["text"]}\n\nExamples of the tests:\nassert letter_count("Banana", "a") == 3'),
        (
            changed(COUNT, metadata={"num_examples": 2}),
            f'{COUNT["text"]}\n\nExamples of the tests:\nassert letter_count("Banana", "a") == 3\n'
            'assert letter_count("Oslo", "o") == 2',
        ),
        (changed(COUNT, metadata={"num_examples": 0}), f"{COUNT['text']}\n\nThe tests use:\nletter_count"),
        (
            changed(COUNT, test_list=COUNT["test_list"][:1], challenge_test_list=...),
            f"{COUNT['text']}\n\nThe tests use:\nletter_count",
        ),
        (
            STACK,
            f"{STACK['question']}\n\nExamples of the tests:\n@pytest.mark.parametrize('number', [1, 4])\n"
            "def test_pop(number):\n    assert filled(number).pop() == number - 1",
        ),
        (
            SCRIPT,
            "Write a function double.\n\ndef double(x):\n    pass\n\nExamples of the tests:\nassert x == 4",
        ),
    ],
)
def test_the_request_shows_the_first_test_and_no_other(row: dict[str, Any], request_text: str) -> None:
    assert parse_any(row, "f:1").request == request_text


def test_a_row_is_read_the_same_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mbpp.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    rows = read_tasks(tmp_path / "mbpp.jsonl", lambda row, where: parse_any(row, where) and None)
    assert [row["task_id"] for row in rows] == ["1", "2", "3", "stack", "double"]
    assert [row | {"task_id": 0} for row in rows] == [row | {"task_id": 0} for row in ROWS]


def names(text: str, **around: Any) -> list[tuple[str, ...]]:
    return [test.names for test in read_tests(text, **around)]


def test_the_programs_names_are_those_that_nothing_else_defines() -> None:
    assert names("assert add(1, 2) == sum([3])") == [("add",)]
    assert names("def twice(f, x):\n    return f(f(x))\nassert twice(inc, n) == len(ends)", setup="n = 1") == [
        ("ends", "inc")
    ]
    assert names("import solution\ndef test_a(tmp_path):\n    assert solution.run(tmp_path) is None") == [("run",)]
    assert names("from solution import f as g\nassert g(1)\nassert h(g(2))") == [("f",), ("f", "h")]
    assert names("assert f([x for x in range(3) if (y := x)]) == y") == [("f",)]


def test_each_test_holds_itself_and_what_it_needs() -> None:
    first, second, third = read_tests("x = f(1)\nassert x\ny = f(x)\nassert y\ndef test_z():\n    assert f(y) == x\n")
    assert "assert x" in first.source and "y =" not in first.source
    assert "y = f(x)" in second.source and "assert x" not in second.source
    assert "def test_z" in third.source and "assert y" not in third.source
    assert (first.shown, third.shown) == ("assert x", "def test_z():\n    assert f(y) == x")


def test_what_a_loop_does_beside_its_asserts_is_there_for_later_tests() -> None:
    _, error, last = read_tests(
        "n = 0\nfor x in (1, 2):\n    n += f(x)\n    assert n\nwith pytest.raises(E):\n    f(None)\nassert n == 3\n"
    )
    assert "n += f(x)" in last.source and "assert n\n" not in last.source and "raises" not in last.source
    assert (error.shown, error.names) == ("with pytest.raises(E):\n    f(None)", ("E", "f"))


HELPER = "def check(a, b):\n    assert a == b\n"
CHECKER = "class C:\n    def equal(self, a, b):\n        if a != b:\n            raise AssertionError\nc = C()\n"


@pytest.mark.parametrize(
    ("text", "last"),
    [
        (f"{HELPER}assert f(1) == 1\ncheck(f(2), 2)\n", "check(f(2), 2)"),
        (f"{HELPER}def both(a):\n    check(f(a), a)\nassert f(1) == 1\nfor n in (2, 3):\n    both(n)\n", "    both(n)"),
        (f"{CHECKER}assert f(1) == 1\nc.equal(f(2), 2)\n", "c.equal(f(2), 2)"),
        ("from pytest import raises\nassert f(1) == 1\nwith raises(ValueError):\n    f(0)\n", "    f(0)"),
        ("assert f(1) == 1\nif f(2) != 2:\n    raise AssertionError(2)\n", "    raise AssertionError(2)"),
        ("assert f(1) == 1\npytest.raises(ValueError, f, 0)\n", "pytest.raises(ValueError, f, 0)"),
        (f"{HELPER}assert f(1) == 1\nx = f(2)\ncheck(x, 2)\n", "check(x, 2)"),
        (
            "assert f(1) == 1\ntry:\n    f(0)\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError\n",
            "    raise AssertionError",
        ),
        ("assert f(1) == 1\nif f(2) != 2:\n    pytest.fail()\n", "    pytest.fail()"),
        (
            "import numpy\nassert f(1) == 1\nnumpy.testing.assert_equal(f(2), 2)\n",
            "numpy.testing.assert_equal(f(2), 2)",
        ),
        (
            "import unittest\nt = unittest.TestCase()\nassert f(1) == 1\nt.assertEqual(f(2), 2)\n",
            "t.assertEqual(f(2), 2)",
        ),
        (
            "from unittest import TestCase as Case\nassert f(1)\nclass A(Case):\n    def test_a(self):\n        f(2)\n",
            "    f(2)",
        ),
        (
            "import unittest\nclass A(unittest.TestCase):\n    pass\nassert f(1)\n"
            "class B(A):\n    def test_a(self):\n        f(2)\n",
            "    f(2)",
        ),
        (
            "import unittest\nclass A:\n    def test_a(self):\n        f(2)\nassert f(1)\n"
            "class B(A, unittest.TestCase):\n    pass\n",
            "    pass",
        ),
    ],
)
def test_whatever_a_wrong_program_fails_on_purpose_is_a_test(text: str, last: str) -> None:
    tests = read_tests(text)
    assert len(tests) == 2
    assert tests[-1].shown.endswith(last) and tests[-1].names == ("f",)
    assert "f(1)" not in tests[-1].source


@pytest.mark.parametrize(
    "text",
    [
        "def test_a():\n    assert f(1)\ndef test_b():\n    assert f(2)\ntest_a()\ntest_b()\n",
        "def test_a():\n    assert f(1)\n"
        "def test_b():\n    assert f(2)\nif __name__ == '__main__':\n    test_a()\n    pytest.main()\n",
        f"{HELPER}x = check\nprint('begin')\nassert f(1)\nassert f(2)\nprint('done')\n",
        "import sys\nif sys.version_info < (3,):\n    raise RuntimeError\nassert f(1)\nassert f(2)\n",
        "try:\n    from solution import f\nexcept ImportError:\n    raise\nassert f(1)\nassert f(2)\n",
        "assert f(1) == 1\nassert f(2)\nprint(f(2))\nx = f(3)\nfor n in (1, 2):\n    f(n)\n",
        "def g(n):\n    if n < 0:\n        raise ValueError\n    return f(n)\nassert f(1)\nassert f(2)\nprint(g(3))\n",
        f"{HELPER}assert f(1)\nassert f(2)\nif __name__ == '__main__':\n    check(f(int(input())), 2)\n",
        f"{HELPER}x = [1]\ncheck(len(x), 1)\nassert f(1)\nassert f(2)\n",
    ],
)
def test_what_checks_nothing_of_the_program_is_no_test(text: str) -> None:
    assert [test.names for test in read_tests(text)] == [("f",), ("f",)]


@pytest.mark.parametrize(
    "run",
    [
        "main()",
        "sys.exit(main())",
        "exit(main())",
        "raise SystemExit(main())",
        "print('begin')\n    main()\n    unittest.main()",
        "def test_a():\n        main()\n    test_a()\n    pytest.main()",
    ],
)
def test_what_is_for_a_script_is_a_test_where_nothing_else_is(run: str) -> None:
    text = f"import sys, unittest, pytest\ndef main():\n    assert f(1) == 1\nif __name__ == '__main__':\n    {run}\n"
    (test,) = read_tests(text)
    assert "main()" in test.shown and test.names == ("f",)
    assert "xit" not in test.source and ".main" not in test.source


def test_inherited_methods_are_a_test_of_their_own_class() -> None:
    text = "import unittest\nclass A(unittest.TestCase):\n    n = 1\n    def test_a(self):\n        assert f(self.n)\n"
    own, inherited = read_tests(text + "class B(A):\n    n = 2\n    def helper(self):\n        pass\n")
    assert own.shown.startswith("def test_a") and inherited.shown.startswith("class B(A)")
    assert "def test_a" in inherited.source and "n = 2" in inherited.source


# ---------------------------------------------------------------- judging


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["task_id"]))
def test_the_reference_passes_and_wrong_programs_do_not(factory: CodeExecEnvFactory, row: dict[str, Any]) -> None:
    outcomes = list(check_data(factory, [row], workers=1, group_by=lambda task: ""))
    assert [each.solution for each in outcomes if each.succeeded] == ["reference"]
    assert len(outcomes) == (4 if row is STACK else 5)


def test_a_row_without_a_reference_has_wrong_programs_alone(factory: CodeExecEnvFactory) -> None:
    row = {"task_id": "a", "prompt": "Write triple.", "tests": ["assert triple(1) == 3", "assert triple('a') == 'aaa'"]}
    assert {each.succeeds for each in factory.solutions(row)} == {False}
    assert run(begun(factory, row), "def triple(x):\n    return 3 * x\n").reward == 1.0


def test_a_program_that_fails_behind_the_last_assert_is_wrong(factory: CodeExecEnvFactory) -> None:
    row = {"task_id": "a", "prompt": "add", "tests": f"assert add(1, 2) == 3\n{HELPER}check(add(2, 2), 4)\n"}
    assert run(begun(factory, row), "def add(a, b):\n    return 3\n").reward == 0.0
    assert run(begun(factory, row), "def add(a, b):\n    return a + b\n").reward == 1.0


def test_methods_of_a_test_case_are_judged(factory: CodeExecEnvFactory) -> None:
    tests = "import unittest\nclass A(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(1), 1)\n"
    row = {"task_id": "a", "prompt": "f", "tests": f"{tests}    def test_b(self):\n        self.assertEqual(f(2), 4)\n"}
    assert run(begun(factory, row), "def f(n):\n    return n * n\n").reward == 1.0
    assert run(begun(factory, row), "def f(n):\n    return n\n").reward == 0.0


def test_tests_are_run_in_their_order(factory: CodeExecEnvFactory) -> None:
    tests = [f"assert next_number() == {number}" for number in range(1, 12)]
    program = "import itertools\nnext_number = itertools.count(1).__next__\n"
    assert run(begun(factory, {"task_id": "n", "prompt": "Count.", "tests": tests}), program).reward == 1.0


def test_tests_are_judged_one_by_one(factory: CodeExecEnvFactory) -> None:
    env = begun(factory, STACK)
    run(env, STACK["solution"].replace("len(self.items)", "'many'"))
    assert answers(env, "That is it.").reward_parts["share/tests"] == pytest.approx(2 / 3)
    row = {"task_id": "a", "prompt": "Two functions.", "tests": ["assert f(1) == 1", "assert g(1) == 2"]}
    env = begun(factory, row)
    assert run(env, "def g(x):\n    return 2\n").reward == 0.0
    assert answers(env, "That is it.").reward_parts["tests_passed"] == 1.0


def test_of_parameters_and_of_a_skipped_test_all_have_to_pass(factory: CodeExecEnvFactory) -> None:
    tests = "import pytest\n@pytest.mark.parametrize('n', [1, 2])\ndef test_n(n):\n    assert f(n) == 1\n"
    tests += "def test_s():\n    if f(1):\n        pytest.skip()\n"
    env = begun(factory, {"task_id": "a", "prompt": "f", "tests": tests})
    run(env, "def f(n):\n    return n\n")
    assert answers(env, "").reward_parts["tests_passed"] == 0.0


@pytest.mark.parametrize(
    ("code", "reply"),
    [
        (
            "def letter_count(word, letter):\n    return word.count(letter) + 1",
            'failed: assert letter_count("Banana", "a") == 3\nerror: AssertionError: gave 4',
        ),
        (
            "def letter_count(word):\n    return 3",
            'failed: assert letter_count("Banana", "a") == 3\n'
            "error: TypeError: letter_count() takes 1 positional argument but 2 were given",
        ),
        (
            "def count(word, letter):\n    return 3",
            'failed: assert letter_count("Banana", "a") == 3\n'
            "error: ImportError: cannot import name 'letter_count' from 'solution'",
        ),
        (
            "class Three(int):\n    pass\ndef letter_count(word, letter):\n    return Three(3)",
            'failed: assert letter_count("Banana", "a") == 3\nanswers must be plain data',
        ),
        ("def letter_count(word, letter):\n    return 3", "examples: 1 of 1 passed\nnot all hidden tests pass"),
        ("def letter_count(word, letter)", "error in line 1: SyntaxError: expected ':'"),
    ],
)
def test_the_reply_says_how_an_example_failed(factory: CodeExecEnvFactory, code: str, reply: str) -> None:
    assert replies(run(begun(factory, COUNT), code))[0].startswith(reply)


def test_a_failed_example_with_more_around_it_is_named_alone(factory: CodeExecEnvFactory) -> None:
    """The rest of its text may hold hidden cases, which a program beside it could read and tell."""
    spy = "import sys\ndef double(x):\n    raise ValueError(str(vars(sys.modules['__main__'])))\n"
    assert replies(run(begun(factory, SCRIPT), spy)) == ["failed: assert x == 4"]


# ---------------------------------------------------------------- programs that cheat

CHEATS = {
    "prints the verdict": "print('all tests pass')\ndef letter_count(word, letter):\n    print('4 passed in 0.01s')\n",
    "exits at import": RIGHT + "\nimport sys\nsys.exit(0)\n",
    "exits in the function": "import sys\ndef letter_count(word, letter):\n    sys.exit(0)\n",
    "ends the process": "import os\ndef letter_count(word, letter):\n    os._exit(0)\n",
    "overrides __eq__": "class Any(int):\n    def __eq__(self, other):\n        return True\n"
    "    __hash__ = None\ndef letter_count(word, letter):\n    return Any()\n",
    "overrides __eq__ of the class": "class Meta(type):\n    def __eq__(self, other):\n        return True\n"
    "class letter_count(metaclass=Meta):\n    def __init__(self, *args):\n        pass\n    __eq__ = Meta.__eq__\n",
    "patches pytest": "import pytest, _pytest.runner\n_pytest.runner.CallInfo.excinfo = None\n"
    "pytest.fail = lambda *a: None\ndef letter_count(word, letter):\n    return 0\n",
    "patches built-ins": "import builtins\nbuiltins.AssertionError = type('E', (Exception,), {})\n"
    "builtins.all = builtins.any = lambda *a: True\ndef letter_count(word, letter):\n    return 0\n",
    "skips": "def letter_count(word, letter):\n    import pytest\n    pytest.skip('no')\n",
    "reads the tests": "import glob, re, sys\nTEXT = ''.join(open(p, errors='ignore').read() for p in "
    "glob.glob('/**/test_*.py', recursive=True) if 'letter_count(' in open(p, errors='ignore').read())\n"
    "def letter_count(word, letter):\n    found = re.search(re.escape(repr(word)[1:-1]) + r'.*== (\\d)', TEXT)\n"
    "    return int(found[1]) if found else None\n",
    "walks the stack": "import sys\ndef letter_count(word, letter):\n    frame = sys._getframe()\n    while frame:\n"
    "        for text in map(str, [*frame.f_locals.values(), *frame.f_globals.values()]):\n"
    "            if 'assert letter_count' in text:\n                return int(text.rsplit('== ')[1][0])\n"
    "        frame = frame.f_back\n",
    "replaces the module": "import sys, types\nmodule = types.ModuleType('solution')\n"
    "module.letter_count = type('A', (), {'__eq__': lambda *a: True, '__call__': lambda s, *a: s})()\n"
    "sys.modules['solution'] = module\n",
    "writes test files": "import os\nfor number in range(1, 5):\n"
    "    open(f'test_{number}.py', 'w').write('def test_statements():\\n    pass\\n')\n"
    "def letter_count(word, letter):\n    return 0\n",
    "hangs": "def letter_count(word, letter):\n    while True:\n        pass\n",
}


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_cheats_passes_no_test(factory: CodeExecEnvFactory, name: str) -> None:
    row = changed(COUNT, test_list=[*COUNT["test_list"][:2], 'assert letter_count("abba", "b") == 2'])
    env = begun(factory, row)
    tried = run(env, CHEATS[name])
    assert not tried.terminated and tried.reward == 0.0
    end = answers(env, "That is it.")
    assert (end.reward, end.reward_parts["tests_passed"], end.reward_parts["success"]) == (0.0, 0.0, 0.0)
    assert run(begun(factory, row), RIGHT).reward == 1.0


def test_an_object_as_an_answer_is_flagged(factory: CodeExecEnvFactory) -> None:
    env = begun(factory, COUNT)
    assert Flag.ANSWER_NOT_PLAIN in answers(env, f"```python\n{CHEATS['overrides __eq__']}```").flags


def test_no_reply_tells_a_hidden_input(factory: CodeExecEnvFactory) -> None:
    env = begun(factory, COUNT)
    spy = "SEEN = []\ndef letter_count(word, letter):\n    SEEN.append(word)\n    raise ValueError(SEEN)\n"
    text = replies(run(env, spy))[0]
    assert "ValueError: ['Banana']" in text and "Oslo" not in text and "aAaA" not in text


NUMERALS = {
    "task_id": "n",
    "prompt": "Write median(xs), roman(n) and merge(intervals).",
    "tests": [
        "assert roman(1) == 'I'",
        "assert median([4, 1, 2, 3]) == 2.5",
        "assert roman(1994) == 'MCMXCIV'",
        "assert merge([[1, 3], [2, 6], [8, 10]]) == [[1, 6], [8, 10]]",
        "with pytest.raises(ValueError):\n    median([])",
        "assert abs(median([0.1, 0.2]) - 0.15) < 1e-9",
    ],
}
HONEST = {"honest", "honest_prints_failed", "honest_unused_conftest"}
SOLUTIONS = {path.parent.name: path for path in sorted((HOSTILE / "solutions").glob("*/solution.py*"))}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_hostile_solution_succeeds_only_where_it_is_right(factory: CodeExecEnvFactory, name: str) -> None:
    result = run(begun(factory, NUMERALS), SOLUTIONS[name].read_bytes().decode("utf-8", "replace"))
    assert result.terminated == (name in HONEST), replies(result)
    honest = load(HOSTILE / "solutions" / "honest")["solution.py"].decode()
    assert run(begun(factory, NUMERALS), honest).reward == 1.0


def test_tests_that_a_program_can_change_show_in_the_check_of_the_data(factory: CodeExecEnvFactory) -> None:
    row = {"task_id": "s", "prompt": "Sort.", "solution": "def ordered(xs):\n    return sorted(xs)\n"}
    row["tests"] = "xs = [3, 1]\nassert ordered(xs) == sorted(xs)\nys = [2, 2]\nassert ordered(ys) == sorted(ys)\n"
    outcomes = check_data(factory, [row], workers=1, group_by=lambda task: "")
    assert [each.solution for each in outcomes if not each.is_as_expected] == ["empties its argument"]


def test_a_wrong_reference_is_named_with_the_test_that_it_fails(factory: CodeExecEnvFactory) -> None:
    row = changed(COUNT, code="def letter_count(word, letter):\n    return word.count(letter)\n")
    outcome = next(iter(check_data(factory, [row], workers=1, group_by=lambda task: "")))
    assert not outcome.is_as_expected
    assert outcome.problems[0] == 'failed: assert letter_count("Oslo", "o") == 2'


# ---------------------------------------------------------------- rows that are none


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(COUNT, test_list=...), "the row has no tests; expected 'tests'"),
        (changed(COUNT, tests=["assert letter_count('a', 'a') == 1"]), "tests in 'tests' and in 'test_list'"),
        (changed(COUNT, text=...), "the row has no request, a text in 'prompt', 'question' or 'text'"),
        (changed(COUNT, text=["a"]), "field 'text': got ['a'], expected a text"),
        (changed(COUNT, code="def letter_count("), "field 'code': it is not Python, '(' was never closed in line 1"),
        (
            changed(COUNT, code="def letter_count(x, x):\n    return 1"),
            "field 'code': it is not Python, duplicate argument",
        ),
        (changed(COUNT, test_setup_code="x ="), "field 'test_setup_code': it is not Python"),
        (changed(COUNT, test_list=[*COUNT["test_list"], "assert ("]), "field 'test_list.4': it is not Python"),
        (changed(COUNT, test_list=[1, 2]), "field 'test_list': got [1, 2], expected a text or a list of texts"),
        (changed(COUNT, test_list={"a": 1}), "field 'test_list': got {'a': 1}, expected a text or a list of texts"),
        (changed(COUNT, challenge_test_list=["count = 3"]), "field 'challenge_test_list.1': it holds no test"),
        (changed(COUNT, test_list=["assert letters('a') == 1"]), "uses 'letters', which neither the solution"),
        (changed(COUNT, test_list=["assert len('a') == 1"]), "the test `assert len('a') == 1` calls nothing of the"),
        (changed(COUNT, metadata={"num_examples": 4}), "metadata.num_examples is 4 of 4 tests; leave at least one"),
        (changed(COUNT, metadata={"num_examples": True}), "field 'metadata.num_examples': got True"),
        (changed(COUNT, metadata="easy"), "field 'metadata': got 'easy', expected an object"),
        (changed(STACK, tests="import solution\nx = 1\n"), "field 'tests': it holds no test"),
        (changed(STACK, tests="from main import Stack\nassert Stack()"), "imports 'main', which is not installed here"),
        (changed(STACK, tests="from .main import Stack\nassert Stack()"), "imports '.main', which is not installed"),
        (changed(STACK, tests="from solution import Stack, sum\nassert sum(Stack())"), "imports 'sum' from solution"),
        (changed(STACK, tests="async def test_a():\n    assert Stack()"), "is async, which no plugin here would run"),
        (
            changed(STACK, tests="if 1:\n    from solution import *\nassert Stack()"),
            "has an import by a star from solution",
        ),
        (changed(STACK, solution=..., tests="from math import *\nassert f(1)"), "has an import by a star"),
        (
            changed(STACK, solution=..., tests="assert f(1) < math.pi"),
            "uses Python's module 'math'",
        ),
        (changed(STACK, tests="assert Stack()\n" * 65), "it holds 65 tests in 975 characters, expected at most 64"),
        (changed(STACK, tests=["assert Stack()"] * 65), "each of its 65 tests is a file, and 65 files are too many"),
        (changed(STACK, tests=f"x = '{'a' * 200_000}'\nassert Stack() == x"), "file 'test_1.py' has 2000"),
        (changed(STACK, tests=f"assert Stack() == {'-' * 100_000}1"), "nested too deeply"),
    ],
)
def test_a_row_that_is_no_task_is_refused_with_its_place(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as caught:
        make_env_factory("code_exec", {}, seed=0).check_task(row, "tasks.jsonl:3")
    assert str(caught.value).startswith("tasks.jsonl:3: ") and message in str(caught.value)
    assert "\n" not in str(caught.value)
