"""Environments by name or import path, and how `env.options` reach them. What an environment is: `base.py`."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from agent_rl.config.sections import GIVEN_IN_PYTHON
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.errors import ConfigError, defined_at, nearest_or_all
from agent_rl.registry import Registry, shown

FactoryMaker = Callable[[dict[str, Any], int], EnvFactory]
"""Takes `env.options` and the run's seed."""

ENVIRONMENTS: Registry[FactoryMaker | EnvFactory | type[EnvFactory] | type[AgentEnv]] = Registry(
    "environment",
    {
        "nat_agent_creation": "agent_rl.envs.nat.env:make_nat_factory",
        "code_exec": "agent_rl.envs.code.env:make_code_exec_factory",
        "search_qa": "agent_rl.envs.search.env:make_search_factory",
        "math_qa": "agent_rl.envs.math.env:make_math_factory",
        "prompts": "agent_rl.envs.prompt_env:make_prompt_factory",
        "mixture": "agent_rl.envs.mixture:make_mixture_factory",
        "hello": "agent_rl.envs.hello.env:HelloFactory",
        "external": "agent_rl.endpoint.external:make_external_factory",
        "reasoning_gym": "agent_rl.envs.foreign.reasoning_gym:make_reasoning_gym_factory",
        "verifiers": "agent_rl.envs.foreign.verifiers:make_verifiers_factory",
        "gymnasium": "agent_rl.envs.foreign.gymnasium:make_gymnasium_factory",
        "openenv": "agent_rl.envs.foreign.openenv:make_openenv_factory",
        "trl_environment": "agent_rl.envs.foreign.trl:make_trl_factory",
        "skyrl_gym": "agent_rl.envs.foreign.skyrl_gym:make_skyrl_gym_factory",
    },
    key="env.name",
)
OPTIONS = {
    "nat_agent_creation": "agent_rl.envs.nat.env:NATEnvOptions",
    "code_exec": "agent_rl.envs.code.env:CodeExecEnvOptions",
    "search_qa": "agent_rl.envs.search.env:SearchEnvOptions",
    "math_qa": "agent_rl.envs.qa_env:QAEnvOptions",
    "external": "agent_rl.endpoint.external:ExternalOptions",
    "prompts": "agent_rl.envs.prompt_env:PromptEnvOptions",
    "mixture": "agent_rl.envs.mixture:MixtureOptions",
    "reasoning_gym": "agent_rl.envs.foreign.reasoning_gym:ReasoningGymOptions",
    "verifiers": "agent_rl.envs.foreign.verifiers:VerifiersOptions",
    "gymnasium": "agent_rl.envs.foreign.gymnasium:GymnasiumOptions",
    "openenv": "agent_rl.envs.foreign.openenv:OpenEnvOptions",
    "trl_environment": "agent_rl.envs.foreign.trl:TRLEnvironmentOptions",
    "skyrl_gym": "agent_rl.envs.foreign.skyrl_gym:SkyRLGymOptions",
}
"""The class of `env.options` of the built-in environments that have one, for help."""
DOMAINS = {"nat": "nat_agent_creation", "code": "code_exec", "search": "search_qa", "math": "math_qa"}
"""Short names of environments on the command line."""


def register_env(name: str) -> Callable[[FactoryMaker], FactoryMaker]:
    """Register a factory maker, an `AgentEnv` class or a factory under `name`, for `env.name` in a config."""
    return ENVIRONMENTS.register(name)


def make_env_factory(name: str, options: dict[str, Any] | None = None, *, seed: int = 0) -> EnvFactory:
    """The factory of an environment by its name, a short name of the command line, or an import path.

    A path such as `my_pkg.my_env:MyEnv` names a maker `(options, seed) -> EnvFactory`, a factory, or a class: of an
    `AgentEnv`, made anew for each episode, or of an `EnvFactory`. Classes get `env.options` as keyword arguments, and
    the run's seed where they take a `seed`. ConfigError for unknown names and bad options.
    """
    if name.startswith(GIVEN_IN_PYTHON):
        raise ConfigError(
            f"env.name = {name!r}: this environment was given in Python, so no command can make it; if its class can "
            "be imported, name it (env.name=path/to/file.py:MyEnv), else evaluate or train in Python "
            "(GRPOTrainer.from_config, evaluate_policy)"
        )
    found = ENVIRONMENTS.get(DOMAINS.get(name, name))
    options = dict(options or {})
    if isinstance(found, EnvFactory):
        if options:
            keys = ", ".join(f"env.options.{key}" for key in options)
            raise ConfigError(f"env.options: {name} is a factory made before, which takes none; remove {keys}")
        return found
    if inspect.isclass(found) and issubclass(found, AgentEnv):
        return EnvFactory(partial(found, **_arguments(found, options, seed)))
    if inspect.isclass(found) and issubclass(found, EnvFactory):
        return found(**_arguments(found, options, seed))
    made = _made(found, name, options, seed) if callable(found) and not inspect.isclass(found) else found
    if not isinstance(made, EnvFactory):
        raise ConfigError(
            f"env.name = {name!r}{defined_at(found)} gives {made!r:.80}, expected an AgentEnv class, an "
            "EnvFactory, or a function (options, seed) that returns one"
        )
    return made


def _made(maker: FactoryMaker, name: str, options: dict[str, Any], seed: int) -> Any:
    """What a function makes; ConfigError for one that cannot be called so."""
    try:
        inspect.signature(maker).bind(options, seed)
    except TypeError:
        raise ConfigError(
            f"env.name = {name!r}{shown(maker)}, expected (options, seed); give it these two parameters"
        ) from None
    return maker(options, seed)


def _arguments(made: type, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Keyword arguments for the constructor of a class; ConfigError for those it does not take, and missing ones."""
    parameters = inspect.signature(made).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    known = {each.name: each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    if issubclass(made, EnvFactory) and made.__init__ is EnvFactory.__init__:
        known = {}
    for key in options:
        if key not in known and not takes_any:
            hint = nearest_or_all(key, known) if known else "; it takes none"
            raise ConfigError(f"unknown key 'env.options.{key}': {made.__name__} has no such argument{hint}")
    if "seed" in known:
        options = {"seed": seed, **options}
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options:
            raise ConfigError(f"env.options.{key} is missing: {made.__name__} has no default for it; add it")
    return options
