"""Score a project's texts, read in the sandbox and never run: code, configuration, pyproject."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.envs.nat.factory.questions import workflow_type
from agent_rl.envs.nat.factory.render.names import exports
from agent_rl.envs.nat.judge.check_counter import CheckCounter
from agent_rl.envs.nat.judge.outline import Kind
from agent_rl.envs.nat.judge.read_texts import Kind as TextKind
from agent_rl.envs.nat.judge.read_texts import Parsed
from agent_rl.envs.nat.judge.report import Point
from agent_rl.envs.nat.judge.static_code import check_code
from agent_rl.envs.nat.judge.static_config import check_config, check_pyproject, config_types, why_unsafe
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec, React


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlines:
    """What was read; None where a text is missing or refused."""

    register: Any
    logic: Any
    pyproject: Any
    configs: dict[str, Any]
    """Path -> value."""
    unsafe: str | None
    """Why the toolkit must not load a configuration of this project."""
    reach: str | None
    """Where the project's code reaches beyond its own work; what it says about its build is then not believed."""


def read_outlines(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str]) -> Outlines:
    """Read everything in one process that executes none of it."""
    configs = [spec.config_path, *([spec.client_config_path] if spec.client_group else [])]
    texts: list[tuple[TextKind, str]] = [
        ("python", files.get(spec.register_path, "")),
        ("python", files.get(spec.logic_path, "")),
        ("toml", files.get("pyproject.toml", "")),
        *(("yaml", files.get(path, "")) for path in configs),
    ]
    sources = [path for path in spec.files if path.endswith(".py") and path.startswith("src/") and path in files]
    reach: tuple[TextKind, str] = ("reach", json.dumps({path.removeprefix("src/"): files[path] for path in sources}))
    register, logic, pyproject, *read, reached = toolkit.parse([*texts, reach])
    unsafe = None
    for path, each in zip(configs, read, strict=True):
        if path in files and (why := each.refused or why_unsafe(each.value, text=files[path])):
            unsafe = f"{path} is refused: {why}"
    return Outlines(
        register=register.value if spec.register_path in files else None,
        logic=logic.value if spec.logic_path in files else None,
        pyproject=pyproject.value,
        configs={path: each.value for path, each in zip(configs, read, strict=True) if path in files},
        unsafe=unsafe,
        reach=_reach(reached),
    )


def _reach(read: Parsed) -> str | None:
    if read.refused or not isinstance(read.value, list):
        return f"the code cannot be read: {read.refused}"
    first = next(iter(read.value), None)
    if not isinstance(first, dict):
        return None if first is None else "the code cannot be read"
    return f"src/{first.get('path')}, line {first.get('line')} {first.get('what')}"[:200]


def check_static(spec: NATSpec, files: Mapping[str, str], outlines: Outlines) -> list[Point]:
    """Points of the stages "code" and "config"."""
    names = exports(spec)
    points = check_code(
        outlines.register,
        outlines.logic,
        types=_types(spec),
        functions=[name for name in names if spec.group is None or name != spec.group.class_name],
        classes=[spec.group.class_name] if spec.group else [],
    )
    own = config_types(outlines.register)
    for path in [spec.config_path, *([spec.client_config_path] if spec.client_group else [])]:
        base = outlines.configs.get(spec.config_path) if path == spec.client_config_path else None
        points += check_config(path, outlines.configs.get(path), known_types=own, project_files=files, base_value=base)
    points.append(_as_requested(spec, outlines.configs))
    return [*points, *check_pyproject(outlines.pyproject, spec.package, f"{spec.package}.register")]


def _as_requested(spec: NATSpec, configs: Mapping[str, Any]) -> Point:
    """Names, types and settings that the request gives. The toolkit's process reports some too, but its report
    can be forged."""
    counter = CheckCounter("config", "as requested")
    config = configs.get(spec.config_path)

    def check(config: Any, path: Sequence[str], wanted: Any) -> None:
        found = config
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(wanted, set):
            is_right = isinstance(found, list) and all(isinstance(each, str) for each in found) and set(found) == wanted
        else:
            is_right = type(found) is type(wanted) and found == wanted
        counter.check(is_right, f"{'.'.join(path)} is not {wanted}")

    for tool in spec.tools:
        check(config, ("functions", tool.instance, "_type"), tool.type_name)
    for instance in spec.group.instances if spec.group else ():
        check(config, ("function_groups", instance, "_type"), spec.group.type_name)
    check(config, ("workflow", "_type"), workflow_type(spec))
    if isinstance(spec.workflow, React):
        check(config, ("llms", spec.workflow.llm, "_type"), "openai")
        check(config, ("workflow", "llm_name"), spec.workflow.llm)
        check(config, ("workflow", "tool_names"), {tool.instance for tool in spec.tools})
        check(config, ("workflow", "max_tool_calls"), spec.workflow.max_tool_calls)
    if spec.client_group:
        check(configs.get(spec.client_config_path), ("function_groups", spec.client_group, "_type"), "mcp_client")
    return counter.share("names, types and settings are those of the request")


def _types(spec: NATSpec) -> dict[str, Kind]:
    """Every name that the project must register."""
    out: dict[str, Kind] = {tool.type_name: "function" for tool in spec.tools}
    if spec.group:
        out[spec.group.type_name] = "group"
    if spec.workflow.kind in ("router", "pipeline"):
        out[workflow_type(spec)] = "function"
    return out


def refused_config(toolkit: NatToolkit, files: Mapping[str, str]) -> str | None:
    """Why the toolkit must not load a configuration among these files, or None. All are checked, because one may name
    another as its `base`."""
    paths = [path for path in files if path.endswith((".yml", ".yaml"))]
    for path, each in zip(paths, toolkit.parse([("yaml", files[path]) for path in paths]), strict=True):
        if why := each.refused or why_unsafe(each.value, text=files[path]):
            return f"{path} is refused: {why}"
    return None
