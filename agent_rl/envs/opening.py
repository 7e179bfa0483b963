"""From a configuration to an environment that episodes can run in: its factory, with the tools beside its own.

Not here: which environments there are (`registry.py`), which tools (`tools/toolset.py`).
"""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

from agent_rl.agent.code_format import CODE_TOOL
from agent_rl.config import Config, ToolsConfig, parse_config
from agent_rl.envs.base import AgentEnv, EnvFactory, ToolEnv
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError
from agent_rl.tools.toolset import Toolset, refuse_collisions


def open_environment(config: Config, env_factory: EnvFactory | Callable[[], AgentEnv] | None = None) -> EnvFactory:
    """The factory that `config` names, with its tools ready and their servers running; to be closed.

        with open_environment(config) as factory:
            tasks = read_tasks(config.data.eval_path, factory.check_task)
            factory.start()

    Every mistake of the sections `env`, `tools` and `agent` is a ConfigError here. What is not needed to read tasks and
    to reset an environment (checkers, sandboxes) starts with `factory.start`. An `env_factory` of one's own, or an
    `AgentEnv` class, is taken as it is: it brings its own tools. With `rollout.workers: ray` environments run in Ray
    actors once the factory was started.
    """
    if env_factory is None:
        factory = make_env_factory(config.env.name, config.env.options, seed=config.run.seed)
        factory = offer_tools(factory, config.tools)
    else:
        factory = env_factory if isinstance(env_factory, EnvFactory) else EnvFactory(env_factory)
    try:
        check_agent_type(config.agent.type, factory)
        return factory if config.rollout.workers == "local" else _in_actors(config, factory, env_factory)
    except ConfigError:
        factory.close()
        raise


def _in_actors(
    config: Config, factory: EnvFactory, env_factory: EnvFactory | Callable[[], AgentEnv] | None
) -> EnvFactory:
    from agent_rl.envs.remote.factory import RayEnvFactory

    raw = config.model_dump(mode="json")
    for key in ("workers", "ray"):
        del raw["rollout"][key]
    return RayEnvFactory(factory, config.rollout.ray, partial(_open_in_actor, raw, env_factory))


def _open_in_actor(raw: dict[str, Any], env_factory: EnvFactory | Callable[[], AgentEnv] | None) -> EnvFactory:
    """`open_environment` on another machine, plug-ins included."""
    return open_environment(parse_config(raw, source="the run's configuration"), env_factory)


def offer_tools(factory: EnvFactory, tools: ToolsConfig) -> EnvFactory:
    """`factory` with these tools beside its own, which are opened now and closed with it.

    ConfigError for tools that are offered twice, and for one that is needed and that is not offered.
    """
    if not tools.use and not tools.mcp:
        _check_needed(factory, ())
        return factory
    if not tools.mcp:
        _check_needed(factory, tools.use)
    toolset = Toolset(tools)
    with closing(factory()) as env:  # one that takes no tools is refused before any server starts
        if not isinstance(env, ToolEnv):
            raise ConfigError(f"section tools: {type(env).__name__} takes no tools; remove it, or derive from ToolEnv")
    try:
        toolset.start()
        _check_needed(factory, toolset.names)
        refuse_collisions((*(factory.own_tools or ()), *toolset.names), "section tools")
    except BaseException:
        toolset.close()
        raise
    return ToolsetEnvFactory(factory, toolset)


def check_agent_type(agent_type: str, factory: EnvFactory) -> None:
    """ConfigError where `agent.type` is code and episodes have other tools than `code_exec`, or not that one."""
    names = factory.own_tools or ()
    others = [name for name in names if name != CODE_TOOL]
    if agent_type == "code" and (others or (factory.own_tools is not None and CODE_TOOL not in names)):
        raise ConfigError(
            f"agent.type = 'code' takes an environment whose only tool is {CODE_TOOL!r}, this one offers "
            f"{', '.join(map(repr, names)) or 'none'}; leave the others out, or set agent.type to hf or react"
        )


_OF_INNER = ("failure_rules", "speed_options", "check_task", "solutions", "preflight_tasks", "part_weights", "start")
"""What a factory with a toolset has of the one inside."""


class ToolsetEnvFactory(EnvFactory):
    """Makes `inner`'s environments, gives each the toolset, and closes that."""

    def __init__(self, inner: EnvFactory, toolset: Toolset) -> None:
        super().__init__(inner)
        self.inner = inner
        self.toolset = toolset
        for name in _OF_INNER:
            setattr(self, name, getattr(inner, name))
        if inner.own_tools is not None or toolset.names:
            self.own_tools = (*(inner.own_tools or ()), *toolset.names)

    def __call__(self) -> AgentEnv:
        env = self.inner()
        assert isinstance(env, ToolEnv), "offer_tools has looked at one"
        env.toolset = self.toolset
        return env

    def describe(self) -> dict[str, Any]:
        return {**self.inner.describe(), **self.toolset.describe()}

    def close(self) -> None:
        try:
            self.inner.close()
        finally:
            self.toolset.close()


def _check_needed(factory: EnvFactory, offered: tuple[str, ...]) -> None:
    for name in factory.needed_tools:
        if name not in offered:
            raise ConfigError(
                f"the environment needs the tool {name!r}, which neither tools.use nor a server of tools.mcp offers; "
                f"add {name} to tools.use"
            )
