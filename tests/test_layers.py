"""The shape of the project: rooms that import downwards, environments apart, no circle, small files and folders."""

import ast
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RANKS = {
    "closing": -2,
    "parsing": -3,
    "errors": -2,
    "renamed": -2,
    "failures": -1,
    "redacted": -1,
    "memo": -1,
    "loop_thread": -1,
    "registry": -1,
    "resources": -1,
    "seeds": -1,
    "config": 0,
    "agent": 1,
    "records": 2,
    "data": 2,
    "algorithms": 3,
    "modeling": 3,
    "sandbox": 3,
    "telemetry": 4,
    "inference.base": 3,
    "inference.requests": 4,
    "distributed": 4,
    "inference.local": 5,
    "inference.vllm": 5,
    "rewards": 5,
    "tools": 5,
    "envs": 6,
    "policies": 6,
    "learning": 7,
    "rollout": 7,
    "core": 8,
    "endpoint": 8,
    "serving": 9,
    "envs.nat.service": 9,
    "monitoring": 9,
    "planning": 9,
    "reports": 9,
    "scripts": 10,
}
"""Rooms of the library; a file of one imports rooms of lower rank and its own. Files at the top count as rooms."""
ENVIRONMENTS = ("nat", "code", "search", "math", "hello", "foreign")
"""Folders of `agent_rl/envs/`: they import the library up to `envs`, and nothing imports them."""
ENVIRONMENT_RANK = RANKS["envs"] + 1
"""But for an application of an environment, a folder in it with a rank of its own: nothing of it imports that."""
OLD_PATHS = {"agent_rl/envs/code_exec_env.py", "agent_rl/envs/search_env.py", "agent_rl/tools/code_exec_tool.py"}
"""One-line modules under paths of an earlier project; they load environments by import path."""
NO_TORCH = {"errors", "renamed", "registry", "seeds", "config", "agent", "data", "sandbox", "rewards", "tools", "envs"}
NO_TORCH |= {"reports", "monitoring"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_FILES_IN_FOLDER = 15

FOLDERS = ("agent_rl", "model", "dataset", "benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
LIBRARY = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "agent_rl" and path.name != "__init__.py"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(module: str) -> str | None:
    """`agent_rl.learning.samples` -> `learning`, `agent_rl.envs.nat.env` -> `envs.nat`; None for what is not ours."""
    names = module.split(".")
    if names[0] != "agent_rl" or len(names) == 1:
        return None
    if (three := ".".join(names[1:4])) in RANKS:
        return three
    two = ".".join(names[1:3])
    return two if two in RANKS or (names[1] == "envs" and names[2:3] and names[2] in ENVIRONMENTS) else names[1]


def rank_of(room: str) -> int:
    return RANKS.get(room, ENVIRONMENT_RANK)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and full name of every import in a file, those inside functions too; type-only imports left out."""
    found = []
    tree = tree_of(path)
    type_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if id(node) in type_only:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def complaint(room: str, imported: str) -> str | None:
    """What is wrong with a file of `room` importing `imported`, or None."""
    if imported.split(".", maxsplit=1)[0] == "torch" and (room in NO_TORCH or room.startswith("envs.")):
        return f"{room} may not import torch"
    other = room_of(imported)
    if other is None or other == room:
        return None
    if other.startswith("envs.") and not room.startswith(f"{other}."):
        return f"{room} imports the environment {other}"
    if rank_of(other) >= rank_of(room):
        return f"{room} (rank {rank_of(room)}) imports {other} (rank {rank_of(other)})"
    return None


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_imports_go_down(path: Path) -> None:
    room = room_of(name_of(path).removesuffix(".py").replace("/", "."))
    assert room is not None
    wrong = [f"line {line}: {text}" for line, name in imports_of(path) if (text := complaint(room, name))]
    assert wrong == []


def test_the_rule_catches_an_upward_a_sideways_an_environment_and_a_torch_import() -> None:
    assert complaint("envs", "agent_rl.rollout.rollout")
    assert complaint("rollout", "agent_rl.learning.update")
    assert complaint("scripts", "agent_rl.envs.nat.env")
    assert complaint("envs.math", "agent_rl.envs.search.env")
    assert complaint("sandbox", "torch.nn")
    assert complaint("envs.nat", "agent_rl.envs.nat.service.app")
    assert complaint("envs.code", "agent_rl.envs.nat.service.app")
    assert complaint("envs.nat", "agent_rl.endpoint.app")
    assert complaint("core", "agent_rl.envs.base") is None
    assert complaint("envs.nat.service", "agent_rl.endpoint.app") is None
    assert complaint("envs.nat.service", "agent_rl.envs.nat.spec") is None


def test_no_two_files_import_each_other_in_a_circle() -> None:
    modules = {name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in SOURCES}

    def targets(path: Path) -> set[str]:
        named = {name for _, name in imports_of(path)}
        return {name if name in modules else name.rpartition(".")[0] for name in named} & set(modules)

    open_ends, done = dict.fromkeys(modules, 0), []
    graph = {module: targets(path) - {module} for module, path in modules.items()}
    while free := [module for module in graph if not graph[module] & set(graph)]:
        done += free
        for module in free:
            del graph[module]
    assert sorted(graph) == [], f"of {len(open_ends)} modules these are in a circle, or import one"


def test_no_two_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for path in SOURCES
        if path.relative_to(ROOT).parts[0] == "agent_rl"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_folder_shows_more_files_than_a_reader_takes_in() -> None:
    folders = Counter(
        str(path.parent.relative_to(ROOT))
        for folder in (*FOLDERS, "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path.name not in ("__init__.py", "conftest.py") and "hostile/" not in str(path)
    )
    assert {folder: count for folder, count in folders.items() if count > MAX_FILES_IN_FOLDER} == {}


def test_no_two_test_files_have_one_name() -> None:
    """pytest refuses the second of two, as folders of tests are no packages, but only where one process has both."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    long = [
        node.name
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_has_a_docstring(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "add a module docstring"
