"""Read Python in one of many threads.

On Python 3.11, threads that parse at once share one count of nesting: where a thread is interrupted while its tree is
built, the other changes the count, and both can fail with a SystemError (python/cpython issue 106905). It says nothing
of the text, so the text is read again. Not here: what a text may hold. Child processes of one thread do without.
"""

import ast
from collections.abc import Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")
MAX_READINGS = 100
"""Of one text; that others disturb two in a row is rare already."""


def undisturbed(read: Callable[..., ResultT], *arguments: Any) -> ResultT:
    """`read(*arguments)`, called again where other threads' parsing disturbed it: `undisturbed(ast.parse, text)`.

    Raises what `read` raises, and SystemError where every one of `MAX_READINGS` was disturbed.
    """
    for _ in range(MAX_READINGS - 1):
        try:
            return read(*arguments)
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
    return read(*arguments)


def parse_module(text: str) -> ast.Module:
    """The text of a file as Python's tree. Raises what `ast.parse` raises."""
    return undisturbed(ast.parse, text)


def parse_expression(text: str) -> ast.expr:
    """The tree of one expression. Raises what `ast.parse` raises."""
    return undisturbed(lambda: ast.parse(text, mode="eval").body)
