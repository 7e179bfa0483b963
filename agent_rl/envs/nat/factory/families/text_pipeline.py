"""Text utilities: an ordered chain of two to four operations on a text.

From level 3 on the chain also holds operations with parameters, its steps are explained in the request, and it may
work on every line by itself.
"""

import random
import re
from itertools import pairwise
from math import prod
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from agent_rl.envs.nat.factory.families import probing
from agent_rl.envs.nat.factory.families.base import Draft, Family, Inputs, Rules
from agent_rl.envs.nat.spec import ConfigField, InputField, Tool

CODE: dict[str, str] = {
    "strip": "text.strip()",
    "lower": "text.lower()",
    "upper": "text.upper()",
    "reverse": "text[::-1]",
    "squeeze": '" ".join(text.split())',
    "sort_words": '" ".join(sorted(text.split()))',
    "dedupe_words": '" ".join(dict.fromkeys(text.split()))',
    "drop_digits": '"".join(char for char in text if not char.isdigit())',
    "snake": '"_".join(text.lower().split())',
    "initials": '"".join(word[0] for word in text.split())',
    "title": '" ".join(word.capitalize() for word in text.split())',
    "swap_case": "text.swapcase()",
    "double": "text + text",
}
"""Operation names, with the expression that does it on `text`."""

MEANINGS: dict[str, str] = {
    "strip": "cut the white space at both ends",
    "lower": "put it in lower case",
    "upper": "put it in upper case",
    "reverse": "reverse the characters",
    "squeeze": "put one space between words and none at the ends",
    "sort_words": "sort the words by code point",
    "dedupe_words": "drop repeated words",
    "drop_digits": "drop the digits",
    "snake": "join the words in lower case with `_`",
    "initials": "keep the first character of each word, with nothing between",
    "title": "give each word a capital and lower case after it",
    "swap_case": "swap upper and lower case",
    "double": "write it twice with nothing between",
    "truncate": "keep the first {n} characters",
    "repeat": "write it {n} times with nothing between",
    "rotate": "move the first {n} characters to the end, if it has more than {n}",
    "replace": "replace every `{old}` by `{new}`",
    "remove": "remove every `{old}`",
    "prefix": "put `{text}` in front",
    "suffix": "put `{text}` at the end",
    "take_words": "keep words {first} to {last}, counted from 1, as far as there are any",
}
PARAMETRISED = ["prefix", "repeat", "replace", "rotate", "suffix", "take_words", "truncate"]

WORDS = [
    "apple", "Berry", "cedar", "Dune", "eagle", "Fern", "grape", "Heron", "iris", "Jade", "kiwi", "Lemon",
    "mango", "Nutmeg", "olive", "Pearl",
]  # fmt: skip
ACCENTED = ["Éclair", "naïve", "Öl", "añejo"]
EMPTY = "error: empty text"
TOO_LONG = "error: text too long"
_MAX_GROWTH = 200
_NUM_EDGES = 80

PlainOp = Literal[
    "strip", "lower", "upper", "reverse", "squeeze", "sort_words", "dedupe_words", "drop_digits", "snake", "initials",
    "title", "swap_case", "double",
]  # fmt: skip
Plain = Annotated[str, StringConstraints(pattern=r'^[^"\\`\n]*$')]


class Counted(Rules):
    op: Literal["truncate", "repeat", "rotate"]
    n: int = Field(ge=1, le=40)


class Replace(Rules):
    op: Literal["replace"]
    old: Plain = Field(min_length=1)
    new: Plain


class Affix(Rules):
    op: Literal["prefix", "suffix"]
    text: Plain = Field(min_length=1)


class TakeWords(Rules):
    op: Literal["take_words"]
    first: int = Field(ge=1)
    last: int = Field(le=200)

    @model_validator(mode="after")
    def _in_order(self) -> "TakeWords":
        if self.last < self.first:
            raise ValueError(f"last must not be below first ({self.first}), got {self.last}")
        return self


class TextRules(Rules):
    ops: list[PlainOp | Annotated[Counted | Replace | Affix | TakeWords, Field(discriminator="op")]] = Field(
        min_length=1
    )
    scope: Literal["text", "lines"] | None = None
    """Without it the operations are ordinary ones that the request only names."""
    blank_lines: Literal["drop", "keep"] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TextRules":
        if (self.scope == "lines") != (self.blank_lines is not None):
            raise ValueError(f"blank_lines is for scope lines alone, got {self.blank_lines} for {self.scope}")
        if self.scope is None and not all(isinstance(op, str) for op in self.ops):
            raise ValueError("operations with parameters need a scope, text or lines")
        return self


