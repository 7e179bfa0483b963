"""Check a user's project without running it: its parts, its code, its configurations.

Texts are read in the sandbox and judged by `static_code.py` and `static_config.py`, which know one register.py and one
logic.py: here any number of modules takes their place, under the names the project gives them.
"""

import posixpath
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.envs.nat.judge.check_counter import CheckCounter
from agent_rl.envs.nat.judge.outline import ModuleOutline, read_outline
from agent_rl.envs.nat.judge.read_texts import Kind as TextKind
from agent_rl.envs.nat.judge.read_texts import Parsed
from agent_rl.envs.nat.judge.report import Point, point
from agent_rl.envs.nat.judge.static_code import check_code
from agent_rl.envs.nat.judge.static_config import check_config, config_types, why_unsafe
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.validator.folder import SOURCE_SUFFIXES, Folder, Project
from agent_rl.errors import UserError

NO_SERVER = "no mcp_server.py beside pyproject.toml, and no other Python file there that names FastMCP"
NO_TESTS = "no tests/test_*.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    files: dict[str, str]
    code: dict[str, Parsed]
    yaml: dict[str, Parsed]

    def chain(self, path: str) -> list[str]:
        """The configuration and, in turn, the file that each names as its `base`, as far as they are there."""
        found: list[str] = []
        while path in self.yaml and path not in found:
            found.append(path)
            value = self.yaml[path].value
            base = value.get("base") if isinstance(value, dict) else None
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), base)) if isinstance(base, str) else ""
        return found

    def combined(self, paths: Sequence[str]) -> dict[str, Any]:
        """The sections of these configurations, the first on top."""
        out: dict[str, Any] = {}
        for path in reversed(paths):
            value = self.yaml[path].value
            for key, section in value.items() if isinstance(value, dict) else ():
                below = out.get(key)
                both = isinstance(below, dict) and isinstance(section, dict)
                out[key] = {**below, **section} if both else section  # type: ignore[dict-item]
        return out

    def refused(self, path: str) -> str | None:
        """Why the toolkit must not load the configuration, or None."""
        for each in self.chain(path):
            if why := self.yaml[each].refused or why_unsafe(self.yaml[each].value, text=self.files[each]):
                return f"{each} is not loaded: {why}"
        return None


def read_sources(toolkit: NatToolkit, project: Project, files: dict[str, str]) -> Sources:
    """Read all code and YAML in one process that executes none of it."""
    yaml = [path for path in files if path.endswith((".yml", ".yaml"))]
    texts: list[tuple[TextKind, str]] = [("python", files[path]) for path in project.code]
    parsed = toolkit.parse([*texts, *(("yaml", files[path]) for path in yaml)])
    code = dict(zip(project.code, parsed, strict=False))
    return Sources(files=files, code=code, yaml=dict(zip(yaml, parsed[len(code) :], strict=True)))


def choose_configs(root: Path, project: Project, sources: Sources, wanted: str | None) -> tuple[str, ...]:
    """The configurations to look at: those that are only the base of others have to be right together with them."""
    if wanted is None:
        bases = {base for path in project.configs for base in sources.chain(path)[1:]}
        return tuple(path for path in project.configs if path not in bases or "workflow" in sources.combined([path]))
    path = posixpath.normpath(wanted)
    if path not in sources.yaml:
        known = ", ".join(project.configs) or "none"
        raise UserError(f"{wanted!r} is no YAML file in {root}; give its path from there (configurations: {known})")
    return (path,)


def check_files(folder: Folder, project: Project, with_mcp: bool, with_tests: bool) -> list[Point]:
    stem = f"{project.source}{project.package}"
    parts = CheckCounter("files", "all parts")
    parts.check(any(path in folder.files for path in (f"{stem}/__init__.py", f"{stem}.py")), f"no {stem}/__init__.py")
    parts.check(bool(project.configs), f"no YAML file in {stem}/configs or configs")
    if with_mcp:
        parts.check(project.server is not None, NO_SERVER)
    if with_tests:
        parts.check(bool(project.tests), NO_TESTS)
    shown = [f"{path} ({why})" for path, why in folder.left_out.items()]
    lost = [text for path, text in zip(folder.left_out, shown, strict=True) if path.endswith(SOURCE_SUFFIXES)]
    evidence = f"left out: {', '.join([*lost, *(text for text in shown if text not in lost)])}"
    here = [
        *(f"modules in {stem}: {len(project.code)}", f"configurations: {len(project.configs)}", project.server or ""),
        f"test files: {len(project.tests)}",
    ]
    return [
        parts.share(", ".join(filter(None, here))),
        point("files", "all sources read", not lost, evidence if shown else f"{len(folder.files)} files"),
    ]


