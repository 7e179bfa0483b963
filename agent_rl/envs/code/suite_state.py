"""What the statements of a text of tests check, and do to objects that others see, read from the names in them.

Nothing is run. Not here: taking a text apart (`suite_text.py`), judging.
"""

import ast
import builtins
import copy
import symtable
from collections.abc import Collection, Mapping, Sequence

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
    """`with pytest.raises(ValueError):`, with `raises` or `case.assertRaises` in its place, or a `try` with
    `else: raise AssertionError`."""
    match node:
        case ast.With(items=items):
            called = [_called(part) for each in items for part in ast.walk(each)]
            return any(name == "raises" or name.startswith("assertRaises") for name in called)
        case ast.Try(orelse=[ast.Raise() as last]):
            return _fails(last)
    return False


def _called(part: ast.AST) -> str:
    """The last name of `a.b`, or `b`; none of anything else."""
    return part.attr if isinstance(part, ast.Attribute) else part.id if isinstance(part, ast.Name) else ""


# ---------------------------------------------------------------- statements that check


def checks(body: Sequence[ast.stmt], tests: Collection[ast.stmt]) -> set[ast.stmt]:
    """Statements that a wrong program fails on purpose, beside `tests`, the functions and classes of tests.

    They hold an assert or `with pytest.raises`, or use the program and fail by what they call. `x = checked(f(1))` is
    none: others need its name, and a check is not in their files.
    """
    names = [names_of(ast.unparse(node)) for node in body]
    helpers = [at for at, node in enumerate(body) if isinstance(node, DEFINITIONS) and node not in tests]
    by_name = {name: names[at][0] for at in helpers for name in names[at][1]}
    failing = {name for at in helpers if _fails(body[at]) for name in names[at][1]}
    of_program, variables, found = _of_program(body, names), set(), set()
    for node, (used, bound) in zip(body, names, strict=True):
        if isinstance(node, (*_IMPORTS, *DEFINITIONS)):
            continue
        reached = _reached(used, by_name)
        variables |= bound
        uses, fails = bool(reached & of_program), bool(reached & failing)
        if uses:
            of_program |= (used | bound) & variables  # what the program gives, and is given
        elif fails:
            failing |= bound
        is_assertion = any(isinstance(part, ast.Assert) or expects_error(part) for part in ast.walk(node))
        if is_assertion or (isinstance(node, _DOING) and uses and (fails or _fails(node))):
            found.add(node)
    return found


def _fails(node: ast.AST) -> bool:
    """Whether there is an assert in it, or a call that fails by its name, as those of pytest, unittest and numpy do."""
    for part in ast.walk(node):
        match part:
            case ast.Assert() | ast.Raise(exc=ast.Name("AssertionError") | ast.Call(ast.Name("AssertionError"))):
                return True
            case ast.Call(func=func) if _called(func) in _FAILING or _called(func).lstrip("_").startswith("assert"):
                return True
    return False


def _reached(used: set[str], by_name: Mapping[str, set[str]]) -> set[str]:
    """Names, and those that the functions among them use."""
    reached = [*used]
    for name in reached:  # grows
        reached += by_name.get(name, set()).difference(reached)
    return set(reached)


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
        reached = _reached(used - anew, reached_by)
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


def _of_program(body: Sequence[ast.stmt], names: Sequence[tuple[set[str], set[str]]]) -> set[str]:
    """Names that nothing in the text makes, or what takes something from the program."""
    made: set[str] = set()
    for node, (_, bound) in zip(body, names, strict=True):
        made |= set() if any(map(_imports_program, ast.walk(node))) else bound
    return {name for used, _ in names for name in used - made if not hasattr(builtins, name)} - {"pytest"}


def _imports_program(node: ast.AST) -> bool:
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
