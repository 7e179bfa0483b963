"""Validators: an identifier must meet two to four rules, checked in the order of the request.

From level 3 on also character ranges, weighted check digits, prefixes that a second input decides, all errors in place
of the first one, and an answer with more than `ok`.
"""

import random
from itertools import pairwise
from typing import Any

from agent_rl.envs.nat.factory.families import probing
from agent_rl.envs.nat.factory.families.base import Draft, Family, Inputs
from agent_rl.envs.nat.factory.families.code_validator_rules import (
    BLANK,
    CHARSETS,
    ERRORS,
    SUCCESS,
    CodeRules,
    check_digit,
    completed,
    condition_of,
    slips,
    wording,
)
from agent_rl.envs.nat.spec import ConfigField, InputField, Tool

PREFIXES = ["ab", "cx", "dk", "em", "fz", "gr", "hq", "jt", "kw", "ln", "mp", "nv"]
MARKS = ["-", "_", ".", ":", "#"]
COUNTRIES = ["AT", "BE", "CH", "DE", "ES", "FR", "IT", "NL", "PL", "SE"]
RANGES = [("a", "f"), ("a", "m"), ("g", "p"), ("n", "y"), ("0", "4"), ("1", "6"), ("3", "8")]


class CodeValidator(Family):
    name = "code_validator"
    function = "check"
    summary = "Check a code against the rules."
    Rules = CodeRules

    def draft(self, rng: random.Random, level: int) -> Draft:
        if level >= 3:
            rules, longest = _rich_rules(rng)
            return self.complete(rules, longest)
        kinds = rng.sample(["prefix", "mark", "ending", "min_length"], rng.randint(1, 3))
        pairs: list[list[str | int]] = [["not_blank", ""]]
        for kind in kinds:
            if kind == "prefix":
                pairs.append([kind, rng.choice(PREFIXES)])
            elif kind == "mark":
                pairs.append([kind, rng.choice(MARKS)])
            elif kind == "ending":
                pairs.append([kind, rng.choice(sorted(CHARSETS))])
            else:
                pairs.append([kind, rng.randint(5, 9)])
        if level == 2:
            pairs.append(["max_length", ""])
        return self.complete({"rules": pairs}, rng.randint(12, 19) if level == 2 else None)

    def complete(self, rules: dict[str, Any], config_default: int | None) -> Draft:
        rules = completed(rules, config_default)
        kinds = [kind for kind, _ in rules["rules"]]
        errors = [ERRORS[kind] for kind in kinds]
        if rules.get("report") == "all":
            errors.append(_join(_two(rules)))
        names = ["code", "country"] if "country" in kinds else ["code"]
        return Draft(
            rules=rules,
            inputs=tuple(InputField(name=name, type="str") for name in names),
            errors=tuple(errors),
            config_field=None if config_default is None else _max_length(config_default),
        )

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        if "report" in tool.rules:
            return _rich_sentences(tool, rng)
        out = [
            rng.choice(
                [
                    "It checks a code and answers `ok` when every rule holds.",
                    "The tool validates a code; the answer is `ok` or the first error.",
                    "Codes are checked rule by rule; a good one gives `ok`.",
                ]
            )
        ]
        return out + [wording(kind, value, with_field=True) for kind, value in tool.rules["rules"]]

    def glossary(self, tool: Tool) -> list[str]:
        return [f"A code may have `{tool.config_field.name}` characters."] if tool.config_field else []

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        rules, with_field = tool.rules, tool.config_field is not None
        lists_all = rules.get("report") == "all"
        head, lines = [], []
        for kind, value in rules["rules"]:
            before, condition = condition_of(kind, value, with_field)
            answer = f'errors.append("{ERRORS[kind]}")' if lists_all else f'return "{ERRORS[kind]}"'
            if lists_all and kind == "not_blank":  # a blank code can have no other error
                lines += [f"if {condition}:", f'    return "{BLANK}"', "errors = []"]
            else:
                lines += [*before, f"if {condition}:", f"    {answer}"]
            if kind == "country":
                head = ["PREFIXES = {", *(f'    "{name}": "{prefix}",' for name, prefix in value.items()), "}"]
        if lists_all:
            lines += ["if errors:", '    return "; ".join(errors)']
        return head, [*lines, SUCCESS[rules.get("success", "ok")][1]]

    def forgotten_check(self, tool: Tool) -> list[str]:
        return self.body(tool)[1][:2]

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        rules, (_, body) = tool.rules, self.body(tool)
        pairs, lists_all = rules["rules"], rules.get("report") == "all"
        variants = [
            [*pairs[:at], pairs[at + 1], pairs[at], *pairs[at + 2 :]] for at in range(lists_all, len(pairs) - 1)
        ]
        for at, (kind, value) in enumerate(pairs):
            variants += [[*pairs[:at], [kind, slip], *pairs[at + 1 :]] for slip in slips(kind, value)]
        changed = [rules | {"rules": variant} for variant in variants]
        changed += [rules | {"report": "first"}] if lists_all else []
        out = [self.body(tool.model_copy(update={"rules": each}))[1] for each in changed]
        out.append([line.replace("> max_length", ">= max_length") for line in body])
        return probing.select_detectable(self, tool, [candidate for candidate in out if candidate != body])

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        if "report" in tool.rules:
            return _rich_inputs(tool, rng)
        head, mark, ends = self._parts(tool)
        longest = tool.config_field.default if tool.config_field else 24
        shortest = max(dict(tool.rules["rules"]).get("min_length", 3), len(head) + len(mark) + 1)
        size = rng.randint(shortest, min(longest, shortest + 4))
        middle = "".join(rng.choice("qrstuv2468") for _ in range(size - len(head) - len(mark) - 1))
        cut = rng.randint(0, len(middle))
        return {"code": head + middle[:cut] + mark + middle[cut:] + rng.choice(ends)}

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        if "report" in tool.rules:
            return _rich_errors(tool, rng)
        head, mark, ends = self._parts(tool)
        out: dict[str, Inputs] = {}
        for kind, value in tool.rules["rules"]:
            good = str(self.valid_inputs(tool, rng)["code"])
            out[ERRORS[kind]] = {
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

    def edge_inputs(self, tool: Tool, rng: random.Random) -> list[Inputs]:
        """Codes about as long as they may be."""
        if "report" in tool.rules or tool.config_field is None:
            return []
        out: list[Inputs] = []
        for extra in (-1, 0, 1) * 4:
            good = str(self.valid_inputs(tool, rng)["code"])
            padding = "".join(rng.choices("qrstuv2468", k=max(0, tool.config_field.default + extra - len(good))))
            out.append({"code": good[:-1] + padding + good[-1]})
        return out

    def bad_inputs(self, tool: Tool) -> Inputs:
        return {**tool.example.inputs, "code": " "}

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        kinds = [kind for kind, _ in rules["rules"]]
        if "report" in rules:
            return rules["report"] == "all" and {"check", "mark", "min_length"} <= {*kinds}
        return ("mark", "prefix") in pairwise(kinds)

    @staticmethod
    def _parts(tool: Tool) -> tuple[str, str, str]:
        """Prefix, mark and allowed last characters of a good code."""
        rules = dict(tool.rules["rules"])
        ends = {"letters": "bkz", "digits": "359", "letters and digits": "m4"}.get(rules.get("ending", ""), "a7")
        return rules.get("prefix", ""), rules.get("mark", ""), ends


def _max_length(default: int) -> ConfigField:
    return ConfigField(name="max_length", default=default, low=1, high=99, description="Longest code accepted.")


def _rich_rules(rng: random.Random) -> tuple[dict[str, Any], int | None]:
    """Rules, and the longest length if it shall be a configuration field."""
    hard = rng.sample(["range", "check", "country"], rng.randint(1, 3))
    easy = [kind for kind in ["prefix", "mark", "ending", "min_length"] if rng.random() < 0.5]
    clash = {"prefix"} if "country" in hard else set()
    clash |= {"ending"} if "check" in hard else set()
    kinds = [kind for kind in [*hard, *easy] if kind not in clash]
    with_field = rng.random() < 0.5
    if with_field or rng.random() < 0.3 or len(kinds) < 2:
        kinds.append("max_length")
    rng.shuffle(kinds)
    start, (low, high) = rng.randint(3, 5), rng.choice(RANGES)
    values: dict[str, Any] = {
        "prefix": rng.choice(PREFIXES),
        "mark": rng.choice(MARKS),
        "ending": rng.choice(sorted(CHARSETS)),
        "range": {"start": start, "end": start + rng.randint(0, 2), "low": low, "high": high},
        "check": {
            "weights": [rng.randint(1, 9) for _ in range(rng.randint(2, 4))],
            "modulus": rng.choice([7, 9, 10, 11]),
            "letters": rng.random() < 0.5,
        },
        "country": dict(zip(rng.sample(COUNTRIES, 3), rng.sample(PREFIXES, 3), strict=True)),
    }
    values["min_length"] = _least({kind: values.get(kind) for kind in kinds}) + rng.randint(1, 3)
    values["max_length"] = values["min_length"] + rng.randint(4, 9)
    rules: dict[str, Any] = {
        "rules": [["not_blank", ""], *([kind, values[kind]] for kind in kinds)],
        "report": rng.choice(["first", "all"]),
        "success": rng.choice(sorted(SUCCESS.keys() - {"ok"})),
    }
    return rules, values["max_length"] if with_field else None


def _least(values: dict[str, Any]) -> int:
    """Length that the rules on characters need: what is fixed at the front, a mark, and the last character."""
    front = values["range"]["end"] if "range" in values else 2
    return front + ("mark" in values) + 1


def _two(rules: dict[str, Any]) -> list[str]:
    """Two rules that a code can break at once."""
    kinds = [kind for kind, _ in rules["rules"][1:]]
    return [kinds[0], kinds[1] if {kinds[0], kinds[-1]} == {"min_length", "max_length"} else kinds[-1]]


def _join(kinds: list[str]) -> str:
    return "; ".join(ERRORS[kind] for kind in kinds)


def _rich_sentences(tool: Tool, rng: random.Random) -> list[str]:
    rules = tool.rules
    good = SUCCESS[rules["success"]][0]
    bad = "the first error"
    if rules["report"] == "all":
        bad = f"all its errors in this order, joined like `{_join(_two(rules))}` (a blank one only with its own)"
    out = [
        rng.choice(
            [
                f"It checks a code; a good one is answered with {good}, a bad one with {bad}.",
                f"The tool validates a code: the answer is {good}; for a bad code it is {bad}.",
                f"Codes are checked rule by rule; a good one gives {good}, else answer with {bad}.",
            ]
        )
    ]
    return out + [wording(kind, value, with_field=tool.config_field is not None) for kind, value in rules["rules"]]


def _rich_inputs(tool: Tool, rng: random.Random, broken: frozenset[str] = frozenset()) -> Inputs:
    """A code that breaks the rules of these kinds and no others."""
    values = dict(tool.rules["rules"])
    shortest = values.get("min_length", _least(values) + 1)
    longest = values.get("max_length", shortest + 6)
    size = rng.choice([shortest, longest, rng.randint(shortest, longest)])
    if broken & {"min_length", "max_length"}:
        size = shortest - 1 if "min_length" in broken else longest + 1
    code = [rng.choice("qrstuvBK2468") for _ in range(size)]
    taken = {0, 1}
    country = rng.choice(sorted(values.get("country", {"": ""})))
    prefix = values["country"][country] if "country" in values else values.get("prefix", "qr")
    code[:2] = "zz" if "prefix" in broken else prefix
    if "range" in values:
        places = range(values["range"]["start"] - 1, values["range"]["end"])
        low, high = ord(values["range"]["low"]), ord(values["range"]["high"])
        for place in places:
            code[place] = chr(rng.randint(low, high))
        if "range" in broken:
            code[rng.choice(places)] = chr(high + 1)
        taken |= {*places}
    if "mark" in values and "mark" not in broken:
        code[rng.choice([place for place in range(size - 1) if place not in taken])] = values["mark"]
    if "ending" in values:
        good, bad = {"letters": ("bkz", "7"), "digits": ("359", "k")}.get(values["ending"], ("m4", "!"))
        code[-1] = bad if "ending" in broken else rng.choice(good)
    if "check" in values:
        right = check_digit("".join(code[:-1]), values["check"])
        code[-1] = rng.choice([digit for digit in "0123456" if digit != right]) if "check" in broken else right
    if "country" in broken:
        country = rng.choice(["XX", *(name for name in sorted(values["country"]) if name != country)])
    return {"code": "".join(code)} | ({"country": country} if "country" in values else {})


def _rich_errors(tool: Tool, rng: random.Random) -> dict[str, Inputs]:
    rules = tool.rules
    kinds = [kind for kind, _ in rules["rules"]][1:]
    out = {BLANK: {**_rich_inputs(tool, rng), "code": rng.choice(["", " ", "  "])}}
    for kind, after in zip(kinds, [*kinds[1:], ""], strict=True):
        broken = {kind}
        if rules["report"] == "first" and {kind, after} != {"min_length", "max_length"}:
            broken.add(after)  # so that the order of the checks shows
        out[ERRORS[kind]] = _rich_inputs(tool, rng, frozenset(broken))
    if rules["report"] == "all":
        out[_join(_two(rules))] = _rich_inputs(tool, rng, frozenset(_two(rules)))
    return out
