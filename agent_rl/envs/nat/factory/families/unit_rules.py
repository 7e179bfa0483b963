"""Rules of unit converters: which units there are, their values, and which checks are made.

Samples the rules of level 3 and above too. Wording and reference code are in `unit_converter`; the oracle decides what
is right.
"""

import random
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from agent_rl.envs.nat.factory.families.base import Rules

FACTORS: dict[str, dict[str, str]] = {
    "length": {"m": "1.0", "km": "1000.0", "cm": "0.01", "mm": "0.001", "inch": "0.0254", "ft": "0.3048"},
    "mass": {"g": "1.0", "kg": "1000.0", "mg": "0.001", "ton": "1000000.0", "carat": "0.2"},
    "duration": {"s": "1.0", "min": "60.0", "h": "3600.0", "day": "86400.0", "week": "604800.0"},
    "size": {"byte": "1.0", "bit": "0.125", "kB": "1000.0", "MB": "1000000.0", "KiB": "1024.0"},
    "angle": {"deg": "1.0", "turn": "360.0", "quadrant": "90.0", "grad": "0.9"},
}
"""Unit names by dimension, with the factor to the dimension's base unit as it is written in code."""

MORE_FACTORS: dict[str, dict[str, str]] = {
    "temperature": {"R": "1.0", "K": "1.8", "C": "1.8", "F": "1.0", "Re": "2.25"},
    "area": {"m2": "1.0", "ha": "10000.0", "cm2": "0.0001", "acre": "4046.8564224", "are": "100.0"},
    "volume": {"l": "1.0", "ml": "0.001", "m3": "1000.0", "pint": "0.473176473", "gallon": "3.785411784"},
    "energy": {"J": "1.0", "kJ": "1000.0", "Wh": "3600.0", "kWh": "3600000.0", "cal": "4.184"},
}
COMPOUND = {"speed": ("length", "duration"), "flow": ("volume", "duration"), "data rate": ("size", "duration")}
OFFSETS = {"C": "273.15", "F": "459.67", "Re": "218.52"}
"""What is added before a temperature is multiplied by its factor."""
ALIASES = {
    "m": "metre", "km": "kilometre", "inch": "in", "ft": "foot", "g": "gram", "kg": "kilo", "ton": "tonne",
    "s": "sec", "min": "minute", "h": "hour", "day": "d", "week": "wk", "byte": "B", "bit": "b", "KiB": "kibi",
    "deg": "degree", "turn": "rev", "C": "celsius", "F": "fahrenheit", "K": "kelvin", "R": "rankine",
    "ha": "hectare", "acre": "ac", "m2": "sqm", "l": "litre", "m3": "cbm", "gallon": "gal", "J": "joule",
    "cal": "calorie",
}  # fmt: skip

UNKNOWN = "error: unknown unit"
NEGATIVE = "error: negative value"
LARGE = "error: value too large"
SAME = "error: same unit"
COLD = "error: below absolute zero"
ERRORS = {"unknown": UNKNOWN, "negative": NEGATIVE, "large": LARGE, "same": SAME, "cold": COLD}

Factor = Annotated[str, StringConstraints(pattern=r"^[0-9]+\.[0-9]+$")]
Unit = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]+[0-9]?$")]
Alias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9]*$")]
UnitOrRatio = Annotated[str, StringConstraints(pattern=r"^[A-Za-z]+[0-9]?(/[A-Za-z]+)?$")]


class UnitRules(Rules):
    dimension: Literal[
        "length", "mass", "duration", "size", "angle",
        "temperature", "area", "volume", "energy", "speed", "flow", "data rate",
    ]  # fmt: skip
    units: dict[Unit, Factor] = Field(min_length=1, max_length=20)
    """Factor to the base unit. With `per`: of the part before the slash."""
    per: dict[Unit, Factor] | None = Field(default=None, min_length=1, max_length=20)
    offsets: dict[Unit, Factor] = {}
    aliases: dict[Alias, UnitOrRatio] = {}
    precision: int = Field(ge=0, le=12)
    nonnegative: bool
    checks: list[Literal["unknown", "negative", "large", "same", "cold"]] | None = Field(default=None, min_length=1)
    """In the order they are made; without it, unknown units and then negative values, if `nonnegative`."""
    largest: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _consistent(self) -> "UnitRules":
        if not self.offsets.keys() <= self.units.keys():
            raise ValueError(f"offsets of units that are not there: {sorted(self.offsets)}")
        names = [f"{top}/{bottom}" for top in self.units for bottom in self.per] if self.per else [*self.units]
        if len(names) < 2 or not set(self.aliases.values()) <= set(names):
            raise ValueError(f"aliases must stand for some of at least two units, {names}; got {self.aliases}")
        if self.checks and (len({*self.checks}) < len(self.checks) or ("large" in self.checks) != bool(self.largest)):
            raise ValueError(f"checks must differ, with `large` just when `largest` is set; got {self.checks}")
        return self


