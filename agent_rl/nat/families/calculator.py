"""Calculators: a formula on two or three named inputs that divides at least once, and a rounding."""

import random

from agent_rl.nat.families.base import Draft, Family, Inputs
from agent_rl.nat.spec import ConfigField, InputField, NATSpec

NAMES = ["price", "rate", "count", "weight", "height", "width", "depth", "speed"]
ZERO = "error: division by zero"
NEGATIVE = "error: negative input"


class Calculator(Family):
    name = "calculator"
    function = "compute"
    summary = "Compute the formula."

    def draft(self, rng: random.Random, level: int) -> Draft:
        names = rng.sample(NAMES, rng.randint(2, 3))
        operators = [rng.choice("+-*/") for _ in names[1:]]
        operators[rng.randrange(len(operators))] = "/"
        formula = names[0]
        for operator, name in zip(operators, names[1:], strict=True):
            formula = f"({formula} {operator} {name})"
        formula = f"{formula} {rng.choice('*+-')} {rng.randint(2, 9)}"
        precision = rng.randint(1, 4)
        guarded = rng.choice(names) if rng.random() < 0.5 else None
        field = None
        if level == 2:
            field = ConfigField(
                name="precision", default=precision, low=0, high=12, description="Digits after the decimal point."
            )
        divisors = [name for operator, name in zip(operators, names[1:], strict=True) if operator == "/"]
        return Draft(
            rules={"formula": formula, "divisors": divisors, "nonnegative": guarded, "precision": precision},
            inputs=tuple(InputField(name=name, type="float") for name in sorted(names)),
            errors=(ZERO, NEGATIVE) if guarded else (ZERO,),
            config_field=field,
        )

    def sentences(self, spec: NATSpec, rng: random.Random) -> list[str]:
        rules = spec.rules
        formula = rules["formula"]
        out = [
            rng.choice(
                [
                    f"It computes {formula}.",
                    f"The formula is {formula}.",
                    f"The tool works out {formula}.",
                ]
            )
        ]
        if spec.config_field is None:
            digits = rules["precision"]
            out.append(
                rng.choice([f"Always give {digits} decimals.", f"The answer has {digits} digits after the point."])
            )
        out.append(rng.choice([f"Dividing by zero gives `{ZERO}`.", f"If a divisor is zero answer `{ZERO}`."]))
        if rules["nonnegative"]:
            name = rules["nonnegative"]
            out.append(
                rng.choice(
                    [f"A negative `{name}` gives `{NEGATIVE}`.", f"Refuse `{name}` below zero with `{NEGATIVE}`."]
                )
            )
        return out

    def body(self, spec: NATSpec) -> tuple[list[str], list[str]]:
        rules = spec.rules
        digits = "{precision}" if spec.config_field else str(rules["precision"])
        lines = self.forgotten_check(spec)
        if rules["nonnegative"]:
            lines += [f"if {rules['nonnegative']} < 0:", f'    return "{NEGATIVE}"']
        lines += [f"result = {rules['formula']}", f'return f"{{result:.{digits}f}}"']
        return [], lines

    def forgotten_check(self, spec: NATSpec) -> list[str]:
        condition = " or ".join(f"{name} == 0" for name in spec.rules["divisors"])
        return [f"if {condition}:", f'    return "{ZERO}"']

    def valid_inputs(self, spec: NATSpec, rng: random.Random) -> Inputs:
        out: Inputs = {}
        for field in spec.inputs:
            sign = 1 if field.name == spec.rules["nonnegative"] or rng.random() < 0.7 else -1
            out[field.name] = sign * (
                float(rng.randint(1, 9)) if rng.random() < 0.5 else round(rng.uniform(1.0, 40.0), 1)
            )
        return out

    def error_inputs(self, spec: NATSpec, rng: random.Random) -> dict[str, Inputs]:
        zero = self.valid_inputs(spec, rng)
        zero[rng.choice(spec.rules["divisors"])] = 0.0
        out: dict[str, Inputs] = {ZERO: zero}
        if spec.rules["nonnegative"]:
            negative = self.valid_inputs(spec, rng)
            negative[spec.rules["nonnegative"]] = -2.5
            out[NEGATIVE] = negative
        return out
