"""Failure modes of questions, of code and of any environment; those of NAT projects are in `nat/`."""

from typing import Any

import pytest

from agent_rl.config import ToolsConfig
from agent_rl.envs.code.failure_modes import CODE_RULES
from agent_rl.envs.failure_modes import NOT_SCORED, OTHER, QUESTION_RULES, FailureModes
from agent_rl.envs.opening import ToolsetEnvFactory
from agent_rl.envs.registry import make_env_factory
from agent_rl.tools.toolset import Toolset


def code(share: float, *, programs: int = 1, stop_reason: str = "max_turns") -> dict[str, Any]:
    parts = {"tests_passed": 0.0, "share/tests": share, "success": float(share == 1.0)}
    last = {"role": "assistant", "content": "", "info": {"programs": programs}}
    return {"reward": 0.0, "reward_parts": parts, "stop_reason": stop_reason, "messages": (last,)}


def question(*infos: dict[str, Any], tool: str | None = "t", stop_reason: str = "finished") -> dict[str, Any]:
    calls = {"tool_calls": [{"name": tool}]} if tool else {}
    messages = tuple({"role": "assistant", "content": "", "info": info, **calls} for info in infos)
    return {"reward": 0.0, "reward_parts": {"success": 0.0}, "stop_reason": stop_reason, "messages": messages}


@pytest.mark.parametrize(
    ("record", "label"),
    [
        (code(0.0, programs=0, stop_reason="finished"), "no program"),
        (code(0.0, programs=0), "no program"),
        (code(0.0), "no test passes"),
        (code(0.25), "some tests fail"),
        (code(0.25, stop_reason="max_tokens"), "ran out of tokens"),
        (code(1.0), None),
    ],
)
def test_code(record: dict[str, Any], label: str | None) -> None:
    assert FailureModes(CODE_RULES).label(record) == label


@pytest.mark.parametrize(
    ("record", "label"),
    [
        (question({"prediction": ""}), "no answer"),
        (question({"prediction": "7"}, tool=None), "wrong answer, no tool used"),
        (question({"prediction": "7"}, tool="answer"), "wrong answer, no tool used"),
        (question({"tool_errors": 1}, {"prediction": "7"}), "wrong answer, a call failed"),
        (question({"tool_errors": 0}, {"prediction": "7"}), "wrong answer"),
        (question({}, stop_reason="max_turns"), "ran out of turns"),
        (question({}), OTHER),
    ],
)
def test_questions(record: dict[str, Any], label: str | None) -> None:
    assert FailureModes(QUESTION_RULES).label(record) == label


def test_an_episode_without_a_score_is_no_failure_of_the_model() -> None:
    lost = {"reward": None, "reward_parts": {}, "stop_reason": "env_error"}
    assert FailureModes().label(lost) == NOT_SCORED


@pytest.mark.parametrize("name", ["nat_agent_creation", "code_exec", "math_qa", "search_qa", "hello"])
def test_every_environment_describes_its_labels(name: str) -> None:
    factory = make_env_factory(name, {}, seed=0)
    meanings = FailureModes(factory.failure_rules).meanings
    assert {rule.label for rule in factory.failure_rules} | {OTHER} <= set(meanings)
    wrapped = ToolsetEnvFactory(factory, Toolset(ToolsConfig()))
    assert (wrapped.failure_rules, wrapped.speed_options) == (factory.failure_rules, factory.speed_options)
