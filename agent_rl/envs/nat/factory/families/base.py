"""Interface of a task family. A family samples rules, words them, renders reference code and samples hidden inputs.

Not here: the right answers; `factory/oracle/` interprets the rules with code of its own.
"""

import builtins
import json
import keyword
import random
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict

from agent_rl.envs.nat.spec import ConfigField, InputField, Inputs, Tool, Value

__all__ = [
    "Answer", "Draft", "Exchange", "Family", "Inputs", "Rules", "Value",
    "chosen_field", "is_argument_name", "join_names", "literal", "texts_of", "unsafe_text",
]  # fmt: skip


_UNSAFE = re.compile(r"[\"\\`]")
"""Rules are written into Python, YAML and backticks."""


class Rules(BaseModel):
    """Base of a family's vocabulary; unknown keys are refused."""

    # A planner reads the docstrings in the JSON schema.
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a family decides about a new tool; names and wording are added by the generator."""

    rules: dict[str, Any]
    inputs: tuple[InputField, ...]
    errors: tuple[str, ...]
    config_field: ConfigField | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How register.py and mcp_server.py answer one call: `statements` (not indented) inside a coroutine."""

    imports: tuple[str, ...] = ()
    """Import lines in addition to that of logic.py's names."""
    statements: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What the outside world answers to one HTTP request while a tool is checked."""

    status: int = 200
    body: str = ""
    failure: str | None = None
    """`timeout` or `connection`: the request raises instead."""
    headers: dict[str, str] = field(default_factory=dict)
    """Headers that the request must carry, else it is answered as unknown."""


class Family(ABC):
    name: str
    function: str
    """Name of the pure function in logic.py."""
    summary: str
    """Docstring of the tool."""
    Rules: type[Rules]
    """Shape of `Tool.rules`."""
    is_pure: bool = True
    """Whether one function of `definitions` is all there is to an answer."""

    @abstractmethod
    def draft(self, rng: random.Random, level: int) -> Draft:
        """Sample the rules of a new tool. Level 2 has a configuration field, level 1 has none."""

    @abstractmethod
    def complete(self, rules: dict[str, Any], config_default: int | None) -> Draft:
        """The inputs, errors and configuration field that follow from rules of the shape `Rules`.

        None for `config_default` means no configuration field; a number is put into the rules where they have it too.
        Raises ValueError, with a short reason, when the rules are well-formed but make no sense together.
        """

    def remade(self, tool: Tool) -> Draft:
        """`complete` for the rules and the configuration field of a tool."""
        return self.complete(tool.rules, tool.config_field.default if tool.config_field else None)

    def check_cost(self, rules: dict[str, Any]) -> None:  # noqa: B027  most families have no such rules
        """ValueError for rules whose answers take more memory or time than any agent is worth."""

    @abstractmethod
    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        """The behaviour in a user's words, one sentence per rule, in one of several phrasings."""

    def glossary(self, tool: Tool) -> list[str]:
        """What the names in `sentences` mean, where the names alone do not show it."""
        return []

    @abstractmethod
    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        """Module-level lines and function-body lines (not indented) of the reference logic.

        The configuration field, if any, is an argument of the function with its default.
        """

    @abstractmethod
    def forgotten_check(self, tool: Tool) -> list[str]:
        """The lines of `body` that answer `tool.errors[0]`: what a buggy solution leaves out."""

    @abstractmethod
    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        """Bodies that are wrong only now and then (a bound, an order, a rare branch); at least one."""

    @abstractmethod
    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        """One random input that should be answered without an error under the default configuration."""

    @abstractmethod
    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        """For each text of `tool.errors` one input that must be answered with it."""

    def edge_inputs(self, tool: Tool, rng: random.Random) -> list[Inputs]:
        """Inputs near bounds, good and bad ones, which the others hardly ever are; no two need be different."""
        return []

    @abstractmethod
    def bad_inputs(self, tool: Tool) -> Inputs:
        """The example's inputs, changed as little as makes `tool.errors[0]` the answer."""

    def tested_error(self, tool: Tool) -> Inputs:
        """What the reference's own test of `tool.errors[0]` gives: short, where something short will do."""
        return self.bad_inputs(tool)

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        """Whether the rules are a combination of operations reserved for the generalisation set."""
        return False

    def canonical(self, rules: dict[str, Any], inputs: tuple[InputField, ...]) -> Any:
        """The rules without what is only a name, as a JSON value: equal for tools that differ in names alone."""
        return rules

    # ---- how the reference is rendered; a family whose tool is more than one pure function overrides these

    def exports(self, tool: Tool) -> tuple[str, ...]:
        """Names of logic.py that register.py, mcp_server.py and the tests import."""
        return (tool.function,)

    def definitions(self, tool: Tool, body: list[str] | None = None) -> str:
        """The part of logic.py that belongs to this tool; `body` replaces the lines of the function."""
        head, lines = self.body(tool)
        lines = lines if body is None else body
        table = "".join(f"{line}\n" for line in head) + "\n\n" if head else "\n"
        code = "".join(f"    {line}\n" for line in lines)
        signature = ", ".join(f"{each.name}: {each.type}" for each in tool.inputs)
        extra = f", {tool.config_field.name}: int = {tool.config_field.default}" if tool.config_field else ""
        return f'{table}def {tool.function}({signature}{extra}) -> str:\n    """{self.summary}"""\n{code}'

    def answer(self, tool: Tool, setting: str | None) -> Answer:
        """The coroutine's body; `setting` is the expression of the config field's value, None for its default."""
        names = ", ".join(each.name for each in tool.inputs)
        extra = f", {setting}" if setting else ""
        return Answer(statements=(f"return {tool.function}({names}{extra})",))

    def assertions(self, tool: Tool) -> dict[str, list[str]]:
        """Reference tests by name: the lines of each. They must kill every one of `mutants`."""

        def line(inputs: Inputs, expected: str) -> str:
            given = ", ".join(literal(inputs[each.name]) for each in tool.inputs)
            return f"assert {tool.function}({given}) == {literal(expected)}"

        return {
            "example": [line(tool.example.inputs, tool.example.output)],
            "error": [line(self.tested_error(tool), tool.errors[0])],
        }

    def exchanges(self, tool: Tool, inputs: Inputs, config: dict[str, int]) -> dict[str, Exchange]:
        """What HTTP requests a right tool sends for `inputs`, as `METHOD URL`, and what they are answered with."""
        return {}

    def with_default(self, tool: Tool, value: int) -> Tool:
        """The tool that has another default in its configuration field, and in its rules where they have it too."""
        assert tool.config_field is not None
        field = tool.config_field.model_copy(update={"default": value})
        rules = {**tool.rules, field.name: value} if field.name in tool.rules else tool.rules
        return tool.model_copy(update={"config_field": field, "rules": rules})

    def outcome(self, tool: Tool, program: dict[str, Any], inputs: Inputs, config: Mapping[str, int]) -> Any:
        """What `definitions`, run, make of inputs: the answer of a pure tool, else what the answer is made of."""
        return program[tool.function](**inputs, **config)

    def mutants(self, tool: Tool) -> list[str]:
        """Wrong `definitions` that a useful test suite distinguishes from the right ones: a check lost, a result
        changed, the same answer always, an error always."""
        return [self.definitions(tool, body) for body in self.faulty_bodies(tool)]

    def faulty_bodies(self, tool: Tool) -> list[list[str]]:
        """The bodies of `mutants`; the first has lost the check of `errors[0]`."""
        _, body = self.body(tool)
        check = self.forgotten_check(tool)
        start = _find(body, check)
        lost = body[:start] + body[start + len(check) :]
        # The first two leave every other line as it is, so only a test of the error or of the result can fail on them.
        changed = [*body[:-1], body[-1].replace("return ", "return 'x' + ", 1)]
        return [lost, changed, [f"return {literal(tool.example.output)}"], [f"return {literal(tool.errors[0])}"]]

    def subtle_mutants(self, tool: Tool) -> list[str]:
        """`definitions` with the bodies of `subtle_bodies`."""
        return [self.definitions(tool, body) for body in self.subtle_bodies(tool)]


