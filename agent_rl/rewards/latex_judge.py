"""The program that compares answers with math-verify: a job of a sandbox, loaded there and nowhere else.

SymPy works out what a text says, so a text may count to 9^9^9^9: each prediction is judged in a fork of its own, under
limits, and math-verify's own ones, which are signals, are off. Not here: what a verdict is worth (`latex_answers.py`).
"""

import logging
import re
from importlib.metadata import version
from typing import Any

from math_verify import parse, verify

logging.disable(logging.WARNING)
_MARKED = re.compile(r"\\boxed|\\\(|\\\[|(?<!\\)\$[^$]*[^$\\]\$|\\begin\{(?:equation|align)")
"""A text that says itself which part of it is mathematics."""
_GROUP = re.compile(r"\\(?:text|mathrm|mbox|operatorname)\w*\{[^{}]*\}|\\[a-zA-Z]+")
_SENTENCE = re.compile(r"[A-Za-z]{2,}[,:;]?\s+[A-Za-z]{2,}")


def read(text: str) -> list[Any]:
    """What math-verify reads in a text; empty where that is nothing.

    A text without marks is a formula as a whole, or, where words follow each other, a sentence with the answer in it.
    """
    text = text.rpartition("####")[2].strip()
    if not _MARKED.search(text) and not _SENTENCE.search(_GROUP.sub(" ", text)):
        text = f"\\boxed{{{text}}}"
    return parse(text, parsing_timeout=None)


def judge(request: dict[str, Any], workdir: str) -> dict[str, bool]:
    """Whether `prediction` is one of `answers`, and whether mathematics could be read in it."""
    given = read(request["prediction"])
    right = any(verify(read(answer), given, timeout_seconds=None) for answer in request["answers"])
    return {"is_right": right, "is_read": right or any(not isinstance(each, str) for each in given)}


def prepare(workdir: str) -> None:
    """What parsing does only once, before the forks: tables of the grammar, SymPy's imports."""
    for prediction in ("\\frac{1}{2}", "x = [1, 2)", "\\{\\sqrt{2}, \\pi\\}", "(x+1)^2"):
        judge({"prediction": prediction, "answers": ["0.5", "x^2+2x+1"]}, workdir)


JOBS = {"judge": judge}
ABOUT = {"math_verify": version("math-verify")}
