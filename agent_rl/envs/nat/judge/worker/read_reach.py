"""Find what a project's Python sources reach for beyond their own work.

The toolkit and a project run in one process, so a project that gets hold of the toolkit could report what it likes. The
code of these agents needs little, and that is listed (`reach_names.py`): modules and names of them, builtins,
attributes, methods with two underscores. Whatever else a source holds is named with its line; the host decides what
it costs. Runs nothing of the source. What only shows while it runs (whose object an attribute belongs to) is
`confined.py`'s; limits of what a process may do to the machine are the sandbox's.
"""

import ast
import builtins
from collections.abc import Mapping
from typing import Any

from agent_rl.envs.nat.judge.worker import reach_names as names
from agent_rl.envs.nat.judge.worker.reach_bindings import Bindings, Types, absolute, bindings_of, is_own
from agent_rl.envs.nat.judge.worker.reach_shapes import (
    is_annotated,
    is_call_of,
    is_dunder,
    is_given_none,
    is_member,
    is_named,
    is_plain_format,
    is_super,
    names_in,
    root_of,
)

MAX_FOUND = 8
_ALL_BUILTINS = frozenset(dir(builtins))
_EXCEPTIONS = frozenset(
    name
    for name in _ALL_BUILTINS
    if isinstance(each := getattr(builtins, name), type) and issubclass(each, BaseException)
)
_CLOSED_BUILTINS = {name for name in _ALL_BUILTINS - names.BUILTINS - _EXCEPTIONS if not name.startswith("__")}
_IN_TEXT = (
    "__import__",
    "__builtins__",
    "__globals__",
    "__subclasses__",
    "__mro__",
    "__bases__",
    "__dict__",
    "__code__",
)
_OF_NAMEDTUPLES = {"_replace", "_asdict", "_fields", "_make"}
_FORMATS = {"format", "format_map"}
_OF_ENUMS = {"_missing_", "_value_", *names.DUNDER_METHODS}
_ALONE = {"super", "type", "getattr", "hasattr"}
"""Builtins that may stand in a few places only."""
_TRUSTED = {"super", "getattr", "hasattr", "isinstance"}  # a project may have nothing else of that name

Found = list[dict[str, Any]]


def reaches(text: str) -> Found:
    """`{"line", "what"}` of everything in one source that reaches beyond, at most `MAX_FOUND`.

    Modules that this interpreter does not have are the project's own. Raises what `ast.parse` raises.
    """
    return _judged({"project.module": ast.parse(text)}, None)["project.module"]


def reaches_of_project(texts: Mapping[str, str]) -> Found:
    """`{"path", "line", "what"}` for the modules of a project, by path below the folder that they are imported from.

    What one module takes from another is known here, and no other file may be imported.
    """
    paths = {path: path.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for path in texts}
    trees = {}
    for path, text in texts.items():
        try:
            trees[paths[path]] = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return [{"path": path, "line": 1, "what": f"cannot be read: {type(error).__name__}"}]
    packages = {paths[path] for path in texts if path.endswith("/__init__.py")}
    packages |= {module.partition(".")[0] for module in trees}
    found = _judged(trees, packages)
    return [{"path": path, **each} for path in texts for each in found[paths[path]]][:MAX_FOUND]


def _judged(trees: Mapping[str, ast.Module], packages: set[str] | None) -> dict[str, Found]:
    own = None if packages is None else dict.fromkeys([*trees, *packages])
    project = {
        module: bindings_of(module, tree, own, is_package=module in (packages or ())) for module, tree in trees.items()
    }
    types = Types(project, is_whole=packages is not None)
    defined = {name for each in project.values() for name in each.defined}
    found = {}
    for module, tree in trees.items():
        visitor = _Visitor(project[module], types, defined, own)
        visitor.visit(tree)
        found[module] = visitor.found
    return found


