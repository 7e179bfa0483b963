"""From a configuration to an environment that episodes can run in: its factory, with the tools beside its own.

Not here: which environments there are (`registry.py`), which tools (`tools/toolset.py`).
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from agent_rl.agent.code_format import CODE_TOOL
from agent_rl.config import Config, ToolsConfig, parse_config
from agent_rl.envs.base import OF_INNER, AgentEnv, EnvFactory, ToolEnv
from agent_rl.envs.mixture import MixtureFactory, errors_of
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError
from agent_rl.tools.base import BaseTool
from agent_rl.tools.toolset import Toolset, refuse_collisions

GivenTools = Mapping[str, BaseTool | type[BaseTool]]
"""Tools made in Python, by their entry in `tools.use`."""


def open_environment(
    config: Config,
    env_factory: EnvFactory | Callable[[], AgentEnv] | None = None,
    *,
    given_tools: GivenTools | None = None,
) -> EnvFactory:
    """The factory that `config` names, with its tools ready and their servers running; to be closed.

        with open_environment(config) as factory:
            tasks = factory.read_tasks(config.data, "eval")
            factory.start()

    Every mistake of the sections `env`, `tools` and `agent` is a ConfigError here. What is not needed to read tasks and
    to reset an environment (checkers, sandboxes) starts with `factory.start`. An `env_factory` of one's own, or an
    `AgentEnv` class, is taken as it is: it brings its own tools; but with `given_tools` it is offered those of the
    configuration, some of which these are. With `rollout.workers: ray` environments run in Ray actors once the factory
    was started.
    """
    if env_factory is None:
        factory = make_env_factory(config.env.name, config.env.options, seed=config.run.seed)
    else:
        factory = _factory_of(env_factory)
    if env_factory is None or given_tools is not None:
        factory = offer_tools(factory, config.tools, given=given_tools)
    try:
        check_agent_type(config.agent.type, factory)
        return factory if config.rollout.workers == "local" else _in_actors(config, factory, env_factory, given_tools)
    except ConfigError:
        factory.close()
        raise


def _factory_of(given: Any) -> EnvFactory:
    if isinstance(given, EnvFactory):
        return given
    if not callable(given) or (inspect.isclass(given) and not issubclass(given, AgentEnv)):
        what = f"an object of the class {type(given).__name__}" if not inspect.isclass(given) else "another class"
        raise ConfigError(
            f"env_factory: got {given!r:.80}, {what}; expected a class that derives from AgentEnv, an EnvFactory, or a "
            "function that makes an environment"
        )
    return EnvFactory(given)


def _in_actors(
    config: Config,
    factory: EnvFactory,
    env_factory: EnvFactory | Callable[[], AgentEnv] | None,
    given_tools: GivenTools | None,
) -> EnvFactory:
    if not factory.may_be_remote:
        raise ConfigError(
            f"rollout.workers 'ray' with env.name {config.env.name!r}: its episodes have to run beside the policy; "
            "leave rollout.workers out"
        )
    from agent_rl.envs.remote.factory import RayEnvFactory

    raw = config.model_dump(mode="json")
    for key in ("workers", "ray"):
        del raw["rollout"][key]
    return RayEnvFactory(factory, config.rollout.ray, partial(_open_in_actor, raw, env_factory, given_tools))


def _open_in_actor(
    raw: dict[str, Any],
    env_factory: EnvFactory | Callable[[], AgentEnv] | None,
    given_tools: GivenTools | None,
) -> EnvFactory:
    """`open_environment` on another machine, plug-ins included."""
    config = parse_config(raw, source="the run's configuration")
    return open_environment(config, env_factory, given_tools=given_tools)


def offer_tools(factory: EnvFactory, tools: ToolsConfig, *, given: GivenTools | None = None) -> EnvFactory:
    """`factory` with these tools beside its own, which are opened now and closed with it; some of them may be `given`.

    In a mixture each environment has tools of its own, and `tools` are none. ConfigError for tools that are offered
    twice, and for one that is needed and that is not offered.
    """
    if isinstance(factory, MixtureFactory):
        return _offer_to_each(factory, tools)
    if not tools.use and not tools.mcp:
        _check_needed(factory, ())
        return factory
    if not tools.mcp:
        _check_needed(factory, tools.use)
    toolset = Toolset(tools, given)
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


def _offer_to_each(mixture: MixtureFactory, tools: ToolsConfig) -> MixtureFactory:
    if tools.use or tools.mcp:
        raise ConfigError(
            "section tools has no effect in a mixture, whose environments have tools of their own; move it to "
            "env.options.environments.NAME.tools"
        )
    try:
        for name, member in mixture.members.items():
            with errors_of(name):
                member.factory = offer_tools(member.factory, member.tools)
    except BaseException:
        mixture.close()
        raise
    return mixture


def check_agent_type(agent_type: str, factory: EnvFactory) -> None:
    """ConfigError where `agent.type` is code and episodes have other tools than `code_exec`, or not that one."""
    if isinstance(factory, MixtureFactory):
        for name, member in factory.members.items():
            with errors_of(name):
                check_agent_type(agent_type, member.factory)
        return
    names = factory.own_tools or ()
    others = [name for name in names if name != CODE_TOOL]
    if agent_type == "code" and (others or (factory.own_tools is not None and CODE_TOOL not in names)):
        raise ConfigError(
            f"agent.type = 'code' takes an environment whose only tool is {CODE_TOOL!r}, this one offers "
            f"{', '.join(map(repr, names)) or 'none'}; leave the others out, or set agent.type to hf or react"
        )


class ToolsetEnvFactory(EnvFactory):
    """Makes `inner`'s environments, gives each the toolset, and closes that."""

    def __init__(self, inner: EnvFactory, toolset: Toolset) -> None:
        super().__init__(inner)
        self.inner = inner
        self.toolset = toolset
        for name in (*OF_INNER, "counters", "worker_counters"):
            setattr(self, name, getattr(inner, name))
        self.needed_tools = ()  # they are offered here
        if inner.own_tools is not None or toolset.names:
            self.own_tools = (*(inner.own_tools or ()), *toolset.names)

    def __call__(self) -> AgentEnv:
        env = self.inner()
        assert isinstance(env, ToolEnv), "offer_tools has looked at one"
        env.toolset = self.toolset
        return env

    def start(self) -> None:
        self.inner.start()
        self.toolset.start_sandbox()

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
