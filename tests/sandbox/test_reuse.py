"""Equal files are judged once, as they would be anew; what may hang on the machine is not kept."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent_rl.errors import SandboxError
from agent_rl.sandbox.graders import CallGrader, Case, SplitPytestGrader
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.mutation import MutationGrader
from agent_rl.sandbox.sandbox import Sandbox

LIMITS = Limits(wall_s=2.0, cpu_s=2, memory_mb=256)
RIGHT = {"solution.py": "def double(n):\n    return 2 * n\n"}
WRONG = {"solution.py": "def double(n):\n    return n\n"}
HANGS = {"solution.py": "def double(n):\n    while True: pass\n"}
TESTS = {"test_solution.py": "from solution import double\ndef test_it():\n    assert double(2) == 4\n"}
CASES = [Case(function="double", args=(2,), expected=4)]


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[tuple[Sandbox, Sandbox]]:
    """One that keeps verdicts, one that does not."""
    try:
        first = Sandbox.open(python=sys.executable, limits=LIMITS, reuse_verdicts=True)
    except SandboxError as error:
        pytest.skip(f"no isolation tier is available here: {error}")
    with first, Sandbox.open(python=sys.executable, limits=LIMITS) as second:
        yield first, second


def call_grader(sandbox: Sandbox, limits: Limits | None = None) -> CallGrader:
    return CallGrader("solution", CASES, limits=limits)


def split_grader(sandbox: Sandbox, limits: Limits | None = None) -> SplitPytestGrader:
    return SplitPytestGrader(TESTS, ["test_solution.py::test_it"], ["solution"], limits=limits)


def mutation_grader(sandbox: Sandbox, limits: Limits | None = None) -> MutationGrader:
    return MutationGrader("test_solution.py", RIGHT, ["solution"], mutants={"same": WRONG}, rewrites={}, limits=limits)


GRADERS: dict[str, tuple[Callable[..., Any], list[dict[str, str]]]] = {
    "calls": (call_grader, [RIGHT, WRONG]),
    "suite": (split_grader, [RIGHT, WRONG]),
    "mutants": (mutation_grader, [TESTS, {"test_solution.py": "def test_it():\n    pass\n"}]),
}


def runs(sandbox: Sandbox) -> float:
    return sandbox.memo.counters()["run"]


@pytest.mark.parametrize("name", GRADERS)
def test_equal_files_are_judged_once_by_any_grader_of_equal_settings(
    name: str, sandboxes: tuple[Sandbox, Sandbox]
) -> None:
    keeping, other = sandboxes
    make, candidates = GRADERS[name]
    before = runs(keeping), runs(other)
    for _ in range(2):
        for files in candidates:
            verdict = make(keeping).grade(keeping, files)
            assert verdict == make(other).grade(other, files)
    assert (runs(keeping) - before[0], runs(other) - before[1]) == (2, 4)
    make(keeping, Limits(wall_s=3.0)).grade(keeping, candidates[0])
    assert runs(keeping) - before[0] == 3


@pytest.mark.parametrize("name", ["calls", "suite"])
def test_a_verdict_at_a_limit_of_time_is_not_kept(name: str, sandboxes: tuple[Sandbox, Sandbox]) -> None:
    keeping, _ = sandboxes
    before = runs(keeping)
    for _ in range(2):
        verdict = GRADERS[name][0](keeping).grade(keeping, HANGS)
        assert (verdict.full, verdict.status) == (False, Status.TIMEOUT)
    assert runs(keeping) - before == 2


def test_a_run_that_came_near_its_limit_is_not_kept(sandboxes: tuple[Sandbox, Sandbox]) -> None:
    keeping, _ = sandboxes
    slow = {"solution.py": "import time\ndef double(n):\n    time.sleep(1.3)\n    return 2 * n\n"}
    before = runs(keeping)
    assert all(call_grader(keeping).grade(keeping, slow).full for _ in range(2))
    assert runs(keeping) - before == 2


def test_plain_runs_are_never_reused(sandboxes: tuple[Sandbox, Sandbox]) -> None:
    keeping, _ = sandboxes
    source = "import os\nprint(os.urandom(8))"
    assert keeping.run_python(source).stdout != keeping.run_python(source).stdout
