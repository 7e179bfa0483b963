"""Write the generated parts of docs/API_REFERENCE.md: public Python names, commands and the service's HTTP API.

    python scripts/write_api_reference.py

Only what stands between two marks is replaced; a test compares. Modules of the library are read, not imported, so
signatures stand as they are written. Not here: keys of configurations (`write_configuration_docs.py`), and what is
written by hand on the page.
"""

import ast
import importlib.util
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typer

from agent_rl.scripts import cli

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "API_REFERENCE.md"
CREATOR = {
    "AgentCreator": "agent_rl.envs.nat.create.creator",
    "Creation": "agent_rl.envs.nat.create.result",
    "Candidate": "agent_rl.envs.nat.create.result",
    "save": "agent_rl.envs.nat.create.package",
}
"""Public names of `agent_rl/envs/nat/create/` and their modules."""
WIDTH = 100
"""Longest signature on one line."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = ast.ClassDef | Function


def main() -> None:
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def updated(page: str) -> str:
    """The page with fresh parts; ValueError where a mark is missing."""
    for part, body in generated().items():
        begin, end = f"<!-- {part}: by scripts/write_api_reference.py -->\n", f"<!-- end of {part} -->\n"
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}\n{body}\n{end}{after}"
    return page


def generated() -> dict[str, str]:
    """Name of each part of the page and its text."""
    return {
        "Python": "\n".join(documented(name, home) for name, home in exported("agent_rl").items()),
        "sandbox": "\n".join(documented(name, home) for name, home in exported("agent_rl.sandbox").items()),
        "creator": "\n".join(documented(name, home) for name, home in CREATOR.items()),
        "commands": "\n".join(described(words, command) for words, command in commands()),
        "HTTP": http(openapi()),
    }


def exported(package: str) -> dict[str, str]:
    """Public names of a package and the modules they are defined in, by module and name."""
    origin = Path(_source(package))
    stub = origin.with_suffix(".pyi")
    tree = ast.parse((stub if stub.is_file() else origin).read_text(encoding="utf-8"))
    found = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agent_rl.")
        for alias in node.names
    }
    return dict(sorted(found.items(), key=lambda pair: (pair[1], pair[0])))


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None, module
    return spec.origin


def documented(name: str, module: str) -> str:
    """Heading, home, signature, docstring; of a class its fields and public methods too."""
    node, home, text = _find(name, module)
    heading = f"### {name}\n\nIn `{home}`."
    if isinstance(node, Definition):
        return _definition(node, heading, _inherited(node, home))
    return f"{heading}\n\n```python\n{ast.unparse(node)}\n```\n\n{text}"


def _find(name: str, module: str) -> tuple[ast.stmt, str, str]:
    """What defines a name, its module, where it may be imported from another, and the text below an assignment."""
    body = ast.parse(Path(_source(module)).read_text(encoding="utf-8")).body
    for node, after in pairwise([*body, ast.Pass()]):
        is_import = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agent_rl.")
        if is_import and name in [alias.name for alias in node.names]:
            return _find(name, node.module)
        is_value = isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node)
        if is_value or (isinstance(node, Definition) and node.name == name and not _is_overload(node)):
            return node, module, _text_of(after)
    raise LookupError(f"{module} does not define {name}")


def _inherited(node: Definition, module: str) -> list[ast.stmt]:
    """Bodies of the library's bases of a class, nearest first, but of those that are on the page themselves."""
    found: list[ast.stmt] = []
    for base in node.bases if isinstance(node, ast.ClassDef) else []:
        if isinstance(base, ast.Name) and base.id not in exported("agent_rl"):
            with suppress(LookupError):  # a base of another package
                parent, home, _ = _find(base.id, module)
                if isinstance(parent, ast.ClassDef):
                    found += [*parent.body, *_inherited(parent, home)]
    return found


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _text_of(node: ast.AST) -> str:
    """The text that stands below an assignment, as a paragraph."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return f"{inspect.cleandoc(node.value.value)}\n" if is_text else ""


def _definition(node: Definition, heading: str, inherited: Sequence[ast.stmt] = ()) -> str:
    parts = [heading, f"```python\n{_signature(node)}\n```"]
    if text := ast.get_docstring(node):
        parts.append(_listed(text))
    if isinstance(node, ast.ClassDef):
        body = [*node.body, *inherited]
        if rows := list(_fields(body)):
            parts.append("\n".join(["| field | type | default | what |", "| --- | --- | --- | --- |", *rows]))
        methods = {each.name: each for each in reversed(body) if isinstance(each, Function) and _is_shown(each)}
        for name, method in reversed(methods.items()):
            parts.append(_definition(method, f"**`{node.name}.{name}`**").rstrip())
    return "\n\n".join(parts) + "\n"


def _listed(text: str) -> str:
    """A docstring with its parameters as a list."""
    before, args, rest = text.partition("Args:\n")
    block, gap, after = rest.partition("\n\n")
    items = re.sub(r"^    (\*{0,2}\w+): ", r"- `\1`: ", block, flags=re.MULTILINE)
    return f"{before}Arguments:\n\n{items}{gap}{after}" if args else text


def _is_shown(method: Function) -> bool:
    is_public = not method.name.startswith("_") or method.name in ("__call__", "__init__")
    return is_public and bool(ast.get_docstring(method) or method.name == "__init__") and not _is_overload(method)


def _is_overload(node: Definition) -> bool:
    return "overload" in [ast.unparse(each) for each in node.decorator_list]


def _signature(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(each) for each in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    marks = [ast.unparse(each) for each in node.decorator_list]
    above = "".join(f"@{mark}\n" for mark in marks if mark in ("property", "classmethod", "staticmethod"))
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{word} {node.name}({ast.unparse(node.args)}){returns}"
    if len(line) > WIDTH:
        arguments = ",\n".join(f"    {each}" for each in _arguments(node.args))
        line = f"{word} {node.name}(\n{arguments},\n){returns}"
    return above + line


def _arguments(arguments: ast.arguments) -> Iterator[str]:
    """Every parameter as it is written, and the marks between them."""
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for number, (argument, default) in enumerate(zip(plain, defaults, strict=True)):
        yield _argument(argument, default)
        if arguments.posonlyargs and number == len(arguments.posonlyargs) - 1:
            yield "/"
    if arguments.vararg or arguments.kwonlyargs:
        yield f"*{_argument(arguments.vararg, None)}" if arguments.vararg else "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _argument(argument, default)
    if arguments.kwarg:
        yield f"**{_argument(arguments.kwarg, None)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    equals = " = " if annotation else "="
    return f"{argument.arg}{annotation}" + (f"{equals}{ast.unparse(default)}" if default is not None else "")


def _fields(body: Sequence[ast.stmt]) -> Iterator[str]:
    """A row of the table for every annotated public field."""
    for field, after in pairwise([*body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_":
            default = f"`{_cell(ast.unparse(field.value))}`" if field.value is not None else ""
            what = _cell(" ".join(_text_of(after).split()))
            yield f"| `{field.target.id}` | `{_cell(ast.unparse(field.annotation))}` | {default} | {what} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def commands() -> Iterator[tuple[str, Any]]:
    """Words and object of every command, in the order of `agent-rl --help`."""
    for name, command in typer.main.get_command(cli.app).commands.items():
        inner = getattr(command, "commands", {})
        if not inner or command.invoke_without_command:
            yield f"agent-rl {name}", command
        yield from ((f"agent-rl {name} {word}", each) for word, each in inner.items())


def described(words: str, command: Any) -> str:
    """Heading, usage, help and a table of arguments and options."""
    shown = [each for each in command.params if each.name != "help" and not each.hidden]
    places = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name != "argument"]
    usage = " ".join([words, *(_place(each) for each in places)])
    rows = [f"| `{_place(each)}` | {_default(each)} | {_one_line(each.help)} |" for each in places]
    rows += [f"| `{_names(each)}` | {_default(each)} | {_one_line(each.help)} |" for each in options]
    table = ["", "| argument or option | default | what |", "| --- | --- | --- |", *rows] if rows else []
    return "\n".join([f"### {words}", "", f"`{usage}`", "", inspect.cleandoc(command.help or ""), *table]) + "\n"


def _place(argument: Any) -> str:
    name = f"{argument.name.upper()}{'...' if argument.nargs == -1 else ''}"
    return name if argument.required else f"[{name}]"


def _names(option: Any) -> str:
    return ", ".join([*option.opts, *option.secondary_opts])


def _default(parameter: Any) -> str:
    """As it is typed; empty for an option that is off or not given, and for what only the running program knows."""
    value = parameter.default
    if parameter.required:
        return "must be given"
    if value is None or value is False or value in ((), [], "") or callable(value):
        return ""
    return f"`{parameter.opts[0] if value is True else getattr(value, 'value', value)}`"


def openapi() -> dict[str, Any]:
    """What the service says of itself; nothing is started."""
    from agent_rl.envs.nat.create.settings import load_serve_config
    from agent_rl.envs.nat.service.app import ServiceApp
    from agent_rl.envs.nat.service.changes import JobChanges
    from agent_rl.envs.nat.service.metrics import ServiceMetrics

    unused: Any = None
    creator: Any = SimpleNamespace(config=load_serve_config(ROOT / "configs/serve.yaml"))
    app = ServiceApp(creator, unused, unused, ServiceMetrics(), JobChanges(), probe=unused, needs_key=True).app
    return app.openapi()


def http(document: dict[str, Any]) -> str:
    """A table of the routes, and one for each body."""
    rows: list[str] = []
    bodies: list[str] = []
    for path, operations in document["paths"].items():
        for method, about in operations.items():
            content = about.get("requestBody", {}).get("content", {})
            named = [name for each in content.values() if (name := _name_of(each["schema"]))]
            bodies += [name for name in named if name not in bodies]
            takes = [f"{each['in']} `{each['name']}`" for each in about.get("parameters", ()) if each["in"] != "path"]
            takes += [f"body {_link(name)}" for name in named]
            what = " ".join(filter(None, (f"{about['summary']}.", _one_line(about.get("description")))))
            rows.append(f"| `{method.upper()} {path}` | {', '.join(takes)} | {what} |")
    routes = "\n".join(["| route | takes | what |", "| --- | --- | --- |", *rows])
    schemas = document["components"]["schemas"]
    tables = [_schema(name, schemas[name]) for name in (*bodies, "CaseBody")]
    return "\n\n".join([routes, *tables]) + "\n"


def _name_of(schema: Mapping[str, Any]) -> str:
    """Name of a schema that has a table; empty for another, such as bytes."""
    return schema.get("$ref", "").rpartition("/")[2]


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _schema(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = []
    for key, field in schema["properties"].items():
        default = (
            "must be given" if key in required else f"`{json.dumps(field['default'])}`" if "default" in field else ""
        )
        rows.append(f"| `{key}` | {_type(field)} | {default} |")
    table = "\n".join(["| key | takes | default |", "| --- | --- | --- |", *rows])
    return f"### {name}\n\n{schema.get('description', '')}\n\n{table}"


def _type(field: Mapping[str, Any]) -> str:
    """A JSON schema in words."""
    if choices := field.get("anyOf"):
        return " or ".join(_type(each) for each in choices)
    if "enum" in field:
        return ", ".join(f"`{each}`" for each in field["enum"])
    if "$ref" in field:
        return _link(_name_of(field))
    limits = {
        "minimum": "from {:g}",
        "maximum": "to {:g}",
        "maxLength": "of at most {} characters",
        "maxItems": "at most {}",
    }
    found = [words.format(field[key]) for key, words in limits.items() if key in field]
    inner = f" of {_type(field['items'])}," if "items" in field else ""
    return " ".join([f"{field.get('type', 'anything')}{inner}", *found])


def _one_line(text: str | None) -> str:
    return _cell(" ".join((text or "").split()))


if __name__ == "__main__":
    main()
