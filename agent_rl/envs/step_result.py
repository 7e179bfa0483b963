"""What an environment returns, and the door at which it is read: the only place that knows other forms than ours.

Taken are messages of ours, chat messages as dictionaries, plain text where it can only be what the model reads, Gym's
tuples of four and five, and numbers of NumPy and PyTorch. Anything else is refused in one sentence that names the
method. Not here: the contract itself (`base.py`), what becomes of an episode that is refused.
"""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any

from agent_rl.agent.message_dicts import check_message, read_message
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.errors import DataError, UserError
from agent_rl.rewards.numbers import as_number

_STEP_FORMS = "a StepResult, the text that the model reads next, or (observation, reward, terminated, truncated, info)"
_MESSAGE_FORMS = "a list of messages, such as [Message.user('...')] or [{'role': 'user', 'content': '...'}], or a text"
_LAST = "truncate"
"""The method after which the model reads nothing."""
_PLAIN = (str, bool, int, float)
_MAX_INFO_DEPTH = 20
_MAX_INFO_VALUES = 10_000
_MAX_REPR_CHARS = 1000


class EnvReturnError(UserError):
    """An environment returned something that has no clear meaning."""

    place = ""
    """File and line of the method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The environment's answer to one assistant message: `StepResult(reward=1.0, terminated=True)`."""

    messages: tuple[Message, ...] = ()
    """What the model reads next; ignored when `terminated`."""
    conversation: tuple[Message, ...] | None = None
    """The whole conversation from here on, where the environment rewrites it (drops old tool output, sums up);
    `messages` is then ignored. Unless it continues the conversation word by word, a new training sample starts."""
    reward: float | None = 0.0
    """Reward of this step; the episode's reward is the sum. None: this episode cannot be scored."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Named components for the logs; the last step's win. Put `success` (0 or 1) here if the task has one."""
    terminated: bool = False
    """The task is over."""
    flags: tuple[str, ...] = ()
    """Kinds of reward hacking that were noticed. Counted in the metrics; they change no reward."""
    info: dict[str, Any] = field(default_factory=dict)
    """Anything worth logging, for example `tool_calls` and `tool_errors` (counts); kept is what JSON can hold, and the
    start of the `repr` of the rest."""


def read_opening(returned: Any, env: Any) -> list[Message]:
    """The first messages of an episode, of what `env.reset` returned: messages, a text, or Gym's `(observation, info)`.

    EnvReturnError for anything else, and for `env.tools` that are no ToolSpecs.
    """
    refuse_async(returned, env, "reset")
    if isinstance(returned, tuple) and len(returned) == 2 and _is_info(returned[1]):
        returned = returned[0]
    messages = _conversation(returned, env, "reset", "")
    read_tools(env, "reset")
    return list(messages)


def read_tools(env: Any, method: str) -> tuple[ToolSpec, ...]:
    """`env.tools` after a method; EnvReturnError for what are no ToolSpecs, or have parameters JSON cannot hold."""
    if not isinstance(env.tools, list | tuple) or not all(isinstance(tool, ToolSpec) for tool in env.tools):
        raise refusal(env, method, f"left {env.tools!r:.120} in self.tools; expected ToolSpecs, as tool.spec gives")
    for tool in env.tools:
        try:
            json.dumps(tool.parameters)
        except (TypeError, ValueError, RecursionError) as error:
            raise refusal(
                env,
                method,
                f"left the tool {tool.name!r:.60} in self.tools, whose parameters JSON cannot hold ({error!s:.120}); "
                "expected a JSON schema, as tool.spec gives",
            ) from None
    return tuple(env.tools)


def read_step(returned: Any, env: Any, method: str = "step") -> StepResult:
    """What `env.step`, or another method that answers, returned, with plain numbers and messages of ours.

    Of Gym's tuple an episode that was truncated is over, and `success` (or `is_success`) of its info counts as success.
    Messages that nobody reads, those of an end and of `truncate`, may be anything. EnvReturnError for what else has no
    clear meaning.
    """
    refuse_async(returned, env, method)
    if isinstance(returned, StepResult):
        return _read_result(returned, env, method)
    if isinstance(returned, tuple) and len(returned) in (4, 5) and not _are_messages(returned):
        return _read_gym(returned, env, method)
    if isinstance(returned, str | Message | Mapping) or _are_messages(returned):
        is_read = method != _LAST
        return StepResult(messages=_answer(returned, env, method, "") if is_read else _unread(returned, env, method))
    raise refusal(env, method, f"returned {returned!r:.80}, {_kind(returned)}; expected {_STEP_FORMS}")


