"""Names of a candidate's never become the ones that its judge uses."""

from typing import Any

import pytest
from sandboxes import sandbox_fixture

from agent_rl.errors import UserError
from agent_rl.sandbox.graders import SplitPytestGrader
from agent_rl.sandbox.guest import module_proxy
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox

sandbox = sandbox_fixture(Limits(wall_s=3.0))

BODY = """
def test_area():
    assert abs(area(2) - 12.566370614359172) < 1e-9
def test_close():
    assert math.isclose(area(1), math.pi) and area(3) == pytest.approx(9 * math.pi)
def test_order():
    assert sorted(sizes()) == [1, 2, 3] and len(sizes()) == 3 and all(size > 0 for size in sizes())
"""
BEFORE = "import math\nimport pytest\nfrom solution import *\n"
AFTER = "from solution import *\nimport math\nimport pytest\n"
TESTS = {
    "before": {"test_a.py": BEFORE + BODY},
    "after": {"test_a.py": AFTER + BODY},
    "through a helper": {
        "helpers.py": "from solution import *\n",
        "test_a.py": "from helpers import *\nimport math, pytest\n" + BODY,
    },
    "all names of the module": {
        "test_a.py": "import math, pytest, solution\nglobals().update(vars(solution))\n"
        "globals().update({n: getattr(solution, n) for n in dir(solution) if not n.startswith('_')})\n"
        "from solution import area, sizes\n" + BODY
    },
}
RIGHT = (
    "import math\nfrom math import tau\ndef area(r):\n    return math.pi * r * r\ndef sizes():\n    return [3, 1, 2]\n"
)
WRONG = "def area(r):\n    return 0\ndef sizes():\n    return [7]\n"
NAMES = """
class Anything(float):
    def __getattr__(self, name):
        return lambda *args, **kwargs: True
abs = lambda x: 0.0
sorted = lambda x: [1, 2, 3]
len = lambda x: 3
all = lambda x: True
isclose = approx = lambda *args, **kwargs: 0
math = pytest = Anything()
"""
CHEATS = {
    "names": WRONG + NAMES,
    "listed": WRONG + NAMES + "__all__ = ['area', 'sizes', 'abs', 'sorted', 'len', 'all', 'math', 'pytest']\n",
    "of the interpreter": WRONG + "__all__ = ['area', 'sizes', '__builtins__', '__name__', '__file__']\n",
    "of pytest": WRONG
    + "pytestmark = []\npytest_plugins = []\nsetup_module = test_x = test_area = test_close = test_order = lambda: 0\n"
    "def pytest_generate_tests(metafunc):\n    return None\n"
    "__all__ = [*globals()]\n",
    "dynamic": WRONG + "class Names(list):\n    def __iter__(self):\n"
    "        yield from ('area', 'sizes', 'abs', 'sorted', 'len', 'all')\n"
    "__all__ = Names(['area'])\ndef __getattr__(name):\n    return lambda *a, **k: 0\n",
}


@pytest.fixture(scope="module")
def graders(sandbox: Sandbox) -> dict[str, SplitPytestGrader]:
    right = {"solution.py": RIGHT}
    return {name: SplitPytestGrader.record(sandbox, tests, right, ["solution"]) for name, tests in TESTS.items()}


@pytest.mark.parametrize("cheat", CHEATS)
@pytest.mark.parametrize("tests", TESTS)
def test_names_of_a_candidate_do_not_judge(
    sandbox: Sandbox, graders: dict[str, SplitPytestGrader], tests: str, cheat: str
) -> None:
    verdict = graders[tests].grade(sandbox, {"solution.py": CHEATS[cheat]})
    assert verdict.passed == 0, verdict.per_test


@pytest.mark.parametrize("tests", TESTS)
def test_a_right_solution_with_names_of_its_own_passes(
    sandbox: Sandbox, graders: dict[str, SplitPytestGrader], tests: str
) -> None:
    own = RIGHT + "def helper():\n    pass\ndef sorted(x):\n    return []\nabs = None\n"
    assert graders[tests].grade(sandbox, {"solution.py": own}).full
    if "before" in tests:
        assert graders[tests].exports == {"solution": ["tau", "area", "sizes"]}


