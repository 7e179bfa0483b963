"""Programs one step away from a reference: one node of the syntax tree changed, exchanged or left out.

Operators, bounds, constants, conditions, calls, arguments, slices, statements, loops. Not here: running them.
"""

import ast
import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

Slot = tuple[Any, str, int | None]
"""A node, a field of it, and the place in that field where it is a list."""
Variant = tuple[str, Any]
"""What is done, and the node that takes the other's place; a list of statements where it is one."""

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq, ast.LtE, ast.GtE),
    ast.NotEq: (ast.Eq, ast.Lt, ast.Gt),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
_BINARY: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.Div),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mod),
    ast.Mod: (ast.FloorDiv,),
    ast.BitAnd: (ast.BitOr,),
}
_METHODS = {
    "strip": ("lstrip", "rstrip"),
    "lower": ("upper", "casefold"),
    "upper": ("lower", "capitalize"),
    "capitalize": ("title", "upper", "lower"),
    "title": ("capitalize",),
    "swapcase": ("upper", "lower"),
    "startswith": ("endswith",),
    "endswith": ("startswith",),
    "isdigit": ("isalnum", "isalpha"),
    "isalpha": ("isalnum", "isdigit"),
    "isalnum": ("isalpha", "isdigit"),
    "replace": ("lstrip",),
    "keys": ("values",),
    "values": ("keys",),
    "weekday": ("isoweekday",),
    "isoweekday": ("weekday",),
    "index": ("count",),
    "append": ("extend",),
    "fullmatch": ("match", "search"),
}
_FUNCTIONS = {
    "min": ("max",),
    "max": ("min",),
    "sum": ("max", "len"),
    "len": ("bool",),
    "any": ("all",),
    "all": ("any",),
    "int": ("float", "round"),
    "float": ("int",),
    "round": ("int",),
}
_PATTERNS = [
    (r"[a-z]+", r"[a-z0-9]+"),
    (r"[a-z]+", r"\w+"),
    (r"[a-z]+", r"[a-z]"),
    (r"(\.\d+)?", ""),
    (r"-?\d", r"\d"),
    (r"-?\d", r"[+-]?\d"),
    (r"\d+(", r"\d*("),
    (r"\d+)?", r"\d*)?"),
]
"""Parts of regular expressions and what a careless author writes for them."""
_WRAPPERS = {"sorted", "reversed", "list", "set", "abs", "round", "int", "float", "str", "dict", "tuple"}
"""Functions of which a careless author may keep the argument alone."""


def code_mutants(source: str) -> Iterator[tuple[str, Any]]:
    """(what was changed, compiled module) of each mutant."""
    tree = ast.parse(source)
    parameters = _parameters(tree)
    for slot in list(_slots(tree)):
        node = _get(slot)
        names = parameters.get(id(node), ())
        others = [("other argument", ast.Name(id=name, ctx=ast.Load())) for name in names]
        for how, other in [*_variants(node, slot), *others]:
            _put(slot, node, other)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", SyntaxWarning)  # `is` with a number is a mistake too
                    module = compile(ast.fix_missing_locations(tree), "<mutant>", "exec")
                yield f"{how}, line {getattr(node, 'lineno', 0)}: {_text(node)} -> {_text(other)}", module
            except (SyntaxError, ValueError):
                pass
            finally:
                _restore(slot, node, other)