class _Visitor(ast.NodeVisitor):
    def __init__(self, here: Bindings, types: Types, defined: set[str], own: Mapping[str, Any] | None) -> None:
        self.found: Found = []
        self._here, self._types, self._defined, self._own = here, types, defined, own
        self._above: list[ast.AST] = []
        """The nodes around the one that is visited, the outermost first."""

    def _note(self, node: ast.AST, what: str) -> None:
        if len(self.found) < MAX_FOUND:
            self.found.append({"line": getattr(node, "lineno", 1), "what": what[:120]})

    def visit(self, node: ast.AST) -> None:
        for name in names_in(node):
            if name.startswith("__") and name.endswith("__") and not self._is_usual_dunder(node, name):
                self._note(node, f"uses {name}")
            elif name == "model_config" and not self._is_plain_target(node):
                self._note(node, "takes or makes a model's configuration apart from its class")
        getattr(self, f"visit_{type(node).__name__}", lambda _: None)(node)
        self._above.append(node)
        self.generic_visit(node)
        self._above.pop()

    def _parent(self, up: int = 1) -> ast.AST | None:
        return self._above[-up] if len(self._above) >= up else None

    def _is_plain_target(self, node: ast.AST) -> bool:
        above = self._parent()
        targets = above.targets if isinstance(above, ast.Assign) else [getattr(above, "target", None)]
        return isinstance(above, ast.Assign | ast.AnnAssign) and node in targets

    def _is_usual_dunder(self, node: ast.AST, name: str) -> bool:
        if isinstance(node, ast.Name):
            usual = names.DUNDER_NAMES if isinstance(node.ctx, ast.Load) else names.DUNDER_TARGETS
            return name in usual or (name == "__hash__" and is_given_none(self._parent(), node))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return name in names.DUNDER_METHODS
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load):
            return False
        if name == "__class__":
            above = self._parent()
            return isinstance(above, ast.Attribute) and above.attr in ("__name__", "__qualname__")
        return name in names.DUNDER_ATTRIBUTES or (is_super(node.value) and name in names.DUNDER_METHODS)

    def visit_Module(self, node: ast.Module) -> None:
        for name in sorted(_TRUSTED & self._here.bound):
            self._note(node, f"has a {name} of its own")

    # ------------------------------------------------------------ imports

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if not is_own(each.name, self._own) and each.name not in names.MODULES:
                self._note(node, f"imports {each.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = absolute(self._here, node)
        if not module:
            self._note(node, "imports from above its package")
            return
        if is_own(module, self._own) or (node.level and self._own is None):
            if any(each.name == "*" for each in node.names):
                self._note(node, "imports *")
            return
        if module not in names.MODULES and not names.submodules_of(module):
            self._note(node, f"imports from {module}")
            return
        for each in node.names:
            if each.name not in names.names_of(module) | names.submodules_of(module):
                self._note(node, f"imports {each.name} from {module}")

    # ------------------------------------------------------------ names

    def visit_Name(self, node: ast.Name) -> None:
        name = node.id
        if not isinstance(node.ctx, ast.Load):
            if name in _ALONE:
                self._note(node, f"changes {name}")
        elif name in _ALONE:
            if not self._may_stand_alone(node):
                self._note(node, f"uses {name} in another way than is usual")
        elif self._here.origin(node) in names.ONLY_BASES and name in self._here.imported:
            self._judge_only_base(node)
        elif self._here.module_of(node) and not isinstance(self._parent(), ast.Attribute):
            self._note(node, f"hands over the module {name}")
        elif name in _CLOSED_BUILTINS and name not in self._here.bound:
            self._note(node, f"uses {name}")

    def _may_stand_alone(self, node: ast.Name) -> bool:
        above = self._parent()
        is_called = isinstance(above, ast.Call) and above.func is node
        if node.id == "type":
            if isinstance(above, ast.Subscript):
                return above.value is node
            if is_called and isinstance(above, ast.Call):
                return len(above.args) == 1 and not above.keywords and self._is_plain_use_of_type(above)
            around = self._parent(2) if isinstance(above, ast.Tuple) else above
            return isinstance(around, ast.Call) and around.func is not node and self._is_isinstance(around.func)
        if not is_called or not isinstance(above, ast.Call) or above.keywords:
            return False
        if node.id == "super":
            return not above.args and isinstance(self._parent(2), ast.Attribute)
        second = above.args[1] if 2 <= len(above.args) <= 3 - (node.id == "hasattr") else None
        text = second.value if isinstance(second, ast.Constant) else None
        return isinstance(text, str) and text.isidentifier() and self._is_open(text, above.args[0])

    def _is_isinstance(self, function: ast.expr) -> bool:
        return isinstance(function, ast.Name) and self._here.origin(function) == "isinstance"

    def _is_plain_use_of_type(self, call: ast.Call) -> bool:
        """`type(x).__name__`, `f"{type(x)}"`, and `type(x)` beside nothing but types."""
        above = self._parent(2)
        if isinstance(above, ast.Attribute):
            return above.attr in ("__name__", "__qualname__")
        if isinstance(above, ast.FormattedValue):
            return True
        if not isinstance(above, ast.Compare):
            return False
        others = [each for each in (above.left, *above.comparators) if each is not call]
        return all(is_call_of(each, "type") or self._is_one_or_more_types(each) for each in others)

    def _is_one_or_more_types(self, node: ast.expr) -> bool:
        parts = node.elts if isinstance(node, ast.Tuple | ast.Set | ast.List) else [node]
        return all(isinstance(each, ast.Name | ast.Attribute) and self._is_hint(each) for each in parts)

    def _judge_only_base(self, node: ast.expr) -> None:
        above = self._parent()
        is_base = isinstance(above, ast.ClassDef | ast.Subscript | ast.arg)
        is_checked = isinstance(above, ast.Call) and above.func is not node and self._is_isinstance(above.func)
        if not is_base and not is_checked:
            self._note(node, f"uses {ast.unparse(node)} for more than a base class")

    # ------------------------------------------------------------ attributes

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name, module = node.attr, self._here.module_of(node.value)
        if module:
            deeper = self._here.module_of(node)
            if not isinstance(node.ctx, ast.Load):
                self._note(node, f"changes {ast.unparse(node)}")
            elif deeper and not isinstance(self._parent(), ast.Attribute):
                self._note(node, f"hands over the module {deeper}")
            elif not deeper and name not in names.names_of(module):
                self._note(node, f"uses {name} of {module}")
            elif name in names.ONLY_BASES:
                self._judge_only_base(node)
        elif name in _FORMATS and name not in self._defined:
            self._judge_format(node)
        elif name in names.FRAMES or (not is_dunder(name) and not self._is_open(name, node.value)):
            self._note(node, f"uses the attribute {name}")
        elif not isinstance(node.ctx, ast.Load) and (name in names.OVERRIDABLE or self._is_of_others(node)):
            self._note(node, f"changes {ast.unparse(node)}")

    def _is_open(self, name: str, value: ast.expr) -> bool:
        """Whether an attribute may be asked for: one of plain data, of the toolkit's objects, or the project's own."""
        if name in names.FRAMES or is_dunder(name):
            return False
        if name in self._defined or name in names.ATTRIBUTES or (name in _OF_NAMEDTUPLES):
            return True
        is_of_own_module = isinstance(value, ast.Name) and value.id in self._here.own_modules
        is_unknown = self._own is None or name.isupper() or is_of_own_module
        return is_unknown and not name.startswith("_")

    def _is_of_others(self, node: ast.Attribute) -> bool:
        root = root_of(node.value)
        is_imported = isinstance(root, ast.Name) and root.id in self._here.taken
        is_self = isinstance(root, ast.Name) and root.id in ("self", "cls")
        is_context = isinstance(root, ast.Call) and self._here.origin(root.func) == "getcontext"
        is_made = isinstance(root, ast.Call) and not is_context
        return is_imported or is_made or (node.attr in names.OF_TOOLKIT and not is_self)

    def _judge_format(self, node: ast.Attribute) -> None:
        """A format may ask for attributes of what it is given, so it must be written out."""
        texts = [node.value] if isinstance(node.value, ast.Constant) else None
        root = root_of(node.value)
        if texts is None and isinstance(root, ast.Name) and node.attr == "format":
            texts = self._here.values.get(root.id, [])
        is_called = isinstance(above := self._parent(), ast.Call) and above.func is node
        if texts is None or not is_called or not all(map(is_plain_format, texts)):
            self._note(node, f"uses {node.attr} in another way than on a plain text")

    def visit_MatchValue(self, node: ast.MatchValue) -> None:
        """What it says is compared with the subject, whose own `__eq__` would get it."""
        root = root_of(node.value)
        is_foreign = isinstance(root, ast.Name) and root.id in self._here.others | set(self._here.values)
        if isinstance(node.value, ast.Attribute) and is_foreign:
            self._note(node, f"matches {ast.unparse(node.value)[:60]}")

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        is_own_class = isinstance(node.cls, ast.Name) and node.cls.id in self._here.classes
        for name in node.kwd_attrs:
            if name in names.FRAMES or (name.startswith("_") or (name not in names.ATTRIBUTES and not is_own_class)):
                self._note(node, f"matches the attribute {name}")

    # ------------------------------------------------------------ definitions

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        is_enum = False
        for base in node.bases:
            origin = self._here.origin(base)
            is_enum |= origin in names.ENUMS
            is_known = origin in names.BASES | _EXCEPTIONS or str(origin).endswith(("Error", "Exception"))
            if not self._is_hint(base) or not (is_known or self._is_own_class(base)):
                self._note(node, f"derives from {ast.unparse(base)[:60]}")
        for each in node.keywords:
            if each.arg not in names.CLASS_KEYWORDS:
                self._note(node, f"makes a class with {each.arg}")
        if is_enum:
            self._judge_enum(node)
        for each in ast.walk(node):
            is_read = isinstance(each, ast.Attribute) or isinstance(getattr(each, "ctx", None), ast.Load)
            if each is not node and not is_read and (taken := names.OVERRIDABLE.intersection(names_in(each))):
                self._note(each, f"changes how a model is made by {min(taken)}")

    def _is_own_class(self, base: ast.expr) -> bool:
        if isinstance(base, ast.Subscript):
            return self._is_own_class(base.value)
        if isinstance(base, ast.Name):
            is_imported = base.id in self._here.imported and self._here.imported[base.id][0] not in names.MODULES
            return base.id in self._here.classes or is_imported
        return isinstance(base, ast.Attribute) and self._here.module_of(base.value) is None

    def _judge_enum(self, node: ast.ClassDef) -> None:
        """Without members it could be called with a text that names what the new class has."""
        is_full = False
        for each in node.body:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target] if is_annotated(each) else []
            given = {target.id for target in targets if isinstance(target, ast.Name)}
            if isinstance(each, ast.FunctionDef):
                given.add(each.name)
            if any(name.startswith("_") and name.endswith("_") and name not in _OF_ENUMS for name in given):
                self._note(each, "changes how an enumeration is made")
            is_full |= bool(given) and isinstance(each, ast.Assign) and is_member(each.value, self._here.origin)
        if not is_full:
            self._note(node, "makes an enumeration without members")

    # ------------------------------------------------------------ texts that are evaluated

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and any(part in node.value for part in _IN_TEXT):
            self._note(node, "holds the name of something inside the interpreter")

    def visit_TryStar(self, node: ast.AST) -> None:
        self._note(node, "uses except*")

    def visit_arg(self, node: ast.arg) -> None:
        self._judge_hint(node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._judge_hint(node.returns)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._judge_hint(node.annotation)
        if is_named(node.target, "model_config"):
            self._judge_model_config(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(is_named(each, "model_config") for each in node.targets):
            self._judge_model_config(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg in names.HINT_KEYWORDS:
            self._judge_hint(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if self._here.origin(node.func) in ("TypeVar", "NewType", *names.CONSTRAINED):
            self._judge_hint(node)
        if self._here.origin(node.func) == "ConfigDict":
            self._judge_model_config(node)
        if self._here.origin(node.func) in names.TAKING_HINTS:
            self._judge_taker(node)

    def _judge_taker(self, call: ast.Call) -> None:
        """Its arguments must be written out, as which of them are types is known by their names."""
        if any(each.arg is None for each in call.keywords) or any(isinstance(each, ast.Starred) for each in call.args):
            self._note(call, f"calls {ast.unparse(call.func)} with arguments that are not written out")
        if self._here.origin(call.func) == "BeforeValidator":
            for each in call.args[1:]:
                self._judge_hint(each)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if self._here.origin(node.value) == "RootModel":
            self._judge_hint(node)

    def _judge_model_config(self, value: ast.expr | None) -> None:
        keys: list[Any] = [None]
        if isinstance(value, ast.Call) and self._here.origin(value.func) == "ConfigDict" and not value.args:
            keys = [each.arg for each in value.keywords]
        elif isinstance(value, ast.Dict):
            keys = [each.value if isinstance(each, ast.Constant) else None for each in value.keys]
        for key in keys:
            if key not in names.CLASS_KEYWORDS:
                self._note(value or ast.Pass(), f"configures a model with {key}")

    def _is_hint(self, node: ast.expr) -> bool:
        return self._types.is_type(self._here, node)

    def _judge_hint(self, hint: ast.expr | None) -> None:
        """Hints that are texts are evaluated, also those that other names hold."""
        if hint is not None and not self._is_hint(hint):
            self._note(hint, f"has a type hint that is no plain type: {ast.unparse(hint)[:60]}")