def names_of(rules: dict[str, Any]) -> list[str]:
    if "per" not in rules:
        return list(rules["units"])
    return [f"{top}/{bottom}" for top in rules["units"] for bottom in rules["per"]]


def offsets_of(units: Iterable[str]) -> dict[str, str]:
    """The offsets of units of temperature."""
    return {unit: OFFSETS[unit] for unit in units if unit in OFFSETS}


def checks_of(rules: dict[str, Any]) -> list[str]:
    """In the order they are made."""
    return rules.get("checks", ["unknown", "negative"] if rules["nonnegative"] else ["unknown"])


def demand_common_knowledge(rules: dict[str, Any]) -> None:
    """Without checks the request does not give the units' values. Raises ValueError."""
    known = FACTORS.get(rules["dimension"], {})
    if others := {unit: factor for unit, factor in rules["units"].items() if known.get(unit) != factor}:
        raise ValueError(
            f"without `checks` a unit is worth what is known of {rules['dimension']}, {known}, not {others}"
        )
    if more := rules.keys() & {"per", "offsets", "aliases", "largest"}:
        raise ValueError(f"{sorted(more)} need `checks`")


def demand_sense(rules: dict[str, Any]) -> None:
    """Raises ValueError."""
    checks, names, is_temperature = rules["checks"], names_of(rules), rules["dimension"] == "temperature"
    if any(float(factor) == 0 for table in (rules["units"], rules.get("per", {})) for factor in table.values()):
        raise ValueError("a unit is worth 0")
    if is_temperature:
        table = MORE_FACTORS["temperature"]
        right = offsets_of(rules["units"])
        if "per" in rules or not rules["units"].items() <= table.items() or rules["offsets"] != right:
            raise ValueError(f"temperatures have the factors {table} and the offsets {OFFSETS}")
    elif rules.get("offsets"):
        raise ValueError("only temperatures have offsets")
    if clash := rules.get("aliases", {}).keys() & {*names}:
        raise ValueError(f"aliases are units already: {sorted(clash)}")
    if "unknown" not in checks or rules["nonnegative"] != ("negative" in checks):
        raise ValueError(f"checks must hold `unknown`, and `negative` just when nonnegative is true, got {checks}")
    if "cold" in checks and (not is_temperature or checks.index("cold") < checks.index("unknown")):
        raise ValueError("only a temperature can be too cold, once its unit is known")


def sample_rich_rules(rng: random.Random) -> dict[str, Any]:
    tables = FACTORS | MORE_FACTORS
    dimension = rng.choice(sorted([*tables, *COMPOUND]))
    rules: dict[str, Any] = {"dimension": dimension}
    if dimension in COMPOUND:
        for key, part in zip(("units", "per"), COMPOUND[dimension], strict=True):
            rules[key] = {unit: tables[part][unit] for unit in sorted(rng.sample(sorted(tables[part]), 2))}
        names = [f"{top}/{bottom}" for top in rules["units"] for bottom in rules["per"]]
        aliases = {name.replace("/", "p"): name for name in names}
    else:
        units = sorted(tables[dimension])
        chosen = sorted(rng.sample(units, rng.randint(2, min(4, len(units)))))
        rules["units"] = {unit: tables[dimension][unit] for unit in chosen}
        if dimension == "temperature":
            rules["offsets"] = offsets_of(rules["units"])
        aliases = {ALIASES[unit]: unit for unit in chosen if unit in ALIASES}
    if aliases and rng.random() < 0.7:
        rules["aliases"] = {name: aliases[name] for name in sorted(rng.sample(sorted(aliases), min(2, len(aliases))))}
    rules["precision"] = rng.randint(0, 5)
    checks = ["unknown", "cold" if dimension == "temperature" else rng.choice(["negative", "large"])]
    checks += [check for check in ("negative", "large", "same") if check not in checks and rng.random() < 0.35]
    if dimension == "temperature" and "negative" in checks:
        checks.remove("negative")
    rng.shuffle(checks)
    if "cold" in checks:  # it can be judged only once the unit is known
        checks = [*(check for check in checks if check != "cold"), "cold"]
    rules |= {"nonnegative": "negative" in checks, "checks": checks}
    if "large" in checks:
        rules["largest"] = rng.choice([100, 250, 500, 1000])
    return rules
