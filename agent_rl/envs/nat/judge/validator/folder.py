"""Read a user's project folder: its texts, and where the parts of a NAT project are in it.

Everything is held in memory within the sandbox's caps. No link is followed and nothing is run or parsed here; what
cannot be taken is listed with the reason. Says nothing about whether the parts are good.
"""

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.errors import UserError
from agent_rl.sandbox.workspace import MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES, WorkspaceError, validate_files

MAX_ENTRIES = 5000
SOURCE_SUFFIXES = (".py", ".yml", ".yaml", ".toml")
"""Files that decide what the project does."""
_SKIPPED = re.compile(r"\..*|__pycache__|.*\.egg-info|venv|node_modules")
"""Names of files and folders that belong to tools, or are hidden: `.env` may hold a secret."""
_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_ENTRY_POINTS = ("nat.components", "nat.plugins")
_MAIN_CONFIGS = ("config.yml", "config.yaml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    files: dict[str, str]
    """Path relative to the root, with forward slashes -> text."""
    left_out: dict[str, str]
    """Path, made printable -> why it was not taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Paths are keys of `Folder.files`."""

    name: Any
    """What pyproject.toml gives; any value."""
    package: str
    source: str
    """`src/`, or nothing in the flat layout."""
    modules: dict[str, str]
    """Module of an entry point -> its file."""
    lost: tuple[str, ...]
    """Entry points that name no module of the package."""
    code: tuple[str, ...]
    """The Python files of the package."""
    configs: tuple[str, ...]
    """The main one first: config.yml where there is one."""
    server: str | None
    tests: tuple[str, ...]

    def short(self, config: str) -> str:
        """The path of a configuration as evidence shows it."""
        return config.removeprefix(f"{self.source}{self.package}/configs/")


def read_folder(root: Path) -> Folder:
    """Read the folder. Raises UserError when there is none, or when it is far larger than a project."""
    if not root.is_dir():
        raise UserError(f"{root} is no folder; give the root of a project, where its pyproject.toml is")
    left_out: dict[str, str] = {}
    found = _walk(root, left_out)
    files: dict[str, str] = {}
    num_bytes = 0
    for path in sorted(found, key=_urgency):
        text = _read(root, path)
        if isinstance(text, _LeftOut):
            left_out[ascii(path)[1:-1]] = text.why
        elif len(files) == MAX_FILES or num_bytes + len(text.encode()) > MAX_TOTAL_BYTES:
            left_out[path] = f"the sandbox takes {MAX_FILES} files and {MAX_TOTAL_BYTES} bytes"
        else:
            files[path] = text
            num_bytes += len(text.encode())
    return Folder(files=files, left_out=left_out)


def _urgency(path: str) -> tuple[bool, bool, str]:
    """What is read first, where there is not room for all."""
    return path != "pyproject.toml", not path.endswith(SOURCE_SUFFIXES), path


@dataclass(frozen=True, slots=True)
class _LeftOut:
    why: str


def _walk(root: Path, left_out: dict[str, str]) -> list[str]:
    """Relative paths of all files that are not skipped; what else is there goes to `left_out`."""
    found, waiting, num_entries = [], [""], 0
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(root / folder) as entries:
                for entry in entries:
                    num_entries += 1
                    if num_entries > MAX_ENTRIES:
                        raise UserError(f"{root} holds more than {MAX_ENTRIES} files; give the root of one project")
                    path = f"{folder}{entry.name}"
                    if _SKIPPED.fullmatch(entry.name):
                        continue
                    if entry.is_symlink():
                        left_out[ascii(path)[1:-1]] = "a link"
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{path}/")
                    else:
                        found.append(path)
        except OSError as error:
            left_out[ascii(folder)[1:-1]] = f"cannot be read: {error.strerror}"
    return found


def _read(root: Path, path: str) -> str | _LeftOut:
    try:
        # Neither a link nor a pipe that was put there since the folder was listed may be opened.
        descriptor = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return _LeftOut("not an ordinary file")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        return _LeftOut(f"cannot be read: {error.strerror}")
    if len(content) > MAX_FILE_BYTES:
        return _LeftOut(f"larger than {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8")
        validate_files({path: text})
    except UnicodeDecodeError:
        return _LeftOut("not UTF-8 text")
    except WorkspaceError:
        return _LeftOut("the sandbox takes no file of such a name")
    return _LeftOut("binary") if "\0" in text else text


# ---------------------------------------------------------------- the parts of a project


def find_project(root: Path, files: dict[str, str], pyproject: Any, refused: str | None) -> Project:
    """The parts, by the entry points of pyproject.toml (as parsed, or why not). Raises UserError without a package."""
    where = root / "pyproject.toml"
    if "pyproject.toml" not in files:
        raise UserError(f"{root} is no project: it has no readable pyproject.toml; give the folder that holds it")
    if refused:
        raise UserError(f"{where} cannot be read ({refused}); correct it")
    section = _mapping(_mapping(pyproject).get("project"))
    groups = _mapping(section.get("entry-points"))
    targets = [
        target.partition(":")[0].strip()
        for group in _ENTRY_POINTS
        for target in _mapping(groups.get(group)).values()
        if isinstance(target, str)
    ]
    if not targets:
        raise UserError(
            f"{where} has no entry point in [project.entry-points.'nat.components'], so the toolkit would find "
            f'nothing; add a line such as my_agent = "my_agent.register"'
        )
    located = {target: _file_of(target, files) for target in targets}
    modules = {target: path for target, path in located.items() if path}
    if not modules:
        raise UserError(
            f"{where}: the entry point {targets[0][:80]!r} is no module below {root} or its src folder; "
            f"correct the entry point or add the module"
        )
    package = next(iter(modules)).partition(".")[0]
    own = {target: path for target, path in modules.items() if target.partition(".")[0] == package}
    source = "src/" if next(iter(own.values())).startswith("src/") else ""
    return Project(
        name=section.get("name"),
        package=package,
        source=source,
        modules=own,
        lost=tuple(target for target in located if target not in own),
        code=tuple(path for path in files if re.fullmatch(rf"{source}{package}(/.*)?\.py", path)),
        configs=_configs(f"{source}{package}/configs/", files),
        server=_server(files),
        tests=tuple(path for path in sorted(files) if re.fullmatch(r"tests/(.+/)?test_[^/]*\.py", path)),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _file_of(module: str, files: dict[str, str]) -> str | None:
    """The file of a module in the src layout, else in the flat one."""
    if not _TARGET.fullmatch(module):
        return None
    stem = module.replace(".", "/")
    candidates = [f"{source}{stem}{end}" for source in ("src/", "") for end in (".py", "/__init__.py")]
    return next((path for path in candidates if path in files), None)


def _configs(folder: str, files: dict[str, str]) -> tuple[str, ...]:
    found = [
        path
        for path in files
        if path.endswith((".yml", ".yaml")) and path.rpartition("/")[0] + "/" in (folder, "configs/")
    ]
    return tuple(sorted(found, key=lambda path: (path.rpartition("/")[2] not in _MAIN_CONFIGS, path)))


def _server(files: dict[str, str]) -> str | None:
    """mcp_server.py, else the first Python file at the root that names FastMCP."""
    named = [
        path for path in sorted(files) if re.fullmatch(r"[^/]+\.py", path) and re.search(r"\bFastMCP\b", files[path])
    ]
    return "mcp_server.py" if "mcp_server.py" in files else next(iter(named), None)
