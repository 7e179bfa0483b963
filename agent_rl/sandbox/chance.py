"""Whether a test file could decide by chance: by a clock, by random bits, by the process it runs in or by an address.

By its words alone, without parsing it, so that no text takes long or runs deep. Errs on one side: what turns any object
into a text (`str`, an f-string) may show an address, what puts any object into a set may be ordered by one. Not here:
what follows from it, and how long a call took (`mutation.py`).
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
    Formatter Lock Path RLock aclose argparse asyncio attrgetter bltns breakpoint builtins cache caplog capfd
    capfdbinary capsys capsysbinary capteesys clock codecs compile contextlib copyreg ctypes datetime delattr
    doctest_namespace environ eval evaluate_forward_ref exec exit faulthandler frame functools gc get_type_hints getattr
    getcontext globals hash help id importlib indirect input inspect io linecache locals localcontext memoryview
    monkeypatch now object open operator os pathlib perf_counter posix pytestconfig pytester quit random
    record_property record_testsuite_property record_xml_attribute recwarn request sample secrets select setattr
    shuffle signal skipif socket subprocess subtests sys tempfile testdir thread threading time timeit tmp_path
    tmp_path_factory tmpdir tmpdir_factory today tool traceback tracemalloc types urandom usefixtures utcnow uuid uuid1
    uuid4 vars warnings weakref xfail
    """
)
"""`skipif` and `xfail` take conditions that are texts, `get_type_hints` annotations, and run them."""
_OF_ADDRESSES = _words(
    """
    Template Text UserString args ascii exconly format format_map frozenset getrepr items keys match print repr
    safe_substitute set str substitute
    """
)
"""Texts of any object, texts that hold one (`[].index(f)` names `f` in its complaint), sets of any."""
_PREFIXES = ("ag_", "co_", "cr_", "f_", "gi_", "tb_")
"""Of attributes of generators, frames and tracebacks, from which every module can be had."""
_OF_PYTEST = frozenset(["approx", "fail", "fixture", "mark", "param", "raises", "skip"])
_MAX_CHARS = 20_000
_FORMATTED = re.compile(r"[bru]*f", re.IGNORECASE)
_FORMATTED_MARK, _TEXT_MARK = "f''", "''"
_FORMATTED_START = getattr(tokenize, "FSTRING_START", None)
_IN_PLAIN_SETS = frozenset([",", "(", ")", "-", "True", "False", _TEXT_MARK])
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
        if word.startswith("pytest_") or (before == "." and word.startswith(_PREFIXES)):
            return True
        if word in _OF_ADDRESSES or (word == "type" and before != ".") or _formats(code, place):
            return True
        if word.isidentifier() and not word.isascii():
            return True
        if word == "import" and not all(_is_known(name, roots) for name in _imported(code, place)):
            return True
    return _has_set_of_objects(code)


def _is_known(name: str, roots: Collection[str]) -> bool:
    """Whether this is a module under test or one of those that tests may import, but no module inside of such a one."""
    root, _, rest = name.partition(".")
    return root in roots and (root not in _MODULES or not rest or name == "collections.abc")


def _formats(code: list[str], place: int) -> bool:
    """Whether what stands here makes a text of values: an f-string, or `%` of anything but a number that ends there."""
    word, after = code[place], code[place + 1 : place + 3]
    if word != "%":
        return word in (_FORMATTED_MARK, "%=")
    is_number = bool(after) and after[0][:1].isdigit()
    return not is_number or after[1:] in (["."], ["**"], ["["], ["("])


class _Brackets:
    """What stands between two brackets, as far as it was read."""

    def __init__(self, opening: str) -> None:
        self.opening, self.is_empty = opening, True
        self.is_plain = True
        self.is_dict: bool | None = None

    def add(self, word: str) -> None:
        if self.is_dict is None and word in (":", "**", "lambda"):  # the colon of a lambda makes no dict
            self.is_dict = word == ":" or (word == "**" and self.is_empty)
        self.is_plain &= word in _IN_PLAIN_SETS or word[:1].isdigit()
        self.is_empty = False

    def is_set_of_objects(self) -> bool:
        return self.opening == "{" and not (self.is_empty or self.is_plain or self.is_dict)


def _has_set_of_objects(code: list[str]) -> bool:
    """Whether some braces may hold a set of anything but numbers and texts, of which none has an address for a hash."""
    outside = [_Brackets("")]
    for word in code:
        if word in ("(", "[", "{"):
            outside.append(_Brackets(word))
        elif word not in (")", "]", "}"):
            outside[-1].add(word)
        elif len(outside) == 1 or (inside := outside.pop()).is_set_of_objects():
            return True
        else:
            outside[-1].add("(" if inside.opening == "(" and inside.is_plain else "[")
    return False


def _is_plain_pytest(code: list[str], place: int) -> bool:
    """Whether what stands here is `import pytest`, or takes one of the few names that tests need."""
    before, after = code[place - 1] if place else "", code[place + 1 : place + 3]
    if before == "from":
        return set(code[place + 1 : _end(code, place)]) <= _OF_PYTEST | {"import", ",", "(", ")"}
    if before in ("import", ","):
        return after[:1] in ([";"], [","])
    return len(after) == 2 and after[0] == "." and after[1] in _OF_PYTEST


def _imported(code: list[str], place: int) -> set[str]:
    """Names of the modules that the `import` at this place loads."""
    start = place
    while start and (not code[start - 1].strip(".") or code[start - 1].isidentifier()) and code[start] != "from":
        start -= 1
    if code[start] == "from":
        return {"".join(code[start + 1 : place])}
    line = " ".join(code[place + 1 : _end(code, place)])
    return {part.partition(" as ")[0].replace(" ", "") for part in line.split(",")}


def _end(code: list[str], place: int) -> int:
    try:
        return code.index(";", place)
    except ValueError:
        return len(code)


def _code(text: str) -> list[str] | None:
    """Names and signs in order, a mark for every text; None where it is no Python."""
    code: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                code.append(_FORMATTED_MARK if _FORMATTED.match(token.string) else _TEXT_MARK)
            elif token.type == _FORMATTED_START:
                code.append(_FORMATTED_MARK)
            elif token.type not in _SKIPPED:
                code.append(token.string)
            elif token.type == tokenize.NEWLINE:
                code.append(";")
    except (tokenize.TokenError, SyntaxError, ValueError, RecursionError):
        return None
    return code
