"""Families about text that holds numbers: `a=1;b=2`, and lines of fields."""

import random
from collections.abc import Callable
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

_REPEATS = {"the last one counts": "last", "the first one counts": "first", "they are added": "sum"}


class ParsePairs:
    name = "parse_pairs"
    levels = (2, 3)
    functions = ("parse", "read_pairs", "load_pairs", "to_dict", "read_settings")
    arguments = ("text",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"between": rng.choice(";,|/"), "is": rng.choice("=:"), "step": draw_step(rng)}
        return rules if level == 2 else rules | {"repeat": rng.choice(list(_REPEATS))}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        form = f"a{rules['is']}1{rules['between']}b{rules['is']}2"
        words = step_words(rules["step"])
        out: list[tuple[str, ...]] = [
            (
                f'The text looks like "{form}"; return a dict from name to number.',
                f'Read pairs such as "{form}" into a dict.',
            ),
            (f"Every number is {words}.", f"Store each number {words}."),
            ("Parts that are empty are skipped.", "Skip empty parts."),
        ]
        if "repeat" in rules:
            out.append(
                (f"If a name comes twice, {rules['repeat']}.", f"Of two numbers of one name, {rules['repeat']}.")
            )
        return out

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        lines = ["out = {}", f"for part in text.split({literal(rules['between'])}):"]
        if not buggy:
            lines += ["    if not part:", "        continue"]
        lines += [f"    name, value = part.split({literal(rules['is'])})", "    x = int(value)"]
        store = f"out[name] = {step_code(rules['step'])}"
        kind = _REPEATS[rules["repeat"]] if "repeat" in rules else "last"
        if kind == "first":
            return [*lines, "    if name not in out:", f"        {store}", "return out"]
        if kind == "sum":
            store = f"out[name] = out.get(name, 0) + {_grouped(step_code(rules['step']))}"
        return [*lines, f"    {store}", "return out"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        pairs = [part.split(rules["is"]) for part in args[0].split(rules["between"]) if part]
        values: dict[str, list[int]] = {}
        for name, value in pairs:
            values.setdefault(name, []).append(step(rules["step"], int(value)))
        kind = _REPEATS[rules["repeat"]] if "repeat" in rules else "last"
        take: Callable[[list[int]], int] = {"last": lambda v: v[-1], "first": lambda v: v[0], "sum": sum}[kind]
        return {name: take(each) for name, each in values.items()}

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        def text(length: int, *, gaps: bool = False) -> str:
            names = rng.sample(WORDS, length)
            if "repeat" in rules and length > 1:
                names[-1] = names[0]
            parts = [f"{name}{rules['is']}{rng.randint(-9, 40)}" for name in names]
            if gaps:
                parts.insert(rng.randint(0, length), "")
            return rules["between"].join(parts)

        return [[text(length)] for length in (1, 2, 3, 2, 3)] + [
            [""],
            [text(2, gaps=True)],
            [text(3, gaps=True)],
            [text(1, gaps=True)],
        ]


def _grouped(code: str) -> str:
    return f"({code})" if " " in code else code


_TOTALS = {"sum": ("sum(found)", sum), "largest": ("max(found)", max), "number": ("len(found)", len)}


class ParseNumbers:
    name = "parse_numbers"
    levels = (2, 3)
    functions = ("read_numbers", "parse_line", "total_of", "scan", "numbers_in")
    arguments = ("line",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {
            "between": rng.choice(",;|/"),
            "total": rng.choice(list(_TOTALS)),
            "none": rng.choice([-1, None, 0]),
        }
        return rules | ({"keep": draw_condition(rng, low=0)} if level == 3 else {"step": draw_step(rng)})

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        among = f"those that are {condition_words(rules['keep'])}" if "keep" in rules else "them"
        end = f", {step_words(rules['step'])}" if "step" in rules else ""
        between, total = rules["between"], rules["total"]
        what = f"the {total} of {among}"
        return [
            (f'The line has fields between "{between}".', f'Split the line at "{between}".'),
            ("Fields of digits are numbers; ignore all others.", "Only fields made of digits are numbers."),
            (f"Return {what}{end}.", f"The answer is {what}{end}."),
            (f"Without any, return {rules['none']}.", f"If there is none, return {rules['none']}."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        digits = "" if buggy else " if part.isdigit()"
        lines = [f"found = [int(part) for part in line.split({literal(rules['between'])}){digits}]"]
        if "keep" in rules:
            lines.append(f"found = [x for x in found if {condition_code(rules['keep'])}]")
        lines += ["if not found:", f"    return {rules['none']}"]
        code = _TOTALS[rules["total"]][0]
        return (
            [*lines, f"x = {code}", f"return {step_code(rules['step'])}"]
            if "step" in rules
            else [*lines, f"return {code}"]
        )

    def answer(self, rules: Rules, *args: Any) -> Any:
        fields = [field for field in args[0].split(rules["between"]) if field and set(field) <= set("0123456789")]
        found = [value for value in map(int, fields) if "keep" not in rules or holds(rules["keep"], value)]
        if not found:
            return rules["none"]
        total = _TOTALS[rules["total"]][1](found)
        return step(rules["step"], total) if "step" in rules else total

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        def field() -> str:
            near = number_near(rules["keep"], rng) if "keep" in rules else rng.randint(0, 40)
            return str(abs(near))

        lines = [[field() for _ in range(length)] for length in (1, 2, 3, 3, 4, 2, 5)]
        odd = [["", field()], [field(), rng.choice(WORDS), field()], [rng.choice(WORDS)], [""], [field(), "", field()]]
        return [[rules["between"].join(fields)] for fields in [*lines, *odd]]
