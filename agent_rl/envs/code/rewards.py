"""The reward for code: hidden tests, run by the environment. Not here: how they are run (`sandbox/`)."""

from collections.abc import Callable

from agent_rl.agent.fences import last_python
from agent_rl.rewards.base import reward
from agent_rl.sandbox.verdict import Verdict


@reward("code_reward", needs=("grade",))
def code_reward(
    prediction: str, grade: Callable[[str], Verdict], handed_in_code: str | None = None
) -> dict[str, float]:
    """1.0 when all tests pass, else 0.0; the part `share` is the share of the tests that passed.

    The environment lends `grade`, which runs the hidden tests on a text of Python, and where it knows the program that
    was handed in, `handed_in_code`, which is graded as it is. Else the code is looked for in the text of the answer.
    """
    verdict = grade(code_of(prediction) if handed_in_code is None else handed_in_code)
    full = float(verdict.full)
    return {"reward": full, "success": full, "share": verdict.score}


def code_of(text: str) -> str:
    """The last block of Python in a text, one that stays open included; the whole text where there is none."""
    code = last_python(text, or_open=True)
    return text if code is None else code
