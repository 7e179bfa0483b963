"""The reward for code: hidden tests, run by the environment. Not here: how they are run (`sandbox/`)."""

import re
from collections.abc import Callable

from agent_rl.rewards.base import reward
from agent_rl.sandbox.verdict import Verdict

_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)


@reward("code_reward", needs=("grade",))
def code_reward(prediction: str, grade: Callable[[str], Verdict]) -> dict[str, float]:
    """1.0 when all tests pass, else 0.0; the part `share` is the share of the tests that passed.

    `grade` is lent by the environment: it runs the hidden tests on a text of Python.
    """
    verdict = grade(code_of(prediction))
    return {"reward": float(verdict.full), "share": verdict.score}


def code_of(text: str) -> str:
    """The last fenced block of a text, one that stays open included; the whole text where there is none."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else text