def refuse_async(returned: Any, env: Any, method: str) -> None:
    """EnvReturnError for a coroutine, which nobody will await."""
    if inspect.iscoroutine(returned):
        returned.close()  # Python warns of one that is dropped
        raise refusal(env, method, "is async; write it without async: each episode runs in a thread of its own")


def refusal(env: Any, method: str, problem: str) -> EnvReturnError:
    """The error of a method of an environment, which names its class, file and line."""
    function = inspect.unwrap(getattr(type(env), method, type(env)))
    code = getattr(function, "__code__", None)
    place = f"{code.co_filename}:{code.co_firstlineno}" if code else ""
    error = EnvReturnError(f"{type(env).__qualname__}.{method}{f' ({place})' if place else ''} {problem}")
    error.place = place
    return error


def _read_result(result: StepResult, env: Any, method: str) -> StepResult:
    def fail(name: str, value: Any, expected: str) -> EnvReturnError:
        return refusal(env, method, f"gave the {name} {value!r:.80}, {_kind(value)}; expected {expected}")

    if not isinstance(result.reward_parts, Mapping):
        raise fail("reward_parts", result.reward_parts, "a dictionary of numbers")
    if not isinstance(result.info, Mapping):
        raise fail("info", result.info, "a dictionary")
    if not isinstance(result.flags, list | tuple) or not all(isinstance(flag, str) for flag in result.flags):
        raise fail("flags", result.flags, "a tuple of texts")
    reward = None if result.reward is None else _number(result.reward)
    if reward is None and result.reward is not None:
        raise fail("reward", result.reward, "one number, or None for an episode that cannot be scored")
    parts = {str(name): _number(value) for name, value in result.reward_parts.items()}
    for name, value in parts.items():
        if value is None:
            raise fail(f"reward_parts[{name!r}]", result.reward_parts[name], "one number")
    is_over = _flag(result.terminated, fail)
    conversation = None if is_over or method == _LAST else result.conversation
    is_read = not is_over and method != _LAST and conversation is None
    messages = result.messages
    messages = _answer(messages, env, method, "the messages") if is_read else _unread(messages, env, method)
    return replace(
        result,
        messages=messages,
        conversation=None if conversation is None else _conversation(conversation, env, method, "the conversation"),
        reward=reward,
        reward_parts={name: value for name, value in parts.items() if value is not None},
        terminated=is_over,
        flags=tuple(result.flags),
        info=_loggable(result.info),
    )


def _read_gym(returned: tuple[Any, ...], env: Any, method: str) -> StepResult:
    """(observation, reward, done, info), or (observation, reward, terminated, truncated, info)."""
    observation, reward, *ends, info = returned
    number = _number(reward)
    is_over = gym_end(ends, info)
    if number is None or is_over is None:
        raise refusal(
            env,
            method,
            f"returned a tuple of {len(returned)}, {returned!r:.80}; expected {_STEP_FORMS}, with one number, "
            "true or false, and a dictionary at their places",
        )
    info = info or {}
    success = next((_as_flag(info[key]) for key in ("success", "is_success") if key in info), None)
    return StepResult(
        messages=() if is_over or method == _LAST else _answer(observation, env, method, "the observation"),
        reward=number,
        reward_parts={} if success is None else {"success": float(success)},
        terminated=is_over,
        info=_loggable(info),
    )


def gym_end(ends: Sequence[Any], info: Any) -> bool | None:
    """Whether an episode is over by the last values of Gym's tuple: (done) or (terminated, truncated), and the info.

    None where they are not true or false and a dictionary, as where they stand at other places.
    """
    flags = [_as_flag(end) for end in ends]
    return None if None in flags or not isinstance(info, Mapping | None) else any(flags)


