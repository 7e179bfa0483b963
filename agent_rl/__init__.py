"""agent_rl: train tool-using language-model agents with GRPO.

The names in `__init__.pyi` are what outside code may rely on. They are imported on first use, so that `import agent_rl`
and `--help` stay instant.
"""

import ast
import importlib
import os
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

# Read by GNU OpenMP when PyTorch is imported: how long its threads stay awake for the next operation. Its own default,
# 300,000, keeps the cores from the sandbox; with none at all small decode steps take longer.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

_HOMES = {
    alias.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(statement, ast.ImportFrom) and statement.module
    for alias in statement.names
}

__all__ = sorted({*_HOMES, "__version__"})  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agent_rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__"]
