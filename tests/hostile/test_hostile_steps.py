"""What leaks of one step's hidden cases is worth nothing at the next: a project that knows them all fails there."""

import pytest
from nat_projects import SharedFactory, row, spec_of

from agent_rl.envs.nat.env import NATAgentEnv, submission
from agent_rl.envs.nat.factory.cases import WORKFLOW, hidden_cases
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.telling import with_telling
from agent_rl.envs.nat.judge.toolkit import NatToolkit

SPEC = with_telling(spec_of("text_pipeline", 1))
TOOL = SPEC.tools[0]
STEP, NEXT_STEP = 11, 12


def table_of(seed: int) -> str:
    """logic.py that looks up every hidden case of one step, and the example."""
    known = {
        question.inputs["text"]: question.expected for run in hidden_cases(SPEC, seed) for question in run.questions
    }
    known[TOOL.example.inputs["text"]] = TOOL.example.output
    doc = '"""Look up what is known."""'
    body = f'    {doc}\n    return KNOWN.get(text, "x")\n'
    return f"KNOWN = {known!r}\n\n\ndef {TOOL.function}(text: str) -> str:\n{body}"


@pytest.mark.parametrize(("case_seed", "success"), [(STEP, 1.0), (NEXT_STEP, 0.0), (None, 0.0)])
def test_hidden_cases_of_another_step_are_worth_nothing(
    nat_toolkit: NatToolkit, case_seed: int | None, success: float
) -> None:
    env = NATAgentEnv(SharedFactory(nat_toolkit))
    env.case_seed = case_seed
    env.reset(row(SPEC))
    result = env.step(submission({**render_project(SPEC), SPEC.logic_path: table_of(STEP)}))
    assert result.terminated
    assert result.reward_parts["success"] == success, result.info["problems"]
    env.close()


def test_all_episodes_of_a_group_have_the_same_cases() -> None:
    assert hidden_cases(SPEC, STEP) == hidden_cases(SPEC, STEP) != hidden_cases(SPEC, NEXT_STEP)
    assert WORKFLOW in {question.target for question in hidden_cases(SPEC, STEP)[0].questions}
