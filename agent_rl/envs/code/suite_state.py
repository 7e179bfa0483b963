"""What the statements of a text of tests do to objects that others see, read from the names in them; nothing is run.

Not here: what is a test (`suite_text.py`), judging.
"""

import ast
import builtins
import copy
import symtable
from collections.abc import Sequence

from agent_rl.envs.code.task import MODULE

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NEVER_CHANGED = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)


def names_of(source: str) -> tuple[set[str], set[str]]:
    """The names of a module, not of its functions, that are used in it, and those that are bound.

    ValueError for what can be parsed and is no program, such as two arguments of one name.
    """
    used, bound = set(), set()
    try:
        tables = [symtable.symtable(source, "tests", "exec")]
    except SyntaxError as error:
        raise ValueError(f"it is not Python, {error.msg}") from None
    for table in tables:  # grows
        tables += table.get_children()
        is_top = table.get_type() == "module"
        for each in table.get_symbols():
            if is_top or each.is_global():
                used |= {each.get_name()} if each.is_referenced() else set()
                bound |= {each.get_name()} if each.is_assigned() or each.is_imported() else set()
    return used, bound


def expects_error(node: ast.AST) -> bool:
    """`with pytest.raises(ValueError):`"""
    return isinstance(node, ast.With) and any(
        isinstance(part, ast.Attribute) and part.attr == "raises" for each in node.items for part in ast.walk(each)
    )


# ---------------------------------------------------------------- statements that touch the same objects


def groups(body: Sequence[ast.stmt]) -> list[int]:
    """A number for each statement, the same for those that can touch the same object, one that the text made.

    Left aside are modules, which keep next to nothing, and the program, unless a statement calls it for nothing but
    what it does (`push(1)`).
    """
    names = [names_of(ast.unparse(node)) for node in body]
    reached_by = {node.name: names[at][0] for at, node in enumerate(body) if isinstance(node, DEFINITIONS)}
    of_program = _of_program(body, names)
    keeps_state = any(_calls_for_effect(node, of_program) for node in body)
    parents = list(range(len(body) + 1))
    made_at: dict[str, int | None] = dict.fromkeys(of_program, len(body) if keeps_state else None)
    # A function looks its names up as it is called, one that pytest calls behind all other statements.
    for at in sorted(range(len(body)), key=lambda at: isinstance(body[at], DEFINITIONS)):
        node, (used, bound) = body[at], names[at]
        anew = _bound_anew(node)
        reached = [*used - anew]
        for name in reached:  # grows
            reached += reached_by.get(name, set()).difference(reached)
        if not isinstance(node, (ast.Import, ast.ImportFrom, *DEFINITIONS)):
            is_fixed = isinstance(node, ast.Assign) and _is_never_changed(node.value)
            for name in bound:
                if name in anew or made_at.get(name) is None:
                    made_at[name] = None if is_fixed else at
        for name in {*reached, *bound}:
            if (other := made_at.get(name)) is not None:
                parents[_root(parents, other)] = _root(parents, at)
    return [_root(parents, at) for at in range(len(body))]


def _root(parents: list[int], at: int) -> int:
    while parents[at] != at:
        parents[at] = at = parents[parents[at]]
    return at


def _of_program(body: Sequence[ast.stmt], names: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """Names that nothing in the text makes."""
    made: set[str] = set()
    for node, (_, bound) in zip(body, names, strict=True):
        made |= set() if _imports_program(node) else bound
    return {name for used, _ in names for name in used - made if not hasattr(builtins, name)}


def _imports_program(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == MODULE
    return isinstance(node, ast.Import) and any(each.name == MODULE for each in node.names)


def _calls_for_effect(node: ast.stmt, of_program: set[str]) -> bool:
    """`push(1)` or `stack.push(1)`, of the program, outside of functions."""
    calls = () if isinstance(node, DEFINITIONS) or expects_error(node) else ast.walk(node)
    called = [each.value.func for each in calls if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call)]
    return any(isinstance(part, ast.Name) and part.id in of_program for each in called for part in ast.walk(each))


def _bound_anew(node: ast.stmt) -> set[str]:
    """Names that are for another object from here on: `x` in `x = f(y)`, not in `x = f(x)`."""
    match node:
        case ast.Assign(targets=targets, value=value):
            sources = [value]
        case ast.For(target=target, iter=value):
            targets, sources = [target], [value]
        case ast.With(items=items):
            targets = [each.optional_vars for each in items if each.optional_vars]
            sources = [each.context_expr for each in items]
        case _:
            return set()
    parts = [part for each in targets for part in ast.walk(each) if isinstance(part, ast.Name)]
    stored = {part.id for part in parts if isinstance(part.ctx, ast.Store)}
    return stored - {part.id for each in sources for part in ast.walk(each) if isinstance(part, ast.Name)}


def _is_never_changed(value: ast.expr) -> bool:
    """`(1, "a")`: no function that is given it can change it."""
    return all(isinstance(part, _NEVER_CHANGED) for part in ast.walk(value))


# ---------------------------------------------------------------- without a verdict


def without_verdict(test: ast.stmt) -> ast.stmt:
    """A statement that does what a test does, and fails as little as its asserts do."""
    return _tolerated(_Silent().visit(copy.deepcopy(test)))


def is_tolerated(node: ast.stmt) -> bool:
    """Whether an error in the statement is passed over."""
    return isinstance(node, ast.Try) and [each.type for each in node.handlers] == [None]


def _tolerated(node: ast.stmt) -> ast.stmt:
    """Bare, for what the judge raises of a program that gave no usable answer is no Exception."""
    if is_tolerated(node):
        return node
    return ast.Try(body=[node], handlers=[ast.ExceptHandler(body=[ast.Pass()])], orelse=[], finalbody=[])


class _Silent(ast.NodeTransformer):
    """A statement whose asserts are worked out and not judged."""

    def visit_Assert(self, node: ast.Assert) -> ast.stmt:
        return _tolerated(ast.Expr(node.test))

    def visit_While(self, node: ast.While) -> ast.stmt:
        """As it is, for what ends the loop may be its first wrong answer: of a stack that is never empty."""
        return _tolerated(node)

    def visit_With(self, node: ast.With) -> ast.stmt:
        """As it is where errors in it are expected; they end it."""
        if expects_error(node):
            return _tolerated(node)
        self.generic_visit(node)
        return node

    def visit_Try(self, node: ast.Try) -> ast.stmt:
        """As it is: errors in it lead to its handlers."""
        return _tolerated(node)
