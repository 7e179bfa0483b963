"""Families about one number, or a label for each of several: conditions that hold, labels, digits."""

import random
from typing import Any

from agent_rl.envs.code.families.base import (
    WORDS,
    Inputs,
    Rules,
    condition_code,
    condition_words,
    draw_condition,
    draw_step,
    holds,
    literal,
    number_near,
    step,
    step_code,
    step_words,
)


class CheckNumber:
    name = "check_number"
    levels = (1, 2)
    functions = ("is_fine", "matches", "is_good", "accept", "check_number")
    arguments = ("n",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        first, second = draw_condition(rng), draw_condition(rng)
        if level == 1:
            return {"first": first, "join": "never", "second": {"is": rng.choice(["less", "greater"]), "k": 0}}
        return {"first": first, "join": rng.choice(["and", "or", "but not both"]), "second": second}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        first, second = condition_words(rules["first"]), condition_words(rules["second"])
        start = ("Return True if n is", "Tell whether n is")
        if rules["join"] == "never":
            never = (f"A number {second} is never right.", f"It is False for a number {second}.")
            return [tuple(f"{each} {first}." for each in start), never]
        join = "and" if rules["join"] == "and" else "or"
        both = ", but not both" if rules["join"] == "but not both" else ""
        return [tuple(f"{each} {first} {join} {second}{both}." for each in start)]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        join = rules["join"]
        first = condition_code(rules["first"], "n", blunt=buggy and join in ("and", "or"))
        second = condition_code(rules["second"], "n")
        if join == "never":
            return [f"return {first}"] if buggy else [f"if {second}:", "    return False", f"return {first}"]
        if join == "but not both":
            return [f"return {first} or {second}"] if buggy else [f"return ({first}) != ({second})"]
        return [f"return ({first}) {join} ({second})"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        first, second = holds(rules["first"], args[0]), holds(rules["second"], args[0])
        outcome = {
            "never": first and not second,
            "and": first and second,
            "or": first or second,
            "but not both": first is not second,
        }
        return outcome[rules["join"]]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        near = [number_near(rules[which], rng) for which in ("first", "second") for _ in range(14)]
        return [[each] for each in [*near, 0, rng.randint(-20, -1), rng.randint(1, 40)]]


class LabelNumber:
    name = "label_number"
    levels = (1, 2)
    functions = ("label", "kind_of", "name_of", "grade", "classify")

    def __init__(self, *, is_list: bool) -> None:
        self.name = "label_numbers" if is_list else "label_number"
        self.levels = (2,) if is_list else (1,)
        self.arguments = ("numbers",) if is_list else ("n",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        low = rng.randint(-5, 10)
        return {"low": low, "high": low + rng.randint(2, 12), "labels": rng.sample(WORDS, 3)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        below, between, above = (literal(each) for each in rules["labels"])
        start = ("Return the label of every number:", "Give a list with a label for each number:")
        if self.arguments == ("n",):
            start = ("Return a label:", "Give the label of n:")
        limits = f"{below} below {rules['low']}, {above} above {rules['high']}, else {between}."
        return [tuple(f"{each} {limits}" for each in start)]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        below, between, above = (literal(each) for each in rules["labels"])
        equal = "=" if buggy else ""
        if self.arguments == ("n",):
            return [
                f"if n <{equal} {rules['low']}:",
                f"    return {below}",
                f"if n >{equal} {rules['high']}:",
                f"    return {above}",
                f"return {between}",
            ]
        return [
            "out = []",
            "for x in numbers:",
            f"    if x <{equal} {rules['low']}:",
            f"        out.append({below})",
            f"    elif x >{equal} {rules['high']}:",
            f"        out.append({above})",
            "    else:",
            f"        out.append({between})",
            "return out",
        ]

    def answer(self, rules: Rules, *args: Any) -> Any:
        given = args[0] if isinstance(args[0], list) else [args[0]]
        labels = [rules["labels"][(each >= rules["low"]) + (each > rules["high"])] for each in given]
        return labels if isinstance(args[0], list) else labels[0]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        low, high = rules["low"], rules["high"]
        single = [low, high, low - 1, high + 1, low + 1, rng.randint(-30, low - 1), rng.randint(high + 1, 60)]
        if self.arguments == ("n",):
            return [[each] for each in single]
        some = [[rng.choice(single) for _ in range(rng.randint(2, 5))] for _ in range(12)]
        return [[each] for each in [*some, [], [low], [high]]]


_DIGIT_PICKS = {
    "sum": ("sum({})", sum),
    "number": ("len({})", len),
    "largest": ("max({})", max),
    "smallest": ("min({})", min),
}


class Digits:
    name = "digits"
    levels = (1, 2)
    functions = ("digit_value", "of_digits", "digits_of", "from_digits", "digit_check")
    arguments = ("n",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"pick": rng.choice(["sum", "number"] if level == 2 else ["sum", "largest", "smallest"])}
        if level == 2:
            return rules | {"keep": draw_condition(rng, low=1, high=8)}
        return rules | {"step": draw_step(rng)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        among = f"digits of n that are {condition_words(rules['keep'])}" if "keep" in rules else "digits of n"
        what = (
            f"{rules['pick']} of the {among}"
            if rules["pick"] in ("sum", "number")
            else f"{rules['pick']} of all {among}"
        )
        end = f", {step_words(rules['step'])}" if "step" in rules else ""
        return [
            (f"Return the {what}{end}.", f"The answer is the {what}{end}."),
            ("The sign of n does not count.", "n may be negative; ignore its sign."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        keep = f" if {condition_code(rules['keep'], 'int(d)')}" if "keep" in rules else ""
        digits = f"[int(d) for d in str({'n' if buggy else 'abs(n)'}){keep}]"
        code = _DIGIT_PICKS[rules["pick"]][0].format("digits")
        lines = [f"digits = {digits}"]
        if "step" in rules:
            return [*lines, f"x = {code}", f"return {step_code(rules['step'])}"]
        return [*lines, f"return {code}"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        rest, found = abs(args[0]), []
        while rest or not found:
            rest, digit = divmod(rest, 10)
            found.append(digit)
        kept = [digit for digit in found if "keep" not in rules or holds(rules["keep"], digit)]
        value = _DIGIT_PICKS[rules["pick"]][1](kept)
        return step(rules["step"], value) if "step" in rules else value

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        positive = [rng.randint(10, 99999) for _ in range(8)]
        return [[each] for each in [*positive, -rng.randint(10, 999), -rng.randint(1, 9), -rng.randint(1000, 9999), 0]]