def _loggable(info: Mapping[Any, Any]) -> dict[Any, Any]:
    """What JSON can hold of it, numbers as Python's; the rest by its `repr`, cut.

    It travels between processes and into logs and checkpoints, which take neither locks nor circles.
    """
    num_left = _MAX_INFO_VALUES  # what several parts share is written out for each of them

    def kept(value: Any, above: tuple[Any, ...]) -> Any:
        nonlocal num_left
        num_left -= 1
        if value is None or type(value) in _PLAIN:
            return value
        if isinstance(value, Mapping | list | tuple):
            if num_left < 0 or len(above) == _MAX_INFO_DEPTH or any(value is each for each in above):
                return "..."
            above = (*above, value)
            if isinstance(value, Mapping):
                return {_key(key): kept(each, above) for key, each in value.items()}
            parts = [kept(each, above) for each in value]
            return parts if isinstance(value, list) else tuple(parts)
        if isinstance(value, Integral):
            return int(value)
        number = _number(value)
        return _cut(value) if number is None else number

    return {_key(key): kept(value, (info,)) for key, value in info.items()}


def _key(key: Any) -> Any:
    return key if key is None or type(key) in _PLAIN else _cut(key)


def _cut(value: Any) -> str:
    return str.__str__(value) if isinstance(value, str) else repr(value)[:_MAX_REPR_CHARS]


def _conversation(given: Any, env: Any, method: str, name: str) -> tuple[Message, ...]:
    """As `_answer`, of one message at least."""
    messages = _answer(given, env, method, name)
    if not messages:
        shown = f"{name} {given!r:.80}" if name else f"{given!r:.80}"
        raise refusal(env, method, f"returned {shown}, no message at all; expected {_MESSAGE_FORMS}")
    return messages


def _answer(given: Any, env: Any, method: str, name: str) -> tuple[Message, ...]:
    """As `_messages`, for what the model reads next."""
    messages = _messages(given, env, method, name)
    if messages and messages[-1].role == "assistant":
        raise refusal(
            env, method, "ended with a message of the assistant, whose turn it is; expected a user's at the end"
        )
    return messages


def _messages(given: Any, env: Any, method: str, name: str, *, is_read: bool = True) -> tuple[Message, ...]:
    """Messages of ours, checked if anybody reads them; `name` is what of the result they are, empty for all of it."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    if isinstance(given, str):
        listed = [Message.user(given)]
    made = []
    for at, each in enumerate(listed):
        if not isinstance(each, Message | Mapping):
            shown = f"{name} {given!r:.80}" if name else f"{given!r:.80}"
            raise refusal(env, method, f"returned {shown}, {_kind(given)}; expected {_MESSAGE_FORMS}")
        try:
            if isinstance(each, Message) and is_read:
                check_message(each, f"message {at}")
            made.append(each if isinstance(each, Message) else read_message(each, f"message {at}"))
        except DataError as error:
            raise refusal(env, method, f"returned a wrong message: {error}") from None
    return tuple(made)


def _unread(given: Any, env: Any, method: str) -> tuple[Message, ...]:
    """The messages of what nobody reads; none where it is anything else."""
    try:
        return _messages(given, env, method, "", is_read=False) if _are_messages(given) else ()
    except EnvReturnError:
        return ()


def _are_messages(given: Any) -> bool:
    return (
        isinstance(given, list | tuple)
        and bool(given)
        and all(isinstance(each, Message) or (isinstance(each, Mapping) and "role" in each) for each in given)
    )


def _is_info(given: Any) -> bool:
    return isinstance(given, Mapping) and "role" not in given


def _flag(given: Any, fail: Callable[[str, Any, str], EnvReturnError]) -> bool:
    flag = _as_flag(given)
    if flag is None:
        raise fail("terminated", given, "true or false")
    return flag


def _as_flag(given: Any) -> bool | None:
    """True or false, of 0, 1 and other libraries' values too; None for anything else."""
    if isinstance(given, bool):
        return given
    number = _number(given)
    return None if number not in (0.0, 1.0) else bool(number)


def _number(given: Any) -> float | None:
    """One number as a float, NaN too; None for anything else."""
    try:
        return as_number(given)
    except ValueError:
        return None


def _kind(value: Any) -> str:
    """`an int`, `a Tensor`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
