"""Seeded function tasks: rows for `code_exec`, the same bytes for the same seed on any machine.

Tasks are divided by fingerprint (family and rules, not names or wording): 10 % are held out (`eval`), 30 % are for
training (`train`), 60 % for demonstrations (`sft`). The first two tests of a row are its examples; a buggy solution
passes them and fails another. The last ones fail solutions one step from the right one that pass all before them.
Not here: running a model's code. What is executed here is this package's own text.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from agent_rl.data.neighbours import changed_programs, changed_values, choose_telling
from agent_rl.data.splits import Split, fingerprint, generate_round_robin, split_of
from agent_rl.data.tasks import Task
from agent_rl.envs.code.families.base import CodeFamily, Rules
from agent_rl.envs.code.families.numbers import ChangeNumbers, KeepNumbers, PickNumber
from agent_rl.envs.code.families.parsing import ParseNumbers, ParsePairs
from agent_rl.envs.code.families.parts import Chunks, Slices
from agent_rl.envs.code.families.sequences import Neighbours, Running, TwoLists, Unique
from agent_rl.envs.code.families.single_numbers import CheckNumber, Digits, LabelNumber
from agent_rl.envs.code.families.tables import Intervals, MatrixRows, Records
from agent_rl.envs.code.families.texts import ChangeText, ChangeWords, CountWords, GroupWords

NUM_EXAMPLES = 2
MIN_HIDDEN, MAX_HIDDEN = 5, 8
MAX_TELLING = 3
"""Hidden tests that a buggy solution fails, at most: the others are for other mistakes."""
MAX_MORE = 16
"""Hidden tests beyond these, for solutions one step away that still pass."""
_NUM_POOLS, _NUM_DONORS, _TIMES = 48, 12, 2
_ATTEMPTS = 400
_ALL: tuple[CodeFamily, ...] = (
    KeepNumbers(),
    CountWords(),
    PickNumber(),
    ChangeText(),
    ChangeNumbers(),
    LabelNumber(is_list=False),
    LabelNumber(is_list=True),
    CheckNumber(),
    ChangeWords(),
    Digits(),
    Slices(),
    Running(),
    ParsePairs(),
    GroupWords(),
    Neighbours(),
    Records(),
    Chunks(),
    TwoLists(),
    Intervals(),
    MatrixRows(),
    ParseNumbers(),
    Unique(),
)
FAMILIES: dict[str, CodeFamily] = {family.name: family for family in _ALL}
CELLS = [(family.name, level) for level in (1, 2, 3) for family in _ALL if level in family.levels]


def fingerprint_of(family: str, rules: Rules) -> str:
    """16 hex digits of what the function does."""
    return fingerprint([family, rules])


def generate_tasks(seed: int, splits: Sequence[Split]) -> Iterator[Task]:
    """Rows of some splits; families and levels take turns, fingerprints never repeat. It ends when all
    rules are used up, after some thousand rows; another seed words and names them anew."""
    return generate_round_robin("code", seed, splits, CELLS, lambda cell, rng, seen: _new_row(*cell, rng, splits, seen))


def reference(task: Task) -> str:
    """A right solution, as the row has it."""
    return task["reference_solution"]


def buggy(task: Task) -> str:
    """A believable wrong solution of a generated row: it passes the examples and fails a hidden test."""
    metadata = task["metadata"]
    function = task["tests"][0]["function"]
    return _code(FAMILIES[metadata["family"]], metadata["rules"], function, buggy=True)


def _new_row(
    family: str, level: int, rng: random.Random, splits: Sequence[Split], seen: set[str]
) -> dict[str, Any] | None:
    for _ in range(_ATTEMPTS):
        rules = FAMILIES[family].sample_rules(level, rng)
        known_by = fingerprint_of(family, rules)
        if known_by in seen or split_of(known_by) not in splits:
            continue
        # A demonstration ends as its teacher knows; only who trains or is held out has to be told from its neighbours.
        row = _row(FAMILIES[family], level, rules, rng, is_judged=list(splits) != ["sft"])
        if row is not None:
            seen.add(known_by)
            return row
    return None


def _row(family: CodeFamily, level: int, rules: Rules, rng: random.Random, *, is_judged: bool) -> dict[str, Any] | None:
    """All of a row but its id; None when the sampled inputs do not tell a buggy solution from a right one."""
    function = rng.choice(family.functions)
    tests = _tests(family, rules, function, rng)
    if tests is None:
        return None
    if is_judged:
        tests += _more_tests(family, level, rules, function, tests)
    signature = f"{function}({', '.join(family.arguments)})"
    words = [rng.choice(phrasings) for phrasings in family.sentences(rules)]
    opening = rng.choice([f"Write `{signature}`.", f"Write a function `{signature}`."])
    metadata = {"family": family.name, "num_examples": NUM_EXAMPLES, "rules": rules}
    return {
        "prompt": " ".join([opening, *words]),
        "starter_code": f"def {signature}:\n    ...\n",
        "tests": tests,
        "reference_solution": _code(family, rules, function, buggy=False),
        "level": level,
        "metadata": metadata,
    }


def _code(family: CodeFamily, rules: Rules, function: str, *, buggy: bool) -> str:
    lines = [f"    {line}" for line in family.body(rules, buggy=buggy)]
    return "\n".join([f"def {function}({', '.join(family.arguments)}):", *lines]) + "\n"


def _tests(family: CodeFamily, rules: Rules, function: str, rng: random.Random) -> list[dict[str, Any]] | None:
    """Examples that a buggy solution passes, then hidden tests of which it fails one to `MAX_TELLING`."""
    plain, telling = [], []
    for args in _without_repeats(family.inputs(rules, rng)):
        wanted = _outcome(lambda *given: family.answer(rules, *given), args)
        got = _outcome(_function(_code(family, rules, function, buggy=True), function), args)
        agrees = json.dumps(got) == json.dumps(wanted)
        (plain if agrees else telling).append({"function": function, "args": args, **wanted})
    shown = [test for test in plain if _is_telling_example(test)]
    if len(shown) < NUM_EXAMPLES or not telling:
        return None
    examples = [shown[0], next((test for test in shown[1:] if _result(test) != _result(shown[0])), shown[1])]
    rest = [test for test in plain if test not in examples]
    rng.shuffle(rest)
    rest.sort(key=_is_telling_example)  # the empty list and its like first: they are in every set of tests
    telling = telling[:MAX_TELLING]
    hidden = [*rest[: MAX_HIDDEN - 1 - len(telling)], *telling]
    rng.shuffle(hidden)
    if len(hidden) < MIN_HIDDEN or len({_result(test) for test in hidden}) < 2:
        return None
    return [*examples, *hidden]


def _more_tests(
    family: CodeFamily, level: int, rules: Rules, function: str, tests: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Tests that fail what is one step away in rules or code and passes `tests`."""
    rng = random.Random(f"more-{fingerprint_of(family.name, rules)}")
    pool = _without_repeats([args for _ in range(_NUM_POOLS) for args in family.inputs(rules, rng)])
    donors = [family.sample_rules(each, rng) for each in [level] * _NUM_DONORS]
    changed = [_answering(partial(family.answer, each)) for each in changed_values(rules, donors)]
    code = _code(family, rules, function, buggy=False)
    changed += [_answering(space[function]) for space in changed_programs(code) if function in space]
    right = partial(family.answer, rules)
    known = [test["args"] for test in tests]
    chosen = choose_telling(pool, _answering(right), changed, at_most=MAX_MORE, known=known, times=_TIMES)
    return [{"function": function, "args": args, **_outcome(right, args)} for args in chosen]


