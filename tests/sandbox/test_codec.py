"""Plain data crosses unchanged, everything else becomes opaque, and a hostile other end only ever causes an error."""

import json
import math
import os
import socket
import struct
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.sandbox.guest import codec
from agent_rl.sandbox.guest.codec import CodecError, Link, LinkError, Opaque, decode, encode, same, type_name

KEYS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers()),
    *(st.tuples(st.integers(), st.text()), st.frozensets(st.integers())),
)
PLAIN = st.recursive(
    st.one_of(KEYS, st.integers(-(2**300), 2**300), st.text(st.characters(categories=["Cs", "Lu"]))),
    lambda inner: st.one_of(
        *(st.lists(inner, max_size=4), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=4)),
        *(st.sets(KEYS, max_size=4), st.frozensets(KEYS, max_size=4)),
    ),
    max_leaves=12,
)


def over_the_wire(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value))))


@settings(max_examples=150, deadline=None)
@given(PLAIN)
def test_plain_values_cross_unchanged(value: Any) -> None:
    back = over_the_wire(value)
    assert type(back) is type(value)
    assert same(back, value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        10**4000,
        -(10**400),
        True,
        "\ud83d\ude00",
        "\ud800",
        b"\xff",
        (),
        {},
        1 - 0j,
    ],
    ids=ascii,
)
def test_awkward_values_keep_their_type_and_text(value: Any) -> None:
    back = over_the_wire(value)
    assert type(back) is type(value)
    assert same(back, value)
    assert math.copysign(1, back) == math.copysign(1, value) if isinstance(value, float) else True


class Same(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize("value", [Same(2), Text("x"), object(), Same, len, range(3), bytearray(b"x"), iter([])])
def test_anything_else_becomes_opaque_and_equal_to_nothing(value: Any) -> None:
    back = over_the_wire([value])[0]
    assert type(back) is Opaque and back.type_name == type_name(value)
    assert back != value and not same(back, back)
    assert back != back  # noqa: PLR0124
    with pytest.raises(TypeError):
        hash(back)


@pytest.mark.parametrize("value", [{Same(1): 1}, {Same(1)}, frozenset([Text("x")]), {(1, Same(1)): 2}, {len: 1}])
def test_a_container_with_such_a_key_is_opaque_as_a_whole(value: Any) -> None:
    assert type(over_the_wire(value)) is Opaque


def test_the_type_name_does_not_come_from_a_metaclass() -> None:
    class Meta(type):
        __name__ = "int"  # type: ignore[assignment]

    assert type_name(Meta("Liar", (), {})()) == "Liar"


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [cyclic(), nested(100_000), [0] * 200_000, "x" * (1 << 21), 1 << (1 << 17), [[0] * 1000] * 1000],
    ids=["cyclic", "deep", "long", "text", "number", "many"],
)
def test_values_beyond_the_caps_are_refused(value: Any) -> None:
    with pytest.raises(CodecError):
        encode(value)


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.sampled_from("ltszdfbuico")
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
        max_leaves=10,
    )
)
def test_decoding_anything_gives_a_value_or_a_codec_error(data: Any) -> None:
    try:
        value = decode(data)
    except CodecError:
        return
    assert same(value, value) or "opaque" in repr(value)


@pytest.mark.parametrize(
    "data",
    [
        ["f"],
        ["f", "z"],
        ["x", 1],
        {},
        1.5,
        ["i", 3],
        ["i", "0x" + "f" * 10**5],
        ["b", "!"],
        ["d", [[["l", []], 1]]],
        ["l", "abc"],
        ["l", {}],
        ["s", [1, 1]],
        ["s", [1, ["f", "1"]]],
        ["d", [[1, 1], [1, 2]]],
        ["d", [[1]]],
        2**64,
        ["i", "0x1", 1],
        ["l"],
    ],
)
def test_malformed_data_is_refused(data: Any) -> None:
    with pytest.raises(CodecError):
        decode(data)


# ---------------------------------------------------------------- sets and keys with hashes of the sender's choice

P = 2**61 - 1


