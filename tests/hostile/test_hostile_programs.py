"""Every program of `hostile/programs` against the sandbox, as the user of the tests and, for root, as another one.

No process left, no file outside changed, no victim killed, no listener reached, the server alive, not replaced, and
with no more descriptors than before: see `hostile/cases.py`, which holds the table.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import CASES, HERE, LOWER_TIER_CASES, Bench, Case

from agent_rl.errors import SandboxError

IS_ROOT = os.getuid() == 0
ORDINARY_USER = 12345
"""Without an entry in passwd."""
SECONDS_FOR_THE_TABLE = 110
NAMES = [case.name for case in CASES]


def test_every_program_is_in_the_table() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in (HERE / "programs").glob("*.py"))
    assert all((HERE / "programs" / f"{name}.py").read_text().startswith("# MUST: ") for name in NAMES)


@functools.cache
def _table_of_an_ordinary_user(tier: str) -> dict[str, Any]:
    """Name -> outcome, or `{"unavailable": why}`; one process runs the whole table."""
    user = [str(ORDINARY_USER)] if IS_ROOT else []
    command = [sys.executable, str(HERE / "as_user.py"), tier, *user]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_FOR_THE_TABLE, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if not lines:
        assert "Error" in done.stderr, done.stderr
        return {"unavailable": done.stderr.strip().splitlines()[-1]}
    assert lines[0]["uid"] == (ORDINARY_USER if IS_ROOT else os.getuid())
    return {"stderr": done.stderr[-600:], **{line["name"]: line for line in lines[1:]}}


def _check_for_an_ordinary_user(tier: str, name: str) -> None:
    table = _table_of_an_ordinary_user(tier)
    if reason := table.get("unavailable"):
        pytest.skip(f"tier {tier} cannot be tried as an ordinary user here: {reason}")
    assert name in table, f"the table broke off: {table['stderr']}"
    _check(table[name])


def _check(outcome: dict[str, Any]) -> None:
    if outcome["skipped"]:
        pytest.skip(outcome["skipped"])
    assert not outcome["problems"], "\n".join([*outcome["problems"], "--- it printed:", outcome["stdout"]])


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    try:
        opened = Bench("namespaces")
    except SandboxError as error:
        pytest.skip(f"isolation tier namespaces is not available here: {error}")
    yield opened
    opened.close()


@pytest.mark.skipif(not IS_ROOT, reason="the tests run as an ordinary user already")
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_program_of_root_in_its_own_namespaces(bench: Bench, case: Case) -> None:
    _check(asdict(bench.run(case)))


@pytest.mark.parametrize("name", NAMES)
def test_program_of_an_ordinary_user_in_its_own_namespaces(name: str) -> None:
    _check_for_an_ordinary_user("namespaces", name)


@pytest.mark.parametrize("name", [case.name for case in LOWER_TIER_CASES])
@pytest.mark.parametrize("tier", ["landlock", "rlimits"])
def test_program_in_a_lower_tier_where_that_tier_claims_to_stop_it(tier: str, name: str) -> None:
    _check_for_an_ordinary_user(tier, name)
