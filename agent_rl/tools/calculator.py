"""The `calculator` tool: exact arithmetic on an expression, its cost bounded whatever the text says.

Numbers stay exact fractions as long as functions and sizes allow, so that 0.1 + 0.2 is 0.3; what is no fraction is a
float. Nothing is ever executed: the text is parsed, and a handful of node types is walked. Not here: variables,
comparisons, equations, units.
"""

import ast
import math
import operator
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact, localcontext
from fractions import Fraction
from typing import Annotated

from pydantic import Field

from agent_rl.errors import nearest
from agent_rl.tools.base import ToolResult
from agent_rl.tools.decorator import tool

Number = Fraction | float

MAX_CHARS = 500
MAX_BITS = 1024
"""Of a numerator or denominator; a fraction that needs more becomes a float."""
MAX_WHOLE_DIGITS = 50
"""Longer whole numbers are shown as 9.33262154439441e157."""
MAX_DIGITS = 15
"""Significant digits of a number that is not whole."""
MAX_DECIMALS = 10
"""Decimals of a number that does not end, such as 1/3."""


class CalculationError(Exception):
    """An expression has no value here; one sentence that its writer can act on."""


@tool(timeout_s=None)
def calculator(
    expression: Annotated[str, Field(description="Such as (12.5 + 3) * 4 or 15% of 80.")],
) -> ToolResult:
    """Calculate an arithmetic expression."""
    try:
        return ToolResult(text=calculate(expression))
    except CalculationError as error:
        return ToolResult(text=f"error: {error}", ok=False)


def calculate(expression: str) -> str:
    """The value of an expression as the shortest decimal text; raises CalculationError."""
    if len(expression) > MAX_CHARS:
        raise CalculationError(f"the expression has {len(expression)} characters; at most {MAX_CHARS} are allowed")
    text = plain(expression)
    _check_words(text)
    try:
        tree = ast.parse(text, mode="eval")
        value = _value(tree.body, text)
    except SyntaxError:
        hint = _PERCENT_HINT if "%" in text else "check its operators and parentheses"
        raise CalculationError(f"cannot read {_short(text)!r}; {hint}") from None
    except (RecursionError, MemoryError):
        raise CalculationError("the expression is nested too deeply; split it") from None
    except ZeroDivisionError:
        raise CalculationError("division by zero") from None
    except OverflowError:
        raise CalculationError("a number in it gets too large") from None
    return decimal_text(value)


_SIGNS = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-", "π": "pi", "$": ""})
_THOUSANDS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_PERCENT = re.compile(r"(?<![\w.])(?P<number>\d+\.?\d*|\.\d+)(?: ?% ?(?:(?P<of>of\b)|(?=[)*/,]|[+-] |$))|%(?= ?\+))")
_NO_MODULO = re.compile(r"% ?(?:[+-] |[)*/,]|$)|(?<! )%(?: ?[+-]| (?!of\b))")
"""Where Python reads a remainder and a person means a percentage: `15% + 3`, `15%-3`, `15% (2)`; not `15 % -4`."""
_PERCENT_HINT = "write a percentage as 15 / 100"


def plain(expression: str) -> str:
    """The expression with Python's operators: `1,200 × 15%` is `1200 * (15/100)`, `15% of 80` is `(15/100) * 80`.

    A `%` stays a remainder only where it cannot be taken for a percentage; CalculationError where it is not clear.
    """
    text = expression.translate(_SIGNS).replace("^", "**").replace("math.", "")
    text = _without_thousands(" ".join(text.split()))
    shares = _PERCENT.sub(_share, text)
    if _NO_MODULO.search(shares):
        raise CalculationError(f"cannot read {_short(text)!r}; {_PERCENT_HINT}")
    return shares


def _without_thousands(text: str) -> str:
    """Directly inside the parentheses of a function a comma separates arguments, anywhere else it groups digits."""
    in_call = [False]
    is_grouping = []
    for at, character in enumerate(text):
        if character == "(":
            in_call.append(text[:at].rstrip()[-1:].isalnum())
        elif character == ")" and len(in_call) > 1:
            in_call.pop()
        is_grouping.append(not in_call[-1])
    return _THOUSANDS.sub(lambda found: found[0].replace(",", "") if is_grouping[found.start()] else found[0], text)


