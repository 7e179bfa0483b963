"""Oracle of text pipelines, with text operations written out by hand."""

from collections.abc import Callable, Mapping
from typing import Any


def answer(rules: Mapping[str, Any], inputs: Mapping[str, Any], config: Mapping[str, int]) -> str:
    text = inputs["text"]
    if not _words(text):
        return "error: empty text"
    if "max_length" in config and len(text) > config["max_length"]:
        return "error: text too long"
    if rules.get("scope") != "lines":
        return _through(rules["ops"], text)
    lines = [_through(rules["ops"], line) if _words(line) else line for line in _lines(text)]
    if rules["blank_lines"] == "drop":
        lines = [after for before, after in zip(_lines(text), lines, strict=True) if _words(before)]
    return _glue(lines, "\n")


def _through(ops: list[str | dict[str, Any]], text: str) -> str:
    for op in ops:
        text = _PLAIN[op](text) if isinstance(op, str) else _PARAMETRISED[op["op"]](text, op)
    return text


def _lines(text: str) -> list[str]:
    lines = [""]
    for char in text:
        if char == "\n":
            lines.append("")
        else:
            lines[-1] += char
    return lines


def _words(text: str) -> list[str]:
    words, word = [], ""
    for char in text + " ":
        if char.isspace():
            if word:
                words.append(word)
            word = ""
        else:
            word += char
    return words


def _glue(words: list[str], between: str = " ") -> str:
    out = ""
    for index, word in enumerate(words):
        out += (between if index else "") + word
    return out


def _without_repeats(words: list[str]) -> list[str]:
    out: list[str] = []
    for word in words:
        if word not in out:
            out.append(word)
    return out


def _trim(text: str) -> str:
    start, end = 0, len(text)
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return text[start:end]


def _replaced(text: str, old: str, new: str) -> str:
    out, index = "", 0
    while index < len(text):
        found = text[index : index + len(old)] == old
        out += new if found else text[index]
        index += len(old) if found else 1
    return out


def _rotated(text: str, count: int) -> str:
    return text if len(text) <= count else "".join(text[(index + count) % len(text)] for index in range(len(text)))


_PLAIN: dict[str, Callable[[str], str]] = {
    "strip": _trim,
    "lower": lambda text: "".join(map(str.lower, text)),
    "upper": lambda text: "".join(map(str.upper, text)),
    "reverse": lambda text: "".join(reversed(text)),
    "squeeze": lambda text: _glue(_words(text)),
    "sort_words": lambda text: _glue(sorted(_words(text))),
    "dedupe_words": lambda text: _glue(_without_repeats(_words(text))),
    "drop_digits": lambda text: "".join(filter(lambda char: not char.isdigit(), text)),
    "snake": lambda text: _glue([word.lower() for word in _words(text)], "_"),
    "initials": lambda text: _glue([word[:1] for word in _words(text)], ""),
    "title": lambda text: _glue([word[:1].upper() + word[1:].lower() for word in _words(text)]),
    "swap_case": lambda text: "".join(char.lower() if char.isupper() else char.upper() for char in text),
    "double": lambda text: text * 2,
}
_PARAMETRISED: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "truncate": lambda text, op: "".join(char for index, char in enumerate(text) if index < op["n"]),
    "repeat": lambda text, op: "".join(text for _ in range(op["n"])),
    "rotate": lambda text, op: _rotated(text, op["n"]),
    "replace": lambda text, op: _replaced(text, op["old"], op["new"]),
    "prefix": lambda text, op: "".join([op["text"], text]),
    "suffix": lambda text, op: "".join([text, op["text"]]),
    "take_words": lambda text, op: _glue(
        [word for number, word in enumerate(_words(text), start=1) if op["first"] <= number <= op["last"]]
    ),
}
