"""Rewards of the raced tasks, the same function for both trainers: `f(completions, **columns) -> [float, ...]`, 1 is
solved.

The style is TRL's, which agent_rl takes too. The tags have to end the reply: where writing on costs nothing, a model
unlearns to stop, and a reply that is cut off is no success. Standard library only, as TRL's interpreter imports this;
Reasoning Gym is imported for its own data sets. Not here: rows (`tasks.py`).
"""

import ast
import json
import re
import sys
from collections.abc import Sequence
from difflib import SequenceMatcher
from fractions import Fraction
from functools import cache
from typing import Any

FORMAT_REWARD = 0.1
"""Of Countdown: an equation in its tags that is not right."""
_REVERSED = re.compile(r"<reversed_text>(.*?)</reversed_text>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_MARK = re.compile(r"Answer:", re.IGNORECASE)
_MAX_EQUATION = 100
_TOKEN = re.compile(r"\s*(\d+|[-+*/()])")


def text_of(completion: Any) -> str:
    """The reply of a completion: a text, or a list that ends with the assistant's message."""
    return completion if isinstance(completion, str) else completion[-1].get("content") or ""


def reverse_text(completions: Sequence[Any], answer: Sequence[str], **_: Any) -> list[float]:
    """How alike the tagged text and the reversed one are: prime-rl's reverse-text."""
    return [_alike(text_of(completion), right) for completion, right in zip(completions, answer, strict=True)]


def _alike(text: str, right: str) -> float:
    answer = _ending(text, _REVERSED)
    return 0.0 if answer is None else SequenceMatcher(None, answer, right).ratio()


def _ending(text: str, tags: re.Pattern[str]) -> str | None:
    """What the last tags hold, if they end the text."""
    found = list(tags.finditer(text))
    return found[-1][1].strip() if found and not text[found[-1].end() :].strip() else None


def countdown(
    completions: Sequence[Any], numbers: Sequence[Sequence[int]], target: Sequence[int], **_: Any
) -> list[float]:
    """1 for an equation of exactly the numbers that reaches the target, 0.1 for another one: TinyZero's Countdown."""
    rows = zip(completions, numbers, target, strict=True)
    return [_equation_score(text_of(completion), given, goal) for completion, given, goal in rows]


def _equation_score(text: str, numbers: Sequence[int], target: int) -> float:
    equation = _ending(text, _ANSWER)
    if equation is None:
        return 0.0
    try:
        value = value_of(equation)
    except (ValueError, ZeroDivisionError):
        return 0.0
    used = sorted(map(int, re.findall(r"\d+", equation)))
    return 1.0 if value == target and used == sorted(numbers) else FORMAT_REWARD


def value_of(equation: str) -> Fraction:
    """The exact value of numbers, + - * / and brackets. ValueError for anything else; nothing runs as Python."""
    if len(equation) > _MAX_EQUATION:
        raise ValueError("too long")
    tokens = _TOKEN.findall(equation)
    if "".join(tokens) != "".join(equation.split()):
        raise ValueError("not an equation")
    tokens.reverse()  # the next one is the last
    value = _sum(tokens)
    if tokens:
        raise ValueError("text behind the equation")
    return value


def _sum(tokens: list[str]) -> Fraction:
    value = _product(tokens)
    while tokens and tokens[-1] in "+-":
        value = value + _product(tokens) if tokens.pop() == "+" else value - _product(tokens)
    return value


def _product(tokens: list[str]) -> Fraction:
    value = _factor(tokens)
    while tokens and tokens[-1] in "*/":
        value = value * _factor(tokens) if tokens.pop() == "*" else value / _factor(tokens)
    return value


def _factor(tokens: list[str]) -> Fraction:
    if not tokens:
        raise ValueError("the equation ends early")
    token = tokens.pop()
    if token.isdecimal():
        return Fraction(int(token))
    if token != "(":
        raise ValueError(f"{token} where a number is expected")
    value = _sum(tokens)
    if not tokens or tokens.pop() != ")":
        raise ValueError("a bracket is not closed")
    return value


def reasoning_gym(completions: Sequence[Any], dataset: Sequence[str], entry: Sequence[str], **_: Any) -> list[float]:
    """The data set's own `score_answer`; 0 for an answer that it raises on.

    `dataset` is JSON of its name and parameters, `entry` the question with what its scorer needs, as Python's literals.
    """
    rows = zip(completions, dataset, entry, strict=True)
    return [_own_score(text_of(completion), name, literal) for completion, name, literal in rows]


def _own_score(text: str, dataset: str, entry: str) -> float:
    scorer, question = _opened(dataset), ast.literal_eval(entry)
    try:
        return float(scorer.score_answer(answer_of(text), question))
    except Exception:  # the package's boundary: several scorers raise on what is no answer
        return 0.0


def answer_of(text: str) -> str:
    """What stands in the last `<answer>` tags, else behind the last `Answer:`, else the whole text."""
    tagged = _ANSWER.findall(text)
    return (tagged[-1] if tagged else _MARK.split(text)[-1]).strip()


@cache
def _opened(dataset: str) -> Any:
    import reasoning_gym as package

    name, parameters = json.loads(dataset)
    return package.create_dataset(name, seed=0, size=1, **parameters)


def check_packages(reward: str) -> None:
    """SystemExit where the reward needs Reasoning Gym and this interpreter has none; otherwise each reply would earn
    0."""
    if reward.endswith(":reasoning_gym"):
        try:
            import reasoning_gym as package  # noqa: F401
        except ImportError as error:
            raise SystemExit(
                f"{sys.executable} cannot import reasoning_gym, which scores the task ({error}); run `make setup-trl`"
            ) from None
