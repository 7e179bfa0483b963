"""Reward functions by name, and the weighted sum of some of them that scores an episode.

    @reward("short_answer")
    def short_answer(prediction: str, answer: str) -> float:
        return float(prediction == answer and len(prediction) < 20)

The parameters of a function are filled by their names: `prediction` (text of the final answer), `trajectory` (all
messages, `tuple[Message, ...]`), `task` (the row), what the environment lends, and any key of the row. Parameters with
a default may stay unfilled; `**kwargs` takes all there is. A function gives a number, or a mapping with `reward` and
other numbers to log; None means that this episode cannot be scored.
Not here: the functions (`answers.py`, `code.py`), what ends an episode, what an answer is (`envs/`).
"""

import inspect
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, SupportsFloat, TypeVar, overload

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.data.tasks import Task
from agent_rl.errors import AgentRLError, ConfigError, DataError, UserError, nearest
from agent_rl.registry import REWARDS

RewardFunction = Callable[..., float | Mapping[str, float] | None]
FunctionT = TypeVar("FunctionT", bound=RewardFunction)

FULL_REWARD = 1.0 - 1e-9
"""From here on a reward counts as a success, where no function gives `success` itself."""
_ALWAYS_GIVEN = ("prediction", "trajectory", "task")


def _as_entries(value: Any) -> list[Any]:
    """A name, an entry or a list of both -> a list of entries."""
    listed = list(value) if isinstance(value, list | tuple) else [value]
    if not listed or not all(isinstance(entry, str | Mapping | RewardSpec) for entry in listed):
        raise ValueError("expected the name of a reward, {name, weight}, or a list of these")
    return [{"name": entry} if isinstance(entry, str) else entry for entry in listed]


class RewardSpec(BaseModel):
    """One reward of a sum: `{name: qa_f1_reward, weight: 0.5}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """Name that a function is registered under, or its import path."""
    weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Factor of its reward in the sum; negative ones punish."""


RewardSpecs = Annotated[tuple[RewardSpec, ...], BeforeValidator(_as_entries)]
"""A field of a configuration model: a name, `{name, weight}`, or a list of them."""


class _Section(BaseModel):
    reward: RewardSpecs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registered:
    """A function and the names it is filled by."""

    name: str
    function: RewardFunction
    required: tuple[str, ...]
    filled: tuple[str, ...] | None
    """Required and optional ones; None where `**kwargs` takes all there is."""
    needs: tuple[str, ...]
    """Those of `required` that the environment has to lend."""


@overload
def reward(function: FunctionT, /) -> FunctionT: ...


@overload
def reward(name: str | None = None, *, needs: Sequence[str] = ()) -> Callable[[FunctionT], FunctionT]: ...


def reward(name: Any = None, *, needs: Sequence[str] = ()) -> Any:
    """Register a function as a reward: `@reward`, `@reward("name")` or `@reward(name="name")`.

    `needs` are parameters that the environment lends, such as `grade` in code tasks; the rest come from the row.
    The function stays as it is. ConfigError for a name already taken, an async function, and one with parameters that
    cannot be filled by name.
    """
    if callable(name):
        return _register(name, name.__name__, needs)
    return lambda function: _register(function, function.__name__ if name is None else name, needs)


def _register(function: FunctionT, name: str, needs: Sequence[str]) -> FunctionT:
    REWARDS.add(name, _read(function, name, needs), source=function)
    return function


def _read(function: RewardFunction, name: str, needs: Sequence[str] = ()) -> _Registered:
    """What a function is filled by; ConfigError for one that cannot be a reward."""
    if not callable(function):
        raise ConfigError(f"the reward {name!r} is no function but a {type(function).__name__}")
    if not name or name == "success" or "/" in name:
        raise ConfigError(f"a reward cannot be named {name!r}: a name is not empty, not 'success', and has no slash")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"the reward {name!r} is an async function; episodes are blocking code, make it a plain one")
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters):
        raise ConfigError(f"the reward {name!r} has parameters without a name (*args or /); name each of them")
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    required = tuple(p.name for p in named if p.default is p.empty)
    if unknown := [need for need in needs if need not in required]:
        raise ConfigError(f"the reward {name!r} says it needs {unknown[0]!r}, which is no parameter without a default")
    return _Registered(
        name=name,
        function=function,
        required=required,
        filled=tuple(p.name for p in named) if len(named) == len(parameters) else None,
        needs=tuple(needs),
    )


class RewardFailedError(UserError):
    """A reward function raised, or gave no number."""


