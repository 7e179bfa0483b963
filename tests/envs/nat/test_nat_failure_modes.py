"""Failure modes of every kind of negative solution, judged by the real toolkit; and of other endings."""

import json
from typing import Any

import pytest
from nat_projects import SharedFactory, row, spec_of

from agent_rl.envs.failure_modes import OTHER, FailureModes
from agent_rl.envs.nat.env import NATAgentEnv, submission
from agent_rl.envs.nat.factory.negative_solutions import all_negative_solutions
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.failure_modes import NAT_RULES
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, Turn
from agent_rl.telemetry.trajectory_json import evaluated_record

MODES = FailureModes(NAT_RULES)
SPEC = spec_of("unit_converter", 2)
CLIENT = spec_of("calculator", 4)
NEGATIVE = {
    "buggy: faulty logic 0": "bad input not handled",
    "buggy: faulty logic 1": "wrong behaviour",
    "buggy: tests that assert nothing": "incomplete tests",
    "buggy: no tests": "incomplete tests",
    "wiring: return for yield": "wrong NAT pattern",
    "wiring: another type name": "wrong NAT pattern",
    "wiring: no workflow": "wrong NAT pattern",
    "wiring: no functions": "wrong NAT pattern",
    "wiring: server never runs": "no MCP server",
    "wiring: server prints": "no MCP server",
    "wiring: server without tools": "wrong MCP server",
    "wiring: another server name": "wrong MCP server",
    "wiring: sync function": "wrong NAT pattern",
    "wiring: no entry point": "wrong NAT pattern",
    "subtle: rare fault 0": "bad input not handled",
}
OF_A_CLIENT = {
    "wiring: server never runs": "no MCP server",
    "wiring: server without tools": "wrong MCP server",
    "wiring: client without server": "wrong NAT pattern",
    "wiring: workflow past its tools": "wrong workflow",
    "subtle: rare fault 2": "wrong behaviour",
}


def label_of(toolkit: NatToolkit, spec: NATSpec, files: dict[str, str]) -> str | None:
    """The label of an episode that wrote these files and submitted, read back from the record of an evaluation."""
    env = NATAgentEnv(SharedFactory(toolkit))
    opening = env.reset(row(spec))
    reply = submission(files)
    result = env.step(reply)
    completion = Completion(token_ids=(1,), logprobs=(0.0,), finish_reason=FinishReason.STOP, weight_version=0)
    turn = Turn(prompt_token_ids=(0,), completion=completion, message=reply, env_messages=(), info=result.info)
    episode = Trajectory(
        task_id="t",
        group_id="g",
        turns=(turn,),
        stop_reason=StopReason.FINISHED,
        reward=result.reward,
        reward_parts=result.reward_parts,
        initial_messages=tuple(opening),
    )
    return MODES.label(json.loads(json.dumps(evaluated_record(episode, row(spec)))))


@pytest.mark.parametrize("name", NEGATIVE)
def test_every_negative_solution_gets_the_label_of_its_fault(nat_toolkit: NatToolkit, name: str) -> None:
    assert label_of(nat_toolkit, SPEC, all_negative_solutions(SPEC)[name]) == NEGATIVE[name]


@pytest.mark.parametrize("name", OF_A_CLIENT)
def test_a_client_of_its_own_server_too(nat_toolkit: NatToolkit, name: str) -> None:
    assert label_of(nat_toolkit, CLIENT, all_negative_solutions(CLIENT)[name]) == OF_A_CLIENT[name]


def test_no_negative_solution_is_left_out() -> None:
    assert set(NEGATIVE.values()) <= set(MODES.meanings)
    assert set(all_negative_solutions(SPEC)) - set(NEGATIVE) == {"buggy: faulty logic 2", "buggy: faulty logic 3"}


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, None),
        ({SPEC.config_path: None}, "missing YAML"),
        ({SPEC.config_path: "- a\n- list\n"}, "missing YAML"),
        ({SPEC.config_path: None, SPEC.tests_path: None}, "missing YAML"),
        ({"mcp_server.py": None}, "no MCP server"),
        ({SPEC.logic_path: "def broken(:\n"}, "project does not import"),
        ({SPEC.logic_path: "import nothing_like_it\n"}, "project does not import"),
        ({SPEC.register_path: None}, "project does not import"),
        ({"pyproject.toml": None}, "wrong NAT pattern"),
    ],
)
def test_what_is_missing_comes_before_what_follows_from_it(
    nat_toolkit: NatToolkit, changes: dict[str, str | None], label: str | None
) -> None:
    files = {**render_project(SPEC), **changes}
    assert label_of(nat_toolkit, SPEC, {path: text for path, text in files.items() if text is not None}) == label


def nat(stop_reason: str = "finished", *, problems: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    parts = {"integration": 0.1, "success": 0.0, **more.pop("parts", {})}
    return {"reward": 0.1, "reward_parts": parts, "stop_reason": stop_reason, "problems": problems, **more}


BROKEN_CALL = {"role": "assistant", "content": "", "tool_errors": ["a call that is not closed"]}


@pytest.mark.parametrize(
    ("record", "label"),
    [
        (nat("max_tokens"), "ran out of tokens"),
        (nat("context_full"), "ran out of tokens"),
        (nat("timeout"), "timeout"),
        (nat("tool_budget"), "too many calls"),
        (nat("invalid_calls"), "unreadable call"),
        (nat("max_turns"), "not submitted"),
        (nat(problems=("files, all files: missing a/config.yml",), messages=(BROKEN_CALL,)), "unreadable call"),
        (nat(problems=("code, docstrings: logic.py:3: f",), messages=(BROKEN_CALL,)), "incomplete code"),
        # The problems that are noted end before the one that matters: the shares decide.
        (nat(parts={"share/behaviour": 1.0, "share/tests": 0.5}), "incomplete tests"),
        (nat(), OTHER),
    ],
)
def test_ends_and_what_is_not_noted(record: dict[str, Any], label: str) -> None:
    assert MODES.label(record) == label


def test_what_a_model_wrote_into_the_evidence_is_not_read() -> None:
    forged = "behaviour, tool, valid inputs: 1 of 2 right; gave 'files, all files: missing config.yml'"
    assert MODES.label(nat(problems=(forged,))) == "wrong behaviour"
