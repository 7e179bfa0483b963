"""Tests as people write them, assert lines or a pytest text, taken apart so that each is judged by itself.

Every test becomes a file of its own: what it needs of the rest of its text, the names that it takes from the program,
and the test. Which names are the program's is read from the text: those that nothing else defines. The texts are a
dataset's and are parsed here; nothing is run. Not here: the rows (`assert_tests.py`), judging.
"""

import ast
import builtins
import copy
import importlib.util
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.envs.code.suite_state import DEFINITIONS, checks, groups, is_tolerated, names_of, without_verdict
from agent_rl.envs.code.task import MODULE
from agent_rl.errors import UserError
from agent_rl.parsing import parse_module
from agent_rl.sandbox.judge_names import check_imports
from agent_rl.sandbox.workspace import MAX_FILES, MAX_TOTAL_BYTES

_IMPORTS = (ast.Import, ast.ImportFrom)
_END = "def test_statements():\n    pass\n"
"""Behind statements, which are run as the file is loaded, so that pytest finds a test."""
_EXITS = ("sys.exit", "exit", "quit")
_RUNNER = re.compile(r"(unittest|pytest)\.main\(")
_OF_THE_PROGRAM = f"names come from the module {MODULE!r}, or are just used"


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleTest:
    """One test of a text."""

    shown: str
    """As its author wrote it, without what stands around it."""
    source: str
    """The test file."""
    names: tuple[str, ...]
    """What it takes from the program."""
    alone: str = ""
    """A script that fails as the test does and says what was given. Empty where it would hold more than the test, which
    a program beside it could read."""


class RightProgram:
    """What the text of a right program defines and imports."""

    def __init__(self, source: str) -> None:
        """ValueError where it is not Python."""
        tree = parsed(source)
        nodes = [node for node in tree.body if isinstance(node, _IMPORTS)]
        self.imports = {name: node for node in nodes for name in _bound_by(node)}
        self.functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        self.names = names_of(source)[1] - set(self.imports)


def parsed(source: str) -> ast.Module:
    """The text as Python; ValueError where it is not."""
    try:
        return parse_module(source)
    except SyntaxError as error:
        raise ValueError(f"it is not Python, {error.msg} in line {error.lineno}") from None


def read_tests(text: str, *, setup: str = "", reference: RightProgram | None = None) -> list[SingleTest]:
    """The tests of a text: functions and methods as pytest finds them, and statements outside of them that check:
    with an assert or `with pytest.raises`, or with what else fails on purpose (`check(f(1), 2)`).

    A statement needs what stands before it, a function all that is no test, both the `setup`. Of other statements that
    check they need what those do to objects that they touch as well. ValueError for a text without a test, and for a
    test that is out of the program's reach or whose names cannot be told.
    """
    before = [node for node in parsed(setup).body if not _is_skipped(node)]
    tests = _tests_of(text, before)
    body = tests.body
    of_each = [list(tests.of(node)) for node in body]
    num_tests, num_chars = sum(map(len, of_each)), len(text) + len(setup)
    if num_tests > MAX_FILES or num_tests * num_chars > MAX_TOTAL_BYTES:
        raise ValueError(
            f"it holds {num_tests} tests in {num_chars} characters, expected at most {MAX_FILES} tests, and together "
            f"{MAX_TOTAL_BYTES} characters, for each test has all that is around it; make functions of several asserts"
        )
    group_of = groups([*before, *body])[len(before) :]
    helpers = [tests.without(node) for node in body]
    made: list[SingleTest] = []
    for number, of_node in enumerate(of_each):
        is_needed = [node not in tests.checks or group_of[at] == group_of[number] for at, node in enumerate(body)]
        for test, kept in of_node:
            needed = [helper if is_needed[at] else None for at, helper in enumerate(helpers)]
            if isinstance(test, ast.ClassDef):  # one that inherits tests needs the methods of its bases
                needed = [node if isinstance(node, ast.ClassDef) else needed[at] for at, node in enumerate(body)]
            around = [*before, *filter(None, needed[:number])]
            is_statement = not isinstance(test, DEFINITIONS)
            behind = parse_module(_END).body if is_statement else [*filter(None, needed[number + 1 :])]
            made.append(_made(text, test, around, kept, behind, reference))
    if not made:
        raise ValueError("it holds no test: no statement with an assert, no function test_*, no class of tests")
    return made


def _made(
    text: str,
    test: ast.stmt,
    around: Sequence[ast.stmt],
    kept: ast.stmt,
    behind: Sequence[ast.stmt],
    reference: RightProgram | None,
) -> SingleTest:
    shown = _as_written(text, test)
    try:
        if isinstance(test, ast.AsyncFunctionDef):
            raise ValueError("is async, which no plugin here would run; write a function that is not")
        names, given = _given_to([*around, kept, *behind], reference)
    except ValueError as error:
        raise ValueError(f"the test `{_first_line(shown)}` {error}") from None
    is_alone = not isinstance(test, DEFINITIONS) and all(isinstance(each, _IMPORTS) for each in around)
    telling = _text_of([*given, *around, _Telling().visit(copy.deepcopy(test))]) if is_alone else ""
    source = _text_of([*given, *around, kept, *behind])
    return SingleTest(shown=shown, source=source, names=names, alone=telling)


