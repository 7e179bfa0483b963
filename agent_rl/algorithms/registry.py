"""Functions by name: how a config picks an algorithm, and how outside code adds one of its own.

One decorated function is all that a new estimator or loss needs. Not here: the functions (`estimators.py`,
`policy_losses.py`).
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from agent_rl.errors import ConfigError, nearest, nearest_or_all

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
ValueT = TypeVar("ValueT")


def look_up(table: Mapping[str, ValueT], name: str, *, kind: str) -> ValueT:
    """`table[name]`; ConfigError with the nearest name, or all names, where there is none, calling it a `kind`."""
    if name not in table:
        hint = nearest_or_all(name, table)
        raise ConfigError(f"unknown {kind} {name!r}{hint}")
    return table[name]


class Registry(Generic[FunctionT]):
    """Name -> function. The parameters of a function after its first `num_inputs` are its options."""

    def __init__(self, kind: str, *, num_inputs: int) -> None:
        """`kind` is what errors call the functions, such as "policy loss"."""
        self._kind = kind
        self._num_inputs = num_inputs
        self._functions: dict[str, FunctionT] = {}

    def register(self, name: str) -> Callable[[FunctionT], FunctionT]:
        """Decorator that gives a function a name and returns it unchanged.

        ConfigError when the name is taken, or when the function takes `*args` or `**kwargs`: options are passed by
        name to those who name them.
        """

        def decorate(function: FunctionT) -> FunctionT:
            if name in self._functions:
                raise ConfigError(f"there is a {self._kind} {name!r} already; register yours under another name")
            parameters = inspect.signature(function).parameters.values()
            if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
                raise ConfigError(
                    f"the {self._kind} {name!r} takes *args or **kwargs; name each of its options instead"
                )
            self._functions[name] = function
            return function

        return decorate

    def get(self, name: str) -> FunctionT:
        """The function of that name; ConfigError with the nearest name where there is none."""
        return look_up(self._functions, name, kind=self._kind)

    def names(self) -> tuple[str, ...]:
        """All names, in the order of registration."""
        return tuple(self._functions)

    def options_of(self, name: str) -> set[str]:
        """Names of the options that the function of that name uses."""
        return set(list(inspect.signature(self.get(name)).parameters)[self._num_inputs :])

    def call(self, name: str, *inputs: Any, **options: Any) -> Any:
        """The result of the function, given those of the options that it uses.

        So a trainer can pass all that its config has. ConfigError for an option that no registered function uses.
        """
        function, used = self.get(name), self.options_of(name)
        known = {option for other in self._functions for option in self.options_of(other)}
        for option in options:
            if option not in known:
                raise ConfigError(f"no {self._kind} has an option {option!r}{nearest(option, known)}")
        return function(*inputs, **{option: value for option, value in options.items() if option in used})
