"""Runs per second of the sandbox, beside cold `python -m pytest` in the same process: `python benchmarks/sandbox.py`.

Prints p50 and p95 of one call and calls per second, for 1, 2 and 4 callers, as the median over rounds that visit every
row in turn, so that a noisy minute does not fall on one row. Measures warm calls; opening a sandbox is not in it.
"""

import argparse
import itertools
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agent_rl.envs.nat.factory.generate import LEVELS, STARTER_FAMILIES, STARTER_LEVELS, generate_specs
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.sandbox.graders import CallGrader, Case, SplitPytestGrader
from agent_rl.sandbox.sandbox import Sandbox

SOLUTION = {"solution.py": "def add(a, b):\n    return a + b\n"}
TESTS = {
    "tests/test_solution.py": """import pytest
from solution import add

def test_numbers():
    assert add(1, 2) == 3

def test_texts():
    assert add("a", "b") == "ab"

def test_mixed():
    with pytest.raises(TypeError):
        add(1, "b")
"""
}
IN_ONE_PLACE = {"src/solution.py": SOLUTION["solution.py"], **TESTS}
CASES = [Case(function="add", args=(i, 1), expected=i + 1) for i in range(12)]
CALLERS = (1, 2, 4)


def rows(sandbox: Sandbox, toolkit: NatToolkit, folder: Path) -> dict[str, tuple[Callable[[int], object], int]]:
    """Row name -> (one call, calls per round)."""
    call_grader = CallGrader("solution", CASES)
    split_grader = SplitPytestGrader.record(sandbox, TESTS, SOLUTION, ["solution"])
    starter = sampled_projects(STARTER_FAMILIES, STARTER_LEVELS)
    every = sampled_projects([family for family in LEVELS if family != "react_agent"], range(1, 6))
    numbers = itertools.count()

    def nat_check(_: int, projects: list[tuple[NATSpec, dict[str, str]]] = starter, tests: bool = True) -> bool:
        number = next(numbers)
        spec, files = projects[number % len(projects)]
        files = {path: f"{text}\n# {number}\n" if path.endswith(".py") else text for path, text in files.items()}
        if not tests:
            del files[spec.tests_path]
        report = check_project(toolkit, spec, files, seed=number)
        return report.complete if tests else report.share("workflow") == report.share("mcp") == 1.0

    def cold(_: int) -> bool:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_solution.py"]
        environment = {**os.environ, "PYTHONPATH": "src", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False).returncode == 0

    return {
        "cold python -m pytest, 3 tests, no isolation": (cold, 6),
        "script (`pass`)": (lambda _: sandbox.run_python("pass").exit_code == 0, 60),
        "pytest, 3 tests": (
            lambda _: sandbox.run_pytest(IN_ONE_PLACE, ["tests/test_solution.py"]).exit_code == 0,
            40,
        ),
        "CallGrader, 12 cases": (lambda _: call_grader.grade(sandbox, SOLUTION).full, 60),
        "SplitPytestGrader, 3 tests": (lambda _: split_grader.grade(sandbox, SOLUTION).full, 30),
        "NAT check, one tool (levels 1, 2)": (nat_check, 12),
        "the same without the model's tests": (lambda _: nat_check(_, tests=False), 12),
        "NAT check, all families and levels": (lambda _: nat_check(_, every), 12),
    }


def sampled_projects(families: Sequence[str], levels: Sequence[int]) -> list[tuple[NATSpec, dict[str, str]]]:
    """Distinct specs with their reference projects."""
    specs = generate_specs(11, ["train", "sft"], families=families, levels=levels)
    return [(spec, render_project(spec)) for spec in itertools.islice(specs, 200)]


def measure(call: Callable[[int], object], calls: int, callers: int) -> tuple[float, float, float]:
    """(p50 in ms, p95 in ms, calls per second) of one round."""

    def timed(index: int) -> float:
        started = time.perf_counter()
        if not call(index):
            raise RuntimeError("a run did not give the answer it should; the figure would be worthless")
        return (time.perf_counter() - started) * 1000

    with ThreadPoolExecutor(callers) as pool:
        started = time.perf_counter()
        times = sorted(pool.map(timed, range(calls * callers)))
        seconds = time.perf_counter() - started
    return statistics.median(times), times[int(0.95 * (len(times) - 1))], len(times) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all rows; the median is shown")
    parser.add_argument("--calls", type=int, help="calls of a row in a round; by default as many as fit its speed")
    options = parser.parse_args()
    rounds = options.rounds
    servers = os.cpu_count() or 1
    with (
        Sandbox.open(python=sys.executable, size=servers) as sandbox,
        NatToolkit.open(processes=servers) as toolkit,
        tempfile.TemporaryDirectory() as name,
    ):
        folder = Path(name)
        for path, text in IN_ONE_PLACE.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        table = rows(sandbox, toolkit, folder)
        found: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
        for call, _ in table.values():  # what only happens once happens here
            measure(call, 2, servers)
        for _ in range(rounds):
            for (row, (call, calls)), callers in itertools.product(table.items(), CALLERS):
                found.setdefault((row, callers), []).append(measure(call, options.calls or calls, callers))
        about = sandbox.describe()
        show(table, found)
        print(
            f"{servers} cores, {platform.machine()}, Linux {about['kernel']}, Python {about['python']}, "
            f"pytest {about['about']['pytest']}, NAT {toolkit.version()}; tier {about['tier']}, {servers} "
            f"servers each, memory by {about['memory']}, user {os.getuid()}; median of {rounds} rounds"
        )


def show(table: dict[str, object], found: dict[tuple[str, int], list[tuple[float, float, float]]]) -> None:
    shown = Table("p50 / p95 ms, calls/s", *(f"{callers} callers" for callers in CALLERS), "x cold")
    first = next(iter(table))
    medians = {key: [statistics.median(column) for column in zip(*each, strict=True)] for key, each in found.items()}
    for row in table:
        cells = ["{:.1f} / {:.1f}, {:.0f}/s".format(*medians[row, callers]) for callers in CALLERS]
        shown.add_row(row, *cells, f"{medians[row, 2][2] / medians[first, 2][2]:.1f}")
    Console(width=140).print(shown)


if __name__ == "__main__":
    main()