def _share(found: re.Match[str]) -> str:
    """A percentage as a fraction, left alone where it is not clear what it is a share of, as in `80 + 15%`."""
    before = found.string[: found.start()].rstrip()
    if before.endswith("**"):
        return found[0]
    is_clear = not before or before[-1] in ("(,*+-" if found["of"] else "(,*/") or before.endswith("of")
    share = f"({found['number']}/100)"
    return (f"{share} *" if found["of"] else share) if is_clear else found[0]


_WORD = re.compile(r"(?P<number>\d[\w.]*|\.\d[\w.]*)|(?P<name>[A-Za-z_]\w*)|(?P<other>[^\s+\-*/%(),])")
_NUMBER = re.compile(r"(?!0\d+$)(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE]\d*)?")


def _check_words(text: str) -> None:
    """Refuse whatever is not a number, an operator or a name known here, before Python's parser sees it."""
    if not text:
        raise CalculationError("the expression is empty")
    for found in _WORD.finditer(text):
        word = _short(found[0])
        if found["other"] or (found["number"] and not (_NUMBER.fullmatch(found[0]) and found[0].isascii())):
            allowed = "write numbers, + - * / // % ** ( ) and functions such as sqrt(2)"
            raise CalculationError(f"cannot read {word!r}; {allowed}")
        known = (*_FUNCTIONS, *_CONSTANTS)
        if found["name"] and found[0] not in known:
            raise CalculationError(f"unknown name {word!r}{nearest(word, known) or '; write its value'}")


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _value(node: ast.expr, text: str) -> Number:
    match node:
        case ast.Constant(value=int() | float()):
            return _literal(text[node.col_offset : node.end_col_offset])
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.Name(id=name):
            raise CalculationError(f"{name} is a function; write {name}(...)")
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand, text)
        case ast.UnaryOp(op=ast.UAdd()):
            return _value(node.operand, text)
        case ast.BinOp(op=ast.Pow()):
            return _power(_value(node.left, text), _value(node.right, text))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _combined(_OPERATORS[type(node.op)], _value(node.left, text), _value(node.right, text))
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
                raise CalculationError(f"{name} has '*' before an argument; leave it out")
            return _applied(name, [_value(argument, text) for argument in node.args])
        case ast.Call():
            raise CalculationError(f"{_short(ast.unparse(node.func))!r} is no function; write * to multiply")
        case ast.Tuple():
            raise CalculationError("a comma outside a function; write one expression, with decimals as 3.5")
    raise AssertionError(f"the words allow no {type(node).__name__}")


def _literal(text: str) -> Number:
    digits, _, exponent = text.lower().replace("_", "").partition("e")
    if abs(int(exponent or 0)) > MAX_BITS:
        raise CalculationError(f"the exponent of {_short(text)!r} is too large")
    return _settled(Fraction(digits) * Fraction(10) ** int(exponent or 0))


