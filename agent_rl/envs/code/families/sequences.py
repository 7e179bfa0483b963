"""Families that walk along a list: running values, neighbours, two lists at once, no value twice. Not here: parts of a
list (`parts.py`), lists of lists (`tables.py`)."""

import random
from typing import Any

from agent_rl.envs.code.families.base import (
    Inputs,
    Rules,
    condition_code,
    condition_words,
    draw_condition,
    draw_step,
    holds,
    number_lists,
    numbers,
    step,
    step_code,
    step_words,
)

_JOINS = {
    "sum": ("total + x", lambda total, x: total + x),
    "maximum": ("max(total, x)", max),
    "minimum": ("min(total, x)", min),
}


class Running:
    name = "running"
    levels = (2, 3)
    functions = ("running", "totals", "so_far", "progress", "history")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        if level == 2:
            return {"join": rng.choice(list(_JOINS)), "start": rng.randint(-5, 10), "skip": draw_condition(rng)}
        start = rng.randint(0, 5)
        return {"join": "sum", "start": start, "limit": start + rng.randint(5, 40)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        what = f"the {rules['join']} so far, starting from {rules['start']}"
        out: list[tuple[str, ...]] = [
            (f"Return a list of {what}, after every number.", f"After every number, note {what}; return these notes.")
        ]
        if "skip" in rules:
            words = condition_words(rules["skip"])
            return [*out, (f"Skip numbers that are {words}.", f"Numbers that are {words} are left out.")]
        limit = rules["limit"]
        return [
            *out,
            (
                f"When it exceeds {limit}, it is {rules['start']} again.",
                f"Above {limit} it falls back to {rules['start']}.",
            ),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        lines = ["out = []", f"total = {rules['start']}", "for x in numbers:"]
        if "skip" in rules and not buggy:
            lines += [f"    if {condition_code(rules['skip'])}:", "        continue"]
        lines.append(f"    total = {_JOINS[rules['join']][0]}")
        if "limit" in rules and not buggy:
            lines += [f"    if total > {rules['limit']}:", f"        total = {rules['start']}"]
        return [*lines, "    out.append(total)", "return out"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        out: list[int] = []
        for number in args[0]:
            if "skip" not in rules or not holds(rules["skip"], number):
                total = _JOINS[rules["join"]][1](out[-1] if out else rules["start"], number)
                out.append(rules["start"] if "limit" in rules and total > rules["limit"] else total)
        return out

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        plain = [[rng.randint(1, 9) for _ in range(3)] for _ in range(5)]
        return [[each] for each in [*number_lists(rng, rules.get("skip")), *plain]]


_GAPS = {
    "the next number minus the number": ("b - a", lambda a, b: b - a),
    "the number minus the next one": ("a - b", lambda a, b: a - b),
    "their sum": ("a + b", lambda a, b: a + b),
    "their product": ("a * b", lambda a, b: a * b),
    "the larger one": ("max(a, b)", max),
    "the smaller one": ("min(a, b)", min),
}


class Neighbours:
    name = "neighbours"
    levels = (2, 3)
    functions = ("neighbours", "gaps", "compare_pairs", "side_by_side", "pairs_of")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        if level == 2:
            return {"gap": rng.choice(list(_GAPS)), "none": rng.choice([None, *range(-9, 10)])}
        return {"least": rng.randint(2, 15), "what": rng.choice(["number", "sum"]), "step": draw_step(rng)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        if "gap" in rules:
            none = f"[{rules['none']}]"
            return [
                (f"For every two neighbours return {rules['gap']}.", f"For all two neighbours list {rules['gap']}."),
                (f"Fewer than two numbers give {none}.", f"With fewer than two numbers the answer is {none}."),
            ]
        least = rules["least"]
        what: tuple[str, ...] = (
            f"Count the neighbours that differ by {least} or more.",
            f"How many neighbours differ by {least} or more?",
        )
        if rules["what"] == "sum":
            what = (
                f"Add up the differences of neighbours that are {least} or more.",
                f"Take all differences of neighbours of {least} or more and add them up.",
            )
        return [
            what,
            ("Up or down does not matter.", "Both directions count."),
            (f"Return the answer {step_words(rules['step'])}.", f"The result is that, {step_words(rules['step'])}."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        pairs = "for a, b in zip(numbers, numbers[1:])"
        if "gap" in rules:
            guard = [] if buggy else ["if len(numbers) < 2:", f"    return [{rules['none']}]"]
            return [*guard, f"return [{_GAPS[rules['gap']][0]} {pairs}]"]
        gap = "b - a" if buggy else "abs(b - a)"
        return [
            f"gaps = [{gap} {pairs}]",
            f"far = [g for g in gaps if g >= {rules['least']}]",
            f"x = {'len' if rules['what'] == 'number' else 'sum'}(far)",
            f"return {step_code(rules['step'])}",
        ]

    def answer(self, rules: Rules, *args: Any) -> Any:
        given = args[0]
        pairs = [(given[index], given[index + 1]) for index in range(len(given) - 1)]
        if "gap" in rules:
            return [_GAPS[rules["gap"]][1](a, b) for a, b in pairs] or [rules["none"]]
        far = [max(a, b) - min(a, b) for a, b in pairs if max(a, b) - min(a, b) >= rules["least"]]
        return step(rules["step"], len(far) if rules["what"] == "number" else sum(far))

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        rising = [sorted(numbers(rng, 4)) for _ in range(4)]
        return [[each] for each in [*number_lists(rng), *rising, [rng.randint(-9, 9)]]]


_PAIRS = {
    "sum": ("a + b", lambda a, b: a + b),
    "difference": ("a - b", lambda a, b: a - b),
    "product": ("a * b", lambda a, b: a * b),
    "maximum": ("max(a, b)", max),
    "minimum": ("min(a, b)", min),
}


class TwoLists:
    name = "two_lists"
    levels = (2, 3)
    functions = ("combine", "merge_lists", "together", "join_up", "both")
    arguments = ("first", "second")

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"pair": rng.choice(list(_PAIRS)), "missing": rng.randint(0, 20)}
        return rules if level == 2 else rules | {"keep": draw_condition(rng)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        out: list[tuple[str, ...]] = [
            (
                f"Return the {rules['pair']} of the numbers at every position of first and second.",
                f"Go through first and second together and list the {rules['pair']} at every position.",
            ),
            (
                f"Where one list is shorter, its numbers count as {rules['missing']}.",
                f"A missing number is {rules['missing']}.",
            ),
        ]
        if "keep" in rules:
            words = condition_words(rules["keep"])
            out.append((f"Keep only results that are {words}.", f"Only results that are {words} stay."))
        return out

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        code, missing = _PAIRS[rules["pair"]][0], rules["missing"]
        if buggy:
            lines = ["out = []", "for a, b in zip(first, second):"]
        else:
            lines = [
                "out = []",
                "for i in range(max(len(first), len(second))):",
                f"    a = first[i] if i < len(first) else {missing}",
                f"    b = second[i] if i < len(second) else {missing}",
            ]
        if "keep" not in rules:
            return [*lines, f"    out.append({code})", "return out"]
        keep = condition_code(rules["keep"])
        return [*lines, f"    x = {code}", f"    if {keep}:", "        out.append(x)", "return out"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        longest = max(map(len, args))
        filled = [each + [rules["missing"]] * (longest - len(each)) for each in args]
        out = [_PAIRS[rules["pair"]][1](a, b) for a, b in zip(*filled, strict=True)]
        return [each for each in out if "keep" not in rules or holds(rules["keep"], each)]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        lengths = [(3, 3), (4, 4), (2, 2), (1, 1), (0, 0), (0, 2), (3, 0), (4, 2), (2, 4), (3, 4), (5, 3)]
        return [[numbers(rng, one), numbers(rng, other)] for one, other in lengths]


_KEYS = {
    "the same number, whatever the sign,": ("abs(x)", lambda x, k: abs(x)),
    "numbers with the same remainder by {k}": ("x % {k}", lambda x, k: x % k),
    "numbers with the same quotient by {k}, rounded down,": ("x // {k}", lambda x, k: x // k),
}


class Unique:
    name = "unique"
    levels = (2, 3)
    functions = ("unique", "distinct", "without_twins", "once_each", "no_repeats")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        key = rng.choice(list(_KEYS))
        rules: Rules = {"key": key, "k": rng.randint(2, 25) if "{k}" in key else 0, "step": draw_step(rng)}
        return rules if level == 2 else rules | {"keep": draw_condition(rng)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        twins = rules["key"].format(k=rules["k"])
        out: list[tuple[str, ...]] = []
        if "keep" in rules:
            words = condition_words(rules["keep"])
            out.append((f"Use only the numbers that are {words}.", f"Only numbers that are {words} count."))
        words = step_words(rules["step"])
        return [
            *out,
            (f"Of {twins} keep the first only.", f"Drop repeats: {twins} count as one, and the first stays."),
            (f"Return each number kept, {words}.", f"The result lists what is left, each {words}."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        lines = ["seen = []", "out = []", "for x in numbers:"]
        if "keep" in rules:
            lines += [f"    if not ({condition_code(rules['keep'])}):", "        continue"]
        return [
            *lines,
            f"    key = {'x' if buggy else _KEYS[rules['key']][0].format(k=rules['k'])}",
            "    if key not in seen:",
            "        seen.append(key)",
            f"        out.append({step_code(rules['step'])})",
            "return out",
        ]

    def answer(self, rules: Rules, *args: Any) -> Any:
        kept: dict[int, int] = {}
        for number in args[0]:
            if "keep" not in rules or holds(rules["keep"], number):
                kept.setdefault(_KEYS[rules["key"]][1](number, rules["k"]), number)
        return [step(rules["step"], number) for number in kept.values()]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        some = [[*each[:2], *(-x for x in each[:2])] for each in number_lists(rng, rules.get("keep"))[:4]]
        return [[each] for each in [*number_lists(rng, rules.get("keep")), *some]]