def _slots(tree: ast.AST) -> Iterator[Slot]:
    """Every place of the tree where a change could be seen: no annotations, no docstrings, no imports."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            is_text = isinstance(parent, ast.Expr) and isinstance(value, ast.Constant)
            if is_text or field in ("annotation", "returns", "ctx") or isinstance(parent, ast.Import | ast.ImportFrom):
                continue
            if isinstance(value, list):
                yield from ((parent, field, at) for at, each in enumerate(value) if isinstance(each, ast.AST))
            elif isinstance(value, ast.AST):
                yield parent, field, None


def _parameters(tree: ast.AST) -> dict[int, list[str]]:
    """For each use of a function's argument the other arguments, by the node's identity."""
    out = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [each.arg for each in function.args.args if each.arg != "self"]
            for node in ast.walk(function):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names:
                    out[id(node)] = [name for name in names if name != node.id]
    return out


def _get(slot: Slot) -> Any:
    parent, field, at = slot
    value = getattr(parent, field)
    return value if at is None else value[at]


def _put(slot: Slot, node: Any, other: Any) -> None:
    parent, field, at = slot
    if at is None:
        setattr(parent, field, other)
    elif isinstance(other, list):
        getattr(parent, field)[at : at + len(other)] = other
    else:
        getattr(parent, field)[at] = other


def _restore(slot: Slot, node: Any, other: Any) -> None:
    parent, field, at = slot
    if isinstance(other, list) and at is not None:
        getattr(parent, field)[at : at + 2] = [other[1], other[0]]
    else:
        _put(slot, node, node)


def _text(node: Any) -> str:
    if isinstance(node, list):
        return "; ".join(map(_text, node))
    try:
        return " ".join(ast.unparse(node).split())[:80]
    except (AttributeError, ValueError, TypeError):
        return type(node).__name__


def _variants(node: Any, slot: Slot) -> Iterator[Variant]:
    if isinstance(node, ast.stmt):
        yield from _statements(node, slot)
    elif isinstance(node, ast.expr):
        yield from _expressions(node)
        if isinstance(node, ast.Constant):
            yield from _constants(node, slot)
        if slot[1] == "iter":
            yield from _loops(node)
        if slot[1] == "test" or (slot[1] == "ifs"):
            yield from (("condition always " + str(value), ast.Constant(value)) for value in (True, False))
        if slot[1] in ("lower", "upper", "step"):
            yield "bound left out", None
    elif isinstance(node, ast.keyword) and slot[1] == "keywords":
        yield f"{node.arg} left out", ast.keyword(arg=None, value=ast.Dict(keys=[], values=[]))


def _statements(node: ast.stmt, slot: Slot) -> Iterator[Variant]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
        return
    yield "left out", ast.Pass()
    if isinstance(node, ast.If):
        if node.orelse:
            yield "without else", ast.If(test=node.test, body=node.body, orelse=[])
        yield (
            "condition turned round",
            ast.If(test=ast.UnaryOp(op=ast.Not(), operand=node.test), body=node.body, orelse=node.orelse),
        )
    if isinstance(node, ast.Continue):
        yield "break", ast.Break()
    if isinstance(node, ast.Break):
        yield "continue", ast.Continue()
    if isinstance(node, ast.AugAssign):
        for other in (ast.Sub,) if isinstance(node.op, ast.Add) else (ast.Add,):
            yield "other sign", ast.AugAssign(target=node.target, op=other(), value=node.value)
        yield "set", ast.Assign(targets=[node.target], value=node.value)
    parent, field, at = slot
    following = getattr(parent, field)[at + 1 : at + 2] if at is not None else []
    if following and not isinstance(following[0], ast.FunctionDef | ast.ClassDef):
        yield "exchanged with the next", [following[0], node]


def _expressions(node: ast.expr) -> Iterator[Variant]:
    for kind, variants in _EXPRESSIONS.items():
        if isinstance(node, kind):
            yield from variants(node)


def _comparisons(node: ast.Compare) -> Iterator[Variant]:
    for at, op in enumerate(node.ops):
        for other in _COMPARE[type(op)]:
            ops = [*node.ops[:at], other(), *node.ops[at + 1 :]]
            yield "other comparison", ast.Compare(left=node.left, ops=ops, comparators=node.comparators)
    if len(node.ops) == 2:
        yield "one bound", ast.Compare(left=node.left, ops=node.ops[:1], comparators=node.comparators[:1])
        yield "one bound", ast.Compare(left=node.comparators[0], ops=node.ops[1:], comparators=node.comparators[1:])


def _connections(node: ast.BoolOp) -> Iterator[Variant]:
    yield "and/or", ast.BoolOp(op=ast.And() if isinstance(node.op, ast.Or) else ast.Or(), values=node.values)
    yield from (("one operand", each) for each in node.values)


def _operations(node: ast.BinOp) -> Iterator[Variant]:
    for other in _BINARY.get(type(node.op), ()):
        yield "other operator", ast.BinOp(left=node.left, op=other(), right=node.right)
    yield "exchanged", ast.BinOp(left=node.right, op=node.op, right=node.left)
    yield from (("one operand", each) for each in (node.left, node.right))


def _dictionaries(node: ast.Dict) -> Iterator[Variant]:
    for at in range(len(node.keys)):
        keys, values = node.keys[:at] + node.keys[at + 1 :], node.values[:at] + node.values[at + 1 :]
        yield "entry left out", ast.Dict(keys=keys, values=values)


def _comprehensions(node: ast.ListComp) -> Iterator[Variant]:
    first = node.generators[0]
    if isinstance(first.target, ast.Name):
        yield "as they were", ast.ListComp(elt=ast.Name(id=first.target.id, ctx=ast.Load()), generators=node.generators)


def _displays(node: Any) -> Iterator[Variant]:
    if isinstance(getattr(node, "ctx", None), ast.Store):
        return
    kind, parts = type(node), node.elts
    more = {} if kind is ast.Set else {"ctx": ast.Load()}
    for at in range(len(parts) if len(parts) > 1 else 0):
        yield "element left out", kind(elts=parts[:at] + parts[at + 1 :], **more)
    if kind is not ast.Set:
        for at in range(len(parts) - 1):
            yield "exchanged", kind(elts=[*parts[:at], parts[at + 1], parts[at], *parts[at + 2 :]], **more)


def _calls(node: ast.Call) -> Iterator[Variant]:
    if isinstance(node.func, ast.Attribute):
        yield from _method_calls(node, node.func)
    elif isinstance(node.func, ast.Name):
        yield from _function_calls(node, node.func.id)
    args = node.args
    for at in range(len(args) - 1):
        yield "arguments exchanged", _call(node, node.func, [*args[:at], args[at + 1], args[at], *args[at + 2 :]])
    if len(args) > 1:
        yield "last argument left out", _call(node, node.func, args[:-1])


def _call(node: ast.Call, function: ast.expr, args: list[ast.expr]) -> ast.Call:
    return ast.Call(func=function, args=args, keywords=node.keywords)


def _method_calls(node: ast.Call, function: ast.Attribute) -> Iterator[Variant]:
    name, owner, args = function.attr, function.value, node.args
    yield f"without {name}", owner
    for other in _METHODS.get(name, ()):
        yield "other method", _call(node, ast.Attribute(value=owner, attr=other, ctx=ast.Load()), args)
    if name == "split":
        yield "other split", _call(node, function, [] if args else [ast.Constant(" ")])
        yield "splitlines", _call(node, ast.Attribute(value=owner, attr="splitlines", ctx=ast.Load()), [])
    if name in ("split", "replace") and len(args) == (2 if name == "replace" else 1):
        yield f"{name} once", _call(node, function, [*args, ast.Constant(1)])
    if name in ("get", "setdefault") and len(args) == 2:
        yield "always the default", args[1]
        yield "no default", ast.Subscript(value=owner, slice=args[0], ctx=ast.Load())
    if name == "sort":
        yield "the other way round", ast.Call(func=function, args=[], keywords=_reversed(node.keywords))


def _function_calls(node: ast.Call, name: str) -> Iterator[Variant]:
    args = node.args
    if name in _WRAPPERS and args:
        yield f"without {name}", args[0]
    for other in _FUNCTIONS.get(name, ()):
        yield "other function", _call(node, ast.Name(id=other, ctx=ast.Load()), args)
    if name == "sorted" and not node.keywords:
        folded = ast.Attribute(value=ast.Name(id="str", ctx=ast.Load()), attr="lower", ctx=ast.Load())
        yield "in any case", ast.Call(func=node.func, args=args, keywords=[ast.keyword(arg="key", value=folded)])
    if name == "sorted":
        yield "the other way round", ast.Call(func=node.func, args=args, keywords=_reversed(node.keywords))
    if name in ("min", "max") and len(args) == 2:
        yield from (("one argument", each) for each in args)
    if name == "len":
        yield "one less", ast.BinOp(left=node, op=ast.Sub(), right=ast.Constant(1))


def _reversed(keywords: list[ast.keyword]) -> list[ast.keyword]:
    """The keywords of a sort in the other direction."""
    others = [each for each in keywords if each.arg != "reverse"]
    return others if len(others) < len(keywords) else [*others, ast.keyword(arg="reverse", value=ast.Constant(True))]


def _subscripts(node: ast.Subscript) -> Iterator[Variant]:
    if not isinstance(node.ctx, ast.Load):
        return
    if isinstance(node.slice, ast.Slice):
        yield "slice left out", node.value
        for end in ("lower", "upper"):
            bound = getattr(node.slice, end)
            for more in (-1, 1):
                if bound is not None and not isinstance(bound, ast.Constant):
                    changed = copy.copy(node.slice)
                    setattr(changed, end, ast.BinOp(left=bound, op=ast.Add(), right=ast.Constant(more)))
                    yield "bound by one", ast.Subscript(value=node.value, slice=changed, ctx=ast.Load())
    elif isinstance(node.slice, ast.Constant) and node.slice.value in (0, -1):
        other = ast.Constant(-1 - node.slice.value)
        yield "the other end", ast.Subscript(value=node.value, slice=other, ctx=ast.Load())


def _loops(node: ast.expr) -> Iterator[Variant]:
    """What a loop goes through: without its first or last, or backwards."""
    listed = ast.Call(func=ast.Name(id="list", ctx=ast.Load()), args=[node], keywords=[])
    bounds = {"first": ast.Slice(lower=ast.Constant(1)), "last": ast.Slice(upper=ast.Constant(-1))}
    bounds["order"] = ast.Slice(step=ast.Constant(-1))
    for what, cut in bounds.items():
        yield f"loop without its {what}", ast.Subscript(value=listed, slice=cut, ctx=ast.Load())


def _constants(node: ast.Constant, slot: Slot) -> Iterator[Variant]:
    value = node.value
    if isinstance(value, bool):
        yield "other value", ast.Constant(not value)
    elif isinstance(value, int | float):
        yield from (("by one", ast.Constant(value + more)) for more in (-1, 1))
        if value not in (-1, 0, 1):
            yield "0", ast.Constant(0)
    elif value is None:
        yield "0 for None", ast.Constant(0)
    elif isinstance(value, str) and value:
        digits = value[1:-1]
        if value[0] == "." and value[-1] == "f" and digits.isdigit():
            for more in (-1, 1):
                yield "other decimals", ast.Constant(f".{max(0, int(digits) + more)}f")
            return
        similar = [value.replace(old, new) for old, new in _PATTERNS]
        others = dict.fromkeys((f"{value}x", value[:-1], value.swapcase(), *similar))
        yield from (("other text", ast.Constant(each)) for each in others if each != value)
    elif value == "":
        yield "other text", ast.Constant("x")


_EXPRESSIONS: dict[Any, Callable[[Any], Iterator[Variant]]] = {
    ast.Compare: _comparisons,
    ast.BoolOp: _connections,
    ast.UnaryOp: lambda node: iter([("sign or not left out", node.operand)]),
    ast.BinOp: _operations,
    ast.IfExp: lambda node: iter([("one branch", node.body), ("one branch", node.orelse)]),
    ast.Call: _calls,
    ast.Subscript: _subscripts,
    ast.Tuple | ast.List | ast.Set: _displays,
    ast.Dict: _dictionaries,
    ast.ListComp: _comprehensions,
}
