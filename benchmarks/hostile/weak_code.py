"""Generated function tasks as subjects: other rules through their family, mutants of the reference solution."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from code_mutants import code_mutants
from neighbours import steps
from running import namespace_of, outcome
from weakness import Neighbour, Question, Subject, UnanswerableError

from agent_rl.envs.code.call_tests import is_answer
from agent_rl.envs.code.families.base import CodeFamily, Rules
from agent_rl.envs.code.generate import FAMILIES

NUM_SAMPLED_RULES = 200
_RAISED = (ValueError, KeyError, IndexError, TypeError, ZeroDivisionError)


class Answered:
    """An answer that equals another by the rule that judges tests."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answered) and is_answer(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.value)


def code_subjects(row: dict[str, Any], seed: int, num_fresh: int) -> Iterator[Subject]:
    """The function of a row; none for a row that no family made."""
    family = FAMILIES.get(row["metadata"].get("family", ""))
    if family is None:
        return
    rules, function = row["metadata"]["rules"], row["tests"][0]["function"]
    rng = random.Random(f"fresh-{row['task_id']}-{seed}")
    hidden = [Question(given=test["args"], expected=_expected(test)) for test in row["tests"]]
    right = namespace_of(compile(row["reference_solution"], "<reference>", "exec"))
    is_sound = all(_ask_code(right, function, question) == question.expected for question in hidden)
    fresh = [
        Question(given=given, expected=_ask_rules(family, rules, given))
        for given in _inputs(family, rules, rng, num_fresh)
    ]

    def neighbours() -> Iterator[Neighbour]:
        for words, other in steps(rules, _options(family, row["level"])):
            yield Neighbour(
                kind="rules", words=words.strip(), ask=lambda question, o=other: _ask_rules(family, o, question.given)
            )
        for words, module in code_mutants(row["reference_solution"]) if is_sound else ():
            scope = namespace_of(module)
            yield Neighbour(kind="code", words=words, ask=lambda question, s=scope: _ask_code(s, function, question))

    yield Subject(name=function, hidden=hidden, fresh=fresh, neighbours=neighbours())


def _expected(test: dict[str, Any]) -> Any:
    return ("raises", test["raises"]) if test.get("raises") else Answered(test["expected"])


def _inputs(family: CodeFamily, rules: Rules, rng: random.Random, count: int) -> Iterator[list[Any]]:
    num_made = 0
    while num_made < count:
        for given in family.inputs(rules, rng):
            num_made += 1
            yield given


def _options(family: CodeFamily, level: int) -> dict[str, list[Any]]:
    """Texts that rules of this family have elsewhere, by their key."""
    rng = random.Random(family.name)
    found: dict[str, dict[str, Any]] = {}

    def collect(value: Any, key: str) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                collect(inner, name)
        elif isinstance(value, list):
            for inner in value:
                collect(inner, key)
        elif isinstance(value, str) or value is None:
            found.setdefault(key, {})[json.dumps(value)] = value

    for _ in range(NUM_SAMPLED_RULES):
        collect(family.sample_rules(level, rng), "")
    # A list of texts is taken apart by `steps`; the texts in it are no rules.
    return {key: list(values.values())[:12] for key, values in found.items() if key != "labels"}


def _ask_rules(family: CodeFamily, rules: Rules, given: list[Any]) -> Any:
    try:
        return Answered(json.loads(json.dumps(family.answer(rules, *copy.deepcopy(given)))))
    except ValueError:
        return ("raises", "ValueError")
    except Exception as error:  # rules that make no sense
        raise UnanswerableError from error


def _ask_code(scope: dict[str, Any] | None, function: str, question: Question) -> Any:
    if scope is None:
        return ("no module",)
    given = copy.deepcopy(question.given)
    found = outcome(lambda: Answered(scope[function](*given)))
    return found
