"""What the names of a project's modules stand for, as far as a reader can be sure: modules, classes, types.

A name counts as a type only if everything that is ever bound to it is one: what a hint holds is evaluated where it is
a text. Not here: what is allowed (`reach_names.py`), what is judged (`read_reach.py`).
"""

import ast
import builtins
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_rl.envs.nat.judge.worker.reach_names import CLASS_DECORATORS, CONSTRAINED, MODULES, PLAIN_TYPES
from agent_rl.envs.nat.judge.worker.reach_shapes import is_plain_text_of_type

_MAX_DEPTH = 40
_NAMED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar
_MAKES_TYPES = {"TypeVar", "NewType"}


@dataclass
class Bindings:
    """The names of one module, from all its scopes together."""

    module: str
    is_package: bool = False
    modules: dict[str, str] = field(default_factory=dict)
    """Name -> listed module that it is bound to."""
    own_modules: dict[str, str] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Name -> (module, name there)."""
    classes: set[str] = field(default_factory=set)
    values: dict[str, list[ast.expr]] = field(default_factory=dict)
    """Name -> what plain assignments give it."""
    others: set[str] = field(default_factory=set)
    """Names that are bound in some other way: arguments, loops, functions."""
    defined: set[str] = field(default_factory=set)
    """All names that the module gives to something: attributes, arguments and fields too."""

    @property
    def taken(self) -> set[str]:
        """Names that an import gives."""
        return {*self.modules, *self.own_modules, *self.imported}

    @property
    def bound(self) -> set[str]:
        return {*self.taken, *self.classes, *self.values, *self.others}

    def origin(self, node: ast.expr) -> str | None:
        """`Enum` for what was imported as `E` from a listed module, or is written `enum.Enum`, and the name of a
        builtin; None for what may be something else."""
        if isinstance(node, ast.Subscript):
            return self.origin(node.value)
        if isinstance(node, ast.Name):
            if node.id not in self.bound:
                return node.id
            module, name = self.imported.get(node.id, ("", ""))
            is_only_that = node.id not in self.others and node.id not in self.values and node.id not in self.classes
            return name if module in MODULES and is_only_that else None
        is_of_module = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute)
        return node.attr if is_of_module and self.module_of(node.value) else None  # type: ignore[union-attr]

    def module_of(self, node: ast.expr) -> str | None:
        """The listed module that an expression stands for: `dt`, `collections.abc`."""
        if isinstance(node, ast.Name):
            return self.modules.get(node.id)
        if isinstance(node, ast.Attribute) and (above := self.module_of(node.value)):
            deeper = f"{above}.{node.attr}"
            return deeper if any(f"{each}.".startswith(f"{deeper}.") for each in MODULES) else None
        return None


def bindings_of(module: str, tree: ast.Module, own: Mapping[str, object] | None, *, is_package: bool) -> Bindings:
    """Collect a module's names; `own` are the project's modules, None where they are not known."""
    found = Bindings(module, is_package)
    plain: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                _bind_import(found, each, own)
        elif isinstance(node, ast.ImportFrom):
            source = absolute(found, node)
            for each in node.names:
                _bind_from(found, source, each, own)
        elif isinstance(node, ast.ClassDef):
            found.classes.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    found.values.setdefault(target.id, []).append(node.value)
                    plain.add(target)
    for node in ast.walk(tree):
        found.others |= set(_other_names(node, plain))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and not all(_keeps_class(found, each) for each in node.decorator_list):
            found.others.add(node.name)
    named = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    found.defined = named | found.classes | set(found.values) | found.others | set(_of_namedtuples(tree))
    return found


def _keeps_class(found: Bindings, decorator: ast.expr) -> bool:
    """Whether a class is still one after its decorator."""
    return found.origin(decorator.func if isinstance(decorator, ast.Call) else decorator) in CLASS_DECORATORS


def _bind_import(found: Bindings, each: ast.alias, own: Mapping[str, object] | None) -> None:
    name, bound = each.name, each.asname or each.name.partition(".")[0]
    module = name if each.asname else bound
    _bind(found, bound, found.own_modules if is_own(name, own) else found.modules, module)


def _bind_from(found: Bindings, source: str, each: ast.alias, own: Mapping[str, object] | None) -> None:
    name, bound = f"{source}.{each.name}", each.asname or each.name
    if name in MODULES:
        _bind(found, bound, found.modules, name)
    elif own is not None and name in own:
        _bind(found, bound, found.own_modules, name)
    else:
        _bind(found, bound, found.imported, (source, each.name))


def _bind(found: Bindings, name: str, place: dict[str, Any], what: Any) -> None:
    """Note an import; a name that is imported as two things is not known to be either."""
    if any(name in each and each[name] != what for each in (found.modules, found.own_modules, found.imported)):
        found.others.add(name)
    place[name] = what


def absolute(found: Bindings, node: ast.ImportFrom) -> str:
    """The full name of the module that is imported from."""
    if not node.level:
        return node.module or ""
    parts = found.module.split(".")
    kept = parts[: len(parts) - node.level + found.is_package]
    return ".".join([*kept, *([node.module] if node.module else [])])


def is_own(module: str, own: Mapping[str, object] | None) -> bool:
    """Whether a module is the project's. Where that is not known: whether this interpreter has no such module."""
    if own is not None:
        return module in own
    top = module.partition(".")[0]
    if not top or top in sys.stdlib_module_names or top in sys.modules:
        return False
    return importlib.util.find_spec(top) is None


