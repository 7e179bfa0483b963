"""Oracle of calculators, in exact fractions; detects answers that float rounding could change."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from agent_rl.envs.nat.factory.oracle.rounding import fixed, is_clear
from agent_rl.parsing import parse_expression

_ZERO = "error: division by zero"
_NEGATIVE = "error: negative input"
_LARGE = "error: input too large"
_NUM_LONGEST_FLOAT_CHAIN = 100


@dataclass(kw_only=True, slots=True)
class _Result:
    text: str
    numbers: list[tuple[Fraction, int, Fraction]] = field(default_factory=list)
    """Each number that is rounded on the way, its decimals, and the largest intermediate result behind it."""
    hits_zero: bool = False
    """A float program may see a tiny rest, or a signed zero, where this is exactly zero."""


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Any], config: Mapping[str, int]) -> str:
    return _result(rules, inputs, config).text


def is_robust(rules: Mapping[str, Any], inputs: Mapping[str, Any], config: Mapping[str, int]) -> bool:
    """False when a correct float program could still differ in a digit."""
    result = _result(rules, inputs, config)
    return not result.hits_zero and all(is_clear(*number) for number in result.numbers)


def _result(rules: Mapping[str, Any], inputs: Mapping[str, Any], config: Mapping[str, int]) -> _Result:
    loop = rules.get("loop")
    if loop is None:
        return _expression(rules, inputs, config.get("precision", rules["precision"]))
    if loop["kind"] == "statistic":
        return _statistic(loop, inputs["values"], config.get("precision", rules["precision"]))
    if loop["kind"] == "loan":
        return _loan(loop, inputs, config.get("payment", loop["payment"]))
    return _growth(loop, inputs, config.get("deposit", loop["deposit"]))


def _expression(rules: Mapping[str, Any], inputs: Mapping[str, Any], digits: int) -> _Result:
    known = {name: Fraction(str(value)) for name, value in inputs.items()}
    guarded, largest = rules["nonnegative"], rules.get("largest")
    for check in rules.get("checks", ["zero", "negative"]):
        if check == "zero" and any(known[name] == 0 for name in rules["divisors"]):
            return _Result(text=_ZERO)
        if check == "negative" and guarded and known[guarded] < 0:
            return _Result(text=_NEGATIVE)
        if check == "large" and known[largest["input"]] > largest["limit"]:
            return _Result(text=_LARGE)
    formula, split = rules["formula"], rules.get("piecewise")
    if split:
        amount = known[split["input"]]
        inside = amount <= split["limit"] if split["inclusive"] else amount < split["limit"]
        formula = formula if inside else split["otherwise"]
    steps: list[Fraction] = []
    number = _evaluate(parse_expression(formula), known, steps)
    return _Result(text=fixed(number, digits), numbers=[(number, digits, max(map(abs, steps)))])


def _evaluate(node: ast.expr, known: Mapping[str, Fraction], steps: list[Fraction]) -> Fraction:
    if isinstance(node, ast.Name):
        return known[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return Fraction(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, known, steps), _evaluate(node.right, known, steps)
        steps.append(_operation(node.op, left, right))
        return steps[-1]
    raise ValueError(f"a formula holds names, whole numbers and + - * /, not {ast.dump(node)}")


def _operation(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.Div):
        return left / right
    raise ValueError(f"a formula holds + - * /, not {ast.dump(operator)}")


def _loan(loop: Mapping[str, Any], inputs: Mapping[str, Any], payment: int) -> _Result:
    """Counted in whole cents."""
    owed = Fraction(str(inputs["principal"])) * 100
    rate = Fraction(str(inputs["rate"])) / 1200
    if owed < 0 or rate < 0 or inputs["months"] < 0:
        return _Result(text=_NEGATIVE)
    if inputs["months"] > loop["most"]:
        return _Result(text="error: too many months")
    result, total, borrowed = _Result(text=""), 0, owed
    for _ in range(inputs["months"]):
        interest = owed * rate
        result.numbers += [(interest, 0, interest)] if interest else []
        total += _nearest(interest)
        rest = owed + _nearest(interest) - payment * 100
        result.hits_zero = result.hits_zero or rest == 0
        owed = max(rest, Fraction(0))
    cents = {"balance": owed, "interest": Fraction(total), "paid": borrowed + total - owed}[loop["answer"]]
    result.text = fixed(cents / 100, 2)
    return result


def _nearest(cents: Fraction) -> int:
    """Ties, which `is_robust` keeps away, go up."""
    return (cents + Fraction(1, 2)).__floor__()


def _growth(loop: Mapping[str, Any], inputs: Mapping[str, Any], deposit: int) -> _Result:
    amount, periods = Fraction(str(inputs["amount"])), inputs["periods"]
    factor = 1 + Fraction(str(inputs["rate"])) / 100
    if amount < 0 or periods < 0:
        return _Result(text=_NEGATIVE)
    if periods > loop["most"]:
        return _Result(text="error: too many periods")
    result = _Result(text="")
    for _ in range(periods):
        grown = (amount + (deposit if loop["when"] == "start" else 0)) * factor
        if loop["rounded"]:
            result.numbers.append((grown, 2, grown))
            grown = Fraction(_nearest(grown * 100), 100)
        amount = grown + (deposit if loop["when"] == "end" else 0)
    if not loop["rounded"]:
        result.numbers.append((amount, 2, amount * _NUM_LONGEST_FLOAT_CHAIN))
    result.text = fixed(amount, 2)
    return result


def _statistic(loop: Mapping[str, Any], values: str, digits: int) -> _Result:
    if values.isspace() or not values:
        return _Result(text="error: no numbers")
    parts = [part.strip() for part in values.split(",")]
    if not all(map(_is_number, parts)):
        return _Result(text="error: bad number")
    if len(parts) < loop["fewest"]:
        return _Result(text="error: too few numbers")
    numbers = [Fraction(part) for part in parts]
    for _ in range(loop["trim"]):
        numbers.remove(max(numbers))
        numbers.remove(min(numbers))
    number = _measure(loop["measure"], numbers)
    largest = max(abs(each) for each in numbers) ** (2 if "variance" in loop["measure"] else 1)
    return _Result(text=fixed(number, digits), numbers=[(number, digits, largest * len(numbers))])


def _is_number(part: str) -> bool:
    whole, point, rest = part.removeprefix("-").partition(".")
    return whole.isdecimal() and (rest.isdecimal() if point else True)


def _measure(measure: str, numbers: list[Fraction]) -> Fraction:
    count, total = len(numbers), sum(numbers, Fraction(0))
    if measure == "mean":
        return total / count
    if measure == "range":
        return max(numbers) - min(numbers)
    if measure == "median":
        left = list(numbers)
        while len(left) > 2:
            left.remove(max(left))
            left.remove(min(left))
        return sum(left, Fraction(0)) / len(left)
    squares = sum((number * number for number in numbers), Fraction(0)) - total * total / count
    return squares / (count if measure == "variance" else count - 1)
