"""What a right agent answers: an interpreter of a spec's rules, sharing no code with the reference solutions.

One module for each family, by its name; each has `answer(rules, inputs, config) -> str` and, where float rounding could
blur the last digit of a right program, `is_robust(rules, inputs, config) -> bool`. The oracle never runs candidate
code, and its answers never leave the training process.
"""

import importlib
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from agent_rl.envs.nat.spec import Tool, Value


def answer(tool: Tool, inputs: Mapping[str, Value], config: Mapping[str, int]) -> str:
    """The exact text the tool must give for `inputs` when configured with `config`."""
    return _oracle(tool.family).answer(tool.rules, inputs, config)


def wrong_answer(tool: Tool, rules: Mapping[str, Any], inputs: Mapping[str, Value], config: Mapping[str, int]) -> str:
    """What an agent of other rules answers where the world is that of the tool's; it may raise what rules without sense
    lead to."""
    other = getattr(_oracle(tool.family), "answer_wrongly", None)
    return other(rules, tool.rules, inputs, config) if other else _oracle(tool.family).answer(rules, inputs, config)


def is_robust(tool: Tool, inputs: Mapping[str, Value], config: Mapping[str, int]) -> bool:
    """False when a correct float program could still differ in the last digit (a rounding tie, a signed zero)."""
    check = getattr(_oracle(tool.family), "is_robust", None)
    return check is None or check(tool.rules, inputs, config)


@cache
def _oracle(family: str) -> ModuleType:
    return importlib.import_module(f"agent_rl.envs.nat.factory.oracle.{family}")
