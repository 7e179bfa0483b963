"""Reward functions by name, and the weighted sum of some of them that scores an episode.

    @reward("short_answer")
    def short_answer(prediction: str, answer: str) -> float:
        return float(prediction == answer and len(prediction) < 20)

The parameters of a function are filled by their names: `prediction` (text of the final answer), `trajectory` (all
messages, `tuple[Message, ...]`), `task` (the row), what the environment lends, and any key of the row. Parameters with
a default may stay unfilled; `**kwargs` takes all there is. A function gives a number, or a mapping with `reward` and
other numbers to log; None means that this episode cannot be scored. It may be async. Functions written for TRL or
verifiers are called their way (`styles.py`).
Not here: the functions (`answers.py`, `code.py`), what ends an episode, what an answer is (`envs/`).
"""

import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.data.tasks import Task
from agent_rl.errors import (
    SAME_MEANING,
    AgentRLError,
    ConfigError,
    DataError,
    UserError,
    defined_at,
    ends_program,
    in_one_line,
    nearest,
    raised_at,
)
from agent_rl.failures import OF_ONE_CALL, FailedCall, note
from agent_rl.loop_thread import shared_loop
from agent_rl.registry import REWARDS
from agent_rl.rewards.entries import RewardSpec, RewardSpecs
from agent_rl.rewards.numbers import finite_number
from agent_rl.rewards.styles import (
    Style,
    arguments_of,
    check_callable,
    given_by_episode,
    mistyped,
    name_of,
    only_entry,
    reserved_columns,
    style_of,
)

RewardFunction = Callable[..., Any]
FunctionT = TypeVar("FunctionT", bound=RewardFunction)

FULL_REWARD = 1.0 - 1e-9
"""From here on a reward counts as a success, where no function gives `success` itself."""


class _Section(BaseModel):
    reward: RewardSpecs


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registered:
    """A function and the names it is filled by."""

    name: str
    function: RewardFunction
    style: Style
    required: tuple[str, ...]
    filled: tuple[str, ...] | None
    """Required and optional ones; None where `**kwargs` takes all there is."""
    needs: tuple[str, ...]
    """Those of `required` that the environment has to lend."""

    @property
    def place(self) -> str:
        """`" (my_rewards.py:12)"`; empty for the library's own."""
        return defined_at(self.function)


@overload
def reward(function: FunctionT, /) -> FunctionT: ...


@overload
def reward(name: str | None = None, *, needs: Sequence[str] = ()) -> Callable[[FunctionT], FunctionT]: ...


def reward(name: Any = None, *, needs: Sequence[str] = ()) -> Any:
    """Register a function as a reward: `@reward`, `@reward("name")` or `@reward(name="name")`.

    `needs` are parameters that the environment lends, such as `grade` in code tasks; the rest come from the row.
    The function stays as it is. ConfigError for a name already taken, a generator, and a function with parameters that
    cannot be filled by name.
    """
    if callable(name):
        return _register(name, name.__name__, needs)
    return lambda function: _register(function, function.__name__ if name is None else name, needs)


def _register(function: FunctionT, name: str, needs: Sequence[str]) -> FunctionT:
    REWARDS.add(name, _read(function, name, needs), source=function)
    return function


