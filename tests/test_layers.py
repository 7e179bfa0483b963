"""The shape of the project: imports go down, files and functions stay small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RANKS = {
    "errors": -1,
    "config": 0,
    "agent": 1,
    "records": 2,
    "data": 2,
    "algorithms": 3,
    "generation": 3,
    "distributed": 3,
    "sandbox": 3,
    "telemetry": 3,
    "vllm_backend": 4,
    "nat": 4,
    "rewards": 4,
    "code_tasks": 4,
    "math_tasks": 4,
    "search_tasks": 4,
    "tools": 5,
    "envs": 6,
    "core": 7,
    "planning": 8,
    "reports": 8,
    "scripts": 9,
}
DATA_SIDE = {"rewards", "code_tasks", "math_tasks", "search_tasks", "tools", "envs", "data"}
NO_TORCH = {"sandbox", "nat", "agent", "config", "errors", "reports"} | DATA_SIDE
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60

FOLDERS = ("agent_rl", "model", "dataset", "benchmarks")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
RANKED = [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "agent_rl" and path.name != "__init__.py"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def part_of(module: str) -> str | None:
    """`agent_rl.core.batch` -> `core`; None for modules that are not ours or are the package itself."""
    names = module.split(".")
    return names[1] if names[0] == "agent_rl" and len(names) > 1 else None


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and full name of every import in a file, those inside functions too; type-only imports left out."""
    found = []
    tree = ast.parse(path.read_text(encoding="utf-8"))
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


def complaint(part: str, imported: str) -> str | None:
    """What is wrong with a file of `part` importing `imported`, or None."""
    if imported.split(".", maxsplit=1)[0] == "torch" and part in NO_TORCH:
        return f"{part} may not import torch"
    other = part_of(imported)
    if other is None or other == part:
        return None
    if RANKS[other] >= RANKS[part]:
        return f"{part} (rank {RANKS[part]}) imports {other} (rank {RANKS[other]})"
    return None


@pytest.mark.parametrize("path", RANKED, ids=name_of)
def test_imports_go_down(path: Path) -> None:
    part = path.relative_to(ROOT).parts[1].removesuffix(".py")
    wrong = [f"line {line}: {text}" for line, name in imports_of(path) if (text := complaint(part, name))]
    assert wrong == []


def test_the_rule_catches_an_upward_a_sideways_and_a_torch_import() -> None:
    assert complaint("envs", "agent_rl.core.rollout")
    assert complaint("telemetry", "agent_rl.algorithms.losses")
    assert complaint("sandbox", "torch.nn")
    assert complaint("core", "agent_rl.envs.base") is None


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_FILE_LINES
    long = [
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert long == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not text.strip() or ast.get_docstring(ast.parse(text)), "add a module docstring"
