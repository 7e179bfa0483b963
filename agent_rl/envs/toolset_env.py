"""Any environment with tools, offered more of them by the configuration. Not here: which tools (`tools/toolset.py`)."""

from collections.abc import Mapping
from typing import Any

from agent_rl.config import ToolsConfig
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Solution, ToolEnv
from agent_rl.errors import ConfigError
from agent_rl.tools.toolset import Toolset, refuse_collisions


class ToolsetEnvFactory(EnvFactory):
    """Makes `inner`'s environments and gives each the toolset, which it starts and closes."""

    def __init__(self, inner: EnvFactory, config: ToolsConfig) -> None:
        self.inner = inner
        self.toolset = Toolset(config)
        self._asks_servers = bool(config.mcp)
        self._has_started = False
        self.failure_rules = inner.failure_rules
        self.speed_options = inner.speed_options

    def __call__(self) -> AgentEnv:
        env = self.inner()
        if not isinstance(env, ToolEnv):
            raise ConfigError(f"section tools: {type(env).__name__} takes no tools; remove it, or derive from ToolEnv")
        env.toolset = self.toolset
        return env

    def check_task(self, task: Task, where: str) -> None:
        self.inner.check_task(task, where)

    def solutions(self, task: Task) -> list[Solution]:
        return self.inner.solutions(task)

    def known_tools(self) -> tuple[tuple[str, ...], bool]:
        names, are_all = self.inner.known_tools()
        return (*names, *self.toolset.names), are_all and (self._has_started or not self._asks_servers)

    def start(self) -> None:
        """Raises ConfigError for tools that are offered twice, and for one that is needed and that no server offers."""
        self().close()  # an environment that takes no tools is refused before any server starts
        self.toolset.start()
        try:
            refuse_collisions((*(self.inner.own_tools or ()), *self.toolset.names), "section tools")
            for needed in self.inner.needed_tools:
                if needed not in self.toolset.names:
                    raise ConfigError(
                        f"the environment needs the tool {needed!r}, which neither tools.use nor a server of tools.mcp "
                        f"offers; add {needed} to tools.use"
                    )
            self.inner.start()
            self._has_started = True
        except BaseException:
            self.toolset.close()
            raise

    def part_weights(self) -> Mapping[str, float]:
        return self.inner.part_weights()

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), **self.toolset.describe()}

    def close(self) -> None:
        try:
            self.inner.close()
        finally:
            self.toolset.close()
