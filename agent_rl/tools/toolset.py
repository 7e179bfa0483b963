"""The tools that a configuration offers beside an environment's own: those of `tools.use`, and MCP servers'.

An entry of `tools.use` names a tool, a class of tools (one for each episode), an opener, or a tool of the episode's
workspace. A maker makes the tool of one episode; what its tools share (an index, a connection) it holds itself.
Does not: hold the tools of environments, run a call (`base.py`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from agent_rl.config import ToolsConfig
from agent_rl.data.tasks import Task
from agent_rl.errors import ConfigError, SandboxError, defined_at, in_one_line, raised_at
from agent_rl.registry import TOOLS
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.tools.base import BaseTool
from agent_rl.tools.workspace_tools import EpisodeWorkspace, WorkspaceTool, open_sandbox

ToolMaker = Callable[[Task], BaseTool]
"""Makes the tool of one episode from its task."""
MakerOpener = Callable[[ToolsConfig], ToolMaker]
"""Opens a kind of tool for a run. UserError for anything the user can fix, such as a missing key."""


def register_tool(name: str, opener: MakerOpener | type[BaseTool] | BaseTool) -> None:
    """Register a tool, a class of tools or an opener, for `tools.use`; ConfigError for a name that is taken."""
    TOOLS.add(name, opener)


def _named(name: str) -> Any:
    if "#" in name:  # as `core/quick_start.py` numbers them
        raise ConfigError(
            f"tools.use names {name!r}, the second tool or a later one of a class, which a run was given in Python; "
            "give it again to GRPOTrainer(tools=...), or make every tool a class of its own"
        )
    return TOOLS.get(name)


class Toolset:
    """What `tools` of a configuration offers.

    `start`; `start_sandbox` before the first call; `make` once per episode, from many threads; `close`.
    """

    def __init__(self, config: ToolsConfig, given: Mapping[str, BaseTool | type[BaseTool]] | None = None) -> None:
        """`given` are tools made in Python, by their entry in `tools.use`. ConfigError for an unknown name there."""
        self._config = config
        self._used = {name: given[name] if given and name in given else _named(name) for name in config.use}
        self._makers: list[ToolMaker | WorkspaceTool] = []
        self._sandbox: Sandbox | None = None
        self._shared: list[BaseTool] = []
        self._held = ExitStack()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tools, those of MCP servers after `start`."""
        return (*(_name_of(name, self._used[name]) for name in self._config.use), *(t.name for t in self._shared))

    def start(self) -> None:
        """Read indexes and connect to servers. UserError for anything the user can fix, also names offered twice."""
        self._makers = [_open(name, self._used[name], self._config) for name in self._config.use]
        if self._config.mcp:
            from agent_rl.tools.mcp.tools import MCPConnections

            connections = self._held.enter_context(MCPConnections(self._config.mcp))
            self._shared = list(connections.tools)
        refuse_collisions(self.names, "tools.use and tools.mcp")

    def start_sandbox(self) -> None:
        """Start the sandbox where a tool needs it; SandboxError where none can be had."""
        if self._sandbox is None and any(
            isinstance(each, WorkspaceTool) and each.needs_sandbox for each in self._makers
        ):
            self._sandbox = self._held.enter_context(open_sandbox(self._config.code_exec))

    def _get_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxError("the sandbox of the tools is not running; call EnvFactory.start() before an episode")
        return self._sandbox

    def make(self, task: Task, *, beside: Sequence[BaseTool] = ()) -> list[BaseTool]:
        """The tools of one episode, to be offered `beside` those of its environment.

        Raises ConfigError when two of all these have one name: what a tool is registered as need not be its name.
        """
        workspace = EpisodeWorkspace(get_sandbox=self._get_sandbox, output_chars=self._config.code_exec.output_chars)
        made = [
            *(maker.make(workspace) if isinstance(maker, WorkspaceTool) else maker(task) for maker in self._makers),
            *self._shared,
        ]
        refuse_collisions(tuple(tool.name for tool in (*beside, *made)), "section tools")
        return made

    def describe(self) -> dict[str, Any]:
        """What is recorded with the run."""
        tools: dict[str, Any] = {"tools": ", ".join(self.names)}
        return tools if self._sandbox is None else {**tools, "tools_sandbox": self._sandbox.describe()}

    def close(self) -> None:
        self._held.close()


def _name_of(name: str, entry: Any) -> str:
    """The name that the model reads, as far as it is known before an opener is called."""
    return getattr(entry, "name", name.rpartition(":")[2]) if ":" in name else name


def _open(name: str, entry: Any, config: ToolsConfig) -> ToolMaker | WorkspaceTool:
    """The maker of what `tools.use` names."""
    if isinstance(entry, WorkspaceTool):
        return entry
    if isinstance(entry, BaseTool):
        return lambda _task: entry
    if isinstance(entry, type) and issubclass(entry, BaseTool):
        return lambda _task: entry()
    try:
        maker = entry(config) if _is_opener(entry) else None
    except (AttributeError, TypeError) as error:  # what a function of something else makes of a configuration
        raise ConfigError(
            f"tools.use names {name!r}, and called with the configuration of the tools it raised "
            f"{in_one_line(error)}{raised_at(error)}; decorate a function that is a tool with @tool"
        ) from error
    if not callable(maker):
        raise ConfigError(
            f"tools.use names {name!r}{defined_at(entry)}, which is neither a tool nor an opener of tools; decorate a "
            "function with @tool"
        )
    return maker


def _is_opener(entry: Any) -> bool:
    """Whether it is a function of one configuration; its parameter may go without a type, and has no other."""
    if inspect.isbuiltin(entry) or not callable(entry):
        return False
    try:
        parameters = [*inspect.signature(entry).parameters.values()]
    except ValueError:  # a class made in C
        return False
    needed = [each for each in parameters if each.default is each.empty]
    return len(needed) == 1 and needed[0].annotation in (needed[0].empty, ToolsConfig, ToolsConfig.__name__)


def refuse_collisions(names: tuple[str, ...], where: str) -> None:
    """ConfigError when a name is offered twice."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where}: the tool name {twice[0]!r} is offered twice; leave one of them out")
