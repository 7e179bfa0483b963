"""Unit converters: a dimension, a subset of its units, a rounding, a sign rule.

From level 3 on also temperatures (an offset and a factor), units of the form `A/B`, aliases, and several checks whose
order counts. The request gives the units' values from level 3 on; below it they are common knowledge.
"""

import random
from itertools import pairwise
from typing import Any

from agent_rl.envs.nat.factory.families import probing
from agent_rl.envs.nat.factory.families.base import Draft, Family, Inputs, join_names
from agent_rl.envs.nat.factory.families.unit_rules import (
    COLD,
    ERRORS,
    FACTORS,
    LARGE,
    NEGATIVE,
    OFFSETS,
    SAME,
    UNKNOWN,
    UnitRules,
    checks_of,
    demand_common_knowledge,
    demand_sense,
    names_of,
    offsets_of,
    sample_rich_rules,
)
from agent_rl.envs.nat.spec import ConfigField, InputField, Tool

_ON_VALUE = {"negative", "large", "cold"}


class UnitConverter(Family):
    name = "unit_converter"
    function = "convert"
    summary = "Convert a value from one unit to another."
    Rules = UnitRules

    def draft(self, rng: random.Random, level: int) -> Draft:
        if level >= 3:
            rules = sample_rich_rules(rng)
            return self.complete(rules, rules["precision"] if rng.random() < 0.5 else None)
        dimension = rng.choice(sorted(FACTORS))
        units = sorted(FACTORS[dimension])
        chosen = sorted(rng.sample(units, rng.randint(2, len(units))))
        nonnegative = rng.random() < 0.5
        precision = rng.randint(0, 5)
        rules = {
            "dimension": dimension,
            "units": {unit: FACTORS[dimension][unit] for unit in chosen},
            "precision": precision,
            "nonnegative": nonnegative,
        }
        return self.complete(rules, precision if level == 2 else None)

    def complete(self, rules: dict[str, Any], config_default: int | None) -> Draft:
        rules = {key: value for key, value in rules.items() if value is not None}
        if "checks" in rules:
            if rules["dimension"] == "temperature":
                rules.setdefault("offsets", offsets_of(rules["units"]))
            demand_sense(rules)
        else:
            demand_common_knowledge(rules)
        if config_default is not None:
            rules["precision"] = config_default
        return Draft(
            rules=rules,
            inputs=_INPUTS,
            errors=tuple(ERRORS[check] for check in checks_of(rules)),
            config_field=None if config_default is None else _precision(config_default),
        )

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        rules = tool.rules
        units = join_names(list(rules["units"]))
        if "per" in rules:
            units = f"`A/B`, where `A` is {join_names(list(rules['units']), 'or')} and `B` is "
            units += join_names(list(rules["per"]), "or")
        out = [
            rng.choice(
                [
                    f"It converts a {rules['dimension']} between {units}.",
                    f"The tool turns a {rules['dimension']} given in one of {units} into another of them.",
                    f"I want a {rules['dimension']} converter for the units {units}.",
                ]
            )
        ]
        if "checks" in rules:
            out += _worth(rules)
        if tool.config_field is None:
            digits = rules["precision"]
            out.append(
                rng.choice([f"Always give {digits} decimals.", f"The answer has {digits} digits after the point."])
            )
        if "checks" in rules:
            return [*out, *_check_sentences(rules, rng)]
        out.append(rng.choice([f"Any other unit is answered with `{UNKNOWN}`.", f"Say `{UNKNOWN}` for other units."]))
        if rules["nonnegative"]:
            out.append(rng.choice([f"A value below zero gives `{NEGATIVE}`.", f"Refuse negatives with `{NEGATIVE}`."]))
        return out

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        rules = tool.rules
        digits = "{precision}" if tool.config_field else str(rules["precision"])
        last = f'return f"{{result:.{digits}f}}"'
        if "checks" in rules:
            head, lines = _rich_body(rules)
            return head, [*lines, last]
        lines = self.forgotten_check(tool)
        if rules["nonnegative"]:
            lines += ["if value < 0:", f'    return "{NEGATIVE}"']
        return _table("FACTORS", rules["units"]), [
            *lines,
            "result = value * FACTORS[from_unit] / FACTORS[to_unit]",
            last,
        ]

    def forgotten_check(self, tool: Tool) -> list[str]:
        return _check(tool.rules, checks_of(tool.rules)[0])

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        rules, (_, body) = tool.rules, self.body(tool)
        checks = checks_of(rules)
        edits = [("value", "abs(value)"), ("value", "int(value)"), ("ALIASES.get(to_unit, to_unit)", "to_unit")]
        computes = next(index for index, line in enumerate(body) if line.startswith(("result = ", "base = ")))
        out = [[*body[:computes], body[computes].replace(old, new, 1), *body[computes + 1 :]] for old, new in edits[:2]]
        out += [[line.replace(*edits[2]) for line in body], [line.replace(" - OFFSETS[target]", "") for line in body]]
        out.append([line.replace("value > ", "value >= ") for line in body])
        out.append(_without(body, _check(rules, checks[-1])))
        for first, second in pairwise(checks):
            before, after = _check(rules, first), _check(rules, second)
            if first != "unknown" or second != "cold":  # the one needs the other
                start = body.index(before[0])
                out.append([*body[:start], *after, *before, *_without(body[start:], before + after)])
        return probing.select_detectable(self, tool, [candidate for candidate in out if candidate != body])

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        rules = tool.rules
        if "checks" in rules:
            return _rich_inputs(rules, rng)
        units = sorted(rules["units"])
        source, target = rng.sample(units, 2)
        low = 0.5 if rules["nonnegative"] else -90.0
        value = float(rng.randint(1, 9)) if rng.random() < 0.3 else round(rng.uniform(low, 90.0), rng.choice([1, 2]))
        return {"value": value, "from_unit": source, "to_unit": target}

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        rules = tool.rules
        if "checks" in rules:
            return _rich_errors(rules, rng)
        unit = rng.choice(sorted(rules["units"]))
        pair = ("parsec", unit) if rng.random() < 0.5 else (unit, "parsec")
        out: dict[str, Inputs] = {UNKNOWN: {"value": 4.5, "from_unit": pair[0], "to_unit": pair[1]}}
        if rules["nonnegative"]:
            out[NEGATIVE] = {"value": round(rng.uniform(-50.0, -0.5), 1), "from_unit": unit, "to_unit": unit}
        return out

    def edge_inputs(self, tool: Tool, rng: random.Random) -> list[Inputs]:
        """Values around 0, in the same unit too."""
        if "checks" in tool.rules:
            return []
        units = sorted(tool.rules["units"])
        values = [rng.choice([-1, 1]) * rng.randint(5, 99) / 100 for _ in range(_NUM_EDGES)]
        pairs = [(rng.choice(units), rng.choice(units)) for _ in values]
        return [
            {"value": value, "from_unit": one, "to_unit": other}
            for value, (one, other) in zip(values, pairs, strict=True)
        ]

    def bad_inputs(self, tool: Tool) -> Inputs:
        return {**tool.example.inputs, **_broken(tool.rules, checks_of(tool.rules)[0], tool.example.inputs)}

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        return rules["nonnegative"] and rules["dimension"] in ("size", "speed")


