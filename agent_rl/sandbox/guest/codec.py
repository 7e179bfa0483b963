"""Encode plain data as bounded JSON and back, and carry it over a framed link to an untrusted process.

A value crosses only when its type is *exactly* None, bool, int, float, complex, str, bytes, list, tuple, dict, set or
frozenset; subclasses and everything else become an `Opaque`. Decoding runs no code of the sender's: there is no pickle
and no constructor to call. Does not: decide whether an answer is right; only `same` compares values.
"""

import base64
import builtins
import json
import math
import operator
import re
import select
import socket
import time
from collections.abc import Callable, Collection
from fractions import Fraction
from typing import Any

from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, read_json

MAX_MESSAGE_BYTES = 1 << 20
MAX_RECEIVED_BYTES = 16 << 20
"""Of one link together: decoded values are some ten times larger than their messages."""
MAX_DEPTH = 32
MAX_ITEMS = 50_000
"""Values in one message, containers and what is in them."""
MAX_CONTAINERS = 12_000
"""Of them. One costs several times as much to read as a number does, and most of all where it is a member of a set."""
MAX_HASHED = 10_000
"""Members of one set, keys of one dict, that are neither text nor None: their hashes are of the sender's choice, and a
table of such takes up to the square of their number. The squares of several containers are added up."""
MAX_EQUAL_HASHES = 16
"""Of them, in one container."""
MAX_INT_BITS = 1 << 16
_PLAIN_BITS = 64
"""Of an integer that is written as such."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTAINERS = {"l": list, "t": tuple, "s": set, "z": frozenset}
TAGS = frozenset(["d", "i", "f", "c", "b", "u", "o", *_CONTAINERS])
"""Of every value that is not written as itself."""
_TAGS: dict[type, str] = {kind: tag for tag, kind in _CONTAINERS.items()}
_REAL = (int, float)
_SALTED = (str, bytes, bool, type(None))
"""Types whose hashes nobody can choose."""
LATE = "the other end took too long"


class CodecError(Exception):
    """A value beyond the caps, or a message that is not an encoded value."""


class LinkError(Exception):
    """The other end is gone, late, or broke the protocol; the link must not be used again."""


class Hashing:
    """What may still be put into sets and dicts, of one value or, where several are read, of all of them together."""

    def __init__(self) -> None:
        self._left = MAX_HASHED**2

    def check(self, members: Collection[Any]) -> None:
        """Raise CodecError where a table of these members would take too long to build."""
        if len(members) <= MAX_EQUAL_HASHES:
            self._left -= len(members) ** 2
            return
        chosen = [hash(member) for member in members if type(member) not in _SALTED]
        self._left -= len(chosen) ** 2
        if self._left < 0:
            raise CodecError(f"sets and keys hold more than {MAX_HASHED} values that are no texts")
        if len(chosen) > MAX_EQUAL_HASHES:
            chosen.sort()
            if any(map(operator.eq, chosen, chosen[MAX_EQUAL_HASHES:])):
                raise CodecError(f"more than {MAX_EQUAL_HASHES} members of a set or keys have the same hash")


class _NotPlain(Exception):
    """A key that cannot cross."""


class Opaque:
    """A value of a type that may not cross. Equal to nothing, not even to itself; only its type's name is known."""

    __slots__ = ("type_name",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __eq__(self, other: object) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<opaque {self.type_name}>"


def type_name(value: object) -> str:
    """The name of the value's type, read without its metaclass, which may answer anything."""
    return str(type.__dict__["__name__"].__get__(type(value)))[:80]


def builtin_base(kind: type) -> str:
    """The nearest built-in class: the one that other people's `except` clauses know an exception by."""
    lines = type.__dict__["__mro__"].__get__(kind)  # without the metaclass
    names = (str(type.__dict__["__name__"].__get__(base)) for base in lines)
    return next(name for base, name in zip(lines, names, strict=True) if vars(builtins).get(name) is base)


# ---------------------------------------------------------------- encoding


def encode(value: Any, *, opaque: Callable[[Any], list[Any]] | None = None) -> Any:
    """Return JSON for `value`. `opaque(value)` describes what may not cross; by default its type's name does.

    Raises CodecError for values beyond the caps, cyclic ones included.
    """
    return _Encoder(opaque or (lambda hidden: [type_name(hidden)])).encode(value, 0)


class _Encoder:
    def __init__(self, opaque: Callable[[Any], list[Any]]) -> None:
        self._opaque = opaque
        self._num_items = self._num_containers = 0
        self._hashing = Hashing()

    def encode(self, value: Any, depth: int, *, is_key: bool = False) -> Any:
        self._num_items += 1
        if self._num_items > MAX_ITEMS or depth > MAX_DEPTH:
            raise CodecError(f"the value has more than {MAX_ITEMS} items or is nested deeper than {MAX_DEPTH}")
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            if value.bit_length() > MAX_INT_BITS:
                raise CodecError(f"the number has more than {MAX_INT_BITS} bits")
            return value if value.bit_length() <= _PLAIN_BITS else ["i", hex(value)]
        if kind is float:
            return ["f", value.hex()]
        if kind is complex:
            return ["c", value.real.hex(), value.imag.hex()]
        if kind is str or kind is bytes:
            return self._text(value)
        if kind in _TAGS or kind is dict:
            self._num_containers += 1
            if self._num_containers > MAX_CONTAINERS:
                raise CodecError(f"the value holds more than {MAX_CONTAINERS} containers")
            try:
                return self._container(value, kind, depth, is_key)
            except _NotPlain:
                if is_key:
                    raise
        if is_key:
            raise _NotPlain
        return ["o", *self._opaque(value)]

    def _text(self, value: str | bytes) -> Any:
        if len(value) > MAX_MESSAGE_BYTES:
            raise CodecError(f"the text is longer than {MAX_MESSAGE_BYTES}")
        if isinstance(value, bytes):
            return ["b", base64.b64encode(value).decode()]
        if _SURROGATE.search(value):  # JSON would join two lone ones into another character
            return ["u", base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()]
        return value

    def _container(self, value: Any, kind: type, depth: int, is_key: bool) -> Any:
        if len(value) > MAX_ITEMS:
            raise CodecError(f"the value has more than {MAX_ITEMS} items")
        if kind is dict:
            pairs = [(self.encode(k, depth + 1, is_key=True), self.encode(v, depth + 1)) for k, v in value.items()]
            self._hashing.check(value)
            return ["d", pairs]
        is_set = kind in (set, frozenset)
        items = [self.encode(item, depth + 1, is_key=is_key or is_set) for item in value]
        if is_set:  # all of them are plain by now, so that no code of theirs runs
            self._hashing.check(value)
        return [_TAGS[kind], items]


# ---------------------------------------------------------------- decoding


def decode(data: Any, *, opaque: Callable[[list[Any]], Any] | None = None, hashing: Hashing | None = None) -> Any:
    """Return the value of `encode`'s JSON. `opaque` makes the placeholder for what did not cross.

    `hashing` is shared by the values of one sender. Raises CodecError for anything `encode` does not produce.
    """
    try:
        return _Decoder(opaque or (lambda about: Opaque(str(about[0])[:80])), hashing or Hashing()).decode(data, 0)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
        raise CodecError(f"not an encoded value: {type(error).__name__}") from None


class _Decoder:
    def __init__(self, opaque: Callable[[list[Any]], Any], hashing: Hashing) -> None:
        self._opaque, self._hashing = opaque, hashing
        self._num_items = self._num_containers = 0

    def decode(self, data: Any, depth: int) -> Any:
        return self._all([data], depth)[0]

    def _all(self, data: list[Any], depth: int) -> list[Any]:
        self._num_items += len(data)
        if self._num_items > MAX_ITEMS:
            raise CodecError(f"the value has more than {MAX_ITEMS} items")
        values = []
        for item in data:
            kind = type(item)
            if item is None or kind is bool or kind is str or (kind is int and item.bit_length() <= _PLAIN_BITS):
                values.append(item)
            elif depth > MAX_DEPTH or kind is not list or type(item[0]) is not str:
                raise ValueError
            else:
                values.append(self._tagged(item, depth))
        return values

    def _tagged(self, data: list[Any], depth: int) -> Any:
        tag = data[0]
        if tag == "o":
            return self._opaque(data[1:])
        if tag == "c":
            return complex(float.fromhex(data[1]), float.fromhex(data[2]))
        _, body = data
        if tag not in _CONTAINERS and tag != "d":
            return _scalar(tag, body)
        if type(body) is not list:
            raise ValueError
        self._num_containers += 1
        if self._num_containers > MAX_CONTAINERS:
            raise CodecError(f"the value holds more than {MAX_CONTAINERS} containers")
        if tag == "d":
            keys = self._all([key for key, _ in body], depth + 1)
            self._hashing.check(keys)
            items = self._all([item for _, item in body], depth + 1)
            return _whole(dict(zip(keys, items, strict=True)), body)
        members = self._all(body, depth + 1)
        if tag in "sz" and members:
            self._hashing.check(members)
        return _whole(_CONTAINERS[tag](members), body)


def _whole(container: Any, body: list[Any]) -> Any:
    if len(container) != len(body):  # equal members, which no set has
        raise ValueError
    return container


def _scalar(tag: str, body: str) -> Any:
    if tag == "f":
        return float.fromhex(body)
    if tag == "b":
        return base64.b64decode(body, validate=True)
    if tag == "u":
        return base64.b64decode(body, validate=True).decode("utf-8", "surrogatepass")
    if tag == "i" and len(body) <= MAX_INT_BITS // 4 + _PLAIN_BITS:
        return int(body, 16)
    raise ValueError


# ---------------------------------------------------------------- comparing


def same(actual: Any, expected: Any, *, rel_tol: float = 0.0, abs_tol: float = 0.0) -> bool:
    """Whether two plain values are equal: `same([1, 2.0], [1.0, 2])`, but not `same(True, 1)` or `same((1,), [1])`.

    An int and a float compare by their exact value, other types only with their own: `1+0j` is not 1. nan equals nan,
    in the parts of a complex number too, and 0.0 equals -0.0. Tolerances hold where one of the two is a float, and for
    the parts of complex numbers. Keys and members of sets compare exactly. Anything that is not plain, an `Opaque` too,
    is equal to nothing.
    """
    if type(actual) in _REAL and type(expected) in _REAL:
        return _same_real(actual, expected, rel_tol, abs_tol)
    if type(actual) is not type(expected):
        return False
    if type(actual) is complex:
        parts = ((actual.real, expected.real), (actual.imag, expected.imag))
        return all(_same_real(left, right, rel_tol, abs_tol) for left, right in parts)
    if type(actual) in (list, tuple):
        return len(actual) == len(expected) and all(
            same(left, right, rel_tol=rel_tol, abs_tol=abs_tol) for left, right in zip(actual, expected, strict=True)
        )
    if type(actual) is dict:
        left, right = (dict(zip(_numbered(each), each.values(), strict=True)) for each in (actual, expected))
        return left.keys() == right.keys() and all(
            same(left[name], right[name], rel_tol=rel_tol, abs_tol=abs_tol) for name in left
        )
    return _key(actual) == _key(expected)


def _same_real(actual: float, expected: float, rel_tol: float, abs_tol: float) -> bool:
    if actual == expected or (_is_nan(actual) and _is_nan(expected)):
        return True
    if not (rel_tol or abs_tol) or type(actual) is type(expected) is int:
        return False
    if type(actual) is type(expected):
        return math.isclose(actual, expected, rel_tol=rel_tol, abs_tol=abs_tol)
    if not math.isfinite(actual if type(actual) is float else expected):
        return False
    left, right = Fraction(actual), Fraction(expected)  # the integer may be none that a float can be
    allowed = max(Fraction(rel_tol) * max(abs(left), abs(right)), Fraction(abs_tol))
    return abs(left - right) <= allowed


def _is_nan(value: float) -> bool:
    return value != value  # noqa: PLR0124  the definition


def _key(value: Any) -> Any:
    """A hashable key that is equal where `same` without tolerances is True."""
    kind = type(value)
    if kind in _REAL:
        return ("real", "nan" if _is_nan(value) else value)
    if kind is complex:
        return (kind, _key(value.real), _key(value.imag))
    if kind in (tuple, list):
        return (kind, tuple(map(_key, value)))
    if kind in (set, frozenset):
        return (kind, frozenset(_numbered(value)))
    if value is None or kind in (bool, str, bytes):
        return (kind, value)
    return object()


def _numbered(members: Collection[Any]) -> list[Any]:
    """The keys of members, each with its number among equal ones: two nan are two members."""
    seen: dict[Any, int] = {}
    numbered = []
    for key in map(_key, members):
        seen[key] = seen.get(key, 0) + 1
        numbered.append((key, seen[key]))
    return numbered


# ---------------------------------------------------------------- the link


class Link:
    """Framed JSON messages on a stream socket. Every wait has a deadline (`time.monotonic`), every message a cap."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._num_received = 0

    def send(self, message: Any, deadline: float | None) -> None:
        """Raises CodecError for a message beyond the cap, of which nothing was sent, and LinkError."""
        body = json.dumps(message).encode()
        if len(body) > MAX_MESSAGE_BYTES:
            raise CodecError(f"the message has {len(body)} bytes; the cap is {MAX_MESSAGE_BYTES}")
        data = memoryview(len(body).to_bytes(4, "big") + body)
        while data:
            self._wait(select.POLLOUT, deadline)
            try:
                data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]
            except BlockingIOError:
                continue
            except OSError:
                raise LinkError("the other end is gone") from None

    def receive(self, deadline: float | None) -> Any:
        """The next message. Raises LinkError, also for a message that is too long or is not JSON."""
        size = int.from_bytes(self._exactly(4, deadline), "big")
        self._num_received += size
        if size > MAX_MESSAGE_BYTES or self._num_received > MAX_RECEIVED_BYTES:
            raise LinkError("the other end sent too much")
        try:
            return read_json(self._exactly(size, deadline))
        except UnreadableJSON:
            raise LinkError("the other end sent something that is not JSON") from None

    def is_quiet(self) -> bool:
        """Whether nothing waits to be read; also False when the other end is gone."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def _exactly(self, size: int, deadline: float | None) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._wait(select.POLLIN, deadline)
            try:
                chunk = self._socket.recv(min(size - len(data), 1 << 16), socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError:
                chunk = b""
            if not chunk:
                raise LinkError("the other end is gone")
            data += chunk
        return bytes(data)

    def _wait(self, event: int, deadline: float | None) -> None:
        poll = select.poll()
        poll.register(self._socket, event)
        left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not poll.poll(left_ms):
            raise LinkError(LATE)