class RewardSum:
    """The weighted sum of rewards. Holds no state: one serves all episodes, from many threads."""

    def __init__(self, entries: Sequence[tuple[_Registered, float]]) -> None:
        """Made by `make_reward`."""
        self._entries = tuple(entries)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its rewards, which are the names of their parts too."""
        return tuple(each.name for each, _ in self._entries)

    def check_task(self, task: Task, where: str) -> None:
        """DataError, opened by `where`, when a function needs a key that the row has not."""
        for each, _ in self._entries:
            for key in each.required:
                if key not in (*_ALWAYS_GIVEN, *each.needs) and key not in task:
                    hint = nearest(key, (*_ALWAYS_GIVEN, *task))
                    raise DataError(f"{where}: the reward {each.name!r} needs the key {key!r}{hint}; add it to the row")

    def __call__(
        self, *, prediction: str, trajectory: tuple[Message, ...], task: Task, **resources: Any
    ) -> tuple[float | None, dict[str, float]]:
        """Score an episode: the sum, and its parts for the logs.

        Parts are `<name>` (weight x reward), `<name>/<key>` for what else a function gave (not weighted), and
        `success`: that of the first function that gives one, else whether the first function's reward is full.
        The sum is None when a function gave None (`unscored` names it). UserError, with the reward's name, when a
        function raises or gives no finite number; what the sandbox raises stays what it is.
        """
        given = {**task, **resources, "prediction": prediction, "trajectory": trajectory, "task": task}
        total, parts, successes, rewards = 0.0, {}, [], []
        for each, weight in self._entries:
            numbers = _score(each, given)
            if numbers is None:
                return None, parts
            rewards.append(numbers.pop("reward"))
            if "success" in numbers:
                successes.append(numbers.pop("success"))
            total += weight * rewards[-1]
            parts |= _parts(each.name, weight * rewards[-1], numbers)
        parts["success"] = successes[0] if successes else float(rewards[0] >= FULL_REWARD)
        return total, parts

    def without_answer(
        self, *, trajectory: tuple[Message, ...], task: Task, **resources: Any
    ) -> tuple[float, dict[str, float]]:
        """As a call, for an episode that ended before there was an answer: `prediction` is "", and `success` is 0.

        A function that cannot score that, because it raises or gives no number, counts as 0.
        """
        given = {**task, **resources, "prediction": "", "trajectory": trajectory, "task": task}
        total, parts = 0.0, {}
        for each, weight in self._entries:
            try:
                numbers = _score(each, given) or {"reward": 0.0}
            except RewardFailedError:
                numbers = {"reward": 0.0}
            earned = weight * numbers.pop("reward")
            total += earned
            parts |= _parts(each.name, earned, {key: n for key, n in numbers.items() if key != "success"})
        return total, {**parts, "success": 0.0}

    def unscored(self, parts: Mapping[str, float]) -> str:
        """The sentence for an episode whose sum is None."""
        name = next(name for name in self.names if name not in parts)
        return f"the reward {name!r} gave None: this episode cannot be scored"


def make_reward(
    specs: str | RewardSpec | Mapping[str, Any] | Sequence[str | RewardSpec | Mapping[str, Any]],
    *,
    lends: Collection[str] | None = None,
) -> RewardSum:
    """The sum of a name, a `{name, weight}`, or a list of them.

    `lends` are the resources of the environment, checked now; None leaves that to the first episode. ConfigError for
    an unknown name, one that is there twice, an empty list, a weight that is not finite, and a resource not lent.
    """
    section = validate_section(_Section, {"reward": specs}, source="config", prefix="env.options")
    entries: dict[str, tuple[_Registered, float]] = {}
    for spec in section.reward:
        entry = REWARDS.get(spec.name)
        each = entry if isinstance(entry, _Registered) else _read(entry, spec.name.rpartition(":")[2])
        if each.name in entries:
            raise ConfigError(f"env.options.reward names {each.name!r} twice; add up the two weights")
        for need in each.needs:
            if lends is not None and need not in lends:
                raise ConfigError(
                    f"the reward {spec.name!r} needs {need!r}, which this environment does not lend; choose another"
                )
        entries[each.name] = each, spec.weight
    return RewardSum(tuple(entries.values()))


def _parts(name: str, earned: float, others: Mapping[str, float]) -> dict[str, float]:
    """What one function adds to the parts of an episode."""
    return {name: earned} | {f"{name}/{key}": number for key, number in others.items()}


def _score(each: _Registered, given: Mapping[str, Any]) -> dict[str, float] | None:
    """What one function gives, as finite numbers under `reward` and other keys; None when it cannot score."""
    for key in each.required:
        if key not in given:
            raise DataError(f"the reward {each.name!r} needs {key!r}, which neither the row nor the environment gives")
    wanted = given if each.filled is None else {key: given[key] for key in each.filled if key in given}
    try:
        outcome = each.function(**wanted)
        return _as_numbers(each.name, outcome if isinstance(outcome, Mapping) else {"reward": outcome})
    except AgentRLError:
        raise
    except Exception as error:  # the reward boundary: the sentence has to name the function
        raise RewardFailedError(f"the reward {each.name!r} raised {type(error).__name__}: {error}") from error


def _as_numbers(name: str, outcome: Mapping[str, Any]) -> dict[str, float] | None:
    if "reward" not in outcome:
        raise RewardFailedError(f"the reward {name!r} gave a mapping without 'reward': its keys are {sorted(outcome)}")
    if outcome["reward"] is None:
        return None
    for key, value in outcome.items():
        if not isinstance(value, SupportsFloat) or not math.isfinite(value):
            raise RewardFailedError(f"the reward {name!r} gave {value!r} for {key!r}, expected a finite number")
    if outcome.get("success", 0) not in (0, 1):
        raise RewardFailedError(f"the reward {name!r} gave {outcome['success']!r} for 'success', expected 0 or 1")
    return {key: float(value) for key, value in outcome.items()}