def test_a_solution_without_every_name_of_the_reference_is_judged_by_the_names_that_tests_use(sandbox: Sandbox) -> None:
    tests = {"test_a.py": "from solution import *\ndef test_a():\n    assert area(1) == 3\n"}
    reference = {"solution.py": "def square(r):\n    return r * r\ndef area(r):\n    return 3 * square(r)\n"}
    grader = SplitPytestGrader.record(sandbox, tests, reference, ["solution"])
    assert grader.grade(sandbox, {"solution.py": "def area(r):\n    return 3 * r * r\n"}).full
    made = SplitPytestGrader(tests, grader.expected_ids, ["solution"], exports=grader.exports)
    assert made.grade(sandbox, {"solution.py": "def area(r):\n    return 3 * r * r\n"}).full


TEST = "\ndef test_a():\n    assert area(1) == 3\n"
AREA = "def area(r):\n    return 3\n"


@pytest.mark.parametrize(
    ("tests", "reference"),
    [
        ("from solution import *" + TEST, AREA + "def sorted(x):\n    return x\n"),
        ("from solution import *" + TEST, AREA + "def setup_module():\n    pass\n"),
        ("from solution import *" + TEST, AREA + "def test_b():\n    pass\n"),
        ("from math import isclose\nfrom solution import *" + TEST, AREA + "def isclose(a, b):\n    return a == b\n"),
        ("from math import *\nfrom solution import *" + TEST, AREA + "def isclose(a, b):\n    return a == b\n"),
        ("def check(a):\n    pass\nfrom solution import *" + TEST, AREA + "def check(a):\n    pass\n"),
        ("from solution import area, abs" + TEST, AREA + "def abs(x):\n    return x\n"),
        ("from solution import area, size as len" + TEST, AREA + "def size(x):\n    return x\n"),
    ],
)
def test_recording_refuses_names_that_tests_judge_with(sandbox: Sandbox, tests: str, reference: str) -> None:
    with pytest.raises(UserError, match=r"judge with|takes the place of Python's own"):
        SplitPytestGrader.record(sandbox, {"test_a.py": tests}, {"solution.py": reference}, ["solution"])


def test_a_star_import_needs_recorded_names(sandbox: Sandbox) -> None:
    with pytest.raises(UserError, match="could take any name"):
        SplitPytestGrader({"test_a.py": "from solution import *\n"}, ["test_a.py::test_a"], ["solution"])
    hidden = {"test_a.py": "exec('from solution ' + 'import *')\ndef test_a():\n    assert abs(area(1) - 3) < 1\n"}
    grader = SplitPytestGrader(hidden, ["test_a.py::test_a"], ["solution"])
    assert grader.grade(sandbox, {"solution.py": AREA.replace("3", "9") + "abs = lambda x: 0\n"}).passed == 0


LOOPS = """
from solution import f, g
def test_zip():
    for got, wanted in zip(map(f, [1, 2, 3]), [2, 4, 6]):
        assert got == wanted
def test_next():
    assert list(map(f, iter([1, 2]))) == [2, 4]
def test_generator():
    assert all(f(n) == 2 * n for n in range(3)) and g([]) is None
"""


@pytest.mark.parametrize("kind", ["StopIteration", "StopAsyncIteration", "Own", "GeneratorExit"])
def test_no_exception_ends_a_loop_of_the_judge(sandbox: Sandbox, kind: str) -> None:
    right = "def f(n):\n    return 2 * n\ndef g(xs):\n    pass\n"
    grader = SplitPytestGrader.record(sandbox, {"test_a.py": LOOPS}, {"solution.py": right}, ["solution"])
    wrong = f"class Own(StopIteration):\n    pass\ndef f(n):\n    raise {kind}\ng = f\n"
    assert grader.grade(sandbox, {"solution.py": wrong}).passed == 0


def test_no_exception_that_crosses_is_one_that_ends_loops_or_tests() -> None:
    never: Any = (AssertionError, StopIteration, StopAsyncIteration)
    assert not [kind for kind in module_proxy._ERRORS.values() if issubclass(kind, never)]
