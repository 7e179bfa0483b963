"""What a family of function tasks is, and the small parts that families share: conditions, steps, numbers, words.

A family samples rules as plain data, words them, writes the function in one regular style (with or without its guard)
and computes what a call must return. Not here: the families, choosing tests, rows (`generate.py`).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

Rules = dict[str, Any]
"""What a function does, without names and wording: plain JSON."""
Inputs = list[list[Any]]
"""Arguments of calls, one list a call."""


class CodeFamily(Protocol):
    """A kind of task. Everything it does follows from `Rules`, which `sample_rules` makes."""

    name: str
    levels: tuple[int, ...]
    functions: tuple[str, ...]
    """Names a function may get."""
    arguments: tuple[str, ...]

    def sample_rules(self, level: int, rng: random.Random) -> Rules: ...

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        """What the function does: the phrasings of every sentence."""
        ...

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        """Lines of the function; the buggy ones leave out or blunt the guard."""
        ...

    def answer(self, rules: Rules, *args: Any) -> Any:
        """What a call must give, worked out apart from `body`. ValueError where the function must raise it."""
        ...

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        """Arguments to call it with, those that tell a buggy function from a right one among them."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCondition:
    """`CodeCondition(words="greater than {k}", code="x > {k}", blunt="x >= {k}", holds=lambda x, k: x > k)`."""

    words: str
    code: str
    blunt: str
    """Code that is wrong at the edge: at the limit itself, or at zero and below it."""
    holds: Callable[[int, int], bool]


