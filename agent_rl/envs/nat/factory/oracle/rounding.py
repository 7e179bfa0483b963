"""Write exact numbers with a fixed number of decimals, and detect where a float program could print another text."""

from fractions import Fraction

_TIE_MARGIN = Fraction(1, 10**6)
_FLOAT_ERROR = Fraction(3, 10**15)  # relative, after a handful of double precision operations


MAX_DIGITS = 15
"""After the decimal point; a float program has no more that are right."""


def fixed(number: Fraction, digits: int) -> str:
    return f"{float(number):.{digits}f}"


def is_clear(number: Fraction, digits: int, largest: Fraction | None = None) -> bool:
    """False near a rounding tie, where the answer is zero and could carry a sign, and beyond MAX_DIGITS.

    `largest` is the largest intermediate result, when that is larger: its float error is what is left of it.
    """
    if digits > MAX_DIGITS:  # the power alone could take for ever
        return False
    scaled = abs(number) * 10**digits
    blur = max(abs(number), abs(largest or 0)) * 10**digits * _FLOAT_ERROR
    return 1 <= scaled <= 10**14 and abs(scaled % 1 - Fraction(1, 2)) > _TIE_MARGIN + blur
