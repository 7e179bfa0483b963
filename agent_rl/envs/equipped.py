"""Any environment with tools, offered more of them by the configuration. Not here: which tools (`tools/toolset.py`)."""

from typing import Any

from agent_rl.config import ToolsConfig
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Solution, ToolEnv
from agent_rl.errors import ConfigError
from agent_rl.tools.toolset import Toolset, refuse_collisions


class EquippedFactory(EnvFactory):
    """Makes `inner`'s environments and gives each the toolset, which it starts and closes."""

    def __init__(self, inner: EnvFactory, config: ToolsConfig) -> None:
        self.inner = inner
        self.toolset = Toolset(config)

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

    def start(self) -> None:
        self().close()
        self.toolset.start()
        try:
            refuse_collisions((*self.inner.own_tools, *self.toolset.names), "section tools")
            self.inner.start()
        except BaseException:
            self.toolset.close()
            raise

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), **self.toolset.describe()}

    def close(self) -> None:
        try:
            self.inner.close()
        finally:
            self.toolset.close()
