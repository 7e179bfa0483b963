"""Values are the same by type and exact value; tolerances hold where they are allowed."""

import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.sandbox.guest.codec import Opaque, decode, encode, same


class Same(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def over_the_wire(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, 1.0),
        (math.nan, math.nan),
        ([1, {"a": (2.0,)}], [1.0, {"a": (2,)}]),
        ({1, 2.0}, {1.0, 2}),
        ({math.nan: [1]}, {math.nan: [1.0]}),
        (complex(1, math.nan), complex(1, math.nan)),
        (0.0, -0.0),
        (None, None),
        (10**400, 10**400),
        (2**53, 2.0**53),
        (1 + 0j, complex(1.0, -0.0)),
        ({complex(math.nan, 1): 1}, {complex(math.nan, 1): 1.0}),
        ({math.nan, float("nan")}, {float("nan"), math.nan}),
        ({(1, math.nan), 2}, {(1.0, math.nan), 2.0}),
    ],
)
def test_equal_values_are_the_same(left: Any, right: Any) -> None:
    assert same(left, right) and same(right, left)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (True, 1),
        ([True], [1]),
        ({True}, {1}),
        ({1: 2}, {True: 2}),
        ((1,), [1]),
        ({1}, frozenset({1})),
        ("1", b"1"),
        ("1", 1),
        (None, False),
        ([1], [1, 1]),
        ({"a": 1}, {"a": 1, "b": 1}),
        (10**400, math.inf),
        (10**400, 1j),
        (0.1 + 0.2, 0.3),
        (Same(1), 1),
        (Opaque("int"), Opaque("int")),
        (1 + 0j, 1),
        (1 + 0j, 1.0),
        ({1 + 0j}, {1}),
        (complex(math.nan, 0), math.nan),
        (complex(1, math.nan), complex(2, math.nan)),
        (complex(5, math.nan), complex(math.nan, 5)),
        ({complex(1, math.nan)}, {complex(2, math.nan)}),
        (2**53 + 1, float(2**53)),
        ([2**64 + 1], [float(2**64)]),
        ({2**53 + 1}, {float(2**53)}),
        ({2**53 + 1: 0}, {float(2**53): 0}),
        (10**400, math.inf),
        ({math.nan, float("nan")}, {math.nan}),
        ({math.nan: 1, float("nan"): 1}, {math.nan: 1}),
        ({(True,)}, {(1,)}),
        (Decimal(1), 1),
        (Fraction(1), 1),
        (Decimal(1), Decimal(1)),
        ([Fraction(1, 2)], [0.5]),
        ({Decimal(1)}, {1}),
        (range(2), [0, 1]),
        (bytearray(b"x"), b"x"),
    ],
)
def test_different_values_are_not_the_same(left: Any, right: Any) -> None:
    assert not same(left, right) and not same(right, left)


def test_tolerances_hold_inside_containers_but_not_for_integers_or_keys() -> None:
    assert same([0.1 + 0.2, {"x": 1e-12 + 1j}], [0.3, {"x": 1j}], abs_tol=1e-9)
    assert same(100.0, 101, rel_tol=0.01) and not same(100, 101, rel_tol=0.01)
    assert not same({0.1 + 0.2: 1}, {0.3: 1}, abs_tol=1e-9)
    assert not same(10**400, 1.0, rel_tol=0.5)


def test_tolerances_are_exact_where_an_integer_is_no_float() -> None:
    assert not same(2**53 + 1, float(2**53), abs_tol=0.5) and same(2**53 + 1, float(2**53), abs_tol=1.0)
    assert same(10**400, 1.7e308, rel_tol=1.0) and not same(10**400, math.inf, rel_tol=0.5)
    assert same(1 + 1e-12j, 1 + 0j, abs_tol=1e-9) and not same(1 + 1e-12j, 1, abs_tol=1e-9)
    assert not same(math.nan, 1, abs_tol=9.0) and not same(complex(1, math.nan), complex(1, 2), abs_tol=9.0)


AWKWARD = st.sampled_from(
    [
        0,
        0.0,
        -0.0,
        False,
        1,
        1.0,
        True,
        1 + 0j,
        complex(1, -0.0),
        complex(0, math.nan),
        complex(math.nan, 0),
        math.nan,
        math.inf,
        2**53,
        2**53 + 1,
        float(2**53),
        10**400,
        "",
        b"",
        "1",
        None,
    ]
)
ALIKE = st.recursive(
    AWKWARD,
    lambda inner: st.one_of(
        *(st.lists(inner, max_size=2), st.tuples(inner), st.frozensets(AWKWARD, max_size=2)),
        *(st.sets(AWKWARD, max_size=2), st.dictionaries(AWKWARD, inner, max_size=2)),
    ),
    max_leaves=3,
)


def described(value: Any) -> Any:
    """What is the same, in text and by another way than `same`'s: types apart but int and float, by exact fractions."""
    kind = type(value).__name__
    if kind in ("int", "float"):
        return str(Fraction(value)) if kind == "int" or math.isfinite(value) else str(value)
    if kind == "complex":
        return f"complex({described(value.real)}, {described(value.imag)})"
    if kind in ("list", "tuple"):
        return f"{kind}({', '.join(map(described, value))})"
    if kind in ("set", "frozenset"):
        return f"{kind}({', '.join(sorted(map(described, value)))})"
    if kind == "dict":
        return f"dict({', '.join(sorted(f'{described(key)}: {described(item)}' for key, item in value.items()))})"
    return f"{kind}:{value!r}"


@settings(max_examples=400, deadline=None)
@given(ALIKE, ALIKE)
def test_same_is_reflexive_symmetric_and_agrees_with_another_description(left: Any, right: Any) -> None:
    assert same(left, left) and same(right, right)
    assert same(left, right) == same(right, left) == (described(left) == described(right))
    assert same([left], [right]) == same({"a": left}, {"a": right}) == same(left, right)


@settings(max_examples=200, deadline=None)
@given(ALIKE, ALIKE)
def test_what_is_the_same_is_the_same_with_tolerances_and_over_the_wire(left: Any, right: Any) -> None:
    assert same(over_the_wire(left), right) == same(left, right)
    if same(left, right):
        assert same(left, right, rel_tol=1e-9, abs_tol=1e-9)
