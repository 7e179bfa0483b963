"""What the statements of a text of tests check, and do to objects that others see, read from the names in them.

Nothing is run. Not here: taking a text apart (`suite_text.py`), judging.
"""

import ast
import builtins
import copy
import symtable
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agent_rl.envs.code.task import MODULE

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
_DOING = (ast.Expr, ast.With, ast.Try, ast.For, ast.While, ast.If, ast.Match)
_FAILING = ("raises", "warns", "fail")
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
    """`with pytest.raises(ValueError):`, or `raises` or `case.assertRaises` in its place."""
    return isinstance(node, ast.With) and any(
        _called(part) == "raises" or _called(part).startswith("assertRaises")
        for each in node.items
        for part in ast.walk(each.context_expr)
    )


def _called(part: ast.AST) -> str:
    """The last name of `a.b`, or `b`; none of anything else."""
    return part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""


# ---------------------------------------------------------------- statements that check


@dataclass(frozen=True, slots=True)
class Statement:
    """Of a text, outside of its functions."""

    is_check: bool
    """A wrong program can fail it on purpose."""
    group: int
    """The same for statements that can touch the same object, one that the text made."""
    is_done_once: bool
    """What it does with the program lasts, for all tests share one run of it, so it is not done for each of them."""


def statements(
    body: Sequence[ast.stmt],
    tests: Collection[ast.stmt],
    of_reference: Collection[str] | None,
    *,
    is_whole: bool = True,
) -> list[Statement]:
    """Each statement of a text, whose functions and classes of tests are `tests`.

    `of_reference` are the names of a right program, where there is one. In a whole text the rest behind the last check
    checks too: it would be in the file of no test.
    """
    names = [names_of(ast.unparse(node)) for node in body]
    of_program = _of_program(body, names, of_reference)
    failing = _names_that_fail(body, names, tests)
    made = {node.name for node in body if isinstance(node, DEFINITIONS)}
    by_name = _used_by_name(body, names)
    reached = [_reached(used, by_name) for used, _ in names]
    checks, may_fail, once = [], [], []
    for node, (used, _), reaches in zip(body, names, reached, strict=True):
        uses = not isinstance(node, (*_IMPORTS, *DEFINITIONS)) and not reaches.isdisjoint(of_program)
        fails = uses and (_fails(node) or not reaches.isdisjoint(failing))
        is_doing = isinstance(node, _DOING)
        checks.append((is_doing and fails) or _is_assertion(node))
        may_fail.append(fails or (uses and is_doing))
        once.append(uses and used.isdisjoint(made))
    if is_whole and True in checks and not tests:
        behind = len(checks) - checks[::-1].index(True)
        checks[behind:] = may_fail[behind:]
    return [Statement(*each) for each in zip(checks, _groups(body, names), once, strict=True)]


def _is_assertion(node: ast.stmt) -> bool:
    """A statement with an assert or `with pytest.raises`."""
    return not isinstance(node, DEFINITIONS) and any(
        isinstance(part, ast.Assert) or expects_error(part) for part in ast.walk(node)
    )


def _fails(node: ast.AST) -> bool:
    """Whether there is an assert in it, a raise or a function that fails by its name, as those of pytest do."""
    return any(
        isinstance(part, ast.Assert | ast.Raise)
        or _called(part) in _FAILING
        or _called(part).lstrip("_").startswith("assert")
        for part in ast.walk(node)
    )


def _names_that_fail(
    body: Sequence[ast.stmt], names: Sequence[tuple[set[str], set[str]]], tests: Collection[ast.stmt]
) -> set[str]:
    """Names of functions of the text, and of what is made with them, that fail on purpose, but of no test."""
    failing: set[str] = set()
    nodes = [at for at, node in enumerate(body) if node not in tests and not isinstance(node, _IMPORTS)]
    failing_at = [at for at in nodes if isinstance(body[at], DEFINITIONS) and _fails(body[at])]
    while failing_at:
        failing.update(*(names[at][1] for at in failing_at))
        failing_at = [at for at in nodes if not names[at][1] <= failing and names[at][0] & failing]
    return failing


def _used_by_name(body: Sequence[ast.stmt], names: Sequence[tuple[set[str], set[str]]]) -> dict[str, set[str]]:
    """What each function and class uses."""
    return {node.name: names[at][0] for at, node in enumerate(body) if isinstance(node, DEFINITIONS)}


def _reached(used: set[str], by_name: Mapping[str, set[str]]) -> set[str]:
    """Names, and those that the functions among them use."""
    reached = set(used)
    rest = [*used]
    while rest:
        found = by_name.get(rest.pop(), set()) - reached
        reached |= found
        rest += found
    return reached


# ---------------------------------------------------------------- statements that touch the same objects


def _groups(body: Sequence[ast.stmt], names: Sequence[tuple[set[str], set[str]]]) -> list[int]:
    """A number for each statement, the same for those that can touch the same object, one that the text made.

    Left aside are modules, which keep next to nothing, and the program, which is there once.
    """
    parents, by_name = list(range(len(body))), _used_by_name(body, names)
    made_at: dict[str, int | None] = {}
    # A function looks its names up as it is called, one that pytest calls behind all other statements.
    for at in sorted(range(len(body)), key=lambda at: isinstance(body[at], DEFINITIONS)):
        node, (used, bound) = body[at], names[at]
        anew = _bound_anew(node)
        reached = _reached(used - anew, by_name)
        if not isinstance(node, (*_IMPORTS, *DEFINITIONS)):
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


def _of_program(
    body: Sequence[ast.stmt], names: Sequence[tuple[set[str], set[str]]], of_reference: Collection[str] | None
) -> set[str]:
    """Names that the text takes from the program, or that nothing in it makes."""
    made: set[str] = set()
    for node, (_, bound) in zip(body, names, strict=True):
        made |= set() if _imports_program(node) else bound
    free = {name for used, _ in names for name in used - made if not hasattr(builtins, name)} - {"pytest"}
    imported = {name for node in body for part in ast.walk(node) for name in _names_imported(part)}
    return imported | (free if of_reference is None else free.intersection(of_reference))


def _imports_program(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == MODULE
    return isinstance(node, ast.Import) and any(each.name == MODULE for each in node.names)


def _names_imported(part: ast.AST) -> set[str]:
    """From the program."""
    if not isinstance(part, ast.Import | ast.ImportFrom) or not _imports_program(part):
        return set()
    is_whole = isinstance(part, ast.Import)
    return {each.asname or each.name for each in part.names if not is_whole or each.name == MODULE}


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
