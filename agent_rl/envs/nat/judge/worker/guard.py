"""Rewrite a project's syntax tree so that its code asks before it touches what may be another's.

The two names that the code then calls are what `confined.py` puts among its builtins.
"""

import ast
from collections.abc import Set

from agent_rl.envs.nat.judge.worker import reach_names as names

OPEN, OWN = "__open_to_project__", "__own_of_project__"
"""Names of two functions in the code of a project, which it cannot write itself."""


class Guard(ast.NodeTransformer):
    """Puts a look at the object before whatever sets an attribute, or reads one that not every object may be asked."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        self.generic_visit(node)
        name = node.attr
        if not isinstance(node.ctx, ast.Load):
            node.value = self._call(OWN, node.value, ast.Constant(name))
        elif name not in names.ATTRIBUTES and not (name.startswith("__") and name.endswith("__")):
            node.value = self._call(OPEN, node.value, ast.Constant(name))
        return node

    def _call(self, name: str, value: ast.expr, *more: ast.expr) -> ast.Call:
        call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=[value, *more], keywords=[])
        ast.copy_location(call, value)
        return ast.fix_missing_locations(call)

    def visit_MatchClass(self, node: ast.MatchClass) -> ast.MatchClass:
        node.patterns = [self.visit(each) for each in node.patterns]
        node.kwd_patterns = [self.visit(each) for each in node.kwd_patterns]
        return node

    def visit_MatchValue(self, node: ast.MatchValue) -> ast.MatchValue:
        return node


def hints_as_texts(tree: ast.Module) -> Set[str]:
    """Do what `from __future__ import annotations` asks for, where a source has it, and give the texts it makes.

    A reader judged these hints as code, so they may call what a text that came about in another way may not.
    """
    is_asked = False
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__" and not node.level:
            is_asked |= any(each.name == "annotations" for each in node.names)
    if not is_asked:
        return frozenset()
    tree.body = [each for each in tree.body if not (isinstance(each, ast.ImportFrom) and each.module == "__future__")]
    writer = _Writer()
    writer.visit(tree)
    return writer.texts


class _Writer(ast.NodeVisitor):
    def __init__(self) -> None:
        self.texts: set[str] = set()

    def _written(self, hint: ast.expr) -> ast.Constant:
        text = ast.unparse(hint)
        self.texts.add(text)
        return ast.copy_location(ast.Constant(text), hint)

    def visit_arg(self, node: ast.arg) -> None:
        if node.annotation is not None:
            node.annotation = self._written(node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.returns is not None:
            node.returns = self._written(node.returns)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        node.annotation = self._written(node.annotation)
        self.generic_visit(node)
