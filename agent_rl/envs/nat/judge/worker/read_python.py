"""Outline a Python source without running it: functions, classes and exception handlers as plain JSON.

Facts only (what is hinted, handed over, caught, returned, and on which line); the host judges whether they are
good. Texts are cut short and definitions are counted, so that an outline stays small whatever the source.
"""

import ast
from collections import deque
from collections.abc import Iterator
from typing import Any

MAX_DEFINITIONS = 400
MAX_DETAILS = 2000
"""Parameters, fields, calls and handlers of all definitions together."""
_DOCSTRING_CHARS = 400
_HINT_CHARS = 120
_KNOWN = {
    *("Any", "object", "Exception", "BaseException", "Field", "FunctionInfo"),
    *("FunctionBaseConfig", "FunctionGroupBaseConfig", "register_function", "register_function_group"),
}
"""Names whose aliases are followed: `from typing import Any as T`, `T = Any`."""
_UNIONS = {"Optional", "Union", "Annotated", "Final", "Required", "NotRequired"}

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
Entry = dict[str, Any]


def read_python(text: str) -> dict[str, list[Entry]]:
    """`functions` and `classes`, nested ones too, outermost first, and `handlers`. Raises ValueError when too large."""
    tree = ast.parse(text)
    aliases = _aliases(tree)
    outline: dict[str, list[Entry]] = {"functions": [], "classes": [], "handlers": []}
    num_details = 0
    for scope, around, own in _scopes(tree):
        outline["handlers"] += _handlers(own, aliases)
        path = [each.name for each in around]
        if isinstance(scope, ast.ClassDef):
            entry = _class(scope, aliases)
            num_details += len(entry["fields"]) + len(entry["bases"])
            outline["classes"].append({**entry, "path": path})
        elif not isinstance(scope, ast.Module):
            entry = _function(scope, own, around[-1] if around else None, aliases)
            num_details += len(entry["parameters"]) + len(entry["hands_over"]) + len(entry["decorators"])
            outline["functions"].append({**entry, "path": path})
        if len(outline["functions"]) + len(outline["classes"]) > MAX_DEFINITIONS:
            raise ValueError(f"more than {MAX_DEFINITIONS} functions and classes")
        if num_details + len(outline["handlers"]) > MAX_DETAILS:
            raise ValueError(f"more than {MAX_DETAILS} parameters, fields and handlers")
    return outline


def _scopes(tree: ast.Module) -> Iterator[tuple[ast.Module | Definition, list[Definition], list[ast.AST]]]:
    """The module and every definition in it: what is around it, and the nodes that belong to no inner definition."""
    waiting: deque[tuple[ast.Module | Definition, list[Definition]]] = deque([(tree, [])])
    while waiting:
        scope, around = waiting.popleft()
        inside = around if isinstance(scope, ast.Module) else [*around, scope]
        own: list[ast.AST] = []
        nodes = deque(ast.iter_child_nodes(scope))
        while nodes:
            node = nodes.popleft()
            own.append(node)
            if isinstance(node, Definition):
                waiting.append((node, inside))
            elif not isinstance(node, ast.Lambda):
                nodes.extend(ast.iter_child_nodes(node))
        yield scope, around, own


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Other names that the module gives to known ones."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            found.update({each.asname: each.name for each in node.names if each.asname and each.name in _KNOWN})
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            value = last_name(node.value)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and value is not None and found.get(value, value) in _KNOWN:
                    found[target.id] = found.get(value, value)
    return found


def last_name(node: ast.AST | None, aliases: dict[str, str] | None = None) -> str | None:
    """`f` of `f` and of `a.b.f`, aliases followed."""
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
    return (aliases or {}).get(name, name) if name else None


def _called(node: ast.AST) -> ast.AST:
    return node.func if isinstance(node, ast.Call) else node


def _docstring(node: Definition) -> str | None:
    text = ast.get_docstring(node)
    return None if text is None else text[:_DOCSTRING_CHARS]


# ---------------------------------------------------------------- functions