CONDITIONS = {
    "greater": CodeCondition(words="greater than {k}", code="x > {k}", blunt="x >= {k}", holds=lambda x, k: x > k),
    "less": CodeCondition(words="less than {k}", code="x < {k}", blunt="x <= {k}", holds=lambda x, k: x < k),
    "at least": CodeCondition(words="not less than {k}", code="x >= {k}", blunt="x > {k}", holds=lambda x, k: x >= k),
    "at most": CodeCondition(words="not greater than {k}", code="x <= {k}", blunt="x < {k}", holds=lambda x, k: x <= k),
    "even": CodeCondition(words="even", code="x % 2 == 0", blunt="x % 2 == 0 and x > 0", holds=lambda x, k: x % 2 == 0),
    "odd": CodeCondition(words="odd", code="x % 2 == 1", blunt="x % 2 == 1 and x > 0", holds=lambda x, k: x % 2 == 1),
    "divisible": CodeCondition(
        words="divisible by {k}", code="x % {k} == 0", blunt="x % {k} == 0 and x > 0", holds=lambda x, k: x % k == 0
    ),
    "not divisible": CodeCondition(
        words="not divisible by {k}", code="x % {k} != 0", blunt="x % {k} == 1", holds=lambda x, k: x % k != 0
    ),
}
STEPS: dict[str, tuple[str, str, Callable[[int, int], int]]] = {
    "plus": ("plus {k}", "x + {k}", lambda x, k: x + k),
    "minus": ("minus {k}", "x - {k}", lambda x, k: x - k),
    "times": ("times {k}", "x * {k}", lambda x, k: x * k),
    "taken from": ("taken from {k}", "{k} - x", lambda x, k: k - x),
    "squared": ("squared", "x * x", lambda x, k: x * x),
    "halved": ("halved and rounded down", "x // 2", lambda x, k: x // 2),
}
"""Name -> words, code and meaning of a step on a number."""


def draw_condition(rng: random.Random, *, low: int = -5, high: int = 20) -> Rules:
    kind = rng.choice(list(CONDITIONS))
    if "divisible" in kind:
        return {"is": kind, "k": rng.randint(3, 9)}
    return {"is": kind, "k": 0 if kind in ("even", "odd") else rng.randint(low, high)}


def condition_words(part: Rules) -> str:
    return CONDITIONS[part["is"]].words.format(k=part["k"])


def condition_code(part: Rules, variable: str = "x", *, blunt: bool = False) -> str:
    condition = CONDITIONS[part["is"]]
    code = condition.blunt if blunt else condition.code
    return code.format(k=part["k"]).replace("x", variable)


def holds(part: Rules, number: int) -> bool:
    return CONDITIONS[part["is"]].holds(number, part["k"])


def draw_step(rng: random.Random) -> Rules:
    kind = rng.choice(list(STEPS))
    return {"do": kind, "k": 0 if kind in ("squared", "halved") else rng.randint(2, 12)}


def step_words(part: Rules) -> str:
    return STEPS[part["do"]][0].format(k=part["k"])


def step_code(part: Rules) -> str:
    return STEPS[part["do"]][1].format(k=part["k"])


def step(part: Rules, number: int) -> int:
    return STEPS[part["do"]][2](number, part["k"])


def number_near(part: Rules, rng: random.Random) -> int:
    """A number that is likely to lie where a blunt condition errs, or just beside it."""
    k = part["k"]
    if part["is"] in ("even", "odd") or "divisible" in part["is"]:
        return rng.choice([0, -k or -2, -3, -4, 2 * k, 3 * k + 2, k + 2, rng.randint(-9, 30)])
    return rng.choice([k, k, k - 1, k + 1, rng.randint(-9, 30)])


def numbers(rng: random.Random, length: int, near: Rules | None = None) -> list[int]:
    """A list of small numbers, half of them near the edge of a condition where one is given."""
    return [
        number_near(near, rng) if near and rng.random() < 0.5 else rng.choice([rng.randint(-9, 9), rng.randint(0, 30)])
        for _ in range(length)
    ]


def number_lists(rng: random.Random, near: Rules | None = None) -> list[list[int]]:
    """Lists to call a function with: some numbers, none, one, two, only negative ones, and every one twice."""
    some = [numbers(rng, rng.randint(3, 6), near) for _ in range(7)]
    return [
        *some,
        [],
        numbers(rng, 1, near),
        numbers(rng, 2, near),
        [-rng.randint(1, 9) for _ in range(3)],
        some[0][:3] * 2,
    ]


WORDS = (
    "amber", "apple", "arrow", "bell", "berry", "cedar", "cloud", "comet", "dawn", "delta", "eagle", "ember", "fern",
    "flint", "grape", "grove", "hazel", "heron", "iris", "ivory", "jade", "kite", "lake", "lemon", "maple", "moss",
    "night", "north", "oak", "olive", "pearl", "pine", "quill", "rain", "reed", "river", "sand", "stone", "tide",
    "tulip", "vale", "wave", "wheat", "wolf", "yarn", "zinc",
)  # fmt: skip
SHORT_WORDS = ("a", "an", "at", "by", "ink", "owl", "sea", "to", "up", "ax")
LETTERS = "abcdefghiklmnoprstw"


def word(rng: random.Random, *, letter: str = "") -> str:
    """A word, now and then short, or written with capitals; half of them hold `letter` where one is given."""
    text = rng.choice(SHORT_WORDS) if rng.random() < 0.2 else rng.choice(WORDS)
    if letter and rng.random() < 0.5:
        text = rng.choice([text + letter, letter + text, letter])
    return rng.choice([text, text, text.capitalize(), text.upper()])


def word_lists(rng: random.Random, *, letter: str = "") -> list[list[str]]:
    """Lists to call a function with: mixed words, plain ones, none, a short one, and every one twice."""
    some = [[word(rng, letter=letter) for _ in range(rng.randint(2, 5))] for _ in range(9)]
    plain = [[rng.choice(WORDS) for _ in range(3)] for _ in range(3)]
    return [*some, *plain, [], [rng.choice(SHORT_WORDS)], some[0][:2] * 2]


def literal(text: str) -> str:
    """A text without quotes and backslashes as Python source."""
    return f'"{text}"'
