"""Families about lists of numbers taken one by one: keep, change, pick. Not here: walks over neighbours and runs of a
list (`sequences.py`), single numbers (`single_numbers.py`)."""

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
    step,
    step_code,
    step_words,
)


class KeepNumbers:
    name = "keep_numbers"
    levels = (1, 2, 3)
    functions = ("keep_numbers", "chosen", "select", "wanted", "filter_numbers")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"keep": draw_condition(rng)}
        if level >= 2:
            rules["step"] = draw_step(rng)
        if level == 3:
            rules["order"] = rng.choice(["up", "down"])
        return rules

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        kept = f"the numbers that are {condition_words(rules['keep'])}"
        out: list[tuple[str, ...]] = [(f"Return {kept}.", f"Give back a list of {kept}.", f"Keep only {kept}.")]
        if "step" in rules:
            words = step_words(rules["step"])
            out.append((f"Each of them is {words}.", f"Return each of them {words}."))
        if "order" in rules:
            order = "smallest" if rules["order"] == "up" else "largest"
            return [*out, (f"Sort the result, the {order} first.", f"The {order} result comes first.")]
        return [*out, ("Keep their order.", "The order stays.")]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        result = step_code(rules["step"]) if "step" in rules else "x"
        code = f"[{result} for x in numbers if {condition_code(rules['keep'], blunt=buggy)}]"
        if "order" in rules:
            code = f"sorted({code})" if rules["order"] == "up" else f"sorted({code}, reverse=True)"
        return [f"return {code}"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        kept = [number for number in args[0] if holds(rules["keep"], number)]
        out = [step(rules["step"], number) for number in kept] if "step" in rules else kept
        return sorted(out, reverse=rules["order"] == "down") if "order" in rules else out

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        return [[each] for each in number_lists(rng, rules["keep"])]


class ChangeNumbers:
    name = "change_numbers"
    levels = (1, 2)
    functions = ("change_numbers", "adjust", "convert", "update_all", "rework")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        part = {"is": "less", "k": 0} if level == 1 else draw_condition(rng)
        return {"step": draw_step(rng), "skip": part, "instead": rng.choice([0, -1, 1, 100, "x"])}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        words, skip = step_words(rules["step"]), condition_words(rules["skip"])
        instead = "itself" if rules["instead"] == "x" else rules["instead"]
        return [
            (f"Return every number {words}.", f"The result is a list of all numbers, each {words}."),
            (f"A number that is {skip} gives {instead} instead.", f"But a number that is {skip} gives {instead}."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        if buggy:
            return [f"return [{step_code(rules['step'])} for x in numbers]"]
        return [
            "out = []",
            "for x in numbers:",
            f"    if {condition_code(rules['skip'])}:",
            f"        out.append({rules['instead']})",
            "    else:",
            f"        out.append({step_code(rules['step'])})",
            "return out",
        ]

    def answer(self, rules: Rules, *args: Any) -> Any:
        given = rules["instead"]
        return [
            (number if given == "x" else given) if holds(rules["skip"], number) else step(rules["step"], number)
            for number in args[0]
        ]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        some = [[rng.randint(1, 30) for _ in range(rng.randint(2, 5))] for _ in range(6)]
        return [[each] for each in [*number_lists(rng, rules["skip"]), *some]]


_PICKS = {
    "largest number": ("max({})", max),
    "smallest number": ("min({})", min),
    "first number": ("{}[0]", lambda each: each[0]),
    "last number": ("{}[-1]", lambda each: each[-1]),
    "sum": ("sum({})", sum),
    "largest minus the smallest number": ("max({0}) - min({0})", lambda each: max(each) - min(each)),
}


class PickNumber:
    name = "pick_number"
    levels = (1, 2, 3)
    functions = ("pick", "find_number", "summary", "result_of", "measure")
    arguments = ("numbers",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"pick": rng.choice(list(_PICKS)), "none": rng.choice([-1, None, 99, "ValueError"])}
        if level == 1:
            rules["step"] = draw_step(rng)
        else:
            rules["keep"] = draw_condition(rng)
        if level == 3:
            rules["step"] = draw_step(rng)
        return rules

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        among = f" of the numbers that are {condition_words(rules['keep'])}" if "keep" in rules else " of the list"
        end = f", {step_words(rules['step'])}" if "step" in rules else ""
        none = "there is none" if "keep" in rules else "the list is empty"
        gives = "raise ValueError" if rules["none"] == "ValueError" else f"return {rules['none']}"
        return [
            (f"Return the {rules['pick']}{among}{end}.", f"The answer is the {rules['pick']}{among}{end}."),
            (f"If {none}, {gives}.", f"When {none}, {gives}."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        kept = "kept" if "keep" in rules else "numbers"
        lines = [f"kept = [x for x in numbers if {condition_code(rules['keep'])}]"] if "keep" in rules else []
        if not buggy:
            gives = 'raise ValueError("no numbers")' if rules["none"] == "ValueError" else f"return {rules['none']}"
            lines += [f"if not {kept}:", f"    {gives}"]
        code = _PICKS[rules["pick"]][0].format(kept)
        if "step" not in rules:
            return [*lines, f"return {code}"]
        return [*lines, f"x = {code}", f"return {step_code(rules['step'])}"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        kept = [number for number in args[0] if "keep" not in rules or holds(rules["keep"], number)]
        if kept:
            found = _PICKS[rules["pick"]][1](kept)
            return step(rules["step"], found) if "step" in rules else found
        if rules["none"] == "ValueError":
            raise ValueError
        return rules["none"]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        return [[each] for each in number_lists(rng, rules.get("keep"))]