def _answering(function: Callable[..., Any]) -> Callable[[list[Any]], str]:
    """The outcome of a call as text, whatever a changed program raises."""

    def answer(args: list[Any]) -> str:
        try:
            return json.dumps(_outcome(function, args), sort_keys=True)
        except Exception as error:  # changed programs may raise anything; only how they differ counts
            return type(error).__name__

    return answer


def _without_repeats(inputs: list[list[Any]]) -> list[list[Any]]:
    return list({json.dumps(args): args for args in inputs}.values())


def _result(test: dict[str, Any]) -> str:
    return json.dumps([test.get("expected"), test.get("raises")])


def _is_telling_example(test: dict[str, Any]) -> bool:
    """Whether a call shows something: no empty argument, no empty answer, no exception."""
    empty: tuple[Any, ...] = ("", [], {}, None)
    return "raises" not in test and test["expected"] not in empty and all(each not in empty for each in test["args"])


def _function(code: str, name: str) -> Any:
    scope: dict[str, Any] = {}
    exec(code, scope)
    return scope[name]


def _outcome(function: Callable[..., Any], args: list[Any]) -> dict[str, Any]:
    """`expected` or `raises` of one call."""
    try:
        return {"expected": json.loads(json.dumps(function(*json.loads(json.dumps(args)))))}
    except (ValueError, KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        return {"raises": type(error).__name__}
