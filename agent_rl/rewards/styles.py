"""How a reward function is called: this library's way, TRL's or verifiers', found from the names of its parameters.

| names one of | style | gets | gives |
| --- | --- | --- | --- |
| `prediction`, `trajectory`, `task`, or none | `ANSWER` | the final answer, messages, the row | a number |
| `completions`, `prompts` | `BATCH`, as in TRL | lists, of one episode each, columns of the row too | a list |
| `completion` | `SINGLE`, as in verifiers | the completion, the prompt, columns of the row | a number |

Episodes end one by one, and each is scored when it ends, so the lists of a batch hold one entry. Not here: the sum of
several rewards (`base.py`).
"""

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from agent_rl.agent.message_dicts import to_dict
from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.errors import SAME_MEANING, ConfigError, nearest


class Style(Enum):
    """Each with the names that tell it from the others; the episode fills them."""

    ANSWER = ("prediction", "trajectory", "task")
    BATCH = ("completions", "prompts")
    SINGLE = ("completion",)


_TELLING = {
    "prediction": Style.ANSWER,
    "trajectory": Style.ANSWER,
    **dict.fromkeys(Style.BATCH.value, Style.BATCH),
    **dict.fromkeys(Style.SINGLE.value, Style.SINGLE),
}
"""`task` is no such name: verifiers has a column of that name."""
_GIVEN_BY_EPISODE = {
    Style.ANSWER: Style.ANSWER.value,
    Style.BATCH: Style.BATCH.value,
    Style.SINGLE: ("completion", "prompt"),
}
_NOT_GIVEN = {
    **dict.fromkeys(
        ("completion_ids", "prompt_ids"), "environments see messages and no token ids; measure the completion's text"
    ),
    **dict.fromkeys(
        ("trainer_state", "log_extra", "log_metric", "environments"),
        "episodes are scored apart from the trainer; use the completion and the row",
    ),
}
"""What TRL gives and this library does not, each with the reason."""
_NOT_COLUMNS = ("prompt", "completion", "completion_ids")
"""Keys of a row that TRL does not hand on as columns."""


def name_of(function: Any) -> str:
    """The name of a function, of the class of an object that is called, of what a partial holds."""
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    return str(getattr(inner, "__name__", type(inner).__name__)).strip("<>")


def style_of(parameters: Sequence[inspect.Parameter], name: str, *, is_strict: bool) -> Style:
    """The style of the function called `name`. ConfigError for one that mixes two, or asks for what is not given.

    `is_strict` refuses also what names no part of an episode; otherwise that is `ANSWER`, filled from the row.
    """
    names = [parameter.name for parameter in parameters]
    telling: dict[Style, str] = {}
    for each in names:
        if each in _TELLING:
            telling.setdefault(_TELLING[each], each)
    if len(telling) > 1:
        first, second = list(telling.values())[:2]
        raise ConfigError(f"the reward {name!r} names {first!r} and {second!r}, which belong to two styles; keep one")
    if not telling:
        if is_strict and "task" not in names:
            known = ", ".join(_TELLING)
            raise ConfigError(f"the reward {name!r} names none of {known}, so it sees no reply; name what it reads")
        return Style.ANSWER
    (style,) = telling
    for parameter in parameters:
        if style is Style.BATCH and parameter.name in _NOT_GIVEN and parameter.default is parameter.empty:
            raise ConfigError(f"the reward {name!r} needs {parameter.name!r}, and {_NOT_GIVEN[parameter.name]}")
    return style


def given_by_episode(style: Style) -> tuple[str, ...]:
    """The names that need no key of the row."""
    return _GIVEN_BY_EPISODE[style]


def mistyped(name: str, style: Style, names: Collection[str]) -> str:
    """`"; did you mean 'prediction'?"` for a parameter that is nearly one of the episode's; else empty.

    Those of its own style; of any, where none of the function's `names` tells it.
    """
    own = _GIVEN_BY_EPISODE[style]
    return nearest(name, own if any(each in own for each in names) else (*_TELLING, "task", "prompt"), SAME_MEANING)


def reserved_columns(style: Style) -> tuple[str, ...]:
    """Keys that no row may have beside a function of this style, which would read them for the episode's."""
    return () if style is Style.ANSWER else style.value


def arguments_of(style: Style, *, task: Task, trajectory: Sequence[Message], num_opening: int | None) -> dict[str, Any]:
    """All that a `BATCH` or `SINGLE` function may be given, by name.

    The first `num_opening` messages are the prompt; None: those before the first reply.
    """
    if num_opening is None:
        replies = (at for at, message in enumerate(trajectory) if message.role == "assistant")
        num_opening = next(replies, len(trajectory))
    prompt = task.get("prompt")
    said = list(trajectory[num_opening:])
    completion: Any = [to_dict(message) for message in said] or [{"role": "assistant", "content": ""}]
    if isinstance(prompt, str):
        completion = _last_text(said)
    elif prompt is None:
        prompt = [to_dict(message) for message in trajectory[:num_opening]]
    if style is Style.SINGLE:
        return {**task, "prompt": prompt, "completion": completion}
    columns = {name: [value] for name, value in task.items() if name not in _NOT_COLUMNS}
    return {**columns, "prompts": [prompt], "completions": [completion]}


def _last_text(messages: Sequence[Message]) -> str:
    """The last reply as one text, its reasoning in front; empty without a reply."""
    reply = next((message for message in reversed(messages) if message.role == "assistant"), None)
    if reply is None:
        return ""
    text = reply.written or reply.content
    return f"<think>\n{reply.reasoning}\n</think>\n\n{text}" if reply.reasoning else text


def only_entry(outcome: Any) -> Any:
    """The one number of a `BATCH` function's list, array or tensor; ValueError for anything else."""
    try:
        is_list = not isinstance(outcome, str | bytes | Mapping) and len(outcome) == 1
    except TypeError:
        is_list = False
    if not is_list:
        raise ValueError(f"gave {outcome!r:.80}, expected a list with one number, for the one completion it was given")
    return next(iter(outcome))


def check_callable(function: Callable[..., Any], name: str) -> None:
    """ConfigError for a function that cannot be filled by names, or that yields."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"the reward {name!r} yields; return its result instead")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ConfigError(f"the reward {name!r} does not tell its parameters; wrap it in a function") from None
    if any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters):
        raise ConfigError(f"the reward {name!r} has parameters without a name (*args or /); name each of them")
