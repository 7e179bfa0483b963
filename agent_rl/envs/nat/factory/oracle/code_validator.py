"""Oracle of code validators: judges each rule by itself, character by character."""

import string
from collections.abc import Mapping
from typing import Any

_DIGITS = set(string.digits)
_LETTERS = set(string.ascii_letters)
_ALLOWED = {"letters": _LETTERS, "digits": _DIGITS, "letters and digits": _LETTERS | _DIGITS}
_ERRORS = {
    "prefix": "error: bad prefix",
    "mark": "error: mark missing",
    "ending": "error: bad ending",
    "min_length": "error: too short",
    "max_length": "error: too long",
    "range": "error: bad character",
    "check": "error: bad check digit",
    "country": "error: wrong country",
}


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Any], config: Mapping[str, int]) -> str:
    code = inputs["code"]
    if all(char.isspace() for char in code):
        return "error: blank code"
    errors = [
        _ERRORS[kind]
        for kind, value in rules["rules"]
        if kind != "not_blank" and not _holds(kind, value, inputs, config)
    ]
    if errors:
        return "; ".join(errors) if rules.get("report") == "all" else errors[0]
    return {
        "ok": "ok",
        "upper": "ok " + "".join(char.upper() for char in code),
        "bare": "ok " + "".join(char for char in code if char in _ALLOWED["letters and digits"]),
        "tail": "ok " + "".join(char for index, char in enumerate(code) if index >= len(code) - 4),
    }[rules.get("success", "ok")]


def _holds(kind: str, value: Any, inputs: Mapping[str, Any], config: Mapping[str, int]) -> bool:
    code = inputs["code"]
    if kind == "prefix":
        return code[: len(value)] == value
    if kind == "mark":
        return code.count(value) > 0
    if kind == "ending":
        return code[-1] in _ALLOWED[value]
    if kind == "min_length":
        return len(code) >= value
    if kind == "max_length":
        return len(code) <= config.get("max_length", value)
    if kind == "range":
        places = range(value["start"] - 1, value["end"])
        return all(place < len(code) and value["low"] <= code[place] <= value["high"] for place in places)
    if kind == "country":
        prefix = value.get(inputs["country"])
        return prefix is not None and code.find(prefix) == 0
    assert kind == "check", kind
    return code[-1] == _check_character(code[:-1], value)


def _check_character(code: str, value: Mapping[str, Any]) -> str:
    total, turn = 0, 0
    for char in code:
        if char in _DIGITS:
            worth = ord(char) - ord("0")
        elif char in _LETTERS and value["letters"]:
            worth = ord(char.lower()) - ord("a") + 1
        else:
            continue
        total += worth * value["weights"][turn]
        turn = (turn + 1) % len(value["weights"])
    rest = total % value["modulus"]
    return "x" if rest == 10 else str(rest)