def _function(node: Function, own: list[ast.AST], parent: Definition | None, aliases: dict[str, str]) -> Entry:
    positional = [*node.args.posonlyargs, *node.args.args]
    named = [*positional, *node.args.kwonlyargs]
    stars = [each for each in (node.args.vararg, node.args.kwarg) if each]
    decorators = [last_name(_called(each), aliases) for each in node.decorator_list]
    return {
        "name": node.name,
        "line": node.lineno,
        "is_async": isinstance(node, ast.AsyncFunctionDef),
        "is_method": isinstance(parent, ast.ClassDef) and "staticmethod" not in decorators,
        "arguments": [each.arg for each in named],
        "hinted": all(each.annotation is not None for each in named),
        "returns": node.returns is not None,
        "parameters": [_hint(each.arg, each.annotation, aliases) for each in [*named, *stars]],
        "num_positional": len(positional),
        "returned": _hint("return", node.returns, aliases),
        "documented": ast.get_docstring(node) is not None,
        "docstring": _docstring(node),
        "decorators": decorators,
        "registers": [
            {"decorator": last_name(each.func, aliases), "config_type": last_name(_argument(each, 0, "config_type"))}
            for each in node.decorator_list
            if isinstance(each, ast.Call)
        ],
        "num_yields": sum(isinstance(each, ast.Yield | ast.YieldFrom) for each in own),
        "num_value_returns": sum(isinstance(each, ast.Return) and each.value is not None for each in own),
        "yields": [name for each in own if isinstance(each, ast.Yield) and (name := last_name(each.value))],
        "hands_over": [found for each in own if isinstance(each, ast.Call) and (found := _handed(each, aliases))],
        "stub": None if _may_be_empty(parent, decorators) else _stub(node),
    }


def _hint(name: str, node: ast.expr | None, aliases: dict[str, str]) -> Entry:
    """`vague`: how far the hint is `Any` or `object`: "no", "part" (`list[Any]`), or "whole", as a missing one is."""
    text = None if node is None else ast.unparse(node)[:_HINT_CHARS]
    return {"name": name, "hint": text, "vague": "whole" if node is None else _vague(node, aliases)}