# ---------------------------------------------------------------- what is a test


def _tests_of(text: str, before: Sequence[ast.stmt]) -> "_Tests":
    """Those of a text, without calls of test functions, which pytest calls. What is for a script counts where nothing
    else is a test."""
    nodes = parsed(text).body
    tests = _Tests(before, [node for node in nodes if not _is_skipped(node)])
    if any(True for node in tests.body for _ in tests.of(node)):
        return tests
    whole = [each for node in nodes for each in (_of_script(node) if _is_for_script(node) else [node])]
    return _Tests(before, [node for node in whole if not _is_skipped(node)])


def _of_script(node: ast.stmt) -> list[ast.stmt]:
    """What a script does, without its exit (`sys.exit(main())`) and without running pytest or unittest."""
    assert isinstance(node, ast.If)
    called = [_without_exit(each) for each in node.body]
    return [each for each in called if not _RUNNER.match(ast.unparse(each))]


def _without_exit(node: ast.stmt) -> ast.stmt:
    match node:
        case ast.Expr(value=ast.Call(func=func, args=[code])) if ast.unparse(func) in _EXITS:
            return ast.copy_location(ast.Expr(code), code)
        case ast.Raise(exc=ast.Call(func=ast.Name("SystemExit"), args=[code])):
            return ast.copy_location(ast.Expr(code), code)
    return node


def _is_skipped(node: ast.stmt) -> bool:
    """What only a script needs, and stars from the program: its names are found one by one."""
    if isinstance(node, ast.ImportFrom):
        return node.module == MODULE and node.names[0].name == "*"
    return _is_for_script(node)


def _is_for_script(node: ast.stmt) -> bool:
    """`if __name__ == "__main__":`"""
    return isinstance(node, ast.If) and re.search(r"\b__name__\b", ast.unparse(node.test)) is not None


def _is_bare_call(node: ast.stmt, names: Collection[str]) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=[], keywords=[])):
            return name in names
    return False


class _Tests:
    """Which statements of a text hold tests."""

    def __init__(self, before: Sequence[ast.stmt], nodes: Sequence[ast.stmt]) -> None:
        functions = {node.name for node in nodes if _is_test_function(node)}
        self.body = body = [node for node in nodes if not _is_bare_call(node, functions)]
        cases = {"TestCase"}
        self._classes: list[ast.ClassDef] = []
        self._inheriting: list[ast.ClassDef] = []
        with_tests: set[str] = set()
        for node in body:
            match node:
                case ast.ImportFrom(names=names):
                    cases |= {each.asname or each.name for each in names if each.name.endswith("TestCase")}
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_case(value, cases):
                    cases.add(name)
                case ast.ClassDef(name=name):
                    is_case = any(_is_case(base, cases) for base in node.bases)
                    cases |= {name} if is_case else set()
                    self._classes += [node] if is_case or name.startswith("Test") else []
                    inherits = not with_tests.isdisjoint(map(ast.unparse, node.bases))
                    self._inheriting += [node] if inherits and node in self._classes else []
                    with_tests |= {name} if inherits or any(map(_is_test_function, node.body)) else set()
        definitions = {node for node in body if node in self._classes or _is_test_function(node)}
        self.checks = checks([*before, *body], definitions)

    def of(self, node: ast.stmt) -> Iterator[tuple[ast.stmt, ast.stmt]]:
        """Each test of a statement, and what is left of the statement with that test alone."""
        if isinstance(node, ast.ClassDef):
            methods = self._methods(node)
            others = [part for part in node.body if part not in methods]
            yield from ((method, _with_body(node, [*others, method])) for method in methods)
            if node in self._inheriting:
                yield node, _with_body(node, others or [ast.Pass()])
        elif _is_test_function(node) or node in self.checks:
            yield node, node

    def without(self, node: ast.stmt) -> ast.stmt | None:
        """What a statement leaves for other tests: nothing of a function, of a check what it does."""
        if isinstance(node, ast.ClassDef):
            methods = self._methods(node)
            return _with_body(node, [part for part in node.body if part not in methods] or [ast.Pass()])
        if _is_test_function(node):
            return None
        return without_verdict(node) if node in self.checks else node

    def _methods(self, node: ast.ClassDef) -> list[ast.stmt]:
        return [part for part in node.body if _is_test_function(part)] if node in self._classes else []


def _is_case(value: ast.expr, known: Collection[str]) -> bool:
    """Whether the class is one of `unittest.TestCase`."""
    return ast.unparse(value).endswith("TestCase") or (isinstance(value, ast.Name) and value.id in known)


def _with_body(node: ast.ClassDef, body: list[ast.stmt]) -> ast.ClassDef:
    return ast.ClassDef(**{**dict(ast.iter_fields(node)), "body": body})


def _is_test_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")


