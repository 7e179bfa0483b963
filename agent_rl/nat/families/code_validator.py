"""Validators: an identifier must meet two to four rules, checked in the order of the request."""

import random

from agent_rl.nat.families.base import Draft, Family, Inputs
from agent_rl.nat.spec import ConfigField, InputField, NATSpec

PREFIXES = ["ab", "cx", "dk", "em", "fz", "gr", "hq", "jt", "kw", "ln", "mp", "nv"]
MARKS = ["-", "_", ".", ":", "#"]
CHARSETS = {"letters": "isalpha", "digits": "isdigit", "letters and digits": "isalnum"}

BLANK = "error: blank code"
SHORT = "error: too short"
LONG = "error: too long"
PREFIX = "error: bad prefix"
MARK = "error: mark missing"
ENDING = "error: bad ending"


class CodeValidator(Family):
    name = "code_validator"
    function = "check"
    summary = "Check a code against the rules."

    def draft(self, rng: random.Random, level: int) -> Draft:
        kinds = rng.sample(["prefix", "mark", "ending", "min_length"], rng.randint(1, 3))
        rules: list[list[str | int]] = [["not_blank", ""]]
        for kind in kinds:
            if kind == "prefix":
                rules.append([kind, rng.choice(PREFIXES)])
            elif kind == "mark":
                rules.append([kind, rng.choice(MARKS)])
            elif kind == "ending":
                rules.append([kind, rng.choice(sorted(CHARSETS))])
            else:
                rules.append([kind, rng.randint(5, 9)])
        field = None
        if level == 2:
            rules.append(["max_length", ""])
            field = ConfigField(
                name="max_length", default=rng.randint(12, 19), low=1, high=99, description="Longest code accepted."
            )
        return Draft(
            rules={"rules": rules},
            inputs=(InputField(name="code", type="str"),),
            errors=tuple(_ERRORS[str(kind)] for kind, _ in rules),
            config_field=field,
        )

    def sentences(self, spec: NATSpec, rng: random.Random) -> list[str]:
        out = [
            rng.choice(
                [
                    "It checks a code and answers `ok` when every rule holds.",
                    "The tool validates a code; the answer is `ok` or the first error.",
                    "Codes are checked rule by rule; a good one gives `ok`.",
                ]
            )
        ]
        for kind, value in spec.rules["rules"]:
            error = _ERRORS[kind]
            out.append(
                {
                    "not_blank": f"Blank: `{error}`.",
                    "prefix": f"It must start with `{value}`, else `{error}`.",
                    "mark": f"It must hold `{value}`, else `{error}`.",
                    "ending": f"The last character is one of the {value}, else `{error}`.",
                    "min_length": f"At least {value} characters, else `{error}`.",
                    "max_length": f"A longer one: `{error}`.",
                }[kind]
            )
        return out

    def body(self, spec: NATSpec) -> tuple[list[str], list[str]]:
        lines: list[str] = []
        for kind, value in spec.rules["rules"]:
            condition = {
                "not_blank": "not code.strip()",
                "prefix": f'not code.startswith("{value}")',
                "mark": f'"{value}" not in code',
                "ending": f"not code[-1].{CHARSETS.get(str(value))}()",
                "min_length": f"len(code) < {value}",
                "max_length": "len(code) > max_length",
            }[kind]
            lines += [f"if {condition}:", f'    return "{_ERRORS[kind]}"']
        return [], [*lines, 'return "ok"']

    def forgotten_check(self, spec: NATSpec) -> list[str]:
        return self.body(spec)[1][:2]

    def valid_inputs(self, spec: NATSpec, rng: random.Random) -> Inputs:
        head, mark, ends = self._parts(spec)
        longest = spec.config_field.default if spec.config_field else 24
        shortest = max(dict(spec.rules["rules"]).get("min_length", 3), len(head) + len(mark) + 1)
        size = rng.randint(shortest, min(longest, shortest + 4))
        middle = "".join(rng.choice("qrstuv2468") for _ in range(size - len(head) - len(mark) - 1))
        cut = rng.randint(0, len(middle))
        return {"code": head + middle[:cut] + mark + middle[cut:] + rng.choice(ends)}

    def error_inputs(self, spec: NATSpec, rng: random.Random) -> dict[str, Inputs]:
        head, mark, ends = self._parts(spec)
        out: dict[str, Inputs] = {}
        for kind, value in spec.rules["rules"]:
            good = str(self.valid_inputs(spec, rng)["code"])
            out[_ERRORS[kind]] = {
                "code": {
                    "not_blank": rng.choice(["", " ", "  "]),
                    "prefix": "zz" + good[2:],
                    "mark": good.replace(mark or "?", "s"),
                    "ending": good[:-1] + {"letters": "7", "digits": "k"}.get(str(value), "!"),
                    "min_length": head + mark + ends[0],
                    "max_length": good[:-1] + "9" * 20 + good[-1],
                }[kind]
            }
        return out

    @staticmethod
    def _parts(spec: NATSpec) -> tuple[str, str, str]:
        """Prefix, mark and allowed last characters of a good code."""
        rules = dict(spec.rules["rules"])
        ends = {"letters": "bkz", "digits": "359", "letters and digits": "m4"}.get(rules.get("ending", ""), "a7")
        return rules.get("prefix", ""), rules.get("mark", ""), ends


_ERRORS = {
    "not_blank": BLANK,
    "prefix": PREFIX,
    "mark": MARK,
    "ending": ENDING,
    "min_length": SHORT,
    "max_length": LONG,
}