def test_values_of_many_containers_are_refused_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    many = codec.MAX_CONTAINERS
    for value in ([[] for _ in range(many)], {"a": [(1, {2})] * (many // 2)}):
        with pytest.raises(CodecError, match="containers"):
            encode(value)
        with monkeypatch.context() as without_cap:
            without_cap.setattr(codec, "MAX_CONTAINERS", 10 * many)
            data = json.loads(json.dumps(encode(value)))
        with pytest.raises(CodecError, match="containers"):
            decode(data)
    pairs = [(n, str(n)) for n in range(many - 1)]
    assert decode(encode(pairs)) == pairs
    numbers = [n / 7 for n in range(codec.MAX_ITEMS - 1)]
    assert decode(encode(numbers)) == numbers


def test_the_tags_are_those_that_values_have() -> None:
    values = (2**70, 0.5, 1j, b"", "\ud800", [], (), set(), frozenset(), {}, object())
    assert {encode(value)[0] for value in values} == codec.TAGS


@pytest.mark.parametrize(
    "value",
    [
        {k * P for k in range(1, 20)},
        {k * P: 0 for k in range(1, 20)},
        frozenset((k * P,) for k in range(1, 20)),
        {2 ** (61 * k) for k in range(10)} | {float(2 ** (61 * k)) for k in range(10, 17)},
        {complex(1000003 * k, -k) for k in range(1, 20)},
        set(range(10_001)),
        [set(range(6_000)), set(range(9_000))],
        {(n, n): n for n in range(10_001)},
    ],
    ids=["ints", "keys", "tuples", "floats", "complex", "many", "several", "pairs"],
)
def test_hash_hostile_containers_are_refused_on_both_ways(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CodecError, match=r"hash|no texts"):
        encode(value)
    monkeypatch.setattr(codec.Hashing, "check", lambda self, members: None)
    data = json.loads(json.dumps(encode(value)))
    monkeypatch.undo()
    with pytest.raises(CodecError, match=r"hash|no texts"):
        decode(data)


@pytest.mark.parametrize(
    "value", [{k * P for k in range(1, 17)}, set(range(10_000)), {str(n) for n in range(40_000)}, [{1}] * 9_000]
)
def test_ordinary_containers_cross(value: Any) -> None:
    assert same(over_the_wire(value), value)


def test_hashing_is_counted_for_all_values_of_one_sender() -> None:
    hashing, data = codec.Hashing(), encode(set(range(8_000)))
    decode(data, hashing=hashing)
    with pytest.raises(CodecError, match="no texts"):
        decode(data, hashing=hashing)


# ---------------------------------------------------------------- Link


@pytest.fixture
def ends() -> Any:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Link(ours), theirs


def soon(seconds: float = 0.1) -> float:
    return time.monotonic() + seconds


def test_messages_arrive_whole_and_in_order(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends
    other = Link(theirs)
    big = {"text": "x" * 900_000}
    sender = threading.Thread(target=lambda: [other.send(message, soon(5)) for message in ({"n": 1}, big)])
    sender.start()
    assert link.receive(soon(5)) == {"n": 1}
    assert link.receive(soon(5)) == big
    sender.join()
    assert link.is_quiet()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "too long"),
        (b"\x00\x00", "too long"),
        (struct.pack(">I", 10) + b"{", "too long"),
        (struct.pack(">I", 2**31), "too much"),
        (struct.pack(">I", 2) + b"{x", "not JSON"),
        (struct.pack(">I", 2) + b"\xff\xfe", "not JSON"),
        (struct.pack(">I", 100_000) + b"[" * 100_000, "not JSON"),
        (struct.pack(">I", 9000) + b"1" * 9000, "not JSON"),
    ],
)
def test_a_frame_that_is_late_long_or_torn_ends_the_link(
    ends: tuple[Link, socket.socket], sent: bytes, message: str
) -> None:
    link, theirs = ends
    theirs.sendall(sent)
    with pytest.raises(LinkError, match=message):
        link.receive(soon())


def test_an_end_that_is_gone_is_noticed_in_the_middle_of_a_frame(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends
    theirs.sendall(struct.pack(">I", 10) + b"{")
    theirs.close()
    assert not link.is_quiet()
    with pytest.raises(LinkError, match="gone"):
        link.receive(soon())


def test_a_reader_that_never_reads_cannot_hold_the_sender(ends: tuple[Link, socket.socket]) -> None:
    link, _ = ends
    started = time.monotonic()
    with pytest.raises(LinkError, match="too long"):
        link.send("x" * 1_000_000, soon(0.2))
    assert time.monotonic() - started < 10


def test_a_message_beyond_the_cap_is_not_sent_at_all(ends: tuple[Link, socket.socket]) -> None:
    link, theirs = ends
    with pytest.raises(CodecError):
        link.send("x" * codec.MAX_MESSAGE_BYTES, soon())
    os.set_blocking(theirs.fileno(), False)
    with pytest.raises(BlockingIOError):
        theirs.recv(1)


def test_all_messages_together_are_capped(ends: tuple[Link, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_RECEIVED_BYTES", 25)
    link, theirs = ends
    theirs.sendall((struct.pack(">I", 10) + b'"12345678"') * 3)
    assert [link.receive(soon()), link.receive(soon())] == ["12345678", "12345678"]
    with pytest.raises(LinkError, match="too much"):
        link.receive(soon())
