"""Check configuration files and pyproject.toml without loading them: points of the "config" stage, and the gate that
decides whether the toolkit may load a configuration at all.

Works on values parsed in the sandbox, which are data of a hostile text: any value yields points. Does not: check
whether the workflow builds or answers; the toolkit does.
"""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from agent_rl.envs.nat.judge.check_counter import CheckCounter
from agent_rl.envs.nat.judge.outline import Kind, read_outline
from agent_rl.envs.nat.judge.report import Point, point
from agent_rl.envs.nat.judge.toolkit_names import (
    BASE_FIELDS,
    BUILT_IN,
    BUILT_IN_REFERENCES,
    CLIENTS,
    REFERENCES,
    SECTIONS,
    TOP_KEYS,
)
from agent_rl.errors import nearest

_REWRITTEN = ("${", "\\\\", "\\$")
"""What the toolkit replaces in the text, comments included, before YAML is read: a file with these is not what it
looks like."""


class ConfigType(NamedTuple):
    """A registered type of the project: `ConfigType("function", {"converter"}, {"converter"}, {...})`."""

    kind: Kind
    fields: Collection[str]
    required: Collection[str]
    references: Mapping[str, tuple[str, ...]] = {}
    """Field that names another component -> the sections where it may be."""


def config_types(register: Any) -> dict[str, ConfigType]:
    """The types that an outline of register.py defines."""
    outline = read_outline(register)
    found: dict[str, ConfigType] = {}
    for each, kind in outline.configs() if outline else []:
        # A class redefines the fields of its bases.
        bases = reversed(outline.lineage(each)) if outline else []
        fields = {field.name: field for member in bases for field in member.fields}
        if "name" in each.keywords:
            found[each.keywords["name"]] = ConfigType(
                kind=kind,
                fields=frozenset(fields),
                required=frozenset(name for name, field in fields.items() if field.is_required),
                references={name: sections for name, field in fields.items() if (sections := _sections(field.hint))},
            )
    return found


def _sections(hint: str | None) -> tuple[str, ...]:
    """Where the names may be that a field of this type holds; `list[FunctionRef]` holds some as well."""
    names = re.findall(r"\w+Ref\b", hint or "")
    return tuple(section for name in names for section in REFERENCES.get(name, ()))


def why_unsafe(value: Any, *, text: str) -> str | None:
    """Why the toolkit must not load the file at all, or None. `value` is what `text` was parsed to.

    The text matters as well: the toolkit expands `${...}` and backslashes in it before it reads YAML, so that a comment
    may hold what the parsed value does not show. A `base` is a file of its own and has to be checked too.
    """
    for sign in _REWRITTEN:
        if sign in text:
            return f"{sign!r} in the text: the toolkit would rewrite the file before reading it"
    if text.endswith("\\"):
        return "the text ends with a backslash"
    return next(_escapes(value), None)


def _escapes(value: Any) -> Iterator[str]:
    """What in a configuration reaches outside the project, in words."""
    if not isinstance(value, dict):
        yield "it is not a mapping"
        return
    base = value.get("base")
    if "base" in value and not (_is_inside(base) and base.endswith((".yml", ".yaml"))):
        yield f"base: {_show(base)} is not a relative path of a YAML file below this one"
    if value.get("authentication"):
        yield "authentication: no project may have a provider, which imports whatever module it names"
    for each in _walk(value):
        if isinstance(each, str) and ("${" in each or "file://" in each):
            yield f"{_show(each)} refers to something outside the file"
        elif isinstance(each, dict) and isinstance(each.get("server"), dict) and (why := _bad_server(each["server"])):
            yield why


