"""Text utilities: an ordered chain of two to four operations on a text."""

import random

from agent_rl.nat.families.base import Draft, Family, Inputs
from agent_rl.nat.spec import ConfigField, InputField, NATSpec

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

WORDS = [
    "apple", "Berry", "cedar", "Dune", "eagle", "Fern", "grape", "Heron", "iris", "Jade", "kiwi", "Lemon",
    "mango", "Nutmeg", "olive", "Pearl",
]  # fmt: skip
EMPTY = "error: empty text"
TOO_LONG = "error: text too long"


class TextPipeline(Family):
    name = "text_pipeline"
    function = "process"
    summary = "Apply the operations to a text, in order."

    def draft(self, rng: random.Random, level: int) -> Draft:
        ops = rng.sample(sorted(CODE), rng.randint(2, 4))
        field = None
        if level == 2:
            limit = rng.choice([40, 50, 60, 80, 100, 120])
            field = ConfigField(
                name="max_length", default=limit, low=1, high=200, description="Longest text that is accepted."
            )
        return Draft(
            rules={"ops": ops},
            inputs=(InputField(name="text", type="str"),),
            errors=(EMPTY, TOO_LONG) if field else (EMPTY,),
            config_field=field,
        )

    def sentences(self, spec: NATSpec, rng: random.Random) -> list[str]:
        ops = ", ".join(f"`{op}`" for op in spec.rules["ops"])
        out = [
            rng.choice(
                [
                    f"It applies {ops} to a text, in this order.",
                    f"A text goes through {ops}, one after the other.",
                    f"The steps on the text are, in order, {ops}.",
                ]
            ),
            rng.choice([f"A blank text gives `{EMPTY}`.", f"Answer a text without any word by `{EMPTY}`."]),
        ]
        if spec.config_field:
            out.append(rng.choice([f"A longer text gives `{TOO_LONG}`.", f"Beyond the limit say `{TOO_LONG}`."]))
        return out

    def body(self, spec: NATSpec) -> tuple[list[str], list[str]]:
        lines = self.forgotten_check(spec)
        if spec.config_field:
            lines += ["if len(text) > max_length:", f'    return "{TOO_LONG}"']
        lines += [f"text = {CODE[op]}" for op in spec.rules["ops"]]
        return [], [*lines, "return text"]

    def forgotten_check(self, spec: NATSpec) -> list[str]:
        return ["if not text.strip():", f'    return "{EMPTY}"']

    def valid_inputs(self, spec: NATSpec, rng: random.Random) -> Inputs:
        words = rng.choices(WORDS, k=rng.randint(1, 4))
        if rng.random() < 0.5:
            words[rng.randrange(len(words))] += str(rng.randint(0, 9))
        text = rng.choice([" ", "  "]).join(words)
        return {"text": rng.choice([text, f" {text}", f"{text} "])}

    def error_inputs(self, spec: NATSpec, rng: random.Random) -> dict[str, Inputs]:
        out: dict[str, Inputs] = {EMPTY: {"text": rng.choice(["", " ", "   "])}}
        if spec.config_field:
            out[TOO_LONG] = {"text": "pear " * (spec.config_field.default // 5 + 1)}
        return out
