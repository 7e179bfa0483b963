"""Projects that wait, never end, or flood: the check ends in time, and what does not depend on them is scored."""

import time

import pytest
from nat_projects import (
    check,
    earns_no,
    replaced,
    score,
    spec_of,
)

from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit

SPEC = spec_of("unit_converter", 2)
TOOL = SPEC.tools[0]
CLIENT = spec_of("calculator", 4)
SILENT = "import time\n\ntime.sleep(60)\n"
HEAD = "from collections.abc import AsyncGenerator\n"


def test_a_silent_server_costs_its_own_part_only_and_few_seconds(nat_toolkit: NatToolkit) -> None:
    started = time.monotonic()
    report = check(nat_toolkit, SPEC, {"mcp_server.py": SILENT})
    assert time.monotonic() - started < 30.0  # the server sleeps for 60
    assert report.gates == {"mcp": "no call to the server is answered right"} and not report.complete
    assert [report.share(name) for name in ("behaviour", "workflow", "tests", "config")] == [1.0, 1.0, 1.0, 1.0]
    assert any("no answer to initialize within 3 s" in problem for problem in report.problems)


def test_a_server_that_is_silent_to_its_client_costs_the_runs_through_it(nat_toolkit: NatToolkit) -> None:
    started = time.monotonic()
    report = check(nat_toolkit, CLIENT, {"mcp_server.py": SILENT})
    assert time.monotonic() - started < 50.0
    assert not report.complete and report.share("mcp") == 0.0
    lost = [each.name for each in report.points if each.stage == "workflow" and each.score < 1.0]
    assert sorted(lost) == ["served tools swapped", "through the MCP client"]
    assert report.share("behaviour") == report.share("tests") == 1.0


def test_a_build_that_waits_ends_at_its_deadline_and_the_server_is_scored(nat_toolkit: NatToolkit) -> None:
    waits = replaced(SPEC, SPEC.register_path, "    yield FunctionInfo", "    await sleep(60)\n    yield FunctionInfo")
    waits = {path: text.replace(HEAD, f"from asyncio import sleep\n{HEAD}") for path, text in waits.items()}
    started = time.monotonic()
    report = check(nat_toolkit, SPEC, waits)
    assert time.monotonic() - started < 40.0
    assert [report.share(name) for name in ("behaviour", "workflow", "config")] == [0.0, 0.0, 0.0]
    assert report.share("mcp") == report.share("tests") == 1.0
    assert any("at build: TimeoutError" in problem for problem in report.problems)


def test_a_call_that_waits_keeps_the_answers_before_it(nat_toolkit: NatToolkit) -> None:
    call = f"        return {TOOL.function}("
    counted = f"        SEEN.append(1)\n        await sleep(60 if len(SEEN) > 5 else 0)\n{call}"
    text = replaced(SPEC, SPEC.register_path, call, counted)[SPEC.register_path]
    text = text.replace(HEAD, f"from asyncio import sleep\n{HEAD}") + "\n\nSEEN: list[int] = []\n"
    report = check(nat_toolkit, SPEC, {SPEC.register_path: text})
    num_valid = 16
    assert score(report, "behaviour", f"{TOOL.instance}, valid inputs") == pytest.approx(5 / num_valid)
    assert report.workflow == 0.0 and not report.complete


CALL = f"return {TOOL.function}(value, from_unit, to_unit, config.precision)"


def registered(changes: dict[str, str], head: str = "") -> dict[str, str]:
    """Changed register.py with lines before it."""
    return {SPEC.register_path: f"{head}\n{changes[SPEC.register_path]}"}


def called(body: str) -> dict[str, str]:
    """The project with this body in its tool."""
    lines = body.replace("\n", "\n        ")
    return registered(replaced(SPEC, SPEC.register_path, CALL, lines), "import os\nimport sys\nimport time")


CATCHES_ALL = "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
BLOCKED = {
    "at import": registered(render_project(SPEC), SILENT),
    "in the build": registered(
        replaced(SPEC, SPEC.register_path, "    yield FunctionInfo", "    time.sleep(60)\n    yield FunctionInfo"),
        "import time",
    ),
    "in a call": called(CATCHES_ALL),
}


@pytest.mark.parametrize("where", BLOCKED)
def test_a_blocked_process_is_killed_and_nothing_of_it_is_remembered(hasty_toolkit: NatToolkit, where: str) -> None:
    started = time.monotonic()
    report = check(hasty_toolkit, SPEC, BLOCKED[where])
    assert time.monotonic() - started < 50.0
    assert [report.share(name) for name in ("behaviour", "workflow", "config")] == [0.0, 0.0, 0.0]
    assert any("timeout" in problem for problem in report.problems)
    assert report.share("mcp") == report.share("tests") == 1.0
    assert check(hasty_toolkit, SPEC).complete


FLOODS = {
    "a long answer": "return 'x' * 50_000_000",
    "much output": "print('x' * 5_000_000)\nsys.stdout.flush()\nreturn 'x'",
    "many files": "for number in range(100_000):\n    open(f'{number}.txt', 'w').close()\nreturn 'x'",
    "a large file": "file = open('x', 'wb')\nfor _ in range(500):\n    file.write(bytes(1 << 20))\nreturn 'x'",
    "much memory": "return str(len(bytearray(4 << 30)))",
    "a fork bomb": "while True:\n    os.fork()",
}


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_is_a_failure_of_the_project_and_not_of_the_checker(hasty_toolkit: NatToolkit, what: str) -> None:
    started = time.monotonic()
    report = check(hasty_toolkit, SPEC, called(FLOODS[what]))
    assert time.monotonic() - started < 30.0
    earns_no(report, "behaviour", "workflow", "config")
    assert check(hasty_toolkit, SPEC).complete
