"""Arithmetic written down: a term knows its text, with the brackets it needs, and its exact value."""

from dataclasses import dataclass
from fractions import Fraction

_SUM, _PRODUCT, _NUMBER = 1, 2, 3


@dataclass(frozen=True, slots=True)
class Term:
    """`(number(12) + 3) * 4` is `Term(text="(12+3)*4", value=Fraction(60), rank=2)`."""

    text: str
    value: Fraction
    rank: int
    """How tightly it holds together: 1 a sum, 2 a product, 3 a number."""

    def __add__(self, other: "Term | int") -> "Term":
        right = _term(other)
        return Term(f"{self.text}+{right.text}", self.value + right.value, _SUM)

    def __sub__(self, other: "Term | int") -> "Term":
        right = _term(other)
        return Term(f"{self.text}-{right.bracketed(_PRODUCT)}", self.value - right.value, _SUM)

    def __mul__(self, other: "Term | int") -> "Term":
        right = _term(other)
        return Term(f"{self.bracketed(_PRODUCT)}*{right.bracketed(_PRODUCT)}", self.value * right.value, _PRODUCT)

    def __truediv__(self, other: "Term | int") -> "Term":
        right = _term(other)
        return Term(f"{self.bracketed(_PRODUCT)}/{right.bracketed(_NUMBER)}", self.value / right.value, _PRODUCT)

    def bracketed(self, least: int) -> str:
        return self.text if self.rank >= least else f"({self.text})"


def number(value: int) -> Term:
    return Term(str(value), Fraction(value), _NUMBER)


def _term(value: Term | int) -> Term:
    return number(value) if isinstance(value, int) else value


def as_text(value: Fraction) -> str | None:
    """`72`, `4.5`, `0.25`; None for more than two decimals."""
    cents = value * 100
    if cents.denominator != 1:
        return None
    whole, rest = divmod(abs(int(cents)), 100)
    sign = "-" if value < 0 else ""
    return f"{sign}{whole}" + (f".{rest:02d}".rstrip("0") if rest else "")
