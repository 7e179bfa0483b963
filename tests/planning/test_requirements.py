"""pyproject.toml, requirements*.txt and constraints.txt agree: what is pinned lies in the range, and is one version."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pins(name: str) -> dict[str, str]:
    """What a file pins itself, by canonical name."""
    lines = [line.partition(" #")[0] for line in (ROOT / name).read_text(encoding="utf-8").splitlines()]
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", "-r"))]
    assert [str(each) for each in found if [one.operator for one in each.specifier] != ["=="]] == []
    return {canonicalize_name(each.name): next(iter(each.specifier)).version for each in found}


def ranges(lines: list[str]) -> dict[str, Requirement]:
    return {canonicalize_name(each.name): each for each in map(Requirement, lines)}


@pytest.mark.parametrize(
    ("file", "lines"),
    [("requirements.txt", PROJECT["dependencies"])]
    + [(f"requirements-{extra}.txt", lines) for extra, lines in EXTRAS.items() if extra != "all"],
)
def test_every_pin_lies_in_the_range_that_an_installation_may_have(file: str, lines: list[str]) -> None:
    wanted, pinned = ranges(lines), pins(file)
    assert pinned.keys() == wanted.keys()
    assert [name for name, version in pinned.items() if version not in wanted[name].specifier] == []


def test_the_constraints_pin_what_the_requirements_of_the_trainer_and_the_tests_pin() -> None:
    constraints = pins("constraints.txt")
    dev = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8").splitlines()
    files = ["requirements-dev.txt", *(line.split()[1] for line in dev if line.startswith("-r"))]
    assert len(files) > 5
    pinned = {name: version for file in files for name, version in pins(file).items()}
    assert {name: constraints.get(name) for name in pinned} == pinned


def test_the_extra_with_everything_has_all_that_go_together() -> None:
    (everything,) = map(Requirement, EXTRAS["all"])
    assert canonicalize_name(everything.name) == canonicalize_name(PROJECT["name"])
    assert everything.extras == EXTRAS.keys() - {"all", "verifiers", "vllm"}  # these two ask for other versions


def imported(folder: Path) -> Iterator[str]:
    """Top-level packages that the modules of a folder import anywhere, the standard library's and our own left out."""
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            yield from {name.partition(".")[0] for name in names if name} - sys.stdlib_module_names - {"agent_rl"}


def test_what_the_sandbox_runs_suites_with_is_installed_with_the_library() -> None:
    """`code_exec` and `pytest_run` start where requirements.txt alone was installed."""
    distributions = packages_distributions()
    found = {canonicalize_name(distributions[name][0]) for name in imported(ROOT / "agent_rl/sandbox/guest")}
    assert "pytest" in found
    assert found <= ranges(PROJECT["dependencies"]).keys()