def _vague(node: ast.expr, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        try:
            node = ast.parse(node.value, mode="eval").body
        except SyntaxError:
            return "whole"
    is_no_type = isinstance(node, ast.Constant) and node.value is not None
    if is_no_type or last_name(node, aliases) in ("Any", "object"):
        return "whole"
    if isinstance(node, ast.BinOp):
        return _worst([_vague(node.left, aliases), _vague(node.right, aliases)])
    if isinstance(node, ast.Subscript):
        inner = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
        outer = last_name(node.value)
        if outer == "Literal":
            return "no"
        worst = _worst([_vague(each, aliases) for each in (inner[:1] if outer == "Annotated" else inner)])
        return worst if outer in _UNIONS or worst == "no" else "part"
    if isinstance(node, ast.List | ast.Tuple):
        return _worst([_vague(each, aliases) for each in node.elts])
    return "no"


def _worst(found: list[str]) -> str:
    return max(found, key=("no", "part", "whole").index, default="no")


def _argument(call: ast.Call, position: int, *names: str) -> ast.expr | None:
    by_name = {each.arg: each.value for each in call.keywords}
    for name in names:
        if name in by_name:
            return by_name[name]
    return call.args[position] if position < len(call.args) else None


def _handed(call: ast.Call, aliases: dict[str, str]) -> Entry | None:
    """What `FunctionInfo.from_fn(f)`, `FunctionInfo.create(single_fn=f)` or `group.add_function("f", f)` hands over."""
    if not isinstance(call.func, ast.Attribute):
        return None
    is_info = last_name(call.func.value, aliases) == "FunctionInfo"
    if call.func.attr == "from_fn" and is_info:
        function = _argument(call, 0, "fn")
    elif call.func.attr == "create" and is_info:
        function = _argument(call, 0, "single_fn", "stream_fn")
    elif call.func.attr == "add_function":
        function = _argument(call, 1, "fn")
    else:
        return None
    described, text = _description(_argument(call, len(call.args), "description"))
    return {"function": last_name(function), "described": described, "description": text, "line": call.lineno}


def _description(node: ast.expr | None) -> tuple[str, str]:
    """How a text is given ("no", "text", "docstring" or "expression"), and the text where it stands there."""
    if node is None or (isinstance(node, ast.Constant) and not isinstance(node.value, str)):
        return "no", ""
    if isinstance(node, ast.Constant):
        return "text", node.value[:_DOCSTRING_CHARS]
    return ("docstring" if last_name(node) == "__doc__" else "expression"), ""


def _may_be_empty(parent: Definition | None, decorators: list[str | None]) -> bool:
    is_protocol = isinstance(parent, ast.ClassDef) and "Protocol" in {last_name(each) for each in parent.bases}
    return is_protocol or bool({"abstractmethod", "overload"} & set(decorators))


def _stub(node: Function) -> str | None:
    """What the whole body does instead of work, in words; None when it works."""
    body = [each for each in node.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if not body:
        return "does nothing"
    if len(body) > 1:
        return None
    only = body[0]
    if isinstance(only, ast.Pass):
        return "does nothing"
    if isinstance(only, ast.Raise):
        name = last_name(_called(only.exc)) if only.exc else None
        return "raises NotImplementedError" if name == "NotImplementedError" else None
    if not isinstance(only, ast.Return):
        return None
    if only.value is None or _is_constant(only.value):
        return "returns a constant"
    arguments = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    is_argument = isinstance(only.value, ast.Name) and only.value.id in arguments
    return f"returns its argument {last_name(only.value)!r} unchanged" if is_argument else None


def _is_constant(node: ast.expr) -> bool:
    """No name is looked up and nothing is called."""
    return not any(isinstance(each, ast.Name | ast.Call | ast.Await) for each in ast.walk(node))


# ---------------------------------------------------------------- classes


def _class(node: ast.ClassDef, aliases: dict[str, str]) -> Entry:
    constants = {each.arg: each.value.value for each in node.keywords if isinstance(each.value, ast.Constant)}
    return {
        "name": node.name,
        "line": node.lineno,
        "bases": [last_name(each, aliases) for each in node.bases],
        "keywords": {name: value for name, value in constants.items() if name and isinstance(value, str)},
        "documented": ast.get_docstring(node) is not None,
        "docstring": _docstring(node),
        "fields": [
            _field(each.target.id, each, aliases)
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and _is_field(each.target.id, each)
        ],
    }


def _is_field(name: str, node: ast.AnnAssign) -> bool:
    return not name.startswith("_") and name != "model_config" and "ClassVar" not in ast.unparse(node.annotation)


def _field(name: str, node: ast.AnnAssign, aliases: dict[str, str]) -> Entry:
    metadata = node.annotation.slice if isinstance(node.annotation, ast.Subscript) else None
    candidates = [node.value, *(metadata.elts if isinstance(metadata, ast.Tuple) else [])]
    calls = [each for each in candidates if isinstance(each, ast.Call) and last_name(each.func, aliases) == "Field"]
    defaults = [_argument(each, 0, "default", "default_factory") for each in calls]
    has_default = any(each is not None and not _is_ellipsis(each) for each in defaults)
    is_plain_value = node.value is not None and node.value not in calls and not _is_ellipsis(node.value)
    described = [_description(_argument(each, len(each.args), "description")) for each in calls]
    how, text = next((each for each in described if each[0] != "no"), ("no", ""))
    return {
        **_hint(name, node.annotation, aliases),
        "line": node.lineno,
        "is_required": not has_default and not is_plain_value,
        "described": how,
        "description": text,
    }


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


# ---------------------------------------------------------------- exceptions


def _handlers(own: list[ast.AST], aliases: dict[str, str]) -> list[Entry]:
    """What a scope does with exceptions; `suppress(...)` and a `return` in `finally` are handlers as well."""
    found = []
    for node in own:
        if isinstance(node, ast.ExceptHandler):
            found.append(_handler(node, aliases))
        elif isinstance(node, ast.Call) and last_name(node.func) == "suppress":
            caught = [last_name(each, aliases) for each in node.args]
            found.append({"line": node.lineno, "catches": caught, "does": "suppresses it"})
        elif isinstance(node, ast.Try):
            leaves = "leaves by `return` in finally"
            returns = [each for each in node.finalbody if isinstance(each, ast.Return)]
            found += [{"line": each.lineno, "catches": None, "does": leaves} for each in returns]
    return found


def _handler(node: ast.ExceptHandler, aliases: dict[str, str]) -> Entry:
    kinds = list(node.type.elts) if isinstance(node.type, ast.Tuple) else [node.type] if node.type else []
    inside = [each for statement in node.body for each in ast.walk(statement)]
    first = node.body[0] if len(node.body) == 1 else None
    does = "goes on without it"
    if any(isinstance(each, ast.Raise) for each in inside):
        does = "raises"
    elif any(isinstance(each, ast.Name) and each.id == node.name for each in inside) or _is_logged(inside):
        does = "uses it"
    elif isinstance(first, ast.Pass) or (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        does = "does nothing"
    elif isinstance(first, ast.Return) and (first.value is None or _is_constant(first.value)):
        does = "returns a constant"
    catches = [last_name(each, aliases) for each in kinds]
    return {"line": node.lineno, "catches": catches if kinds else None, "does": does}


def _is_logged(nodes: list[ast.AST]) -> bool:
    """`logger.exception(...)`, `exc_info=True`, `traceback.format_exc()`"""
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    names = {last_name(each.func) for each in calls} | {word.arg for each in calls for word in each.keywords}
    return bool(names & {"exception", "exc_info", "print_exc", "format_exc"})
