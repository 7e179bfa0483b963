"""Texts that are read again where other threads disturb the reading."""

import ast
import inspect
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from agent_rl.errors import defined_at
from agent_rl.parsing import MAX_READINGS, parse_expression, parse_module, undisturbed

DISTURBED = SystemError("AST constructor recursion depth mismatch (before=54, after=50)")


class Readings:
    """Raises the given errors one after another, then reads."""

    def __init__(self, *errors: Exception) -> None:
        self.num, self._errors = 0, iter(errors)

    def __call__(self, text: str) -> str:
        self.num += 1
        for error in self._errors:
            raise error
        return text.upper()


def test_a_disturbed_reading_is_repeated() -> None:
    read = Readings(DISTURBED, DISTURBED)
    assert (undisturbed(read, "a"), read.num) == ("A", 3)


@pytest.mark.parametrize("error", [SyntaxError("no"), SystemError("error return without exception set")])
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    read = Readings(error)
    with pytest.raises(type(error)) as raised:
        undisturbed(read, "a")
    assert (raised.value, read.num) == (error, 1)


def test_it_does_not_read_for_ever() -> None:
    read = Readings(*[DISTURBED] * (MAX_READINGS + 1))
    with pytest.raises(SystemError):
        undisturbed(read, "a")
    assert read.num == MAX_READINGS


def test_modules_and_expressions() -> None:
    assert ast.unparse(parse_module("a  =  1")) == "a = 1"
    assert ast.unparse(parse_expression("f( 1 )")) == "f(1)"
    with pytest.raises(SyntaxError):
        parse_expression("a = 1")


class Garbage(list[object]):
    """Its end runs Python, as that of a user's objects does, and so lets other threads in."""

    def __del__(self) -> None:
        sum(range(2000))


@pytest.mark.slow
def test_places_of_classes_are_found_by_many_threads_at_once() -> None:
    def find(_: int) -> str:
        garbage = Garbage()
        garbage.append(garbage)
        return defined_at(pytest.Session)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = {*pool.map(find, range(400))}
    finally:
        sys.setswitchinterval(interval)
    file, (_, line) = inspect.getsourcefile(pytest.Session), inspect.getsourcelines(pytest.Session)
    assert found == {f" ({file}:{line})"}
