"""Whether a test file could decide by chance: whether it gets at a clock, at random bits, or at the process it runs in.

By its words alone, without parsing it, so that no text takes long or runs deep. Errs on one side: a file is free of
chance only where every import, every name and every attribute is known to be. Not here: what follows from it
(`mutation.py`).
"""

import io
import re
import tokenize
from collections.abc import Collection


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODULES = _words(
    "__future__ abc collections dataclasses decimal enum fractions itertools json math pytest re string typing"
)
"""Those that tests may import. What they hold has no clock and no random bits by a name that is not listed below."""
_WORDS = _words(
    """
    Formatter Lock RLock aclose asyncio attrgetter breakpoint builtins cache caplog capfd capfdbinary capsys
    capsysbinary clock codecs compile copyreg ctypes datetime delattr doctest_namespace environ eval exec exit
    faulthandler frame gc getattr getcontext globals hash id importlib input inspect io linecache locals
    localcontext memoryview monkeypatch now object open operator os perf_counter posix process pytester quit random
    record_property record_testsuite_property record_xml_attribute recwarn request sample secrets select setattr
    shuffle signal socket subprocess sys tempfile testdir thread threading time timeit tmp_path tmp_path_factory
    tmpdir tmpdir_factory today traceback tracemalloc types urandom utcnow uuid uuid1 uuid4 vars warnings weakref
    """
)
_OF_PYTEST = frozenset(["approx", "fail", "fixture", "mark", "param", "raises", "skip"])
_MAX_CHARS = 20_000
_WORD = re.compile(r"[A-Za-z_]\w*")
_FORMATTED = re.compile(r"[bru]*f", re.IGNORECASE)
_SKIPPED = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)


def may_vary(text: str, modules: Collection[str]) -> bool:
    """Whether two runs of a test file on equal `modules` could end differently, as far as can be told from its words.

    A long text may, and one with names of other than ASCII letters, which Python takes for names of ASCII.
    """
    code = _code(text) if len(text) <= _MAX_CHARS else None
    if code is None:
        return True
    roots = _MODULES | {name.partition(".")[0] for name in modules}
    for place, word in enumerate(code):
        before = code[place - 1] if place else ""
        is_private = word.startswith("_") and (before == "." or "__" in word)
        if word in _WORDS or is_private or (word == "pytest" and not _is_plain_pytest(code, place)):
            return True
        if word.isidentifier() and not word.isascii():
            return True
        if word == "import" and not _imported(code, place) <= roots:
            return True
    return False


def _is_plain_pytest(code: list[str], place: int) -> bool:
    """Whether what stands here is `import pytest`, or takes one of the few names that tests need."""
    before, after = code[place - 1] if place else "", code[place + 1 : place + 3]
    if before == "from":
        end = code.index(";", place) if ";" in code[place:] else len(code)
        return set(code[place + 1 : end]) <= _OF_PYTEST | {"import", ",", "(", ")"}
    if before in ("import", ","):
        return after[:1] in ([";"], [","])
    return len(after) == 2 and after[0] == "." and after[1] in _OF_PYTEST


def _imported(code: list[str], place: int) -> set[str]:
    """Top names of the modules that the `import` at this place loads; an empty one for a relative import."""
    start = place
    while start and (code[start - 1] == "." or code[start - 1].isidentifier()) and code[start] != "from":
        start -= 1
    if code[start] == "from":
        return {code[start + 1].replace(".", "")}
    found, is_next = set(), True
    for word in code[place + 1 :]:
        if word == ";":
            break
        if is_next:
            found.add(word)
        is_next = word == ","
    return found


def _code(text: str) -> list[str] | None:
    """Names and signs in order, the words of formatted texts too, other texts left out; None where it is no Python."""
    code: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                code += _WORD.findall(token.string) if _FORMATTED.match(token.string) else ['""']
            elif token.type not in _SKIPPED:
                code.append(token.string)
            elif token.type == tokenize.NEWLINE:
                code.append(";")
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return None
    return code
