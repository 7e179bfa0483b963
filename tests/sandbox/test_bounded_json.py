"""JSON of an opponent's: what is counted is what is read."""

import codecs
import json
from typing import Any

import pytest
from cpu_time import cpu_s
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.sandbox.guest.bounded_json import MAX_VALUES, UnreadableJSON, read_json, read_json_lines

OTHERS = ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")
MANY = '["\\"",' + "[]," * (2 * MAX_VALUES) + "0]"
"""An escaped quote, of which the bytes of UTF-16 show no escape."""


@pytest.mark.parametrize("encoding", OTHERS)
@pytest.mark.parametrize("text", ['["a", 1]', "[1]", '{"é": "ü"}', MANY], ids=["text", "numbers", "wide", "many"])
def test_other_encodings_than_utf_8_are_refused_at_once(encoding: str, text: str) -> None:
    data = text.encode(encoding)

    def refuse() -> None:
        with pytest.raises(UnreadableJSON):
            read_json(data)
        assert read_json_lines(data)[0] == []

    assert cpu_s(refuse, 0.3) < 0.3


@pytest.mark.parametrize("data", [b"\xff", b'"\xff"', b'"\xc3"', b'"\xc0\xaf"', b'"\xf8\x88\x80\x80\x80"'])
def test_what_is_no_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(UnreadableJSON):
        read_json(data)


def test_texts_are_read_as_they_are_written() -> None:
    lone = "a\ud800b"
    assert read_json(json.dumps(lone)) == read_json(json.dumps(lone).encode()) == lone
    raw = json.dumps(lone, ensure_ascii=False)
    assert read_json(raw) == read_json(raw.encode("utf-8", "surrogatepass")) == lone
    assert read_json(codecs.BOM_UTF8 + b"[1]") == [1]


def test_no_encoding_hides_values_from_the_count() -> None:
    for text in ("[" + "1," * MAX_VALUES + "1]", MANY):
        with pytest.raises(UnreadableJSON, match="more than"):
            read_json(text.encode())
        with pytest.raises(UnreadableJSON):
            read_json(text.encode("utf-16"))


@given(st.recursive(st.none() | st.integers(-9, 9) | st.text(), st.lists, max_leaves=9))
def test_plain_values_come_back(value: Any) -> None:
    for is_ascii in (True, False):
        text = json.dumps(value, ensure_ascii=is_ascii)
        assert read_json(text) == read_json(text.encode("utf-8", "surrogatepass")) == value
