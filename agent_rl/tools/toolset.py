"""The tools that a configuration offers beside an environment's own: registered ones by name, and MCP servers'.

A maker gets its tool ready for one episode; what it shares between episodes (an index, a connection) it holds itself.
Not here: the tools, which of them an environment has of its own, running a call (`base.py`).
"""

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from agent_rl.config import ToolsConfig
from agent_rl.data.tasks import Task
from agent_rl.errors import ConfigError, nearest_or_all
from agent_rl.tools.base import BaseTool

ToolMaker = Callable[[Task], BaseTool]
"""Makes the tool of one episode from its task."""
MakerOpener = Callable[[ToolsConfig], ToolMaker]
"""Gets a kind of tool ready for a run. UserError for what a person can mend, such as a missing key."""

_OPENERS: dict[str, MakerOpener] = {}
_BUILT_IN = {"calculator": "agent_rl.tools.calculator", "search": "agent_rl.tools.search_tool"}
"""Modules that are only imported when their tool is asked for."""


def register_tool(name: str, opener: MakerOpener) -> None:
    """Register a kind of tool, for `tools.use`; a name already taken raises ValueError."""
    if name in _OPENERS:
        raise ValueError(f"a tool named {name!r} is already registered; give one of them another name")
    _OPENERS[name] = opener


class Toolset:
    """What `tools` of a configuration offers. `start`; `make` once per episode, from many threads; `close`."""

    def __init__(self, config: ToolsConfig) -> None:
        """ConfigError for a name in `tools.use` that nobody registered."""
        self._config = config
        for name in config.use:
            if name in _BUILT_IN:
                importlib.import_module(_BUILT_IN[name])  # registers itself
            if name not in _OPENERS:
                known = sorted({*_OPENERS, *_BUILT_IN})
                hint = nearest_or_all(name, known)
                raise ConfigError(f"tools.use names {name!r}: no such tool{hint}")
        self._makers: list[ToolMaker] = []
        self._shared: list[BaseTool] = []
        self._held = ExitStack()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all tools, those of MCP servers once `start` has asked for them."""
        return (*self._config.use, *(tool.name for tool in self._shared))

    def start(self) -> None:
        """Read indexes and connect to servers. UserError for what a person can mend, names offered twice included."""
        self._makers = [_OPENERS[name](self._config) for name in self._config.use]
        if self._config.mcp:
            from agent_rl.tools.mcp.tools import MCPConnections

            connections = self._held.enter_context(MCPConnections(self._config.mcp))
            self._shared = list(connections.tools)
        refuse_collisions(self.names, "tools.use and tools.mcp")

    def make(self, task: Task, *, beside: Sequence[BaseTool] = ()) -> list[BaseTool]:
        """The tools of one episode, to be offered `beside` those of its environment.

        Raises ConfigError when two of all these have one name: what a tool is registered as need not be its name.
        """
        made = [*(maker(task) for maker in self._makers), *self._shared]
        refuse_collisions(tuple(tool.name for tool in (*beside, *made)), "section tools")
        return made

    def describe(self) -> dict[str, Any]:
        """What is worth keeping with the run."""
        return {"tools": ", ".join(self.names)}

    def close(self) -> None:
        self._held.close()


def refuse_collisions(names: tuple[str, ...], where: str) -> None:
    """ConfigError when a name is offered twice."""
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{where}: the tool name {twice[0]!r} is offered twice; leave one of them out")
