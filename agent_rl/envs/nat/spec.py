"""The specification of one agent to write: the content of a dataset row.

A spec is plain data: the tools the agent must offer, each with machine-readable rules (read by the oracle and by the
reference renderer, which share no code), the workflow that connects them, the MCP server, the plan, and the request as
a user would word it. Hidden cases are not in it: they are sampled from the rules when an episode is scored. Rules are
validated by the family that wrote them (`parse.py`), not here.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Value = float | int | str
Inputs = dict[str, Value]
Level = Literal[1, 2, 3, 4, 5]
Difficulty = Literal["easy", "medium", "hard"]
DIFFICULTY: dict[int, Difficulty] = {1: "easy", 2: "easy", 3: "medium", 4: "medium", 5: "hard"}
_NAME = r"^[a-z][a-z0-9_]*$"
_MOST_TELLING = 200


class Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class InputField(Record):
    name: str = Field(pattern=_NAME)
    type: Literal["float", "int", "str"]


class ConfigField(Record):
    """A configuration field of a tool: level 2 requires one."""

    name: str
    default: int
    low: int
    high: int
    description: str


class Example(Record):
    """One worked example, shown in the request."""

    inputs: Inputs
    output: str


class Telling(Record):
    """Inputs that tell a tool's rules from rules one step away: every episode is judged by them, and by others."""

    inputs: tuple[Inputs, ...] = Field(default=(), max_length=_MOST_TELLING)
    """Under the defaults."""
    config: dict[str, int] = {}
    """Another setting, where the tool has one."""
    configured: tuple[Inputs, ...] = Field(default=(), max_length=_MOST_TELLING)
    """Under that setting, for what the others do not tell."""


class Tool(Record):
    """One registered function: what it is called and what it answers."""

    family: str
    """Whose vocabulary `rules` is written in; a key of `families.FAMILIES`."""
    type_name: str
    """Registered name, the `_type` of the configuration file."""
    instance: str = Field(pattern=_NAME)
    """Name under `functions:`, and of the tool the MCP server offers."""
    function: str = Field(pattern=_NAME)
    """Name of the pure function in logic.py."""
    inputs: tuple[InputField, ...]
    rules: dict[str, Any]
    """What the tool computes."""
    config_field: ConfigField | None
    errors: tuple[str, ...]
    """Exact texts the tool answers with when its input is bad, in the order they are checked."""
    example: Example
    telling: Telling = Telling()

    @property
    def defaults(self) -> dict[str, int]:
        """The configuration the tool has when nothing is set."""
        return {self.config_field.name: self.config_field.default} if self.config_field else {}


UNUSED = InputField(name="unused", type="str")
"""What a function without inputs takes all the same in NAT, whose functions need an argument."""


class GroupFunction(Record):
    """A function of a function group; NAT calls it `INSTANCE__NAME`."""

    name: str = Field(pattern=_NAME)
    inputs: tuple[InputField, ...]
    description: str

    @property
    def nat_inputs(self) -> tuple[InputField, ...]:
        """The inputs as the toolkit has them."""
        return self.inputs or (UNUSED,)


class GroupCall(Record):
    """One call in a sequence, by the function's bare name."""

    function: str
    inputs: Inputs
    output: str


class PlannedCall(Record):
    """One call of a function group, by the function's bare name."""

    function: str
    inputs: Inputs


Calls = Annotated[tuple[PlannedCall, ...], Field(max_length=50)]
"""On a fresh instance, in order."""


class GroupTelling(Record):
    """Sequences that tell a group's rules from rules one step away, as `Telling` for tools."""

    sequences: tuple[Calls, ...] = Field(default=(), max_length=_MOST_TELLING)
    config: dict[str, int] = {}
    configured: tuple[Calls, ...] = Field(default=(), max_length=_MOST_TELLING)


class Group(Record):
    """A function group: functions that share one state, which lives as long as the built workflow."""

    family: str
    """A key of `families.GROUPS`."""
    type_name: str
    instances: tuple[Annotated[str, Field(pattern=_NAME)], ...] = Field(min_length=1, max_length=4)
    """One or two names under `function_groups:`; two must not share their state."""
    class_name: str = Field(pattern=r"^[A-Z][A-Za-z0-9]*$")
    """The class in logic.py with one method for each function."""
    functions: tuple[GroupFunction, ...]
    hidden: tuple[str, ...]
    """Functions that `include` leaves out: they exist but cannot be reached as `INSTANCE__NAME`."""
    rules: dict[str, Any]
    config_field: ConfigField | None
    """An argument of the class with its default."""
    errors: tuple[str, ...]
    example: tuple[GroupCall, ...] = Field(max_length=50)
    """A sequence of calls on a fresh instance, shown in the request."""
    telling: GroupTelling = GroupTelling()

    @property
    def defaults(self) -> dict[str, int]:
        return {self.config_field.name: self.config_field.default} if self.config_field else {}

    @property
    def visible(self) -> tuple[GroupFunction, ...]:
        return tuple(function for function in self.functions if function.name not in self.hidden)


