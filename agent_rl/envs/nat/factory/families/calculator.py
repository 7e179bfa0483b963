"""Calculators: a formula on two or three named inputs that divides at least once, and a rounding.

From level 3 on also formulas in two pieces, several checks whose order counts, and the loops of `calculator_loops`.
"""

import ast
import json
import math
import random
import re
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from agent_rl.envs.nat.factory.families import calculator_loops as loops
from agent_rl.envs.nat.factory.families import probing
from agent_rl.envs.nat.factory.families.base import Draft, Family, Inputs, Rules, is_argument_name, join_names
from agent_rl.envs.nat.factory.families.calculator_loops import NEGATIVE, Check, Loop, Recipe
from agent_rl.envs.nat.spec import InputField, Tool
from agent_rl.parsing import parse_expression

NAMES = ["price", "rate", "count", "weight", "height", "width", "depth", "speed"]
ZERO = "error: division by zero"
LARGE = "error: input too large"
_NODES = {ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Name, ast.Load, ast.Constant}
_LARGEST_NUMBER = 1_000_000
_TAKEN = {"precision", "result"}
"""Names that the reference code has for something else."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z]+$")]
Formula = Annotated[str, StringConstraints(pattern=r"^[a-z0-9 ()+*/-]+$", max_length=200)]


class Limit(Rules):
    input: Name
    limit: int


class Piecewise(Rules):
    """The formula holds while the input is below the limit (or equal to it, if inclusive), else `otherwise`."""

    input: Name
    limit: int
    inclusive: bool
    otherwise: Formula


class CalculatorRules(Rules):
    precision: int = Field(ge=0, le=12)
    formula: Formula | None = None
    divisors: list[Name] = []
    nonnegative: Name | None = None
    checks: list[Literal["zero", "negative", "large"]] | None = Field(default=None, min_length=1)
    """In the order they are made; without it, zero divisors and then negative inputs."""
    largest: Limit | None = None
    piecewise: Piecewise | None = None
    loop: Loop | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "CalculatorRules":
        if (self.formula is None) == (self.loop is None):
            raise ValueError("a calculator has either a formula or a loop")
        if self.loop:
            return self
        named = {*self.divisors, self.nonnegative, self.largest and self.largest.input}
        named |= {self.piecewise.input, *_names(self.piecewise.otherwise)} if self.piecewise else set()
        if not self.divisors or not named - {None} <= set(_names(str(self.formula))):
            raise ValueError(
                f"divisors, checks and pieces must name inputs of {self.formula}, got {sorted(map(str, named))}"
            )
        return self


class Calculator(Family):
    name = "calculator"
    function = "compute"
    summary = "Compute the formula."
    Rules = CalculatorRules

    def draft(self, rng: random.Random, level: int) -> Draft:
        if level >= 3:
            with_field = rng.random() < 0.5
            rules = loops.sample(rng) if rng.random() < 0.5 else _rich_rules(rng)
            default = loops.default(rules) if "loop" in rules else rules["precision"]
            return self.complete(rules, default if with_field else None)
        names = rng.sample(NAMES, rng.randint(2, 3))
        formula, divisors = _formula(names, rng)
        precision = rng.randint(1, 4)
        guarded = rng.choice(names) if rng.random() < 0.5 else None
        rules = {"formula": formula, "divisors": divisors, "nonnegative": guarded, "precision": precision}
        return self.complete(rules, precision if level == 2 else None)

    def complete(self, rules: dict[str, Any], config_default: int | None) -> Draft:
        if rules.get("loop"):
            return _loop_draft(rules, config_default)
        rules = {key: value for key, value in rules.items() if value is not None or key == "nonnegative"}
        rules.setdefault("nonnegative", None)
        _demand_sense(rules)
        if config_default is not None:
            rules["precision"] = config_default
        return Draft(
            rules=rules,
            inputs=tuple(InputField(name=name, type="float") for name in sorted({*_names(rules["formula"])})),
            errors=tuple(check.error for check in _checks(rules)),
            config_field=None if config_default is None else loops.precision_field(config_default),
        )

    def sentences(self, tool: Tool, rng: random.Random) -> list[str]:
        rules = tool.rules
        if _is_rich(rules):
            recipe = _recipe(tool)
            order = rng.choice(["Check in this order:", "The first that applies wins:"])
            checks = " ".join(check.wording for check in recipe.checks)
            return [rng.choice(recipe.wordings), *recipe.details, f"{order} {checks}"]
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
        if tool.config_field is None:
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

    def body(self, tool: Tool) -> tuple[list[str], list[str]]:
        recipe = _recipe(tool)
        checks = [line for check in recipe.checks for line in [*check.before, *check.lines]]
        return list(recipe.imports), [*checks, *recipe.computation]

    def forgotten_check(self, tool: Tool) -> list[str]:
        return _recipe(tool).checks[0].lines

    def subtle_bodies(self, tool: Tool) -> list[list[str]]:
        recipe, (_, body) = _recipe(tool), self.body(tool)
        out = [[line.replace(old, new) for line in body] for old, new in recipe.slips]
        for first, second in pairwise(recipe.checks):
            if not second.before:
                start = body.index(first.lines[0])
                rest = body[start + len(first.lines) + len(second.lines) :]
                out.append([*body[:start], *second.lines, *first.lines, *rest])
        last = recipe.checks[-1].lines
        out.append([line for line in body if line not in last])
        return probing.select_detectable(self, tool, [candidate for candidate in out if candidate != body])

    def valid_inputs(self, tool: Tool, rng: random.Random) -> Inputs:
        rules = tool.rules
        if "loop" in rules:
            return loops.valid_inputs(rules["loop"], rng)
        out: Inputs = {}
        for field in tool.inputs:
            sign = 1 if field.name == rules["nonnegative"] or rng.random() < 0.7 else -1
            out[field.name] = sign * (
                float(rng.randint(1, 9)) if rng.random() < 0.5 else round(rng.uniform(1.0, 40.0), 1)
            )
        for edge in (rules.get("piecewise"), rules.get("largest")):
            if edge and rng.random() < 0.5:
                out[edge["input"]] = float(edge["limit"])
        return out

    def error_inputs(self, tool: Tool, rng: random.Random) -> dict[str, Inputs]:
        rules = tool.rules
        if _is_rich(rules):
            checks = _recipe(tool).checks
            # Where it is possible the next check would fail too, so that their order shows.
            later = [*(check.change for check in checks[1:]), {}]
            return {
                check.error: {**self.valid_inputs(tool, rng), **after, **check.change}
                for check, after in zip(checks, later, strict=True)
            }
        zero = self.valid_inputs(tool, rng)
        zero[rng.choice(rules["divisors"])] = 0.0
        out: dict[str, Inputs] = {ZERO: zero}
        if rules["nonnegative"]:
            negative = self.valid_inputs(tool, rng)
            negative[rules["nonnegative"]] = -2.5
            out[NEGATIVE] = negative
        return out

    def bad_inputs(self, tool: Tool) -> Inputs:
        return {**tool.example.inputs, **_recipe(tool).checks[0].change}

    def tested_error(self, tool: Tool) -> Inputs:
        """One value for all inputs that the first check refuses: it is made before the others, whatever they refuse."""
        if not _is_rich(tool.rules):
            return {each.name: 0.0 for each in tool.inputs}
        (refused,) = _recipe(tool).checks[0].change.values()
        whole = refused if isinstance(refused, str) else math.floor(refused)
        return {each.name: whole if each.type == "int" else refused for each in tool.inputs}

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        loop = rules.get("loop")
        if loop is None:
            return re.match(r"\(+\w+ (/ \w+\) -|\+ \w+\) /) \w+\) [+-]", rules["formula"]) is not None
        return loop["kind"] == "growth" and loop["rounded"] and loop["when"] == "start"

    def canonical(self, rules: dict[str, Any], inputs: tuple[InputField, ...]) -> Any:
        """The inputs are called a, b, c, ... in the order in which the formula names them."""
        if "loop" in rules:
            return rules
        short = {name: chr(ord("a") + index) for index, name in enumerate(dict.fromkeys(_names(rules["formula"])))}
        out = json.loads(json.dumps(rules))
        out["formula"] = _renamed(rules["formula"], short)
        out["divisors"] = [short[name] for name in rules["divisors"]]
        out["nonnegative"] = short.get(rules["nonnegative"])
        for key in {"largest", "piecewise"} & out.keys():
            out[key]["input"] = short[out[key]["input"]]
        if "piecewise" in out:
            out["piecewise"]["otherwise"] = _renamed(out["piecewise"]["otherwise"], short)
        return out


def _names(formula: str) -> list[str]:
    return re.findall(r"[a-z]+", formula)


def _renamed(formula: str, names: dict[str, str]) -> str:
    return re.sub(r"[a-z]+", lambda match: names[match[0]], formula)


def _is_rich(rules: dict[str, Any]) -> bool:
    return "loop" in rules or "checks" in rules


def _loop_draft(rules: dict[str, Any], config_default: int | None) -> Draft:
    rules = {key: value for key, value in rules.items() if value not in (None, [])}
    if more := rules.keys() - {"precision", "loop"}:
        raise ValueError(f"a loop has checks of its own, leave out {sorted(more)}")
    rules["loop"] = dict(rules["loop"])
    field = None
    if config_default is not None:
        field = loops.config_field(rules["loop"], config_default)
        (rules if field.name == "precision" else rules["loop"])[field.name] = config_default
    if rules["loop"]["kind"] != "statistic" and rules["precision"] != 2:
        raise ValueError(f"amounts of money have precision 2, got {rules['precision']}")
    checks = loops.recipe(rules, with_field=field is not None).checks
    errors = tuple(check.error for check in checks)
    return Draft(rules=rules, inputs=loops.inputs(rules["loop"]), errors=errors, config_field=field)


def _demand_sense(rules: dict[str, Any]) -> None:
    """Raises ValueError. The formulas are written into code and into the request as they are."""
    divided = _divisors(rules["formula"])
    if "piecewise" in rules:
        divided |= _divisors(rules["piecewise"]["otherwise"])
    if sorted(divided) != sorted(rules["divisors"]):
        raise ValueError(f"divisors are {sorted(rules['divisors'])}, the formula divides by {sorted(divided)}")
    if unfit := [name for name in _names(rules["formula"]) if not is_argument_name(name) or name in _TAKEN]:
        raise ValueError(f"an input cannot be called {unfit[0]}")
    checks = rules.get("checks")
    if checks is None:
        if more := rules.keys() & {"largest", "piecewise"}:
            raise ValueError(f"{sorted(more)} need `checks`")
        return
    wanted = {"zero"} | ({"negative"} if rules["nonnegative"] else set()) | ({"large"} if "largest" in rules else set())
    if sorted(checks) != sorted(wanted):
        raise ValueError(f"checks must be {sorted(wanted)} in some order, got {checks}")


def _divisors(formula: str) -> set[str]:
    """The inputs that a formula divides by. Raises ValueError when it holds more than names, numbers and + - * /."""
    try:
        nodes = list(ast.walk(parse_expression(formula)))
    except SyntaxError:
        raise ValueError(f"{formula} is no formula") from None
    numbers = [each.value for each in nodes if isinstance(each, ast.Constant)]
    is_plain = all(type(each) in _NODES for each in nodes) and all(
        isinstance(number, int) and number <= _LARGEST_NUMBER for number in numbers
    )
    if not is_plain or {each.id for each in nodes if isinstance(each, ast.Name)} != {*_names(formula)}:
        raise ValueError(f"a formula holds names, whole numbers to {_LARGEST_NUMBER} and + - * /, got {formula}")
    out = set()
    for divisor in [each.right for each in nodes if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)]:
        if isinstance(divisor, ast.Name):
            out.add(divisor.id)
        elif not isinstance(divisor, ast.Constant) or not divisor.value:
            raise ValueError(f"a formula divides by single inputs and numbers, got {ast.unparse(divisor)}")
    return out


def _formula(names: list[str], rng: random.Random) -> tuple[str, list[str]]:
    """A formula with at least one division, and its divisors."""
    operators = [rng.choice("+-*/") for _ in names[1:]]
    operators[rng.randrange(len(operators))] = "/"
    formula = names[0]
    for operator, name in zip(operators, names[1:], strict=True):
        formula = f"({formula} {operator} {name})"
    formula = f"{formula} {rng.choice('*+-')} {rng.randint(2, 9)}"
    return formula, [name for operator, name in zip(operators, names[1:], strict=True) if operator == "/"]


def _rich_rules(rng: random.Random) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(3, 4))
    formula, divisors = _formula(names, rng)
    precision = rng.randint(1, 4)
    order = ["zero", *rng.choice([["negative"], ["large"], ["negative", "large"]])]
    rng.shuffle(order)
    rules = {"formula": formula, "divisors": divisors, "nonnegative": None, "precision": precision, "checks": order}
    if "negative" in order:
        rules["nonnegative"] = rng.choice(names)
    if "large" in order:
        rules["largest"] = {"input": rng.choice(names), "limit": rng.choice([50, 60, 75, 80, 90, 100])}
    if rng.random() < 0.6:
        first, second = rng.sample(names, 2)
        rules["piecewise"] = {
            "input": rng.choice(names),
            "limit": rng.randint(3, 15),
            "inclusive": rng.random() < 0.5,
            "otherwise": f"({first} {rng.choice('+-*')} {second}) {rng.choice('+-*')} {rng.randint(2, 9)}",
        }
    return rules


def _recipe(tool: Tool) -> Recipe:
    rules, with_field = tool.rules, tool.config_field is not None
    if "loop" in rules:
        return loops.recipe(rules, with_field=with_field)
    formula, split = rules["formula"], rules.get("piecewise")
    phrase, computation = formula, [f"result = {formula}"]
    names = [field.name for field in tool.inputs]
    slips = [(formula, _renamed(formula, {**_same(names), name: call})) for name in names for call in _wrapped(name)]
    if split:
        sign = "<=" if split["inclusive"] else "<"
        condition = f"{split['input']} {sign} {split['limit']}"
        phrase = f"{formula} if `{split['input']}` is {'at most' if split['inclusive'] else 'below'} {split['limit']}"
        phrase += f", else {split['otherwise']}"
        computation = [f"if {condition}:", f"    result = {formula}", "else:", f"    result = {split['otherwise']}"]
        slips.append((condition, condition.replace(sign, "<" if split["inclusive"] else "<=")))
    if "largest" in rules:
        slips.append((f"> {rules['largest']['limit']}", f">= {rules['largest']['limit']}"))
    if len(rules["divisors"]) > 1:
        slips.append((f" or {rules['divisors'][-1]} == 0", ""))
    digits = "{precision}" if with_field else str(rules["precision"])
    return Recipe(
        wordings=(f"It computes {phrase}.", f"The formula is {phrase}.", f"The tool works out {phrase}."),
        details=() if with_field else (f"Always give {digits} decimals.",),
        checks=tuple(_checks(rules)),
        computation=(*computation, f'return f"{{result:.{digits}f}}"'),
        slips=tuple(slips),
    )


def _same(names: list[str]) -> dict[str, str]:
    return {name: name for name in names}


def _wrapped(name: str) -> tuple[str, str]:
    return f"abs({name})", f"int({name})"


def _checks(rules: dict[str, Any]) -> list[Check]:
    divisors, guarded, largest = rules["divisors"], rules["nonnegative"], rules.get("largest")
    out = []
    for check in rules.get("checks", ["zero", "negative"] if guarded else ["zero"]):
        if check == "zero":
            condition = " or ".join(f"{name} == 0" for name in divisors)
            wording = f"A zero {join_names(divisors, 'or')} gives `{ZERO}`."
            tried = divisors[-1 if _is_rich(rules) else 0]  # the last is easily forgotten
            out.append(Check(error=ZERO, condition=condition, wording=wording, change={tried: 0.0}))
        elif check == "negative":
            wording = f"A negative `{guarded}` gives `{NEGATIVE}`."
            out.append(Check(error=NEGATIVE, condition=f"{guarded} < 0", wording=wording, change={guarded: -2.5}))
        else:
            name, limit = largest["input"], largest["limit"]
            wording = f"`{name}` above {limit} gives `{LARGE}`."
            change: Inputs = {name: limit + 0.5}
            out.append(Check(error=LARGE, condition=f"{name} > {limit}", wording=wording, change=change))
    return out