def _settled(value: Number | int) -> Number:
    """The value, as a float when its fraction is too long. OverflowError when no float holds it."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OverflowError
        return value
    size = max(value.numerator.bit_length(), value.denominator.bit_length())
    return Fraction(value) if size <= MAX_BITS else float(value)


def _combined(operation: Callable[..., Number | int], left: Number, right: Number) -> Number:
    result = _settled(operation(left, right))
    if isinstance(result, float) and operation in (operator.add, operator.sub):
        # What two floats leave when they cancel out is their rounding error: sqrt(2) * sqrt(2) - 2 is 0.
        return 0.0 if abs(result) < 1e-15 * (abs(left) + abs(right)) else result
    return result


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(abs(base.numerator).bit_length(), base.denominator.bit_length()) - 1
        if size * abs(exponent.numerator) <= MAX_BITS:
            return _settled(base**exponent.numerator)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise CalculationError("a negative number has no real power with a fraction as exponent")
    return _settled(result)


def _applied(name: str, values: list[Number]) -> Number:
    fewest, most, function = _FUNCTIONS[name]
    if not fewest <= len(values) <= most:
        takes = f"{fewest}" if fewest == most else f"{fewest} or more" if most > 2 else f"{fewest} or {most}"
        noun = "number" if takes == "1" else "numbers"
        hint = "; write 1200 and not 1,200 inside it" if len(values) > most else ""
        raise CalculationError(f"{name} takes {takes} {noun}, got {len(values)}{hint}")
    try:
        return _settled(function(*values))
    except ValueError:
        raise CalculationError(f"{name}({', '.join(map(decimal_text, values))}) has no value") from None


def _root(value: Number) -> Number:
    if isinstance(value, Fraction) and value >= 0:
        exact = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
        if exact * exact == value:
            return exact
    return math.sqrt(value)


def _rounded(value: Number, decimals: Number = Fraction(0)) -> Number:
    """Halves go away from zero, as at school."""
    if decimals != int(decimals) or abs(decimals) > MAX_DIGITS:
        raise CalculationError(f"round takes a whole number of decimals, at most {MAX_DIGITS}")
    unit = Fraction(10) ** int(decimals)
    whole = math.floor(abs(Fraction(value)) * unit + Fraction(1, 2))
    return Fraction(whole if value >= 0 else -whole) / unit


def _whole(function: Callable[..., int], *, largest: int | None = None) -> Callable[..., int]:
    """A function of whole numbers that says so."""

    def checked(*values: Number) -> int:
        if any(value != int(value) or (largest is not None and value > largest) for value in values):
            limit = f" up to {largest}" if largest is not None else ""
            raise CalculationError(f"{function.__name__} takes whole numbers{limit}")
        return function(*(int(value) for value in values))

    return checked


def _trigonometric(function: Callable[[float], float]) -> Callable[[Number], float]:
    """sin(pi) is 0: what is smaller than the argument's own rounding error is that error."""

    def rounded(value: Number) -> float:
        result = function(value)
        return 0.0 if abs(result) < 1e-15 * abs(value) else result

    return rounded


_OPERATORS: dict[type[ast.operator], Callable[..., Number | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_MANY = MAX_CHARS
_FUNCTIONS: dict[str, tuple[int, int, Callable[..., Number | int]]] = {
    "abs": (1, 1, abs),
    "ceil": (1, 1, math.ceil),
    "cos": (1, 1, _trigonometric(math.cos)),
    "exp": (1, 1, math.exp),
    "factorial": (1, 1, _whole(math.factorial, largest=170)),
    "floor": (1, 1, math.floor),
    "gcd": (1, _MANY, _whole(math.gcd)),
    "lcm": (1, _MANY, _whole(math.lcm)),
    "ln": (1, 1, math.log),
    "log": (1, 2, math.log),
    "log10": (1, 1, math.log10),
    "log2": (1, 1, math.log2),
    "max": (1, _MANY, max),
    "min": (1, _MANY, min),
    "pow": (2, 2, _power),
    "round": (1, 2, _rounded),
    "sin": (1, 1, _trigonometric(math.sin)),
    "sqrt": (1, 1, _root),
    "sum": (1, _MANY, lambda *values: sum(values, start=Fraction(0))),
    "tan": (1, 1, _trigonometric(math.tan)),
}
"""Fewest and most arguments, and what is done with them."""


def decimal_text(value: Number) -> str:
    """The shortest decimal text: `42`, `0.3`, `0.3333333333`, `5.18470552858707e21`."""
    if isinstance(value, Fraction) and value.denominator == 1 and abs(value) < 10**MAX_WHOLE_DIGITS:
        return str(value.numerator)
    # One of its own: a thread's may have flags and a precision that others have set.
    with localcontext(Context(prec=MAX_DIGITS, rounding=ROUND_HALF_UP)) as context:
        if isinstance(value, Fraction):
            number = Decimal(value.numerator) / Decimal(value.denominator)
            is_exact = not context.flags[Inexact]
        else:
            number, is_exact = +Decimal(repr(value)), False
        if not is_exact:
            digits = MAX_DECIMALS + 1 + max(number.adjusted(), -1)
            context.prec = min(digits, MAX_DIGITS)
            number = +number
        number = number.normalize()
        size = number.adjusted()
        if number == 0:
            return "0"
        return f"{number:f}" if -7 < size < MAX_DIGITS else f"{number.scaleb(-size):f}e{size}"
