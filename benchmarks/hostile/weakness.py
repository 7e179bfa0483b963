"""Whether hidden cases tell the right answers from those of neighbours: rules or programs one step away.

A neighbour survives when it answers every hidden question right and differs on a fresh one. Not here: which neighbours
there are (`neighbours`, `code_mutants`), how tasks are asked (`weak_nat`, `weak_code`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_SHOWN_CHARS = 200
"""Of a question or an answer."""


class UnanswerableError(Exception):
    """Rules that nobody can answer by; they are no neighbour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of the right program and of its neighbours, and the right answer."""

    given: Any
    expected: Any
    overrides: dict[str, int] = field(default_factory=dict)
    """The configuration where it is not the default one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    kind: str
    """`rules`, `setting`, `code`, ...: where the step is."""
    words: str
    ask: Callable[[Question], Any]
    """Its answer; raises UnanswerableError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One thing of a task that is judged by itself: a tool, a function group, a workflow, a function."""

    name: str
    hidden: list[Question]
    fresh: list[Question]
    neighbours: Iterable[Neighbour]


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    task_id: str
    subject: str
    kind: str
    words: str
    rate: float
    """Share of the fresh questions that it answers wrong."""
    shown: str
    """One question that tells it, with both answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found of one task."""

    task_id: str
    family: str
    num_tried: dict[str, int]
    """By kind."""
    survivors: tuple[Survivor, ...]


def examine(task_id: str, family: str, subjects: Iterable[Subject]) -> Finding:
    """Ask all neighbours: hidden questions first, up to the first that is answered wrong."""
    tried: dict[str, int] = {}
    survivors = []
    for subject in subjects:
        for neighbour in subject.neighbours:
            try:
                wrong = None if _is_told(neighbour, subject.hidden) else _wrong(neighbour, subject.fresh)
            except UnanswerableError:
                continue
            tried[neighbour.kind] = tried.get(neighbour.kind, 0) + 1
            if wrong:
                survivors.append(
                    Survivor(
                        task_id=task_id,
                        subject=subject.name,
                        kind=neighbour.kind,
                        words=neighbour.words,
                        rate=len(wrong) / len(subject.fresh),
                        shown=_shown(*wrong[0]),
                    )
                )
    return Finding(task_id=task_id, family=family, num_tried=tried, survivors=tuple(survivors))


def _is_told(neighbour: Neighbour, questions: list[Question]) -> bool:
    return any(neighbour.ask(question) != question.expected for question in questions)


def _wrong(neighbour: Neighbour, questions: list[Question]) -> list[tuple[Question, Any]]:
    answers: dict[str, Any] = {}
    out = []
    for question in questions:  # few distinct inputs come again and again
        key = json.dumps([question.given, question.overrides], sort_keys=True)
        if key not in answers:
            answers[key] = neighbour.ask(question)
        if answers[key] != question.expected:
            out.append((question, answers[key]))
    return out


def _shown(question: Question, answer: Any) -> str:
    setting = f" with {question.overrides}" if question.overrides else ""
    given, wrong, right = (_short(repr(each)) for each in (question.given, answer, question.expected))
    return f"{given}{setting}: {wrong}, right is {right}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}..."


def distinct(questions: Iterable[Question]) -> Iterator[Question]:
    """The questions without repeats."""
    seen = set()
    for question in questions:
        key = json.dumps([question.given, question.overrides], sort_keys=True)
        if key not in seen:
            seen.add(key)
            yield question
