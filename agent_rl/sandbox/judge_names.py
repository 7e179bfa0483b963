"""Names in hidden tests that a candidate must not give: those by which the tests judge.

`from solution import *` writes the candidate's `abs`, `sorted` or `approx` over the judge's own. A star import takes
only the names that it took from the reference, and none that the tests use for something else. Does not: look into
functions; an author who takes a constant of the candidate's for the truth gets what was asked for.
"""

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from agent_rl.errors import UserError
from agent_rl.parsing import parse_module
from agent_rl.sandbox.grading import Files

_OF_PYTEST = ("test", "Test", "setup", "setUp", "teardown", "tearDown", "pytest", "_", "collect_ignore")
"""Beginnings of names that pytest or the interpreter look up in a test file."""


def star_imported(tests: Files, modules: Sequence[str]) -> set[str]:
    """Those of `modules` that a file of `tests` imports by a star, as far as it can be read."""
    return {module for _, module, name in _imports(tests) if name == "*" and module in modules}


def check_imports(tests: Files, modules: Sequence[str]) -> None:
    """Raise UserError where tests import a built-in's name from the modules: it would judge."""
    for path, module, name in _imports(tests):
        if module in modules and _is_builtin(name):
            raise UserError(
                f"{path} imports {name!r} from {module}, where it takes the place of Python's own in the test; "
                f"write `from {module} import {name} as {name}_of_solution`"
            )


def exports_of(report: Mapping[str, Any], tests: Files, modules: Sequence[str]) -> dict[str, list[str]]:
    """The names that star imports took from the reference. Raises UserError for one that tests use to judge."""
    exports: dict[str, list[str]] = {}
    imports = list(_imports(tests))
    named = {name for _, module, name in imports if module in modules}
    others = {name for _, module, name in imports if module not in modules}
    for module, about in report["star_imports"].items():
        for name in about["names"]:
            is_bound = name in about["bound"] and name not in named
            if is_bound or name in others or _is_builtin(name) or name.startswith(_OF_PYTEST):
                raise UserError(
                    f"the tests have `from {module} import *`, which takes {name!r} from the solution, a name that the "
                    "tests judge with; import the functions by name"
                )
        exports[module] = list(about["names"])
    return exports


def _is_builtin(name: str) -> bool:
    return hasattr(builtins, name)


def _imports(tests: Files) -> Iterator[tuple[str, str | None, str]]:
    """(file, module or None, name in the file) of each import, as far as the files can be read."""
    for path, text in tests.items():
        if not path.endswith(".py"):
            continue
        try:
            nodes = list(ast.walk(parse_module(text)))
        except (SyntaxError, ValueError, RecursionError):  # pytest says so
            continue
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                yield from ((path, node.module, name.asname or name.name) for name in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, None, name.asname or name.name.partition(".")[0]) for name in node.names)
