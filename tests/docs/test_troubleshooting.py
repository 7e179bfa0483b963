"""docs/TROUBLESHOOTING.md names every class of error, and the messages it quotes are those of the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/TROUBLESHOOTING.md").read_text(encoding="utf-8")
OF_OTHERS = (
    "ModuleNotFoundError: ",
    "KeyError: Tool 'search' is not registered.",
    "Search failed after multiple retries",
    "RuntimeError: policy.generate_action",
    "pip install ",
)
"""Quoted messages of Python and of another project, and a command."""


@cache
def trees() -> tuple[ast.Module, ...]:
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "agent_rl").rglob("*.py"))


def error_classes() -> set[str]:
    """Public classes below AgentRLError, itself included."""
    classes = [node for tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    bases_of = {node.name: {base.id for base in node.bases if isinstance(base, ast.Name)} for node in classes}
    found, more = set(), {"AgentRLError"}
    while more:
        found |= more
        more = {name for name, bases in bases_of.items() if bases & found} - found
    return {name for name in found if not name.startswith("_")}


@cache
def texts() -> str:
    """All texts of the code, what is filled in left out as `{}`, one a line."""
    return "\n".join(text for tree in trees() for node in ast.walk(tree) for text in _texts_of(node))


def _texts_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield " ".join(node.value.split())


def first_cells(heading: str) -> list[str]:
    """The first column of every table below a heading and its subheadings."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.split("|")[1].strip() for line in lines if not line.startswith("| ---")]


def test_every_class_of_error_is_explained_and_exists() -> None:
    named = {cell.strip("`") for cell in first_cells("Every class of error")} - {"class"}
    assert named == error_classes()
    assert len(named) > 20


def quoted() -> list[str]:
    """Messages in the first column: what stands in backticks and holds a space."""
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    cells = [cell for heading in headings if heading != "Every class of error" for cell in first_cells(heading)]
    return [text for cell in cells for text in re.findall(r"`([^`]+)`", cell) if " " in text]


def test_there_are_messages_to_look_for() -> None:
    assert len(quoted()) > 40


@pytest.mark.parametrize("message", [text for text in quoted() if not text.startswith(OF_OTHERS)])
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    pieces = [piece.strip() for piece in re.split(r"\.\.\.", message) if piece.strip(" ;:")]
    pattern = ".*?".join(re.escape(piece) for piece in pieces)
    assert re.search(pattern, texts()), message
