"""Which answers may be given to those scorers of Reasoning Gym that run an answer as Python.

Nine of its data sets call `eval` or SymPy's `parse_expr` (which is `eval`) on what the model wrote. Here a text is only
looked at: what is no plain list, sum or formula is never handed on, and neither is an integral left as it was
(`Integral(...)`, a reference where SymPy found no closed form), which could be worked on without end. Its length and
its powers are bounded by those of the row's reference, which a data set's parameters may make long. A list has no
names of variables, for the scorer's own hold the right answer. Not here: scoring.
"""

import ast
import re

from agent_rl.parsing import parse_expression

_MAX_CHARS = 300
_MAX_POWER = 19
_MAX_POWERS_OF_BRACKETS = 2
"""Without a reference that has more."""
_LISTS = re.compile(r"[\w\s,'\"\[\]-]*", re.ASCII)
"""Values and names, no brackets that call, no operator that multiplies."""
_SUMS = re.compile(r"(?:[\d\s+\-/().]|\*(?!\s*\*))*")
_POWER = r"\*\*\s*(?:\d{1,3}|\(\s*-?\s*\d{1,2}\s*(?:/\s*\d{1,2}\s*)?\))(?![\d.])(?!\s*\*\s*\*)"
_POLYNOMIAL = re.compile(rf"(?:[\d\s+\-/().]|\b[A-Za-z]\b(?!\s*\()|\*(?!\s*\*)|{_POWER})*", re.ASCII)
_FUNCTIONS = "exp|log|sqrt|sin|cos|tan|sec|csc|cot|asin|acos|atan|sinh|cosh|tanh"
_FORMULA = re.compile(
    rf"(?:[\d\s+\-/().]|\b(?:{_FUNCTIONS})\b(?=\s*\()|\b(?:[A-Za-z]|pi)\b(?!\s*\()|\*(?!\s*\*)|{_POWER})*", re.ASCII
)
_GENERATOR = re.compile(r"\b(?:for|lambda|await|yield)\b")
_POWER_OF_BRACKET = re.compile(r"\)\s*\*\s*\*")
_EXPONENTS = (re.compile(r"\*\*\s*(\d{1,3})"), re.compile(r"\)\s*\*\*\s*(\d{1,3})"))
"""Of all powers, and of those of brackets, which multiply."""

RUN_AS_PYTHON = {
    **dict.fromkeys(("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"), _LISTS),
    **dict.fromkeys(("countdown", "puzzle24"), _SUMS),
    "polynomial_multiplication": _POLYNOMIAL,
    **dict.fromkeys(("simple_integration", "intermediate_integration"), _FORMULA),
}
"""Data set -> what an answer to it may consist of."""


def is_harmless(dataset: str, answer: str, reference: str = "") -> bool:
    """Whether the data set's scorer may read the answer: always, where it does not run it. `reference` is the row's."""
    allowed = RUN_AS_PYTHON.get(dataset)
    if allowed is None:
        return True
    # Twice, for a matrix as a list has three characters where the reference has two.
    if len(answer) > max(_MAX_CHARS, 2 * len(reference)) or not allowed.fullmatch(answer) or _GENERATOR.search(answer):
        return False
    if allowed is _LISTS and answer.strip() != reference.strip() and _has_variables(answer):
        return False
    num_of_brackets, num_allowed = (len(_POWER_OF_BRACKET.findall(text)) for text in (answer, reference))
    if num_of_brackets > max(_MAX_POWERS_OF_BRACKETS, num_allowed):
        return False
    highest = [max([0, *map(int, exponents.findall(answer))]) for exponents in _EXPONENTS]
    allowed_up_to = [max([_MAX_POWER, *map(int, exponents.findall(reference))]) for exponents in _EXPONENTS]
    return all(power <= limit for power, limit in zip(highest, allowed_up_to, strict=True))


def _has_variables(text: str) -> bool:
    """Whether the text is an expression with names that are not all in capitals, as letters that are answers are."""
    try:
        tree = parse_expression(text.strip())
    except (SyntaxError, MemoryError, RecursionError):
        return False
    return any(isinstance(part, ast.Name) and not part.id.isupper() for part in ast.walk(tree))