def _find(lines: list[str], part: list[str]) -> int:
    for index in range(len(lines) - len(part) + 1):
        if lines[index : index + len(part)] == part:
            return index
    raise AssertionError(f"{part} is not in {lines}")


def is_argument_name(name: str) -> bool:
    """Whether an input can be called so: neither Python nor a pydantic model has the name for something else."""
    return name.isidentifier() and not keyword.iskeyword(name) and name not in dir(builtins) + dir(BaseModel)


def chosen_field(fields: list[ConfigField], default: int, name: str = "") -> ConfigField:
    """The field of this name, or that has this default already, or the only one, with this default. Raises
    ValueError."""
    found = [field for field in fields if field.name == name]
    found = found or [field for field in fields if field.default == default] or fields
    if len(found) != 1:
        known = ", ".join(f"{field.name} {field.default}" for field in found) or "there is none"
        raise ValueError(f"which configuration field has the default {default} is not clear: {known}")
    return found[0].model_copy(update={"default": default})


def literal(value: Value) -> str:
    """A Python literal; texts in double quotes."""
    if not isinstance(value, str):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)  # a JSON string is a Python one


def join_names(names: list[str] | tuple[str, ...], last: str = "and") -> str:
    """`a`, `b` and `c`, each in backticks."""
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} {last} {quoted[-1]}"


def texts_of(value: Any) -> list[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for each in value.values() for text in texts_of(each))]
    return [text for each in value for text in texts_of(each)] if isinstance(value, list | tuple) else []


def unsafe_text(rules: Any) -> str | None:
    """The first text of rules that would end the text literal it is written into, or None."""
    return next((text for text in texts_of(rules) if _UNSAFE.search(text) or not text.isprintable()), None)