class Direct(Record):
    """The workflow is the only tool itself."""

    kind: Literal["direct"] = "direct"


class Router(Record):
    """The workflow reads a one-line request, `KEYWORD SEP argument SEP ...`, and calls the tool of that keyword."""

    kind: Literal["router"] = "router"
    type_name: str
    separator: str
    commands: dict[str, str] = Field(min_length=1, max_length=40)
    """Keyword -> instance of a tool, or `INSTANCE__NAME` of a group's function."""
    unknown: str
    """The answer to a keyword that is not in `commands`."""
    malformed: str
    """The answer to a wrong number of arguments, or one that is not a number where one is needed."""
    example: Example


class Step(Record):
    """One call of a pipeline."""

    tool: str
    """Instance."""
    arguments: dict[str, str]
    """Argument of the tool -> an input of the workflow, or `step N` (from 1) for the answer of an earlier step."""
    only_if_digit: bool = False
    """Run only when the first argument holds a digit; else the answer is that argument as it is."""


class Pipeline(Record):
    """The workflow calls its tools one after the other and answers with the last answer, or with all, joined."""

    kind: Literal["pipeline"] = "pipeline"
    type_name: str
    inputs: tuple[InputField, ...]
    steps: tuple[Step, ...] = Field(min_length=1, max_length=20)
    joiner: str | None
    """None: the answer of the last step; else the answers of all steps, joined by this text."""
    on_error: Literal["stop", "go on"]
    """An answer that begins with `error`: it is the workflow's answer, or the next step gets it like any other."""
    example: Example


class React(Record):
    """The workflow is NAT's own `react_agent` with the tools; the checker puts a scripted LLM in place of `llm`."""

    kind: Literal["react"] = "react"
    llm: str
    """Name under `llms:`."""
    max_tool_calls: int = Field(ge=1, le=100)


Workflow = Annotated[Direct | Router | Pipeline | React, Field(discriminator="kind")]


class McpServer(Record):
    """mcp_server.py: every tool (or visible function of the group) under its instance name."""

    name: str
    raises: bool = False
    """Answers that begin with `error` come as MCP errors (`isError`) and not as plain text."""


class PlannedServer(Record):
    name: str
    transport: Literal["stdio"]
    tools: tuple[str, ...]


class PlannedTool(Record):
    name: str
    description: str
    inputs: dict[str, str]
    """Name -> type."""


class PlannedCase(Record):
    tool: str
    inputs: Inputs
    expected: str


class Plan(Record):
    """What a planner would hand to the agent: the shape of the project, its servers, tools and test cases."""

    scaffold_type: Literal["simple_tool", "router", "pipeline", "function_group", "mcp_client", "react_agent"]
    mcp_servers: tuple[PlannedServer, ...]
    custom_tools: tuple[PlannedTool, ...]
    test_cases: tuple[PlannedCase, ...]


class NATSpec(Record):
    task_id: str = Field(min_length=1)
    family: str
    """One of `families.TASK_FAMILIES`."""
    level: Level
    difficulty: Difficulty
    fingerprint: str
    """Hash of what the agent does, names left out; splits are made on it."""
    package: str = Field(pattern=r"^nat_[a-z0-9_]+$")
    tools: tuple[Tool, ...] = Field(max_length=12)
    group: Group | None = None
    workflow: Workflow
    server: McpServer
    client_group: str | None = None
    """Name under `function_groups:` of configs/config-mcp-client.yml, which takes the tools from mcp_server.py."""
    plan: Plan
    request: str
    """The task in a user's words."""

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of a complete project, relative to its root, in the order they are best written."""
        source = f"src/{self.package}"
        client = (self.client_config_path,) if self.client_group else ()
        return (
            f"{source}/__init__.py",
            self.logic_path,
            self.register_path,
            self.config_path,
            *client,
            "mcp_server.py",
            self.tests_path,
            "pyproject.toml",
        )

    @property
    def logic_path(self) -> str:
        return f"src/{self.package}/logic.py"

    @property
    def register_path(self) -> str:
        return f"src/{self.package}/register.py"

    @property
    def config_path(self) -> str:
        return f"src/{self.package}/configs/config.yml"

    @property
    def client_config_path(self) -> str:
        return f"src/{self.package}/configs/config-mcp-client.yml"

    @property
    def tests_path(self) -> str:
        return f"tests/test_{self.package}.py"

    def tool(self, instance: str) -> Tool:
        """The tool of that name; KeyError when there is none."""
        for tool in self.tools:
            if tool.instance == instance:
                return tool
        raise KeyError(instance)


def digest(core: Any) -> str:
    """16 hex digits of a JSON value; equal values give equal digits, whatever the order of their keys."""
    return hashlib.sha256(json.dumps(core, sort_keys=True).encode()).hexdigest()[:16]
