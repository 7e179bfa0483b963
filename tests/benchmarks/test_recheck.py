"""benchmarks/recheck.py with the real toolkit: valid projects pass, wrong ones are reported."""

import pytest
from nat_projects import spec_of
from recheck import ROOT, recheck, written

from agent_rl.envs.nat.factory.negative_solutions import all_negative_solutions
from agent_rl.envs.nat.factory.render import render_project

PYTHON = ROOT / ".venv-nat/bin/python"
SPEC = spec_of("text_pipeline", 1)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "level"), [("text_pipeline", 1), ("mcp_served", 2)])
def test_reference_projects_hold(family: str, level: int) -> None:
    spec = spec_of(family, level)
    problems, num_answers = recheck(spec, render_project(spec), seed=1, python=PYTHON)
    assert problems == []
    assert num_answers >= 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "found_by"),
    [
        ("buggy: faulty logic 0", {"its tests", "nat mcp serve", "its own server", "nat run"}),
        ("wiring: return for yield", {"nat mcp serve", "nat run"}),
        ("wiring: server never runs", {"its own server"}),
    ],
)
def test_wrong_projects_are_found(name: str, found_by: set[str]) -> None:
    problems, _ = recheck(SPEC, all_negative_solutions(SPEC)[name], seed=1, python=PYTHON)
    assert {problem.partition(":")[0] for problem in problems} == found_by


def test_the_files_of_an_episode_are_those_last_written() -> None:
    def write(path: str, content: str) -> dict[str, object]:
        return {"name": "file_write", "arguments": {"path": path, "content": content}}

    other = {"name": "pytest_run", "arguments": {"path": SPEC.tests_path}}
    messages = [
        {"role": "user", "content": "an agent, please"},
        {"role": "assistant", "tool_calls": [write("mcp_server.py", "first"), write("elsewhere.py", "no")]},
        {"role": "assistant", "tool_calls": [write("mcp_server.py", "second"), other]},
    ]
    assert written({"messages": messages}, SPEC) == {"mcp_server.py": "second"}