_NUM_EDGES = 60
_INPUTS = (
    InputField(name="value", type="float"),
    InputField(name="from_unit", type="str"),
    InputField(name="to_unit", type="str"),
)


def _precision(default: int) -> ConfigField:
    return ConfigField(name="precision", default=default, low=0, high=12, description="Digits after the decimal point.")


def _worth(rules: dict[str, Any]) -> list[str]:
    """What the units are worth, and their other names."""
    offsets = rules.get("offsets", {})
    parts = [
        f"`{unit}` {f'(t + {offsets[unit]}) * {factor}' if unit in offsets else factor}"
        for table in (rules["units"], rules.get("per", {}))
        for unit, factor in table.items()
    ]
    base = "R" if rules["dimension"] == "temperature" else ""
    out = [f"In {base or 'base units'}: {', '.join(parts)}."]
    if rules.get("aliases"):
        pairs = [f"`{alias}` for `{unit}`" for alias, unit in rules["aliases"].items()]
        out.append(f"Other names: {', '.join(pairs)}.")
    return out


def _check_sentences(rules: dict[str, Any], rng: random.Random) -> list[str]:
    texts = {
        "unknown": [f"Any other unit is answered with `{UNKNOWN}`.", f"Say `{UNKNOWN}` for other units."],
        "negative": [f"A value below zero gives `{NEGATIVE}`.", f"Refuse negatives with `{NEGATIVE}`."],
        "large": [f"A value above {rules.get('largest')} gives `{LARGE}`."],
        "same": [f"Twice the same unit, whatever its name, gives `{SAME}`."],
        "cold": [f"A value below absolute zero gives `{COLD}`."],
    }
    order = rng.choice(["Check in this order:", "The first that applies wins:"])
    sentences = [rng.choice(texts[check]) for check in rules["checks"]]
    return [f"{order} {' '.join(sentences)}"]


