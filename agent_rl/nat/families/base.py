"""What a task family must provide. A family draws rules, words them, renders reference code and draws hidden inputs.

What the right answer is, is not decided here: `agent_rl.nat.oracle` interprets the rules with code of its own.
"""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from agent_rl.nat.spec import ConfigField, InputField, NATSpec, Value

Inputs = dict[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a family decides about a new spec; names and wording are added by the generator."""

    rules: dict[str, Any]
    inputs: tuple[InputField, ...]
    errors: tuple[str, ...]
    config_field: ConfigField | None


class Family(ABC):
    name: str
    function: str
    """Name of the pure function in logic.py."""
    summary: str
    """Docstring of the tool."""

    @abstractmethod
    def draft(self, rng: random.Random, level: int) -> Draft:
        """Draw the rules of a new tool. Level 2 has a configuration field, level 1 has none."""

    @abstractmethod
    def sentences(self, spec: NATSpec, rng: random.Random) -> list[str]:
        """The behaviour in a user's words, one sentence per rule, in one of several phrasings."""

    @abstractmethod
    def body(self, spec: NATSpec) -> tuple[list[str], list[str]]:
        """Module-level lines and function-body lines (not indented) of the reference logic.

        The configuration field, if any, is an argument of the function with its default.
        """

    @abstractmethod
    def forgotten_check(self, spec: NATSpec) -> list[str]:
        """The lines of `body` that answer `spec.errors[0]`: what a careless author leaves out."""

    @abstractmethod
    def valid_inputs(self, spec: NATSpec, rng: random.Random) -> Inputs:
        """One random input that should be answered without an error under the default configuration."""

    @abstractmethod
    def error_inputs(self, spec: NATSpec, rng: random.Random) -> dict[str, Inputs]:
        """For each text of `spec.errors` one input that must be answered with it."""

    def mutants(self, spec: NATSpec) -> list[list[str]]:
        """Wrong bodies that a useful test suite must tell from the right one: a check lost, a result changed."""
        _, body = self.body(spec)
        check = self.forgotten_check(spec)
        start = _find(body, check)
        lost = body[:start] + body[start + len(check) :]
        # Both mutants keep every other line, so only a test of the error or of the result can fail on them.
        return [lost, [*body[:-1], body[-1].replace("return ", "return 'x' + ", 1)]]


def _find(lines: list[str], part: list[str]) -> int:
    for index in range(len(lines) - len(part) + 1):
        if lines[index : index + len(part)] == part:
            return index
    raise AssertionError(f"{part} is not in {lines}")


def join_names(names: list[str] | tuple[str, ...], last: str = "and") -> str:
    """`a`, `b` and `c`, each in backticks."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"