def _walk(value: Any) -> Iterator[Any]:
    """The value, the keys of its mappings and everything in it, without recursion."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, dict):
            waiting += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple):
            waiting += each


def _bad_server(server: Mapping[Any, Any]) -> str | None:
    """Why an MCP server must not be started; it runs as soon as the workflow is built."""
    args = server.get("args")
    if set(server) != {"transport", "command", "args"} or server["transport"] != "stdio":
        return "an MCP server must have `transport: stdio`, `command` and `args`, and nothing else"
    if server["command"] != "python":
        return f"an MCP server's command must be `python`, not {_show(server['command'])}"
    if not (isinstance(args, list) and len(args) == 1 and _is_inside(args[0]) and args[0].endswith(".py")):
        return f"an MCP server's args must be one relative path of a .py file, not {_show(args)}"
    return None


def _is_inside(path: Any) -> bool:
    """A plain relative path that does not climb."""
    return isinstance(path, str) and re.fullmatch(r"(?!-)[\w.-]+(/[\w.-]+)*", path) is not None and ".." not in path


def _show(value: Any) -> str:
    return repr(value[:60]) if isinstance(value, str) else f"a {type(value).__name__}"


# ---------------------------------------------------------------- a configuration file


def check_config(
    path: str,
    value: Any,
    *,
    known_types: Mapping[str, tuple[Any, ...]],
    project_files: Collection[str],
    base_value: Any = None,
) -> list[Point]:
    """Points of one configuration: `path` in the project, `value` as parsed (None: missing or refused).

    `known_types` are the project's own: `config_types(...)`, or (kind, fields, required fields) by name. `base_value`
    is the parsed file that `base` names.
    """
    own = {name: ConfigType(*each) for name, each in known_types.items()}
    config = value if isinstance(value, dict) else {}
    keys = CheckCounter("config", "top keys")
    for key in config:
        known = key in TOP_KEYS
        hint = "" if known or len(keys.problems) > 3 else _nearest(key, TOP_KEYS)
        keys.check(known, f"{path}: unknown key {_show(key)}{hint}")
    safe = CheckCounter("config", "safe to load")
    if config:
        safe.check(True, "")
    for why in islice(_escapes(value), 10):
        safe.check(False, f"{path}: {why}")
    points = [
        point("config", "mapping", bool(config), f"{path} is {'' if config else 'not '}a mapping that can be read"),
        keys.share(f"{path}: all keys are known"),
        safe.verdict(f"{path} stays inside the project"),
    ]
    if "base" in config and isinstance(base_value, dict):
        config = _merged(base_value, config)
    return points + _check_parts(path, config, not isinstance(base_value, dict), own, project_files)


def _check_parts(
    path: str, config: dict[Any, Any], lacks_base: bool, own: Mapping[str, ConfigType], project_files: Collection[str]
) -> list[Point]:
    workflow = CheckCounter("config", "workflow")
    components = CheckCounter("config", "components")
    fields = CheckCounter("config", "fields")
    references = CheckCounter("config", "references")
    clients = CheckCounter("config", "MCP client")
    if "base" in config:
        base = config["base"]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), base)) if _is_inside(base) else None
        found = target in project_files and not lacks_base
        workflow.check(found, f"{path}: base {_show(base)} is no file of the project that can be read")
    _check_workflow(path, config, own, workflow)
    for section, name, entry in _entries(config):
        where = f"{path}: {section}.{_plain(name)}"
        _check_component(where, section, entry, own, components)
        if isinstance(entry, dict):
            _check_fields(where, entry, own, fields)
            _check_references(where, entry, config, own, references)
            if _type_of(entry) in CLIENTS:
                _check_client(where, entry, project_files, clients)
    for name, each in own.items():
        if name in BUILT_IN["function"] | BUILT_IN["group"]:
            components.check(False, f"the project's own {each.kind} {name!r} has the name of one of the toolkit's")
    points = [
        workflow.share(f"{path}: has a workflow of a known type"),
        components.share(f"{path}: every component has a known type"),
        fields.share(f"{path}: fields are known and complete"),
        references.share(f"{path}: every reference is defined"),
    ]
    if "workflow" not in config:  # what remains of a file without one is easily right
        points = [point("config", each.name, 0.0, f"{path}: no workflow") for each in points]
    return [*points, clients.verdict(f"{path}: starts a server of the project")] if clients.num_checks else points


def _merged(base: dict[Any, Any], over: dict[Any, Any], depth: int = 2) -> dict[Any, Any]:
    """`over` on top of `base`: sections and components are merged, fields of a component replaced."""
    out = dict(base)
    for key, value in over.items():
        mine = out.get(key)
        both = depth > 0 and isinstance(mine, dict) and isinstance(value, dict)
        out[key] = _merged(mine, value, depth - 1) if both else value
    return out


def _type_of(entry: Any) -> str | None:
    type_name = entry.get("_type") if isinstance(entry, dict) else None
    return type_name if isinstance(type_name, str) else None


def _entries(config: Mapping[Any, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(section, name, entry) of every function, group and the workflow."""
    for section in SECTIONS:
        entries = config.get(section)
        yield from ((section, name, entry) for name, entry in (entries.items() if isinstance(entries, dict) else ()))
        if section in config and not isinstance(entries, dict):
            yield section, "", None
    if "workflow" in config:
        yield "workflow", "", config["workflow"]


def _check_workflow(path: str, config: Mapping[Any, Any], own: Mapping[str, ConfigType], counter: CheckCounter) -> None:
    type_name = _type_of(config.get("workflow"))
    if counter.check(type_name is not None, f"{path}: no workflow with a _type"):
        known = _is_known(type_name, "function", own)
        hint = "" if known else _nearest(type_name, [*own, *BUILT_IN["function"]])
        counter.check(known, f"{path}: workflow: unknown _type {_show(type_name)}{hint}")


def _is_known(type_name: str | None, kind: Kind, own: Mapping[str, ConfigType]) -> bool:
    if type_name is None:
        return False
    return own[type_name].kind == kind if type_name in own else type_name in BUILT_IN[kind]


