"""Evaluate the type hints that are texts, in a process with a confined project, as no more than names of types.

Nobody reads such a text before it runs: it may have come about in any way, and the toolkit evaluates it in a namespace
of its own choice, whose builtins are the real ones. So whatever evaluates hints (`typing` for pydantic too, `inspect`)
has this module's `compile` and `eval` in place of the builtins. A text may name types, look them up in open modules,
subscript and unite them. Only hints of a source with `from __future__ import annotations`, which a reader has judged
as code, run as code, in their own module; and texts that stand in a module of the toolkit are its own.
"""

import ast
import builtins
import functools
import inspect
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Mapping, Set
from types import CodeType, ModuleType
from typing import Any

import typing_extensions

from agent_rl.envs.nat.judge.worker.guard import OPEN, Guard
from agent_rl.envs.nat.judge.worker.reach_shapes import is_dunder, is_plain_text_of_type

_EVALUATORS = (typing, typing_extensions, inspect)
"""The modules that evaluate hints."""
_ALIASES = (types.GenericAlias, types.UnionType)
_OF_TYPING = ("typing", "typing_extensions")
_written: dict[str, Set[str]] = {}
"""Module of the project -> its hints that its source's `__future__` import made texts of."""
_compiled: dict[int, tuple[CodeType, str]] = {}
"""`id` of code -> (the code, its text), for what was compiled since."""
_project: dict[str, Any] = {}
"""The builtins of the project's code."""

Namespace = Mapping[str, Any]


class HintError(ValueError):
    """A text that is to be evaluated as a type hint says more than a type."""


def hold(written: Mapping[str, Set[str]], of_project: Mapping[str, Any]) -> None:
    """From now on texts are evaluated here, with a project's builtins. Raises RuntimeError where that has no effect."""
    _written.update(written)
    _project.update(of_project)
    for forget in typing._cleanups:  # type: ignore[attr-defined]  # they keep what was compiled before
        forget()
    for module in _EVALUATORS:
        vars(module).update(compile=_compile, eval=_eval_of_inspect if module is inspect else _eval)
    _check()


def let_go() -> None:
    """Undo `hold`; nothing where nothing is held."""
    for module in _EVALUATORS:
        for name in ("compile", "eval"):
            vars(module).pop(name, None)
    for kept in (_written, _project, _compiled):
        kept.clear()


def _check() -> None:
    """Raises RuntimeError when this Python evaluates hints elsewhere."""

    def hinted() -> None: ...

    hinted.__annotations__ = {"return": "len('a')"}
    for read in (typing.get_type_hints, functools.partial(inspect.signature, eval_str=True)):
        try:
            read(hinted)
        except HintError:
            continue
        raise RuntimeError(f"type hints that are texts cannot be held on Python {sys.version.split()[0]}")


# ---------------------------------------------------------------- in place of the builtins


def _compile(source: str, name: str, mode: str, *more: Any, **how: Any) -> CodeType:
    text = str.__str__(source)
    code = builtins.compile(text, name, mode, *more, **how)
    _compiled[id(code)] = code, text
    return code


def _eval(source: Any, around: dict[str, Any] | None = None, inside: Namespace | None = None) -> Any:
    if isinstance(source, CodeType):
        if id(source) not in _compiled:  # the toolkit's, from before
            return builtins.eval(source, around, inside)
        text = _compiled[id(source)][1]
    else:
        text = str.__str__(source)
    around = {} if around is None else around
    inside = around if inside is None else inside
    for own, other in ((around, inside), (inside, around)):
        if text in _written_in(own):
            names = inside if own is around else ChainMap(inside, other)  # type: ignore[arg-type]
            return builtins.eval(_guarded(text), own, names)  # type: ignore[arg-type]
    try:
        return _Reading(text, inside, around).value()
    except HintError:
        if _stands_in(around, text) or _stands_in(inside, text):
            return builtins.eval(text, around, inside)
        raise


def _eval_of_inspect(source: Any, around: dict[str, Any] | None = None, inside: Namespace | None = None) -> Any:
    """As `_eval`; and what functions written in C say their defaults are: `sys.maxsize`."""
    found = _constant(source, around) if type(source) is str and type(around) is dict else None
    return _eval(source, around, inside) if found is None else found


