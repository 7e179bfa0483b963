"""Families about small structures: intervals, rows of numbers, records. Not here: text to be parsed (`parsing.py`)."""

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
    number_near,
    numbers,
    step,
    step_code,
    step_words,
)

_SPANS = {
    "the total length": ("sum(sizes)", sum),
    "the largest length, 0 if there is none": ("max(sizes, default=0)", lambda sizes: max([*sizes, 0])),
    "the number of intervals": ("len(sizes)", len),
    "the list of lengths": ("sizes", lambda sizes: sizes),
}


class Intervals:
    name = "intervals"
    levels = (2, 3)
    functions = ("spans", "interval_size", "lengths", "cover", "of_intervals")
    arguments = ("intervals",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {"what": rng.choice(list(_SPANS)), "least": rng.randint(1, 12)}
        return rules if level == 2 else rules | {"cap": rng.randint(15, 40)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        out: list[tuple[str, ...]] = [("Intervals are [start, end] with length end - start.",)]
        if "cap" in rules:
            out.append((f"An end above {rules['cap']} counts as {rules['cap']}.", f"Ends are at most {rules['cap']}."))
        return [
            *out,
            (f"Skip those shorter than {rules['least']}.", f"Only lengths of {rules['least']} or more count."),
            (f"Return {rules['what']}.", f"The answer is {rules['what']}."),
            ("If start is after end, swap the two first.", "Where the end comes first, the two are swapped before."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        lines = ["sizes = []", "for start, end in intervals:"]
        if not buggy:
            lines += ["    if start > end:", "        start, end = end, start"]
        if "cap" in rules:
            lines.append(f"    end = min(end, {rules['cap']})")
        lines += [f"    if end - start >= {rules['least']}:", "        sizes.append(end - start)"]
        return [*lines, f"return {_SPANS[rules['what']][0]}"]

    def answer(self, rules: Rules, *args: Any) -> Any:
        ends = [sorted(pair) for pair in args[0]]
        sizes = [min(high, rules.get("cap", high)) - low for low, high in ends]
        return _SPANS[rules["what"]][1]([size for size in sizes if size >= rules["least"]])

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        def interval(*, turned: bool = False) -> list[int]:
            start = rng.randint(-5, 25)
            end = start + rng.choice([rules["least"], rules["least"] - 1, rng.randint(0, 20), rng.randint(10, 30)])
            return [end, start] if turned else [start, end]

        right = [[interval() for _ in range(length)] for length in (1, 2, 3, 3, 4, 2)]
        turned = [[interval(turned=rng.random() < 0.6) for _ in range(length)] for length in (2, 3, 4, 3, 2)]
        return [[each] for each in [*right, *turned, [], [interval(turned=True)]]]


_ROWS = {
    "sum": ("sum(row)", sum),
    "maximum": ("max(row)", max),
    "minimum": ("min(row)", min),
    "first number": ("row[0]", lambda row: row[0]),
    "last number": ("row[-1]", lambda row: row[-1]),
    "maximum minus the minimum": ("max(row) - min(row)", lambda row: max(row) - min(row)),
}


class MatrixRows:
    name = "matrix_rows"
    levels = (2, 3)
    functions = ("per_row", "row_values", "rows", "each_row", "row_report")
    arguments = ("rows",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        rules: Rules = {
            "what": rng.choice(list(_ROWS)),
            "empty": rng.choice([-1, 1, None, 50, 99]),
            "step": draw_step(rng),
        }
        return rules if level == 2 else rules | {"keep": draw_condition(rng)}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        what, empty, words = rules["what"], rules["empty"], step_words(rules["step"])
        out: list[tuple[str, ...]] = []
        if "keep" in rules:
            keep = condition_words(rules["keep"])
            out.append((f"In every row use only numbers that are {keep}.", f"Only numbers that are {keep} count."))
        return [
            *out,
            (f"For every row return its {what}, {words}.", f"List the {what} of each row, {words}."),
            (f"A row without numbers gives {empty}.", f"Where a row has none, put {empty}."),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        lines = ["out = []", "for row in rows:"]
        if "keep" in rules:
            lines.append(f"    row = [x for x in row if {condition_code(rules['keep'])}]")
        if not buggy:
            lines += ["    if not row:", f"        out.append({rules['empty']})", "        continue"]
        return [
            *lines,
            f"    x = {_ROWS[rules['what']][0]}",
            f"    out.append({step_code(rules['step'])})",
            "return out",
        ]

    def answer(self, rules: Rules, *args: Any) -> Any:
        rows = [[each for each in row if "keep" not in rules or holds(rules["keep"], each)] for row in args[0]]
        return [step(rules["step"], _ROWS[rules["what"]][1](row)) if row else rules["empty"] for row in rows]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        def rows(*lengths: int) -> list[list[int]]:
            return [numbers(rng, length, rules.get("keep")) for length in lengths]

        full = [rows(4, 5), rows(3, 4), rows(4), rows(5, 4, 3), rows(2, 4), rows(1), rows(6), rows(5, 6), rows(7)]
        return [[each] for each in [*full, [], rows(0), rows(2, 0), rows(0, 3, 1), rows(3, 0, 0)]]


class Records:
    name = "records"
    levels = (2, 3)
    functions = ("report", "names_of", "choose_records", "ranking", "people")
    arguments = ("records",)

    def sample_rules(self, level: int, rng: random.Random) -> Rules:
        field = rng.choice(["score", "age", "price", "size"])
        rules: Rules = {"field": field, "keep": draw_condition(rng, low=0), "order": "given"}
        if level == 2:
            return rules | {"missing": rng.randint(0, 20)}
        return rules | {"order": rng.choice(["up", "down"])}

    def sentences(self, rules: Rules) -> list[tuple[str, ...]]:
        field, words = rules["field"], condition_words(rules["keep"])
        out: list[tuple[str, ...]] = [
            (f'Records are dicts with "name" and "{field}".', f'Every record has a "name" and a "{field}".'),
            (f"Return the names whose {field} is {words}.", f"List the names with a {field} that is {words}."),
        ]
        if rules["order"] == "given":
            return [*out, (f"A missing {field} is {rules['missing']}.", f"Without a {field} it is {rules['missing']}.")]
        first = "smallest" if rules["order"] == "up" else "largest"
        return [
            *out,
            (
                f"Sort by {field}, the {first} first; equal ones by name.",
                f"The {first} {field} comes first; ties by name.",
            ),
        ]

    def body(self, rules: Rules, *, buggy: bool) -> list[str]:
        field, sign = rules["field"], "-" if rules["order"] == "down" else ""
        if rules["order"] == "given":
            value = f'r["{field}"]' if buggy else f'r.get("{field}", {rules["missing"]})'
            return [f'return [r["name"] for r in records if {condition_code(rules["keep"], value)}]']
        key = f'{sign}r["{field}"]' if buggy else f'({sign}r["{field}"], r["name"])'
        keep = condition_code(rules["keep"], f'r["{field}"]')
        lines = [f"kept = [r for r in records if {keep}]", f"kept.sort(key=lambda r: {key})"]
        return [*lines, 'return [r["name"] for r in kept]']

    def answer(self, rules: Rules, *args: Any) -> Any:
        pairs = [(each.get(rules["field"], rules.get("missing")), each["name"]) for each in args[0]]
        kept = [pair for pair in pairs if holds(rules["keep"], pair[0])]
        if rules["order"] != "given":
            kept = sorted(
                sorted(kept, key=lambda pair: pair[1]), key=lambda pair: pair[0], reverse=rules["order"] == "down"
            )
        return [name for _, name in kept]

    def inputs(self, rules: Rules, rng: random.Random) -> Inputs:
        def records(length: int, *, hard: bool = False) -> list[dict[str, Any]]:
            names = rng.sample(WORDS, length)
            out = [{"name": name, rules["field"]: abs(number_near(rules["keep"], rng))} for name in names]
            if hard and rules["order"] == "given":
                del out[rng.randrange(length)][rules["field"]]
            elif hard:
                value = next(each for each in range(20, 40) if holds(rules["keep"], each) or each == 39)
                out = [{**each, rules["field"]: rng.choice([value, each[rules["field"]]])} for each in out]
            return out

        plain = [records(length) for length in (1, 2, 2, 3, 3, 2)]
        return [[each] for each in [*plain, [], *(records(length, hard=True) for length in (3, 4, 3, 4, 4, 3))]]
