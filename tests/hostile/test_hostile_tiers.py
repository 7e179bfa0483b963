"""The lower tiers judge, keep judge and candidate apart where they claim to, and leave nothing; whose kill it was."""

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from test_hostile_programs import HERE, IS_ROOT, ORDINARY_USER

from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.mutation import MutationGrader
from agent_rl.sandbox.sandbox import Sandbox

FACTS = (
    "a right solution passes",
    "a wrong one does not",
    "a suite is judged",
    "tests are out of the candidate's reach",
    "a tree 2,500 deep",
    "a tree 20,000 deep",
    "locked folders",
    "a program takes no share of the processors for each of many sessions",
    "no program locks what lies above it",
    "no candidate locks its judge out",
    "the server was never replaced",
    "what a killed host left is removed",
    "what a living one uses is not",
    "an installed package of ours is hidden",
    "no run is late for what it leaves",
    "a daemon ends with a killed host",
    "a daemon ends with a closed sandbox",
    "a daemon ends with a killed server",
)
NOT_PROMISED = {"rlimits": {"tests are out of the candidate's reach", "an installed package of ours is hidden"}}


@functools.cache
def _held(tier: str) -> dict[str, Any]:
    command = [sys.executable, str(HERE / "lower_tiers.py"), tier, *([str(ORDINARY_USER)] if IS_ROOT else [])]
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False, env=environment)
    if "no isolation tier works" in done.stderr:
        pytest.skip(f"tier {tier} is not available here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout)["held"])


@pytest.mark.parametrize("fact", FACTS)
@pytest.mark.parametrize("tier", ["landlock", "rlimits"])
def test_a_lower_tier_judges_and_tidies_up(tier: str, fact: str) -> None:
    held = _held(tier)
    assert set(held) == set(FACTS)
    if fact in NOT_PROMISED.get(tier, ()):
        pytest.skip(f"{tier} does not promise it")
    assert held[fact]


@pytest.mark.skipif(not IS_ROOT, reason="where an ordinary user can make control groups depends on the machine")
def test_every_server_has_its_part_of_the_processors() -> None:
    with Sandbox.open(python=sys.executable, size=2) as sandbox:
        if "control group" not in sandbox.describe()["cpu"]:
            pytest.skip("no control group of the processors can be made here")
        version, base = json.loads(sandbox._groups)["bases"]["cpu"]
        limits = {
            (path / ("cpu.max" if version == 2 else "cpu.cfs_quota_us")).read_text().split()[0]
            for path in Path(base).iterdir()
            if path.is_dir()
        }
        assert limits == {str(round(100_000 * max(1.0, len(os.sched_getaffinity(0)) / 2)))}


@pytest.mark.skipif(not IS_ROOT, reason="where an ordinary user can make control groups depends on the machine")
def test_a_kill_for_memory_elsewhere_ends_no_run_that_goes_on() -> None:
    """The kernel counts its kills for the whole machine alone, and runs linked to each other last long enough."""
    limits = Limits(memory_mb=64)
    program = "import os, time\n[os.fork() for _ in range(2)]\nx = b'x' * 40 * 2**20\ntime.sleep(1)\n"
    judged = MutationGrader(
        "test_double.py",
        {"solution.py": "def double(n):\n    return 2 * n\n"},
        ["solution"],
        mutants={f"mutant {n}": {"solution.py": f"def double(n):\n    return {n}\n"} for n in range(3)},
        rewrites={},
    )
    suite = "import time\nfrom solution import double\ndef test_it():\n    time.sleep(0.3)\n    assert double(4) == 8\n"
    with Sandbox.open(python=sys.executable, size=2) as sandbox, ThreadPoolExecutor(1) as pool:
        if sandbox.describe()["memory"] != "control group":
            pytest.skip("no control group of memory can be made here")
        verdict = pool.submit(judged.grade, sandbox, {"test_double.py": suite})
        num_kills = 0
        while not verdict.done():
            num_kills += sandbox.run_python(program, limits=limits).status is Status.MEMORY
        assert verdict.result().full
        assert num_kills > 2


OUT_OF_MEMORY = """
import os, sys
open(os.path.join(sys.argv[1], "cgroup.procs"), "w").write("0")
from agent_rl.errors import SandboxError
from agent_rl.sandbox.limits import Limits, Status
from agent_rl.sandbox.sandbox import Sandbox
with Sandbox.open(python=sys.executable) as sandbox:
    assert sandbox.describe()["memory"] == "control group", sandbox.describe()
    for megabytes in (900, 2000):
        try:
            print(sandbox.run_python("x = b'x' * 700 * 2**20", limits=Limits(memory_mb=megabytes)).status)
        except SandboxError as error:
            print(error)
    print(sandbox.run_python("import os; os.kill(os.getpid(), 9)").status)
    print(sandbox.run_python("print(1)").stdout)
"""


@pytest.mark.skipif(not IS_ROOT, reason="only root can make a control group for the whole host")
def test_a_run_killed_because_the_machine_is_full_is_no_failure_of_the_candidate(tmp_path: Path) -> None:
    from agent_rl.sandbox.guest import cgroups

    version, parent = cgroups._own_groups().get("memory", (0, ""))
    if version != 1:
        pytest.skip("no memory control group of version 1 in which processes and groups may live side by side")
    group = Path(parent) / f"machine_{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(600 * 2**20))
        done = subprocess.run(
            [sys.executable, "-c", OUT_OF_MEMORY, str(group)],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
            env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
        )
        lines = done.stdout.splitlines()
        assert len(lines) == 5, done.stderr
        assert all("out of memory" in line for line in lines[:2])
        assert lines[2:] == ["nonzero", "1", ""]
    finally:
        group.rmdir()
