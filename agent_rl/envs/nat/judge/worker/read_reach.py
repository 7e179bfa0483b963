"""Find what a Python source reaches for beyond its own work: the interpreter, its frames, other modules' insides.

The toolkit and a project run in one process, so a project that gets hold of the toolkit could report what it likes. The
code of these agents needs little: plain modules, the toolkit's public names, attributes that do not begin with an
underscore. What goes beyond is named with its line; the host decides what it costs. Runs nothing of the source; imports
modules of the standard library that are listed here, to see what their names are. Not here: limits of what a process
may do to the machine (the sandbox's).
"""

import ast
import importlib.util
import inspect
import sys
from typing import Any

MAX_FOUND = 8


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_MODULES = _words("""
    __future__ abc bisect calendar collections collections.abc colorsys copy csv dataclasses datetime decimal
    difflib enum fractions functools hashlib heapq html io itertools json logging math numbers operator random re
    secrets statistics string struct textwrap time typing unicodedata urllib.parse uuid warnings zlib zoneinfo
    base64 asyncio contextlib cmath array graphlib pprint keyword
""")
"""Of the standard library, without those that open files, start processes or look into the interpreter."""
_OTHERS = {"httpx", "pydantic", "typing_extensions", "mcp", "nat"}
_NOT_OF_MODULES = {
    "dataclasses": {"make_dataclass"},
    "io": {"open", "FileIO", "OpenWrapper", "open_code"},
    "operator": {"attrgetter", "methodcaller"},
    "string": {"Formatter"},
    "typing": {"ForwardRef", "get_type_hints"},
    "typing_extensions": {"ForwardRef", "get_type_hints", "evaluate_forward_ref"},
    "pydantic": {"TypeAdapter", "create_model", "validate_call", "ImportString"},
    "logging": {"FileHandler", "shutdown"},
}
_OF_ASYNCIO = _words("""
    sleep gather wait_for wait timeout to_thread Lock Semaphore Event Queue create_task TaskGroup TimeoutError
    CancelledError iscoroutinefunction FIRST_COMPLETED as_completed shield QueueEmpty QueueFull Condition
    BoundedSemaphore PriorityQueue LifoQueue run
""")
_OF_NAT = _words("""
    Builder Context Function FunctionBaseConfig FunctionGroup FunctionGroupBaseConfig FunctionInfo ComponentRef
    EmbedderRef FunctionGroupRef FunctionRef LLMRef MemoryRef ObjectStoreRef RetrieverRef LLMFrameworkEnum
    LambdaFunction register_function register_function_group HttpUrl OptionalSecretStr SecretStr TypedBaseModel
    BaseConfig CommonMixin AuthProviderRef
""")
_BUILTINS = _words("""
    __build_class__ __builtins__ __import__ __loader__ __spec__ breakpoint compile delattr dir eval exec exit
    globals help input locals memoryview open quit setattr vars
""")
_DUNDERS = _words("""
    __init__ __name__ __doc__ __class__ __post_init__ __enter__ __exit__ __aenter__ __aexit__ __eq__ __hash__
    __len__ __iter__ __next__ __str__ __repr__ __call__ __contains__ __getitem__ __qualname__ __version__
    __members__ __add__ __lt__ __cause__ __context__
""")
_FRAMES = _words("""
    ag_await ag_code ag_frame cr_await cr_code cr_frame cr_origin f_back f_builtins f_code f_globals f_locals
    f_trace func_globals get_coro get_stack gi_code gi_frame gi_yieldfrom tb_frame tb_next print_stack
""")
_OF_TOOLKIT = _words("""
    acall_invoke acall_stream ainvoke astream build_fn config description from_fn get_function get_function_config
    get_function_group get_function_groups get_functions get_llm get_tool get_tools get_workflow get_workflow_config
    input_schema single_fn stream_fn
""")
"""Attributes of the toolkit's objects that no project sets."""
_LOWER_NAMES = _words("""
    computed_field confloat conint conlist constr field_serializer field_validator get post model_validator override
    request stream codes put patch delete model_serializer condecimal runtime_checkable types server
    dataclass_transform
""")
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
_PLAIN_TYPES = _words("""
    bool bytes complex dict float frozenset int list object set slice str tuple type Exception BaseException
    ValueError
""")

Found = list[dict[str, Any]]


def reaches(text: str) -> Found:
    """`{"line", "what"}` of everything that reaches beyond, at most `MAX_FOUND`.

    Modules that this interpreter does not have are the project's own. Raises what `ast.parse` raises.
    """
    visitor = _Visitor()
    tree = ast.parse(text)
    visitor.learn(tree)
    visitor.visit(tree)
    return visitor.found[:MAX_FOUND]


