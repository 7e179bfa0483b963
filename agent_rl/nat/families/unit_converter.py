"""Unit converters: a dimension, a subset of its units, a rounding, a sign rule."""

import random

from agent_rl.nat.families.base import Draft, Family, Inputs, join_names
from agent_rl.nat.spec import ConfigField, InputField, NATSpec

FACTORS: dict[str, dict[str, str]] = {
    "length": {"m": "1.0", "km": "1000.0", "cm": "0.01", "mm": "0.001", "inch": "0.0254", "ft": "0.3048"},
    "mass": {"g": "1.0", "kg": "1000.0", "mg": "0.001", "ton": "1000000.0", "carat": "0.2"},
    "duration": {"s": "1.0", "min": "60.0", "h": "3600.0", "day": "86400.0", "week": "604800.0"},
    "size": {"byte": "1.0", "bit": "0.125", "kB": "1000.0", "MB": "1000000.0", "KiB": "1024.0"},
    "angle": {"deg": "1.0", "turn": "360.0", "quadrant": "90.0", "grad": "0.9"},
}
"""Unit names by dimension, with the factor to the dimension's base unit as it is written in code."""

UNKNOWN = "error: unknown unit"
NEGATIVE = "error: negative value"


class UnitConverter(Family):
    name = "unit_converter"
    function = "convert"
    summary = "Convert a value from one unit to another."

    def draft(self, rng: random.Random, level: int) -> Draft:
        dimension = rng.choice(sorted(FACTORS))
        units = sorted(FACTORS[dimension])
        chosen = sorted(rng.sample(units, rng.randint(2, len(units))))
        nonnegative = rng.random() < 0.5
        precision = rng.randint(0, 5)
        field = None
        if level == 2:
            field = ConfigField(
                name="precision", default=precision, low=0, high=12, description="Digits after the decimal point."
            )
        return Draft(
            rules={
                "dimension": dimension,
                "units": {unit: FACTORS[dimension][unit] for unit in chosen},
                "precision": precision,
                "nonnegative": nonnegative,
            },
            inputs=(
                InputField(name="value", type="float"),
                InputField(name="from_unit", type="str"),
                InputField(name="to_unit", type="str"),
            ),
            errors=(UNKNOWN, NEGATIVE) if nonnegative else (UNKNOWN,),
            config_field=field,
        )

    def sentences(self, spec: NATSpec, rng: random.Random) -> list[str]:
        rules = spec.rules
        units = join_names(list(rules["units"]))
        out = [
            rng.choice(
                [
                    f"It converts a {rules['dimension']} between {units}.",
                    f"The tool turns a {rules['dimension']} given in one of {units} into another of them.",
                    f"I want a {rules['dimension']} converter for the units {units}.",
                ]
            )
        ]
        if spec.config_field is None:
            digits = rules["precision"]
            out.append(
                rng.choice([f"Always give {digits} decimals.", f"The answer has {digits} digits after the point."])
            )
        out.append(rng.choice([f"Any other unit is answered with `{UNKNOWN}`.", f"Say `{UNKNOWN}` for other units."]))
        if rules["nonnegative"]:
            out.append(rng.choice([f"A value below zero gives `{NEGATIVE}`.", f"Refuse negatives with `{NEGATIVE}`."]))
        return out

    def body(self, spec: NATSpec) -> tuple[list[str], list[str]]:
        table = ["FACTORS = {", *(f'    "{unit}": {factor},' for unit, factor in spec.rules["units"].items()), "}"]
        digits = "{precision}" if spec.config_field else str(spec.rules["precision"])
        lines = self.forgotten_check(spec)
        if spec.rules["nonnegative"]:
            lines += ["if value < 0:", f'    return "{NEGATIVE}"']
        lines += ["result = value * FACTORS[from_unit] / FACTORS[to_unit]", f'return f"{{result:.{digits}f}}"']
        return table, lines

    def forgotten_check(self, spec: NATSpec) -> list[str]:
        return ["if from_unit not in FACTORS or to_unit not in FACTORS:", f'    return "{UNKNOWN}"']

    def valid_inputs(self, spec: NATSpec, rng: random.Random) -> Inputs:
        units = sorted(spec.rules["units"])
        source, target = rng.sample(units, 2)
        low = 0.5 if spec.rules["nonnegative"] else -90.0
        value = float(rng.randint(1, 9)) if rng.random() < 0.3 else round(rng.uniform(low, 90.0), rng.choice([1, 2]))
        return {"value": value, "from_unit": source, "to_unit": target}

    def error_inputs(self, spec: NATSpec, rng: random.Random) -> dict[str, Inputs]:
        unit = rng.choice(sorted(spec.rules["units"]))
        pair = ("parsec", unit) if rng.random() < 0.5 else (unit, "parsec")
        out: dict[str, Inputs] = {UNKNOWN: {"value": 4.5, "from_unit": pair[0], "to_unit": pair[1]}}
        if spec.rules["nonnegative"]:
            out[NEGATIVE] = {"value": round(rng.uniform(-50.0, -0.5), 1), "from_unit": unit, "to_unit": unit}
        return out