class TextPipeline(Family):
    name = "text_pipeline"
    function = "process"
    summary = "Apply the operations to a text, in order."
    Rules = TextRules

    def draft(self, rng: random.Random, level: int) -> Draft:
        rules: dict[str, Any]
        if level >= 3:
            rules, limited = _rich_rules(rng), rng.random() < 0.5
        else:
            rules, limited = {"ops": rng.sample(sorted(CODE), rng.randint(2, 4))}, level == 2
        return self.complete(rules, rng.choice([40, 50, 60, 80, 100, 120]) if limited else None)

    def complete(self, rules: dict[str, Any], config_default: int | None) -> Draft:
        rules = {key: value for key, value in rules.items() if value is not None}
        self.check_cost(rules)
        field = None
        if config_default is not None:
            field = ConfigField(
                name="max_length", default=config_default, low=1, high=200, description="Longest text that is accepted."
            )
        return Draft(
            rules=rules,
            inputs=(InputField(name="text", type="str"),),
            errors=(EMPTY, TOO_LONG) if field else (EMPTY,),
            config_field=field,
        )

    def check_cost(self, rules: dict[str, Any]) -> None:
        if (growth := prod(map(_growth, rules["ops"]))) > _MAX_GROWTH:
            raise ValueError(f"the steps make a text up to {growth:g} times as long, {_MAX_GROWTH} is the most")

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        rules = tool.rules
        if "scope" in rules:
            out = _rich_sentences(rules, rng)
        else:
            ops = ", ".join(f"`{op}`" for op in rules["ops"])
            out = [
                rng.choice(
                    [
                        f"It applies {ops} to a text, in this order.",
                        f"A text goes through {ops}, one after the other.",
                        f"The steps on the text are, in order, {ops}.",
                    ]
                )
            ]
        out.append(rng.choice([f"A blank text gives `{EMPTY}`.", f"Answer a text without any word by `{EMPTY}`."]))
        if tool.config_field:
            out.append(rng.choice([f"A longer text gives `{TOO_LONG}`.", f"Beyond the limit say `{TOO_LONG}`."]))
        return out

    def glossary(self, tool: Tool) -> list[str]:
        out = []
        if "scope" not in tool.rules:
            meanings = "; ".join(f"`{op}`: {MEANINGS[op]}" for op in dict.fromkeys(tool.rules["ops"]))
            out = [f"Meaning of the steps: {meanings}. Words are split at white space and joined by one space."]
        if tool.config_field:
            out.append(f"The text as given may have `{tool.config_field.name}` characters.")
        return out

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        lines = self.forgotten_check(tool)
        if tool.config_field:
            lines += ["if len(text) > max_length:", f'    return "{TOO_LONG}"']
        return [], lines + _steps(tool.rules, tool.rules["ops"])

    def forgotten_check(self, tool: Tool) -> list[str]:
        return ["if not text.strip():", f'    return "{EMPTY}"']

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        rules, (_, body) = tool.rules, self.body(tool)
        ops = rules["ops"]
        checks = body[: len(body) - len(_steps(rules, ops))]
        others = [[*ops[:index], *ops[index + 1 :]] for index in range(len(ops))]
        others += [
            [*ops[:index], second, first, *ops[index + 2 :]] for index, (first, second) in enumerate(pairwise(ops))
        ]
        out = [checks + _steps(rules, other) for other in others]
        out.append([line.replace("> max_length", ">= max_length") for line in body])
        if rules.get("scope") == "lines":
            blank = "keep" if rules["blank_lines"] == "drop" else "drop"
            out += [checks + _steps(rules | each, ops) for each in ({"scope": "text"}, {"blank_lines": blank})]
        return probing.select_detectable(self, tool, [candidate for candidate in out if candidate != body])

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        if "scope" in tool.rules:
            return _rich_inputs(tool, rng)
        words = rng.choices(WORDS, k=rng.randint(1, 4))
        if rng.random() < 0.5:
            words[rng.randrange(len(words))] += str(rng.randint(0, 9))
        text = rng.choice([" ", "  "]).join(words)
        return {"text": rng.choice([text, f" {text}", f"{text} "])}

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        out: dict[str, Inputs] = {EMPTY: {"text": rng.choice(["", " ", "   "])}}
        if tool.config_field:
            out[TOO_LONG] = {"text": "pear " * (tool.config_field.default // 5 + 1)}
        return out

    def edge_inputs(self, tool: Tool, rng: random.Random) -> list[Inputs]:
        """Texts with a word twice, and texts about as long as they may be."""
        if "scope" in tool.rules:
            return []
        out: list[Inputs] = []
        for _ in range(_NUM_EDGES):
            words = rng.choices(rng.sample(WORDS, 2), k=rng.randint(3, 5))
            words[rng.randrange(len(words))] += rng.choice(["", str(rng.randint(0, 9))])
            out.append({"text": rng.choice(["{}", " {}", "{} "]).format(rng.choice([" ", "  "]).join(words))})
        if tool.config_field:
            for extra in (-1, 0, 1, 2):
                text = rng.choice([" ", "  "]).join(rng.choices(WORDS, k=tool.config_field.default))
                out.append({"text": f"{text[: tool.config_field.default + extra - 1]}x"})
        return out

    def bad_inputs(self, tool: Tool) -> Inputs:
        return {"text": " "}

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        names = _names(rules)
        if "scope" in rules:
            return "rotate" in names and bool(names & {"dedupe_words", "take_words"})
        return names >= {"reverse", "sort_words"} or names >= {"snake", "drop_digits"}


def _names(rules: dict[str, Any]) -> set[str]:
    return {op if isinstance(op, str) else op["op"] for op in rules["ops"]}


def _rich_rules(rng: random.Random) -> dict[str, Any]:
    size = rng.randint(3, 5)
    names = rng.sample(PARAMETRISED, rng.randint(1, size - 1))
    names += rng.sample(sorted(CODE), size - len(names))
    rng.shuffle(names)
    rules: dict[str, Any] = {"ops": [_with_parameters(name, rng) for name in names], "scope": "text"}
    if rng.random() < 0.4:
        rules |= {"scope": "lines", "blank_lines": rng.choice(["drop", "keep"])}
    return rules


def _with_parameters(name: str, rng: random.Random) -> str | dict[str, Any]:
    if name == "take_words":
        first = rng.randint(1, 3)
        return {"op": name, "first": first, "last": first + rng.randint(1, 2)}
    if name == "replace":
        return {
            "op": name,
            "old": rng.choice(["a", "e", "er", "an", " "]),
            "new": rng.choice(["", "4", "_", "oo", "+"]),
        }
    if name in ("prefix", "suffix"):
        return {"op": name, "text": rng.choice(["<", ">>", "[x]", "- ", "id:", "!", "...", " end"])}
    bounds = {"truncate": (6, 15), "repeat": (3, 4), "rotate": (1, 6)}
    return {"op": name, "n": rng.randint(*bounds[name])} if name in bounds else name


def _rich_sentences(rules: dict[str, Any], rng: random.Random) -> list[str]:
    steps = []
    for op in rules["ops"]:
        name, values = (op, {}) if isinstance(op, str) else (op["op"], op)
        steps.append(MEANINGS["remove" if values.get("new") == "" else name].format(**values))
    listed = "; ".join(f"({number}) {step}" for number, step in enumerate(steps, start=1))
    out = [
        rng.choice(
            [
                f"It takes a text through these steps, in order: {listed}.",
                f"Do this with a text, one after the other: {listed}.",
                f"The steps on the text are {listed}.",
            ]
        )
    ]
    if rules["scope"] == "lines":
        blank = "left out" if rules["blank_lines"] == "drop" else "kept as they are"
        out.append(f"Every line goes through the steps on its own; blank lines are {blank}.")
    if {"sort_words", "dedupe_words", "take_words", "title"} & _names(rules):
        out.append("Words are split at white space and joined by one space.")
    return out


def _steps(rules: dict[str, Any], ops: list[str | dict[str, Any]]) -> list[str]:
    if rules.get("scope") != "lines":
        return [*(f"text = {_expression(op, 'text')}" for op in ops), "return text"]
    lines = ["lines = []", 'for line in text.split("\\n"):', "    if not line.strip():"]
    lines += ["        lines.append(line)"] if rules["blank_lines"] == "keep" else []
    lines.append("        continue")
    lines += [f"    line = {_expression(op, 'line')}" for op in ops]
    return [*lines, "    lines.append(line)", 'return "\\n".join(lines)']


def _expression(op: str | dict[str, Any], name: str) -> str:
    """What the operation makes of the variable `name`."""
    if isinstance(op, str):
        return re.sub(r"\btext\b", name, CODE[op])
    return {
        "truncate": "{name}[:{n}]",
        "repeat": "{name} * {n}",
        "rotate": "{name}[{n}:] + {name}[:{n}]",
        "replace": '{name}.replace("{old}", "{new}")',
        "prefix": '"{text}" + {name}',
        "suffix": '{name} + "{text}"',
        "take_words": '" ".join({name}.split()[{start}:{last}])',
    }[op["op"]].format(**op, name=name, start=op.get("first", 1) - 1)


def _growth(op: str | dict[str, Any]) -> float:
    """How many times as long it can make a text; what is put at its ends is not counted."""
    if isinstance(op, str):
        return 2 if op == "double" else 1
    if op["op"] == "replace":
        return max(1.0, len(op["new"]) / len(op["old"]))
    return op["n"] if op["op"] == "repeat" else 1


def _rich_inputs(tool: Tool, rng: random.Random) -> Inputs:
    lines = [_line(rng) for _ in range(rng.randint(1, 3) if tool.rules["scope"] == "lines" else 1)]
    if len(lines) > 1 and rng.random() < 0.7:
        lines.insert(1, rng.choice(["", "  "]))
    text = "\n".join(lines)
    if tool.config_field is None:
        return {"text": text}
    limit = tool.config_field.default
    if rng.random() < 0.4:
        text += " " + _line(rng) * (limit // 3)  # as long as is allowed
    text = text[:limit]
    return {"text": text[:-1] + "x" if text.endswith("\n") else text}


def _line(rng: random.Random) -> str:
    words = rng.choices(WORDS + ACCENTED, k=rng.randint(1, 5))
    if rng.random() < 0.4:
        words.append(words[0])
    if rng.random() < 0.5:
        words[rng.randrange(len(words))] += str(rng.randint(0, 9))
    return rng.choice(["", " "]) + rng.choice([" ", "  "]).join(words) + rng.choice(["", " "])
