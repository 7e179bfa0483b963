"""Choose wrong bodies that a dozen sampled cases distinguish from the right one, so that no mutant is equivalent.

It runs the reference and its variants, code of our own rendered from rules; it never runs what a candidate wrote.
"""

import random
from collections.abc import Callable

from agent_rl.envs.nat.factory.families.base import Family, Inputs
from agent_rl.envs.nat.spec import Tool

_NUM_VALID = 40
_NUM_ERROR_SETS = 8
_CLEAR_RATE = 0.45  # 12 cases then miss the difference less than once in a thousand samples
_NUM_SELECTED = 3


def select_detectable(family: Family, tool: Tool, candidates: list[list[str]]) -> list[list[str]]:
    """Up to three of the wrong bodies, the rarest difference first; the most visible one when all are hard to see."""
    rng = random.Random(0)
    valid = [family.valid_inputs(tool, rng) for _ in range(_NUM_VALID)]
    errors = [list(family.error_inputs(tool, rng).values()) for _ in range(_NUM_ERROR_SETS)]
    right = _compiled(family, tool, None)
    rated = []
    for number, body in enumerate(candidates):
        wrong = _compiled(family, tool, body)
        rate = sum(right(case) != wrong(case) for case in valid) / _NUM_VALID
        always = all(any(right(case) != wrong(case) for case in cases) for cases in errors)
        rated.append((rate, always or rate >= _CLEAR_RATE, number))
    clear = [number for _, is_clear, number in sorted(rated) if is_clear]
    return [candidates[number] for number in (clear or [max(rated)[2]])[:_NUM_SELECTED]]


def _compiled(family: Family, tool: Tool, body: list[str] | None) -> Callable[[Inputs], str | None]:
    """The tool's function under its defaults; None stands for an exception, which a wrong body may raise."""
    namespace: dict[str, Callable[..., str]] = {}
    exec(family.definitions(tool, body), namespace)  # type: ignore[arg-type]
    function = namespace[tool.function]

    def run(inputs: Inputs) -> str | None:
        try:
            return function(**inputs)
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None

    return run