def check_modules(project: Project, sources: Sources) -> list[Point]:
    """The points of `check_code`, with the modules that register something taken together, and the others as logic."""
    valid = CheckCounter("code", "valid Python")
    outlines: dict[str, ModuleOutline] = {}
    for path, read in sources.code.items():
        outline = None if read.refused else read_outline(read.value)
        if valid.check(outline is not None, f"{path}: {read.refused or 'its outline cannot be read'}") and outline:
            outlines[path] = outline
    components = _components(project, outlines)
    logic = [path for path in outlines if path not in components and outlines[path].functions + outlines[path].classes]
    merged = {"register": MergedModules(components, sources.files), "logic": MergedModules(logic, sources.files)}
    points = check_code(
        merged["register"].outline(outlines) if components else None,
        merged["logic"].outline(outlines) if logic else None,
        types=None,
        functions=None,
    )
    points[0] = valid.share(f"{len(outlines)} modules can be parsed")
    return [point(each.stage, each.name, each.score, _placed(each.evidence, merged)) for each in points]


def _components(project: Project, outlines: Mapping[str, ModuleOutline]) -> list[str]:
    """The modules with configuration classes or builders; else those of the entry points."""
    found = [
        path
        for path, outline in outlines.items()
        if outline.configs() or any(function.registers for function in outline.functions)
    ]
    return found or [path for path in project.modules.values() if path in outlines]


class MergedModules:
    """Modules as if their texts stood in one file, one after the other."""

    def __init__(self, paths: Sequence[str], files: Mapping[str, str]) -> None:
        self.paths = list(paths)
        self._starts: list[int] = []
        start = 0
        for path in paths:
            self._starts.append(start)
            start += files[path].count("\n") + 1

    def outline(self, outlines: Mapping[str, ModuleOutline]) -> dict[str, list[Any]]:
        out: dict[str, list[Any]] = {"functions": [], "classes": [], "handlers": []}
        for path, start in zip(self.paths, self._starts, strict=True):
            for name, entries in outlines[path].model_dump().items():
                out[name] += _moved(entries, start)
        return out

    def place(self, line: int) -> str:
        """`path:line` of a line of the joined text."""
        index = max(0, bisect_right(self._starts, line - 1) - 1)
        return f"{self.paths[index]}:{line - self._starts[index]}" if self.paths else f"line {line}"


def _moved(value: Any, lines: int) -> Any:
    """An outline with every line number moved."""
    if isinstance(value, dict):
        return {
            key: each + lines if key == "line" and isinstance(each, int) else _moved(each, lines)
            for key, each in value.items()
        }
    return [_moved(each, lines) for each in value] if isinstance(value, list) else value


def _placed(evidence: str, merged: Mapping[str, MergedModules]) -> str:
    """Evidence with the project's own paths in place of `register.py:12` and `logic.py:30`."""

    def place(match: re.Match[str]) -> str:
        modules = merged[match[1]]
        if match[2]:
            return modules.place(int(match[2]))
        return ", ".join(modules.paths[:3]) or "a module beside it"

    return re.sub(r"\b(register|logic)\.py(?::(\d{1,7}))?", place, evidence)


def check_configs(project: Project, sources: Sources, configs: Sequence[str]) -> list[Point]:
    entry = CheckCounter("config", "entry points")
    for target in project.modules:
        entry.check(True, target)
    for target in project.lost:
        entry.check(False, f"pyproject.toml: {target[:80]!r} is no module of {project.package}")
    named = isinstance(project.name, str) and bool(project.name)
    points = [
        point("config", "project name", named, f"pyproject.toml: {project.name if named else 'no name'}"),
        entry.share(f"pyproject.toml: {', '.join(project.modules)}"),
    ]
    if not configs:
        points.append(point("config", "mapping", 0, "there is no YAML file in the configs folder"))
    outlines = {path: outline for path, read in sources.code.items() if (outline := read_outline(read.value))}
    own = config_types(MergedModules(list(outlines), sources.files).outline(outlines))
    for path in configs:
        value, refused, short = sources.yaml[path].value, sources.yaml[path].refused, project.short(path)
        chain = sources.chain(path)
        base = sources.combined(chain[1:]) if len(chain) > 1 else None
        found = check_config(path, value, known_types=own, project_files=sources.files, base_value=base)
        if refused:
            found[0] = point("config", found[0].name, 0, f"{path}: {refused}")
        # At most three mentions fit; a path from the root would take most of the room.
        points += [point("config", each.name, each.score, each.evidence.replace(path, short)) for each in found]
    return points
