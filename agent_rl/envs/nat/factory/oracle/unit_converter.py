"""Oracle of unit converters, in exact fractions."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from agent_rl.envs.nat.factory.oracle.rounding import fixed, is_clear

_MARGIN = Fraction(1, 10**6)


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Any], config: Mapping[str, int]) -> str:
    amount = Fraction(str(inputs["value"]))
    source, target = (_unit(rules, inputs[side]) for side in ("from_unit", "to_unit"))
    for check in rules.get("checks", ["unknown", "negative"] if rules["nonnegative"] else ["unknown"]):
        if check == "unknown" and (source is None or target is None):
            return "error: unknown unit"
        if check == "negative" and amount < 0:
            return "error: negative value"
        if check == "large" and amount > rules["largest"]:
            return "error: value too large"
        if check == "same" and _name(rules, inputs["from_unit"]) == _name(rules, inputs["to_unit"]):
            return "error: same unit"
        if check == "cold" and source is not None and amount + source[1] < 0:
            return "error: below absolute zero"
    return fixed(_converted(amount, source, target), _digits(rules, config))


def is_robust(rules: Mapping[str, Any], inputs: Mapping[str, Any], config: Mapping[str, int]) -> bool:
    """False where a float program may differ in the last digit, or on which side of absolute zero a value is."""
    amount = Fraction(str(inputs["value"]))
    source, target = (_unit(rules, inputs[side]) for side in ("from_unit", "to_unit"))
    if source is not None and "cold" in rules.get("checks", []) and 0 < abs(amount + source[1]) + _MARGIN < 2 * _MARGIN:
        return False
    if answer(rules, inputs, config).startswith("error"):
        return True
    return is_clear(_converted(amount, source, target), _digits(rules, config))


def _digits(rules: Mapping[str, Any], config: Mapping[str, int]) -> int:
    return config.get("precision", rules["precision"])


def _name(rules: Mapping[str, Any], unit: str) -> str:
    return rules.get("aliases", {}).get(unit, unit)


def _unit(rules: Mapping[str, Any], unit: str) -> tuple[Fraction, Fraction] | None:
    """Factor and offset to the base unit, of a plain unit or of `A/B`; None when it is not known."""
    unit = _name(rules, unit)
    if "per" in rules:
        slash = unit.find("/")
        top, bottom = rules["units"].get(unit[:slash]), rules["per"].get(unit[slash + 1 :])
        if slash < 0 or top is None or bottom is None:
            return None
        return Fraction(top) / Fraction(bottom), Fraction(0)
    if unit not in rules["units"]:
        return None
    return Fraction(rules["units"][unit]), Fraction(rules.get("offsets", {}).get(unit, 0))


def _converted(
    amount: Fraction, source: tuple[Fraction, Fraction] | None, target: tuple[Fraction, Fraction] | None
) -> Fraction:
    assert source is not None and target is not None, "unknown units are answered before"
    return (amount + source[1]) * source[0] / target[0] - target[1]
