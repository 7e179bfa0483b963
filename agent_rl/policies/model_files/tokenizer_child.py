"""The program that tries a tokenizer.json: `tokenizer_child.py FILE` prints nothing, or why no run should use it.

`tokenizer_file.py` starts it; it imports nothing of this package. A tokenizer is a pipeline that its file describes,
and its library aborts the process, or raises what is no exception of Python's, where a pipeline takes all memory or
searches without end. So each part has bounds, and the whole is tried on texts first. Not here: the rest of a folder.
"""

import base64
import binascii
import json
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator
from typing import Any

SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
MAX_VALUES = 5_000
"""In one section. Real ones have some dozens."""
MAX_TEXT_CHARS, MAX_CONTENT_CHARS, MAX_CHARSMAP_CHARS = 2**15, 128, 2**21
"""Of a pattern, which may list known words; of what is put in a text; of the table of a SentencePiece normalizer, of
which the largest known have some 400,000."""
MAX_GROWTH = 64.0
"""Characters that may become of one."""
PROBE_CPU_S = 5
PROBE_MEMORY_BYTES = 2**29
_FREE_BYTES, _BYTES_PER_BYTE = 2**31, 40
_FREE_CPU_S, _CPU_S_PER_MB = 20, 2
_RUN_CHARS, _NUM_RUNS = 1_000, 100
_EVERYDAY = (
    "The quick brown fox jumps over the lazy dog, 1234567 times; don't you think so?\n\n\tdef f(x):\n\t    return x\n",
    "".join(map(chr, range(32, 127))) * 3,
    "".join(chr(code) for code in range(1, 0x10000) if not 0xD800 <= code < 0xE000),
    "".join(chr(code) * 64 for code in range(32, 127)),
)


class _RefusalError(Exception):
    """Why the file is refused; goes on where "tokenizer.json" ends."""


def _values(value: Any) -> Iterator[Any]:
    """The value and all within it; keys are texts of their own."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list):
            waiting += each


def _check_section(name: str, section: Any) -> None:
    growth = 1.0
    for num, each in enumerate(_values(section)):
        if num > MAX_VALUES:
            raise _RefusalError(f"has a {name} of more than {MAX_VALUES} values")
        if isinstance(each, str) and len(each) > MAX_TEXT_CHARS and each != _charsmap(section):
            raise _RefusalError(f"has a text of {len(each)} characters in its {name}, expected {MAX_TEXT_CHARS}")
        if isinstance(each, dict):
            growth *= _growth(name, each)
    if growth > MAX_GROWTH:
        raise _RefusalError(f"has a {name} that makes one character {growth:.3g}, expected {MAX_GROWTH:g} at most")


def _growth(name: str, part: dict[str, Any]) -> float:
    """How many characters a part makes of one, at most."""
    for key in ("content", "prepend", "replacement"):
        text = part.get(key)
        if isinstance(text, str) and len(text) > MAX_CONTENT_CHARS:
            raise _RefusalError(f"puts {len(text)} characters in a text, expected {MAX_CONTENT_CHARS} at most ({name})")
    if part.get("type") == "Replace" and isinstance(part.get("content"), str):
        pattern = part.get("pattern")
        matched = pattern.get("String") if isinstance(pattern, dict) else None
        return max(1.0, len(part["content"]) / max(len(matched) if isinstance(matched, str) else 1, 1))
    if part.get("type") == "Precompiled":
        return _growth_of_charsmap(part.get("precompiled_charsmap"))
    return 1.0


def _charsmap(section: Any) -> str | None:
    found = (each.get("precompiled_charsmap") for each in _values(section) if isinstance(each, dict))
    return next((each for each in found if isinstance(each, str) and len(each) <= MAX_CHARSMAP_CHARS), None)


def _growth_of_charsmap(text: Any) -> float:
    """The longest text in the table: four bytes of length, a trie of that length, texts that end in a zero."""
    try:
        table = base64.b64decode(text or "")
    except (binascii.Error, TypeError, ValueError):
        raise _RefusalError("has a precompiled_charsmap that is no base64") from None
    texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
    return 1.0 if max(map(len, texts)) <= MAX_CONTENT_CHARS else float("inf")


def _check_model(model: Any) -> None:
    if not isinstance(model, dict):
        raise _RefusalError("describes no model")
    for name, value in model.items():
        if isinstance(value, str) and len(value) > MAX_CONTENT_CHARS:
            raise _RefusalError(f"has a {name} of {len(value)} characters, expected {MAX_CONTENT_CHARS} at most")


def _probes(described: dict[str, Any]) -> Iterator[str]:
    """Texts of every day, and runs of what the file's own patterns are made of."""
    yield from _EVERYDAY
    texts = [each for name in SECTIONS for each in _values(described.get(name)) if isinstance(each, str)]
    words = dict.fromkeys(word for text in texts if len(text) <= MAX_TEXT_CHARS for word in re.findall(r"\w+", text))
    characters = dict.fromkeys(character for text in texts for character in text[:MAX_TEXT_CHARS])
    for each in [*list(characters)[:_NUM_RUNS], *list(words)[:_NUM_RUNS]]:
        yield (each * _RUN_CHARS)[:_RUN_CHARS] + "\n"


def _limit(cpu_s: int, num_bytes: int) -> None:
    used_s = resource.getrusage(resource.RUSAGE_SELF)
    end_s = int(used_s.ru_utime + used_s.ru_stime) + cpu_s
    resource.setrlimit(resource.RLIMIT_CPU, (end_s, end_s))
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, num_bytes))


def _try(path: str) -> None:
    size = os.path.getsize(path)
    _limit(_FREE_CPU_S + _CPU_S_PER_MB * (size >> 20), _FREE_BYTES + _BYTES_PER_BYTE * size)
    with open(path, encoding="utf-8") as file:
        described = json.load(file)
    if not isinstance(described, dict):
        raise _RefusalError("holds no JSON object")
    for name in SECTIONS:
        _check_section(name, described.get(name))
    _check_model(described.get("model"))
    probes = list(_probes(described))
    del described
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    with open("/proc/self/statm", encoding="ascii") as file:
        num_bytes = int(file.read().split()[0]) * resource.getpagesize()
    _limit(PROBE_CPU_S, num_bytes + PROBE_MEMORY_BYTES)
    for text in probes:
        ids = tokenizer.encode(text).ids
        if len(ids) > MAX_GROWTH * len(text) + MAX_VALUES:
            raise _RefusalError(f"makes {len(ids)} tokens of {len(text)} characters")
        tokenizer.decode(ids)


def main() -> None:
    """Exit status 0 and no output, or a reason; ended by a signal where the file is beyond all limits."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    try:
        _try(sys.argv[1])
    except MemoryError:
        os.abort()
    except _RefusalError as error:
        print(error)
    except BaseException as error:  # the library's panics are no Exception
        print(f"cannot be used ({type(error).__name__}: {' '.join(str(error).split())[:200]})")


if __name__ == "__main__":
    main()
