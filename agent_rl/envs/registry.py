"""Environments by name: built-in ones, and a user's own. What an environment is, is said in `base.py`."""

import importlib
from collections.abc import Callable
from typing import Any

from agent_rl.agent.code_format import CODE_TOOL
from agent_rl.config import ToolsConfig
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.toolset_env import ToolsetEnvFactory
from agent_rl.errors import ConfigError, nearest_or_all

FactoryMaker = Callable[[dict[str, Any], int], EnvFactory]
"""Takes `env.options` and the run's seed."""

_MAKERS: dict[str, FactoryMaker] = {}
_BUILT_IN = {
    "nat_agent_creation": "agent_rl.envs.nat.env",
    "code_exec": "agent_rl.envs.code.env",
    "search_qa": "agent_rl.envs.search.env",
    "math_qa": "agent_rl.envs.qa_env",
}
"""Modules that are only imported when their environment is asked for."""


def register_env(name: str) -> Callable[[FactoryMaker], FactoryMaker]:
    """Register a factory maker under `name`, for `env.name` in a config."""

    def add(maker: FactoryMaker) -> FactoryMaker:
        if name in _MAKERS:
            raise ValueError(f"an environment named {name!r} is already registered")
        _MAKERS[name] = maker
        return maker

    return add


def make_env_factory(name: str, options: dict[str, Any], *, seed: int, tools: ToolsConfig | None = None) -> EnvFactory:
    """Make the factory of a registered environment, with the tools that the configuration offers besides.

    Unknown names and bad options raise ConfigError.
    """
    if name in _BUILT_IN:
        importlib.import_module(_BUILT_IN[name])  # registers itself
    if name not in _MAKERS:
        known = sorted({*_MAKERS, *_BUILT_IN})
        hint = nearest_or_all(name, known)
        raise ConfigError(f"env.name = {name!r}: no such environment{hint}")
    factory = _MAKERS[name](options, seed)
    for needed in factory.needed_tools:
        # What servers offer is known once they are asked: `ToolsetEnvFactory.start`.
        if tools is not None and needed not in tools.use and not tools.mcp:
            raise ConfigError(f"env.name = {name!r} needs the tool {needed!r}; add {needed} to tools.use")
    return ToolsetEnvFactory(factory, tools) if tools and (tools.use or tools.mcp) else factory


def check_agent_type(agent_type: str, factory: EnvFactory) -> None:
    """ConfigError where `agent.type` is code and episodes have other tools than `code_exec`, or not that one.

    Before `factory.start` the tools of MCP servers are not known; ask again after it.
    """
    names, are_all = factory.known_tools()
    others = [name for name in names if name != CODE_TOOL]
    if agent_type == "code" and (others or (are_all and CODE_TOOL not in names)):
        raise ConfigError(
            f"agent.type = 'code' takes an environment whose only tool is {CODE_TOOL!r}, this one offers "
            f"{', '.join(map(repr, names)) or 'none'}; leave the others out, or set agent.type to hf or react"
        )