def _constant(text: str, around: Namespace) -> Any:
    """The number or text of Python's own modules that a name stands for, or None; nothing else is looked up."""
    first, *deeper = text.split(".")
    found = around.get(first)
    if not deeper or first not in sys.stdlib_module_names or sys.modules.get(first) is not found:
        return None
    for name in deeper:
        found = vars(found).get(name) if type(found) in (ModuleType, type) else None
    return found if type(found) in (str, bytes, int, float, bool) else None


def _written_in(namespace: Namespace) -> Set[str]:
    """The hints that a module's source made texts of; none when the namespace is not one of the project's modules."""
    name = namespace.get("__name__") if type(namespace) is dict else None
    module = sys.modules.get(name) if type(name) is str else None
    return _written.get(str(name), frozenset()) if module and vars(module) is namespace else frozenset()


@functools.cache
def _guarded(text: str) -> CodeType:
    tree = ast.parse(text.strip(), mode="eval")
    return builtins.compile(Guard().visit(tree), "<hint>", "eval", dont_inherit=True)


# ---------------------------------------------------------------- texts from anywhere


class _Reading:
    """One text, looked up rather than run: nothing is called, and no object of the project is asked for an item."""

    def __init__(self, text: str, *namespaces: Namespace) -> None:
        self._text, self._namespaces = text, (*namespaces, _project)

    def value(self) -> Any:
        """What the text says. Raises NameError for a name that is not known (yet), and HintError."""
        try:
            node = ast.parse(self._text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self._refused() from error
        if not is_plain_text_of_type(node):
            raise self._refused()
        return self._of(node)

    def _refused(self) -> HintError:
        return HintError(f"a type hint that is a text may only name types: {self._text[:80]!r}")

    def _of(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.UnaryOp(operand=ast.Constant(value=value)):
                return -value
            case ast.Tuple(elts=parts):
                return tuple(map(self._of, parts))
            case ast.List(elts=parts):
                return list(map(self._of, parts))
            case ast.BinOp(left=left, right=right):
                return self._of(left) | self._of(right)
            case ast.Subscript(value=outer, slice=inner):
                found = self._of(outer)[self._of(inner)]
            case _:
                found = self._found(node)
        if not _is_type(found):
            raise self._refused()
        return found

    def _found(self, node: ast.expr) -> Any:
        """What a name or an attribute stands for; a module too, of which a name is asked next."""
        if isinstance(node, ast.Attribute):
            above = self._found(node.value) if isinstance(node.value, ast.Name | ast.Attribute) else None
            try:
                return getattr(_project[OPEN](above, node.attr), node.attr)
            except AttributeError as error:
                raise self._refused() from error
        name = node.id if isinstance(node, ast.Name) else ""
        for each in self._namespaces:
            if name in each and not is_dunder(name):
                return each[name]
        raise NameError(f"name {name!r} is not defined", name=name)


def _is_type(value: Any) -> bool:
    kind = type(value)
    is_alias = issubclass(kind, _ALIASES) or kind.__module__ in _OF_TYPING
    return value is None or value is ... or kind is str or issubclass(kind, type) or is_alias


# ---------------------------------------------------------------- texts of the toolkit


def _stands_in(namespace: Namespace, text: str) -> bool:
    """Whether a module that is not the project's holds this hint, where it is evaluated in that very module."""
    name = namespace.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    if type(module) is not ModuleType or vars(module) is not namespace or name in _written:
        return False
    try:
        asked = ast.dump(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return asked in _hints_of(module)


@functools.cache
def _hints_of(module: ModuleType) -> Set[str]:
    try:
        tree = ast.parse(inspect.getsource(module))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    hints: list[ast.expr | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            hints.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            hints.append(node.returns)
    texts = {ast.dump(each) for each in hints if each is not None}
    for inner in (inner for each in hints if each is not None for inner in ast.walk(each)):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            try:
                texts.add(ast.dump(ast.parse(inner.value.strip(), mode="eval").body))
            except (SyntaxError, ValueError):
                continue
    return frozenset(texts)
