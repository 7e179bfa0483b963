"""The specification of one agent to be written: what a dataset row holds.

A spec is plain data. It names the package, the tool, its inputs, its rules (machine-readable, read by the oracle and
by the reference renderer, which share no code), the errors it must answer with, and the request as a user would word
it. Hidden cases are not in it: they are drawn from the rules when an episode is scored.
"""

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_rl.errors import DataError

Value = float | int | str


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InputField(_Record):
    name: str
    type: Literal["float", "int", "str"]


class ConfigField(_Record):
    """A configuration field of the tool: level 2 asks for one."""

    name: str
    default: int
    low: int
    high: int
    description: str


class Example(_Record):
    """One worked example, shown in the request."""

    inputs: dict[str, Value]
    output: str


class NATSpec(_Record):
    task_id: str = Field(min_length=1)
    family: str
    level: Literal[1, 2]
    fingerprint: str
    """Hash of what the tool does, names left out; splits are made on it."""
    package: str = Field(pattern=r"^nat_[a-z0-9_]+$")
    type_name: str
    """Registered name, the `_type` of the configuration file."""
    instance: str
    """Name under `functions:`, and of the tool the MCP server offers."""
    function: str
    """Name of the pure function in logic.py."""
    inputs: tuple[InputField, ...]
    rules: dict[str, Any]
    """What the tool computes, in the vocabulary of its family."""
    config_field: ConfigField | None
    errors: tuple[str, ...]
    """Exact texts the tool answers with when its input is bad, in the order they are checked."""
    example: Example
    request: str
    """The task in a user's words."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of a complete project, relative to its root, in the order they are best written."""
        source = f"src/{self.package}"
        return (
            f"{source}/__init__.py",
            f"{source}/logic.py",
            f"{source}/register.py",
            f"{source}/configs/config.yml",
            "mcp_server.py",
            f"tests/test_{self.package}.py",
            "pyproject.toml",
        )

    @property
    def defaults(self) -> dict[str, int]:
        """The configuration the tool has when nothing is set."""
        return {self.config_field.name: self.config_field.default} if self.config_field else {}


def fingerprint(family: str, level: int, rules: dict[str, Any], config_field: ConfigField | None) -> str:
    """16 hex digits that two specs share exactly when their tools do the same, whatever they are called."""
    core = [family, level, rules, config_field.model_dump() if config_field else None]
    return hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()[:16]


def parse_spec(row: dict[str, Any], where: str) -> NATSpec:
    """Validate a dataset row; `where` (file and line) opens the error sentence. Raises DataError."""
    try:
        return NATSpec.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"][0].lower() + first["msg"][1:]
        raise DataError(
            f"{where}: field {field!r}: {message}; make the file again with agent_rl/scripts/prepare_dataset.py"
        ) from None