def _check_component(
    where: str, section: str, entry: Any, own: Mapping[str, ConfigType], counter: CheckCounter
) -> None:
    if not counter.check(isinstance(entry, dict), f"{where} is not a mapping"):
        return
    type_name, kind = _type_of(entry), SECTIONS.get(section, "function")
    known = _is_known(type_name, kind, own)
    hint = "" if known or len(counter.problems) > 3 else _nearest(type_name, [*own, *BUILT_IN[kind]])
    counter.check(known, f"{where}: no {kind} has the _type {_show(type_name)}{hint}")
    both = bool(entry.get("include")) and bool(entry.get("exclude"))
    counter.check(not (kind == "group" and both), f"{where}: include and exclude cannot be used together")


def _check_fields(where: str, entry: Mapping[Any, Any], own: Mapping[str, ConfigType], counter: CheckCounter) -> None:
    type_name = _type_of(entry)
    known = own.get(type_name or "")
    if known is None:
        return
    allowed = {*known.fields, *BASE_FIELDS[known.kind]}
    counter.check(True, "")
    for key in entry:
        if key not in allowed:  # the toolkit would ignore it in silence
            hint = _nearest(key, known.fields) if len(counter.problems) < 4 else ""
            counter.check(False, f"{where}: {_show(key)} is no field of {type_name!r}{hint}")
    for name in sorted(known.required):
        counter.check(name in entry, f"{where}: the required field {name!r} is missing")


def _check_references(
    where: str,
    entry: Mapping[Any, Any],
    config: Mapping[Any, Any],
    own: Mapping[str, ConfigType],
    counter: CheckCounter,
) -> None:
    known = own.get(_type_of(entry) or "")
    expected = {**(BUILT_IN_REFERENCES if known is None else known.references), "middleware": ("middleware",)}
    counter.check(True, "")
    for field, sections in expected.items():
        for name in _names_in(entry.get(field)):
            defined = any(_is_defined(name, section, config, own) for section in sections)
            counter.check(defined, f"{where}.{field}: {_show(name)} is not defined in {' or '.join(sections)}")


def _names_in(value: Any) -> list[Any]:
    """The names in a reference: one, a list, or the values of a mapping."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_defined(name: Any, section: str, config: Mapping[Any, Any], own: Mapping[str, ConfigType]) -> bool:
    entries = config.get(section)
    if not isinstance(name, str):
        return False
    if isinstance(entries, dict) and name in entries:
        return True
    groups = config.get("function_groups")
    instance, separator, function = name.partition("__")
    group = groups.get(instance) if isinstance(groups, dict) else None
    if section != "functions" or not separator or not isinstance(group, dict):
        return False
    include = group.get("include")
    if isinstance(include, list):
        return function in include
    # Without `include` the functions have no name of their own, unless the project's class has a default for it.
    known = own.get(_type_of(group) or "")
    return known is not None and "include" in known.fields


def _check_client(where: str, entry: Mapping[Any, Any], project_files: Collection[str], counter: CheckCounter) -> None:
    server = entry.get("server")
    why = _bad_server(server) if isinstance(server, dict) else "no server"
    if counter.check(why is None, f"{where}: {why}") and isinstance(server, dict):
        script = posixpath.normpath(server["args"][0])
        counter.check(script in project_files, f"{where}: {_show(script)} is no file of the project")


def _nearest(word: Any, choices: Collection[str]) -> str:
    return nearest(word[:60], [each[:60] for each in islice(choices, 100)]) if isinstance(word, str) else ""


def _plain(name: Any) -> str:
    return name[:60] if isinstance(name, str) else str(type(name).__name__)


# ---------------------------------------------------------------- pyproject.toml


def check_pyproject(value: Any, package: str, register_module: str) -> list[Point]:
    """Points of pyproject.toml as parsed (None: missing or refused): its name, and the entry point of the plugin."""
    project = value.get("project") if isinstance(value, dict) else None
    project = project if isinstance(project, dict) else {}
    name = project.get("name")
    normal = re.sub(r"[-_.]+", "-", name).lower() if isinstance(name, str) else None
    named = normal == re.sub(r"[-_.]+", "-", package).lower()
    groups = project.get("entry-points")
    groups = groups if isinstance(groups, dict) else {}
    found = [
        target
        for targets in (groups.get("nat.components"), groups.get("nat.plugins"))
        for target in (targets.values() if isinstance(targets, dict) else ())
    ]
    entry = CheckCounter("config", "entry point")
    entry.check(register_module in found, f"pyproject.toml: no entry point {register_module!r} in nat.components")
    for target in found:
        if target != register_module:
            entry.check(False, f"pyproject.toml: another entry point, {_show(target)}")
    return [
        point("config", "project name", named, f"pyproject.toml: the project's name is {_show(name)}"),
        entry.share(f"pyproject.toml: {register_module} is an entry point"),
    ]