# ---------------------------------------------------------------- whose names are whose


def _given_to(body: Sequence[ast.stmt], reference: RightProgram | None) -> tuple[tuple[str, ...], list[ast.stmt]]:
    """The names that a test takes from the program, and imports to put before it; ValueError says what is wrong."""
    text = _text_of(body)
    imported = _imported_from_program(body, text)
    used, bound = names_of(text)
    free = used - bound
    taken: list[str] = []
    given: list[ast.stmt] = []
    for name in sorted(name for name in free if not hasattr(builtins, name) and not name.startswith("__")):
        if name == "pytest":
            given += parse_module("import pytest").body
        elif reference is None:
            _check_guess(name, body)
            taken.append(name)
        elif name in reference.names:
            taken.append(name)
        elif name in reference.imports:
            given.append(reference.imports[name])
        elif not _has_star(body):
            raise ValueError(f"uses {name!r}, which neither the solution, the tests nor Python define")
    if not taken and not imported and reference:
        # A program may be asked for a `sum` of its own; beside another function it would be what the test judges with.
        taken = sorted(free & reference.names)
    if not taken and not imported:
        raise ValueError(f"calls nothing of the program: {_OF_THE_PROGRAM}")
    # What only an earlier test asks for may be missing: that is for its own verdict.
    own = names_of(_text_of([node for node in body if not is_tolerated(node)]))[0].intersection(taken)
    if needed := sorted(own) if own or imported else taken:
        given += parse_module(f"from {MODULE} import {', '.join(needed)}").body
    for name in sorted(set(taken) - set(needed)):
        given += parse_module(f"try:\n    from {MODULE} import {name}\nexcept:\n    pass").body
    return tuple(sorted({*taken, *imported})), given


def _imported_from_program(body: Sequence[ast.stmt], text: str) -> set[str]:
    """What a test says it takes from the program. ValueError for other modules that are not there."""
    try:
        check_imports({"tests.py": text}, [MODULE])
    except UserError as error:
        raise ValueError(f"cannot judge: {error}") from None
    nodes = [part for node in body for part in ast.walk(node)]
    names, modules = set(), set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            modules.add(node.module if not node.level else f".{node.module or ''}")
            names |= {each.name for each in node.names if node.module == MODULE}
        elif isinstance(node, ast.Import):
            modules |= {each.name for each in node.names}
    if MODULE in modules:
        names |= {each.attr for each in nodes if isinstance(each, ast.Attribute) and _is_name(each.value, MODULE)}
    if "*" in names:
        raise ValueError(f"has an import by a star from {MODULE} inside a statement; import by name")
    for module in sorted(filter(None, modules)):
        root = module.partition(".")[0]
        if root not in (MODULE, *sys.stdlib_module_names) and (not root or importlib.util.find_spec(root) is None):
            raise ValueError(f"imports {module!r}, which is not installed here; the program's {_OF_THE_PROGRAM}")
    return names


def _check_guess(name: str, body: Sequence[ast.stmt]) -> None:
    """ValueError where a name that nothing defines need not be the program's; only a reference could tell."""
    if _has_star(body):
        raise ValueError("has an import by a star, so that its names cannot be told; import by name")
    parts = (part for node in body for part in ast.walk(node) if isinstance(part, ast.Attribute))
    if name in sys.stdlib_module_names and any(_is_name(part.value, name) for part in parts):
        raise ValueError(f"uses Python's module {name!r} and does not import it; add the import")


def _has_star(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in body)


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _bound_by(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    for each in node.names:
        yield each.asname or (each.name.partition(".")[0] if isinstance(node, ast.Import) else each.name)


# ---------------------------------------------------------------- texts


class _Telling(ast.NodeTransformer):
    """`assert f(1) == 2` also says what `f(1)` gave."""

    def visit_Assert(self, node: ast.Assert) -> Any:
        match node:
            case ast.Assert(test=ast.Compare(left=left, ops=[_], comparators=[_]), msg=None):
                told = parse_module("assert _given, f'gave {_given!r}'").body[0]
                assert isinstance(told, ast.Assert) and isinstance(node.test, ast.Compare)
                given = ast.NamedExpr(target=ast.Name("_given", ast.Store()), value=left)
                return ast.Assert(test=ast.Compare(given, node.test.ops, node.test.comparators), msg=told.msg)
        return node


def _text_of(body: Sequence[ast.stmt]) -> str:
    """A module; imports from `__future__` come first."""
    future = [node for node in body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    return ast.unparse(ast.Module(body=[*future, *(node for node in body if node not in future)], type_ignores=[]))


def _as_written(text: str, node: ast.stmt) -> str:
    """A statement with its decorators, as far to the left as it goes."""
    decorators = node.decorator_list if isinstance(node, DEFINITIONS) else []
    written = textwrap.dedent(ast.get_source_segment(text, node, padded=True) or "")
    return "\n".join([*(f"@{ast.unparse(each)}" for each in decorators), *map(str.rstrip, written.splitlines())])


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 80 else f"{line[:80]}..."
