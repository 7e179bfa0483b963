"""The estimator and the loss of `section algorithm`: their options come from keys and from `algorithm.options`.

Options are checked against the signatures of the functions. Does not: import them before they are requested.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from agent_rl.errors import ConfigError, nearest_or_all
from agent_rl.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES, Registry

if TYPE_CHECKING:
    from agent_rl.config.learning import AlgorithmConfig

OPTION_KEYS = (
    *("scale_by_std", "min_std", "gamma", "lam", "part_weights"),
    *("ratio_level", "clip_low", "clip_high", "dual_clip"),
)
"""Keys of section `algorithm` that are options of functions."""


def needs_group(advantage: str) -> bool | None:
    """Whether an estimator compares the episodes of a group; None if that is not known, as for a name to come."""
    if advantage not in ADVANTAGE_ESTIMATORS and ":" not in advantage:
        return None
    return getattr(ADVANTAGE_ESTIMATORS.get(advantage), "needs_group", None)


def turn_credit_of(advantage: str) -> str:
    """How an estimator gives credit by turn, `group` or `own`; ConfigError for one that does not."""
    way = getattr(ADVANTAGE_ESTIMATORS.get(advantage), "turn_credit", None)
    if way is None:
        raise ConfigError(
            f"algorithm.credit = 'turn' with advantage {advantage!r}, which has no credit by turn; choose another, "
            "such as 'grpo' or 'gae', or leave credit out"
        )
    return way


def options_for(algorithm: "AlgorithmConfig", registry: Registry[Any], name: str) -> dict[str, Any]:
    """The options that the function of that name gets, of the types that it declares; ConfigError for an unknown name
    and for a value of another type."""
    parameters = registry.parameters_of(name)
    keys = {key: getattr(algorithm, key) for key in OPTION_KEYS if key in parameters}
    return keys | {
        option: _as_declared(option, value, registry.get(name), parameters[option])
        for option, value in algorithm.options.items()
        if option in parameters
    }


def unread_keys(algorithm: "AlgorithmConfig") -> dict[str, str]:
    """Keys that a built-in function does not read, each with where it has an effect.

    A user's own function may leave keys unread: he starts from a shipped file, whose keys no override can remove.
    """
    unread = {}
    for key in OPTION_KEYS:
        for what, registry, name in _functions(algorithm):
            readers = [other for other in registry.names() if key in registry.options_of(other)]
            if readers and name in registry.builtin and key not in registry.options_of(name):
                unread[key] = f"with {what} {name!r}, only with {' and '.join(map(repr, readers))}"
    return unread


def check_functions(algorithm: "AlgorithmConfig", *, are_all_registered: bool = True) -> None:
    """ConfigError for an unknown estimator or loss and for options that these do not take, lack or cannot use.

    Without `are_all_registered` an unknown name is taken for one that will be registered later: nothing is checked.
    """
    for _, registry, name in _functions(algorithm):
        if not are_all_registered and name not in registry and ":" not in name:
            return
        registry.get(name)
    if algorithm.credit == "turn":
        turn_credit_of(algorithm.advantage)
    given = algorithm.model_fields_set
    for key, reason in unread_keys(algorithm).items() if given.intersection(OPTION_KEYS) else ():
        if key in given:
            raise ConfigError(f"algorithm.{key} has no effect {reason}; remove it")
    known = dict(_parameters(algorithm))
    for option, value in algorithm.options.items():
        if option in OPTION_KEYS:
            raise ConfigError(f"algorithm.options.{option} is a key of its own; write algorithm.{option}")
        if option not in known:
            names = f"advantage {algorithm.advantage!r} nor of loss {algorithm.loss!r}"
            hint = nearest_or_all(option, sorted(known.keys() - set(OPTION_KEYS))) if known else ""
            raise ConfigError(f"algorithm.options.{option} is an option neither of {names}{hint}")
        _as_declared(option, value, *known[option])
    for option, (function, parameter) in known.items():
        if parameter.default is parameter.empty and option not in (*OPTION_KEYS, *algorithm.options):
            raise ConfigError(f"algorithm.options has no {option!r}, which {function.__name__} needs; add it")


def _functions(algorithm: "AlgorithmConfig") -> tuple[tuple[str, Registry[Any], str], ...]:
    return ("advantage", ADVANTAGE_ESTIMATORS, algorithm.advantage), ("loss", POLICY_LOSSES, algorithm.loss)


def _parameters(algorithm: "AlgorithmConfig") -> Iterator[tuple[str, tuple[Any, inspect.Parameter]]]:
    """Every option of both functions, with its function and parameter."""
    for _, registry, name in _functions(algorithm):
        for option, parameter in registry.parameters_of(name).items():
            yield option, (registry.get(name), parameter)


def _as_declared(option: str, value: Any, function: Any, parameter: inspect.Parameter) -> Any:
    """The value as the type that the parameter's hint declares, such as a tuple for a list; without a readable hint as
    it is. ConfigError for a value that the hint excludes."""
    try:
        hints: Mapping[str, Any] = get_type_hints(inspect.unwrap(function), include_extras=True)
        adapter = TypeAdapter(hints.get(parameter.name, Any))
    except (NameError, PydanticSchemaGenerationError):
        return value
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise ConfigError(f"algorithm.options.{option} = {value!r}: {message[0].lower()}{message[1:]}") from None
