"""Shapes of Python's syntax tree that `read_reach.py` asks about. Knows no name that is allowed or not."""

import ast
import re
from collections.abc import Callable, Iterator
from typing import TypeGuard

_CLIMBS = re.compile(r"\{[^{}:]*\.[^\W\d]")


def names_in(node: ast.AST) -> Iterator[str]:
    """Every identifier that a node holds itself."""
    if isinstance(node, ast.Constant | ast.ImportFrom):
        return
    for name, value in ast.iter_fields(node):
        if name != "type_comment":
            yield from (each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str))


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def root_of(node: ast.expr) -> ast.expr:
    """What an attribute of an attribute, or an item of it, begins with."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node


def is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def is_given_none(statement: ast.AST | None, target: ast.expr) -> bool:
    """Whether a statement assigns None to a target."""
    is_given = isinstance(statement, ast.Assign) and target in statement.targets
    return is_given and isinstance(statement.value, ast.Constant) and statement.value.value is None  # type: ignore[union-attr]


def is_call_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and is_named(node.func, name)


def is_super(node: ast.expr) -> bool:
    return is_call_of(node, "super")


def is_annotated(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign)


def is_member(value: ast.expr, origin: Callable[[ast.expr], str | None]) -> bool:
    """Whether a value makes a member of an enumeration; `origin` tells what a called name stands for."""
    if isinstance(value, ast.Tuple):
        return all(is_member(each, origin) for each in value.elts)
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and origin(value.func) == "auto")


def is_plain_format(node: ast.expr) -> bool:
    """Whether an expression holds constants alone, and no text among them that asks for an attribute."""
    parts = [each for each in ast.walk(node) if not isinstance(each, ast.Dict | ast.List | ast.Tuple | ast.Load)]
    texts = [each.value for each in parts if isinstance(each, ast.Constant)]
    return len(texts) == len(parts) and not any(isinstance(each, str) and _CLIMBS.search(each) for each in texts)


_OF_TYPES = (
    *(ast.Name, ast.Attribute, ast.Subscript, ast.BinOp, ast.BitOr, ast.Tuple, ast.List, ast.Constant, ast.Load),
    *(ast.UnaryOp, ast.USub),
)


def is_plain_text_of_type(node: ast.expr) -> bool:
    """Whether a hint that is a text holds names, attributes of names, subscripts, unions and constants alone."""
    for each in ast.walk(node):
        if not isinstance(each, _OF_TYPES):
            return False
        if isinstance(each, ast.Attribute) and not isinstance(each.value, ast.Name | ast.Attribute):
            return False
        if isinstance(each, ast.UnaryOp):
            value = each.operand.value if isinstance(each.operand, ast.Constant) else None
            if type(value) not in (int, float):
                return False
        if any(map(is_dunder, names_in(each))):
            return False
    return True