def _table(name: str, entries: dict[str, str], *, quoted: bool = False) -> list[str]:
    mark = '"' if quoted else ""
    return [f"{name} = {{", *(f'    "{key}": {mark}{value}{mark},' for key, value in entries.items()), "}"]


def _rich_body(rules: dict[str, Any]) -> tuple[list[str], list[str]]:
    offsets = rules.get("offsets")
    if "per" in rules:
        head = _table("TOPS", rules["units"]) + _table("BOTTOMS", rules["per"])
        head.append('FACTORS = {f"{a}/{b}": TOPS[a] / BOTTOMS[b] for a in TOPS for b in BOTTOMS}')
    else:
        head = _table("FACTORS", rules["units"])
    if offsets is not None:
        head += _table("OFFSETS", {unit: offsets.get(unit, "0.0") for unit in rules["units"]})
    lines = []
    if rules.get("aliases"):
        head += _table("ALIASES", rules["aliases"], quoted=True)
        lines += ["source = ALIASES.get(from_unit, from_unit)", "target = ALIASES.get(to_unit, to_unit)"]
    else:
        lines += ["source, target = from_unit, to_unit"]
    for check in rules["checks"]:
        lines += _check(rules, check)
    if offsets is None:
        return head, [*lines, "result = value * FACTORS[source] / FACTORS[target]"]
    return head, [
        *lines,
        "base = (value + OFFSETS[source]) * FACTORS[source]",
        "result = base / FACTORS[target] - OFFSETS[target]",
    ]


def _check(rules: dict[str, Any], check: str) -> list[str]:
    source, target = ("source", "target") if "checks" in rules else ("from_unit", "to_unit")
    condition = {
        "unknown": f"{source} not in FACTORS or {target} not in FACTORS",
        "negative": "value < 0",
        "large": f"value > {rules.get('largest')}",
        "same": "source == target",
        "cold": "value + OFFSETS[source] < 0",
    }[check]
    return [f"if {condition}:", f'    return "{ERRORS[check]}"']


def _without(body: list[str], lines: list[str]) -> list[str]:
    return [line for line in body if line not in lines]


def _rich_inputs(rules: dict[str, Any], rng: random.Random) -> Inputs:
    source, target = rng.sample(names_of(rules), 2)
    checks, limit = rules["checks"], rules.get("largest")
    cannot_be_negative = "negative" in checks or ("cold" in checks and source not in OFFSETS)
    if limit and rng.random() < 0.45:
        value = float(limit)
    elif rng.random() < 0.2:
        value = float(rng.randint(1, 9))
    else:
        value = round(rng.uniform(0.5 if cannot_be_negative else -90.0, 90.0), rng.choice([1, 2]))
    others = {unit: alias for alias, unit in rules.get("aliases", {}).items()}
    called = [others[unit] if unit in others and rng.random() < 0.6 else unit for unit in (source, target)]
    return {"value": value, "from_unit": called[0], "to_unit": called[1]}


def _broken(rules: dict[str, Any], check: str, inputs: Inputs, side: str = "from_unit") -> Inputs:
    """The change of `inputs` that makes `check` fail."""
    if check == "unknown":
        return {side: "parsec"}
    if check == "same":
        return {"to_unit": inputs["from_unit"]}
    return {"value": {"negative": -2.5, "large": rules.get("largest", 0) + 0.5, "cold": -999.5}[check]}


def _rich_errors(rules: dict[str, Any], rng: random.Random) -> dict[str, Inputs]:
    out: dict[str, Inputs] = {}
    checks = rules["checks"]
    for index, check in enumerate(checks):
        inputs = _rich_inputs(rules, rng)
        # Where it is possible the next check would fail too, so that their order shows.
        for each in [*checks[index + 1 : index + 2], check]:
            if each == check or (each in _ON_VALUE) != (check in _ON_VALUE):
                inputs |= _broken(rules, each, inputs, rng.choice(["from_unit", "to_unit"]))
        out[ERRORS[check]] = inputs
    return out
