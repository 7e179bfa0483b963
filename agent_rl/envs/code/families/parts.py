"""Families that take a list apart: slices and chunks."""

import random
from typing import Any

from agent_rl.envs.code.families.base import Inputs, Rules, draw_step, numbers, step, step_code, step_words

_SLICES = {
    "the first {k} numbers": "[:{k}]",
    "the last {k} numbers": "[-{k}:]",
    "all but the first {k} numbers": "[{k}:]",
    "all but the last {k} numbers": "[:-{k}]",
    "every number at a position divisible by {k}, from position 0": "[::{k}]",
}


class Slices:
    name = "slices"
    levels = (1, 2)
    functions = ("part_of", "cut", "take_part", "piece", "some_of")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"part": rng.choice(list(_SLICES)), "k": rng.randint(2, 5), "few": rng.choice([-1, 0, 1, 7])}
        return rules if level == 1 else rules | {"step": draw_step(rng)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        k, part = rules["k"], rules["part"].format(k=rules["k"])
        each = f" Each of them is {step_words(rules['step'])}." if "step" in rules else ""
        return [
            (f"Return {part}.{each}", f"The answer is a list: {part}.{each}"),
            (f"A list of fewer than {k} numbers gives [{rules['few']}].", f"Fewer than {k} give [{rules['few']}]."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        part = "numbers" + _SLICES[rules["part"]].format(k=rules["k"])
        guard = [] if buggy else [f"if len(numbers) < {rules['k']}:", f"    return [{rules['few']}]"]
        return [*guard, f"return [{step_code(rules['step'])} for x in {part}]" if "step" in rules else f"return {part}"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        given, k = args[0], rules["k"]
        if len(given) < k:
            return [rules["few"]]
        places = {
            "the first": range(k),
            "the last": range(len(given) - k, len(given)),
            "all but the first": range(k, len(given)),
            "all but the last": range(len(given) - k),
            "every number at a position divisible by": range(0, len(given), k),
        }[rules["part"].split(" {k}")[0]]
        return [step(rules["step"], given[place]) if "step" in rules else given[place] for place in places]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        lengths = [rules["k"], rules["k"] - 1, 1, 0, rules["k"] + 1, 6, 7, 8, 9, 6]
        return [[numbers(rng, length)] for length in lengths]


_CHUNKS = {
    "list": ("part", lambda part: part),
    "sum": ("sum(part)", sum),
    "maximum": ("max(part)", max),
    "minimum": ("min(part)", min),
    "first number": ("part[0]", lambda part: part[0]),
}


class Chunks:
    name = "chunks"
    levels = (2, 3)
    functions = ("chunks", "in_parts", "split_up", "blocks", "portions")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"size": rng.randint(2, 5), "what": rng.choice(list(_CHUNKS)), "pad": None}
        if level == 2:
            return rules | {"shift": rng.choice([0, 0, 1, 2])}
        return rules | {"shift": 0, "what": rng.choice(["list", "sum"]), "pad": rng.randint(1, 15)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        size, what = rules["size"], "" if rules["what"] == "list" else f"the {rules['what']} of "
        begin = f", beginning at position {rules['shift']}" if rules["shift"] else ""
        out: list[tuple[str, ...]] = [
            (
                f"Cut the list into parts of {size} numbers{begin} and return {what}every part.",
                f"Return {what}every part of {size} numbers{begin}, one part after the other.",
            )
        ]
        if rules["pad"] is None:
            return [*out, ("A shorter last part is left out.", "Leave out a last part that is shorter.")]
        return [*out, (f"Fill a shorter last part up with {rules['pad']}.", f"{rules['pad']} fills a shorter part up.")]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        size, code = rules["size"], _CHUNKS[rules["what"]][0]
        lines = [
            "out = []",
            f"for i in range({rules['shift']}, len(numbers), {size}):",
            f"    part = numbers[i:i + {size}]",
        ]
        if buggy:
            return [*lines, f"    out.append({code})", "return out"]
        if rules["pad"] is None:
            return [*lines, f"    if len(part) == {size}:", f"        out.append({code})", "return out"]
        fill = [f"    while len(part) < {size}:", f"        part.append({rules['pad']})"]
        return [*lines, *fill, f"    out.append({code})", "return out"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        given, size = args[0][rules["shift"] :], rules["size"]
        if rules["pad"] is not None:
            given = given + [rules["pad"]] * (-len(given) % size)
        return [_CHUNKS[rules["what"]][1](given[size * i : size * (i + 1)]) for i in range(len(given) // size)]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        size, shift = rules["size"], rules["shift"]
        lengths = [0, 1, size, size + 1, 2 * size, 2 * size - 1, 2 * size + 1, 2 * size, 3 * size, 4, 7]
        return [[numbers(rng, length + shift if length else 0)] for length in lengths]