class _Visitor(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: Found = []
        self._modules: dict[str, str] = {}
        """Name here -> module that it is bound to."""
        self._types: set[str] = set(_PLAIN_TYPES)
        """Names that stand for types, and hold no text that is evaluated as one."""

    def learn(self, tree: ast.Module) -> None:
        """Collect the names of modules and types before anything is judged."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    self._modules[each.asname or each.name.partition(".")[0]] = (
                        each.name if each.asname else each.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom):
                self._types |= {each.asname or each.name for each in node.names}
                for each in node.names:
                    if f"{node.module}.{each.name}" in _MODULES:
                        self._modules[each.asname or each.name] = f"{node.module}.{each.name}"
            elif isinstance(node, ast.ClassDef):
                self._types.add(node.name)
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _is_type(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self._types |= {each.id for each in targets if isinstance(each, ast.Name)}

    def _note(self, node: ast.AST, what: str) -> None:
        if len(self.found) < MAX_FOUND:
            self.found.append({"line": getattr(node, "lineno", 1), "what": what[:120]})

    # ------------------------------------------------------------ imports

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if not _is_own(each.name) and (each.name not in _MODULES | {"httpx"}):
                self._note(node, f"imports {each.name}")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or _is_own(module):
            return
        top = module.partition(".")[0]
        if module not in _MODULES and top not in _OTHERS:
            self._note(node, f"imports from {module}")
            return
        for each in node.names:
            if not self._may_take(module, each.name):
                self._note(node, f"imports {each.name} from {module}")

    def _may_take(self, module: str, name: str) -> bool:
        top = module.partition(".")[0]
        if name.startswith("_") or name in _NOT_OF_MODULES.get(module, ()) or name == "*":
            return False
        if top == "nat":
            return name in _OF_NAT
        if top == "asyncio":
            return module == "asyncio" and name in _OF_ASYNCIO
        if top in ("pydantic", "typing_extensions", "httpx", "mcp"):
            is_class = name[:1].isupper() or name in _LOWER_NAMES
            return is_class and name not in _NOT_OF_MODULES.get(top, ())
        return f"{module}.{name}" in _MODULES or not inspect.ismodule(
            getattr(importlib.import_module(module), name, None)
        )

    # ------------------------------------------------------------ names and attributes

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in _BUILTINS:
            self._note(node, f"uses {node.id}")
        elif node.id in self._modules and isinstance(node.ctx, ast.Load):
            self._note(node, f"hands over the module {node.id}")
        elif node.id.startswith("__") and node.id.endswith("__") and node.id not in ("__name__", "__doc__", "__file__"):
            self._note(node, f"uses {node.id}")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = node.attr
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if name in _FRAMES or (name.startswith("__") and name.endswith("__") and name not in _DUNDERS):
            self._note(node, f"uses the attribute {name}")
        elif name.startswith("_") and not is_own and name not in _DUNDERS:
            self._note(node, f"uses the private attribute {name}")
        elif isinstance(node.ctx, ast.Store | ast.Del) and not is_own and self._is_of_others(node):
            self._note(node, f"changes {ast.unparse(node)}")
        if isinstance(node.value, ast.Name) and node.value.id in self._modules:
            module = self._modules[node.value.id]
            is_allowed = module == "httpx" or (module in _MODULES and self._may_take(module, name))
            if not is_allowed and module in _MODULES | {"httpx"}:
                self._note(node, f"uses {name} of {module}")
            return
        self.generic_visit(node)

    def visit_MatchClass(self, node: ast.MatchClass) -> None:
        for name in node.kwd_attrs:
            if name.startswith("_") or name in _FRAMES:
                self._note(node, f"matches the attribute {name}")
        self.generic_visit(node)

    def _is_of_others(self, node: ast.Attribute) -> bool:
        root = node.value
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        is_imported = isinstance(root, ast.Name) and (root.id in self._modules or root.id[:1].isupper())
        return is_imported or isinstance(root, ast.Call) or node.attr in _OF_TOOLKIT

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        second = node.args[1] if len(node.args) > 1 else None
        if name in ("getattr", "hasattr"):
            text = second.value if isinstance(second, ast.Constant) else None
            if not isinstance(text, str) or text.startswith("_") or text in _FRAMES:
                self._note(node, f"calls {name} with a name that is not plain")
        elif name == "type" and len(node.args) != 1:
            self._note(node, "makes a class by type()")
        elif name in ("NamedTuple", "TypedDict"):
            self._note(node, f"makes a class by {name}()")
        self.generic_visit(node)

    # ------------------------------------------------------------ texts that are evaluated

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and any(part in node.value for part in _IN_TEXT):
            self._note(node, "holds the name of something inside the interpreter")

    def visit_arg(self, node: ast.arg) -> None:
        self._judge_hint(node.annotation)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._judge_hint(node.annotation)
        self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._judge_hint(node.returns)
        self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._judge_hint(node.returns)
        self.generic_visit(node)

    def _judge_hint(self, hint: ast.expr | None) -> None:
        """Hints that are texts are evaluated, also those that other names hold."""
        if hint is None:
            return
        for node in ast.walk(hint):
            if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.BinOp) and not isinstance(node.op, ast.BitOr)):
                self._note(node, "computes a type hint")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._judge_text(node, node.value)
            elif isinstance(node, ast.Name) and node.id not in self._types and node.id not in self._modules:
                self._note(node, f"hints with {node.id}, which is no type")

    def _judge_text(self, node: ast.AST, text: str) -> None:
        try:
            inner = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError):
            return  # in Literal and in descriptions
        if any(isinstance(each, ast.Call | ast.Lambda | ast.Await) for each in ast.walk(inner)):
            self._note(node, "holds a call in a type hint")


def _is_own(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names or top in sys.modules:
        return False
    return importlib.util.find_spec(top) is None


def _is_type(node: ast.expr) -> bool:
    """Whether an expression is made of names, attributes, subscripts and `|` alone, so that it holds no text."""
    allowed = (
        ast.Name,
        ast.Attribute,
        ast.Subscript,
        ast.BinOp,
        ast.BitOr,
        ast.Tuple,
        ast.List,
        ast.Load,
        ast.Constant,
    )
    nodes = list(ast.walk(node))
    is_literal = isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal"
    texts = [each for each in nodes if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    is_variable = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("TypeVar", "NewType")
    )
    return is_variable or (
        all(isinstance(each, allowed) for each in nodes)
        and (is_literal or not texts)
        and not isinstance(node, ast.Constant)
    )