def _read(function: RewardFunction, name: str, needs: Sequence[str] = (), *, is_strict: bool = False) -> _Registered:
    """What a function is filled by; ConfigError for one that cannot be a reward.

    `is_strict` refuses also one that reads no part of an episode.
    """
    if not callable(function):
        raise ConfigError(f"the reward {name!r} is no function but a {type(function).__name__}")
    if not name or name == "success" or "/" in name:
        raise ConfigError(f"a reward cannot be named {name!r}: a name is not empty, not 'success', and has no slash")
    check_callable(function, name)
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    required = tuple(p.name for p in named if p.default is p.empty)
    if unknown := [need for need in needs if need not in required]:
        raise ConfigError(f"the reward {name!r} says it needs {unknown[0]!r}, which is no parameter without a default")
    return _Registered(
        name=name,
        function=function,
        style=style_of(named, name, is_strict=is_strict),
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

    @property
    def weights(self) -> tuple[float, ...]:
        """Of its rewards, in the same order."""
        return tuple(weight for _, weight in self._entries)

    def check_task(self, task: Task, where: str) -> None:
        """DataError, opened by `where`, when a function needs a key that the row has not, or would take one of the
        row's for the episode's; ConfigError when it has mistyped one."""
        for each, _ in self._entries:
            given = given_by_episode(each.style)
            for key in each.required:
                if key not in (*given, *each.needs) and key not in task:
                    if hint := mistyped(key, each.style, each.filled or each.required):
                        raise ConfigError(
                            f"the reward {each.name!r}{each.place} reads {key!r}, which nothing gives{hint}"
                        )
                    columns = ", ".join(name for name in task if name != "task_id")
                    hint = nearest(key, task, SAME_MEANING) or f"; the row has {columns:.200}; add it to the row"
                    raise DataError(f"{where}: the reward {each.name!r} needs the key {key!r}{hint}{each.place}")
            if taken := [key for key in reserved_columns(each.style) if key in task]:
                raise DataError(
                    f"{where}: the column {taken[0]!r} has the name of what the reward {each.name!r} is given of the "
                    "episode; rename it or drop it"
                )

    def __call__(
        self,
        *,
        prediction: str,
        trajectory: tuple[Message, ...],
        task: Task,
        num_opening: int | None = None,
        **resources: Any,
    ) -> tuple[float | None, dict[str, float]]:
        """Score an episode: the sum, and its parts for the logs.

        Parts are `<name>` (weight x reward), `<name>/<key>` for what else a function gave (not weighted), and
        `success`: that of the first function that gives one, else whether the first function's reward is full.
        The first `num_opening` messages are the prompt; None: those before the first reply. The sum is None when a
        function gave None (`unscored` names it). TRL's None means that the function does not apply: it is left out of
        the sum, which is None only without any other. UserError, with the reward's name, when a function raises or
        gives no finite number; what the sandbox raises stays what it is.
        """
        episode = _Scored(prediction, trajectory, task, num_opening, resources)
        total, parts, successes, rewards = 0.0, {}, [], []
        for each, weight in self._entries:
            numbers = _score(each, episode)
            if numbers is None and each.style is Style.BATCH:
                continue
            if numbers is None:
                return None, parts
            rewards.append(numbers.pop("reward"))
            if "success" in numbers:
                successes.append(numbers.pop("success"))
            total += weight * rewards[-1]
            parts |= _parts(each.name, weight * rewards[-1], numbers)
        if not rewards:
            return None, parts
        parts["success"] = successes[0] if successes else float(rewards[0] >= FULL_REWARD)
        return total, parts

    def without_answer(
        self, *, trajectory: tuple[Message, ...], task: Task, num_opening: int | None = None, **resources: Any
    ) -> tuple[float | None, dict[str, float]]:
        """As a call, for an episode that ended before there was an answer: `prediction` is "", and `success` is 0.

        A function that cannot score that, because it raises or gives no number, counts as 0; but one that reads
        completions has to score what there is of a reply.
        """
        episode = _Scored("", trajectory, task, num_opening, resources)
        has_reply = any(message.role == "assistant" for message in trajectory[num_opening or 0 :])
        total, parts, num_applied = 0.0, {}, 0
        for each, weight in self._entries:
            try:
                numbers = _score(each, episode)
            except RewardFailedError as error:
                if has_reply and each.style is not Style.ANSWER:
                    raise
                note(FailedCall.of(error, f"reward {each.name} without an answer"))
                numbers = {"reward": 0.0}
            if numbers is None and each.style is Style.BATCH:
                continue
            num_applied += 1
            numbers = numbers or {"reward": 0.0}
            earned = weight * numbers.pop("reward")
            total += earned
            parts |= _parts(each.name, earned, {key: n for key, n in numbers.items() if key != "success"})
        return (total, {**parts, "success": 0.0}) if num_applied else (None, parts)

    def unscored(self, parts: Mapping[str, float]) -> str:
        """The sentence for an episode whose sum is None."""
        each = next(each for each, _ in self._entries if each.name not in parts)
        what = f"the reward {each.name!r} gave None: this episode cannot be scored"
        return f"{what}; where one can, return a number{each.place}"


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


def reward_of(functions: Any, *, weights: Any = None) -> RewardSum:
    """The sum of functions given in Python, and of registered ones by name; one of them, or a list.

    `weights` are their factors, 1.0 where it is None. ConfigError for what is no reward function, one that reads no
    part of an episode, two of one name, and weights that do not fit.
    """
    listed = list(functions) if isinstance(functions, list | tuple) else [functions]
    if not listed:
        raise ConfigError("reward_funcs: is empty; give a function or a list of them")
    entries: dict[str, tuple[_Registered, float]] = {}
    for function, weight in zip(listed, _weights(weights, len(listed)), strict=True):
        each = _given(function)
        if each.name in entries:
            raise ConfigError(f"reward_funcs: names {each.name!r} twice; give the functions names of their own")
        entries[each.name] = each, weight
    return RewardSum(tuple(entries.values()))


def _given(function: Any) -> _Registered:
    if isinstance(function, str):
        entry = REWARDS.get(function)
        return entry if isinstance(entry, _Registered) else _read(entry, function.rpartition(":")[2])
    if hasattr(function, "state_dict"):
        raise ConfigError(f"reward_funcs: got {type(function).__name__}, a model; call it in a function of completions")
    if not callable(function) or inspect.isclass(function):
        raise ConfigError(f"reward_funcs: got {function!r:.80}, a {type(function).__name__}; expected a function")
    registered = REWARDS.entry_of(function)
    return registered if registered is not None else _read(function, name_of(function), is_strict=True)


def _weights(given: Any, count: int) -> list[float]:
    if given is None:
        return [1.0] * count
    if not isinstance(given, list | tuple):
        raise ConfigError(f"reward_weights: got {given!r:.80}, expected a list with a weight for each reward function")
    if len(given) != count:
        raise ConfigError(f"reward_weights: got {len(given)} weights for {count} reward functions; give one for each")
    weights = []
    for at, weight in enumerate(given):
        try:
            weights.append(finite_number(weight))
        except ValueError:
            raise ConfigError(f"reward_weights[{at}] is {weight!r:.60}; make it a finite number") from None
    return weights


def _parts(name: str, earned: float, others: Mapping[str, float]) -> dict[str, float]:
    """What one function adds to the parts of an episode."""
    return {name: earned} | {f"{name}/{key}": number for key, number in others.items()}


@dataclass(frozen=True, slots=True)
class _Scored:
    """What functions are filled from."""

    prediction: str
    trajectory: tuple[Message, ...]
    task: Task
    num_opening: int | None
    resources: Mapping[str, Any]

    def arguments(self, style: Style) -> dict[str, Any]:
        """By name, all that a function of this style may take."""
        if style is Style.ANSWER:
            own = {"prediction": self.prediction, "trajectory": self.trajectory, "task": self.task}
            return {**self.task, **self.resources, **own}
        return arguments_of(style, task=self.task, trajectory=self.trajectory, num_opening=self.num_opening)


def _score(each: _Registered, episode: _Scored) -> dict[str, float] | None:
    """What one function gives, as finite numbers under `reward` and other keys; None when it cannot score."""
    given = episode.arguments(each.style)
    for key in each.required:
        if key not in given:
            what = f"the reward {each.name!r} needs {key!r}, which neither the row nor the environment gives"
            raise DataError(f"{what}{each.place}")
    wanted = given if each.filled is None else {key: given[key] for key in each.filled if key in given}
    try:
        outcome = result_of(each.function(**wanted))
    except AgentRLError:
        raise
    except OF_ONE_CALL as error:  # the reward boundary: the sentence has to name the function and the line
        if ends_program(error):
            raise
        place = raised_at(error) or each.place  # a call with wrong arguments runs no line of it
        raise RewardFailedError(f"the reward {each.name!r} raised {in_one_line(error)}{place}") from error
    if each.style is Style.BATCH:
        try:
            outcome = only_entry(outcome)
        except ValueError as error:
            raise RewardFailedError(f"the reward {each.name!r} {error}{each.place}") from None
        return _as_numbers(each, {"reward": outcome})
    return _as_numbers(each, outcome if isinstance(outcome, Mapping) else {"reward": outcome})


def result_of(outcome: Any) -> Any:
    """What a function gave; of an async one, once it is there."""
    return shared_loop("async rewards").result(_awaited(outcome)) if inspect.isawaitable(outcome) else outcome


async def _awaited(outcome: Awaitable[Any]) -> Any:
    return await outcome


def _as_numbers(each: _Registered, outcome: Mapping[str, Any]) -> dict[str, float] | None:
    what = f"the reward {each.name!r}"
    if "reward" not in outcome:
        raise RewardFailedError(f"{what} gave a mapping without 'reward': its keys are {[*outcome]}{each.place}")
    if outcome["reward"] is None:
        return None
    numbers = {}
    for key, value in outcome.items():
        try:
            numbers[key] = finite_number(value)
        except ValueError:
            raise RewardFailedError(
                f"{what} gave {value!r:.80} for {key!r}, expected a finite number{each.place}"
            ) from None
    if numbers.get("success", 0) not in (0, 1):
        raise RewardFailedError(f"{what} gave {outcome['success']!r} for 'success', expected 0 or 1{each.place}")
    return numbers