def _other_names(node: ast.AST, plain: set[ast.AST]) -> Iterator[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and node not in plain:
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, _NAMED) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _of_namedtuples(tree: ast.Module) -> Iterator[str]:
    """Field names that `namedtuple` takes as texts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("namedtuple"):
            for each in ast.walk(node):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    yield from each.value.replace(",", " ").split()


class Types:
    """Whether expressions stand for types and hold no text that could be evaluated."""

    def __init__(self, project: Mapping[str, Bindings], *, is_whole: bool) -> None:
        self._project, self._is_whole = project, is_whole

    def is_type(self, here: Bindings, node: ast.expr | None, depth: int = 0) -> bool:
        """A name, attribute, subscript or union of types, or a text that says one."""
        if depth > _MAX_DEPTH:
            return False
        deeper = depth + 1
        match node:
            case ast.Constant(value=None | builtins.Ellipsis):
                return True
            case ast.Constant(value=str(text)):
                return self._is_text_of_type(here, text, deeper)
            case ast.Name(id=name):
                return self._is_name(here, name, deeper)
            case ast.Attribute():
                return self._is_attribute(here, node, deeper)
            case ast.BinOp(op=ast.BitOr(), left=left, right=right):
                return self.is_type(here, left, deeper) and self.is_type(here, right, deeper)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                return all(self.is_type(here, each, deeper) for each in parts)
            case ast.Subscript(value=value, slice=inner):
                return self.is_type(here, value, deeper) and self._is_inside(here, value, inner, deeper)
            case ast.Call():
                return self._is_made(here, node, deeper)
        return False

    def _is_inside(self, here: Bindings, value: ast.expr, inner: ast.expr, depth: int) -> bool:
        origin = here.origin(value)
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if origin == "Literal":
            return all(isinstance(each, ast.Constant | ast.Attribute | ast.UnaryOp) for each in parts)
        return all(self.is_type(here, each, depth) for each in (parts[:1] if origin == "Annotated" else parts))

    def _is_made(self, here: Bindings, node: ast.Call, depth: int) -> bool:
        origin = here.origin(node.func)
        if origin in CONSTRAINED:
            given = [*node.args, *(each.value for each in node.keywords if each.arg in ("item_type", None))]
            return all(self.is_type(here, each, depth) for each in given)
        if origin in _MAKES_TYPES:
            first, *rest = node.args or [None]
            is_named = isinstance(first, ast.Constant) and isinstance(first.value, str)
            rest += [each.value for each in node.keywords if not isinstance(each.value, ast.Constant)]
            rest += [each.value for each in node.keywords if each.arg == "bound"]
            return is_named and all(self.is_type(here, each, depth) for each in rest)
        return False

    def _is_text_of_type(self, here: Bindings, text: str, depth: int) -> bool:
        try:
            inner = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError):
            return False
        is_plain = not isinstance(inner, ast.Constant) and is_plain_text_of_type(inner)
        return is_plain and self.is_type(here, inner, depth)

    def _is_attribute(self, here: Bindings, node: ast.Attribute, depth: int) -> bool:
        if here.module_of(node.value):
            return True  # which name it is, is judged where it stands
        if isinstance(node.value, ast.Name) and (module := here.own_modules.get(node.value.id)):
            return self.is_type_of(module, node.attr, depth)
        return False

    def is_type_of(self, module: str, name: str, depth: int = 0) -> bool:
        """Whether a name of one of the project's modules is a type."""
        there = self._project.get(module)
        if there is None:
            return not self._is_whole
        return self._is_name(there, name, depth + 1)

    def _is_name(self, here: Bindings, name: str, depth: int) -> bool:
        if depth > _MAX_DEPTH or name in here.others or name in here.modules:
            return False
        if name not in here.bound:
            return name in PLAIN_TYPES
        if name in here.imported:
            module, original = here.imported[name]
            if module not in MODULES and not self.is_type_of(module, original, depth):
                return False
        return all(_is_no_text(each) or self.is_type(here, each, depth + 1) for each in here.values.get(name, ()))


def _is_no_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and not isinstance(node.value, str)
