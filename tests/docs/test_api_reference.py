"""docs/API_REFERENCE.md is what the code says, and every public name, command and route is on it."""

import ast
import re
import runpy
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import agent_rl
import agent_rl.sandbox

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/API_REFERENCE.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts/write_api_reference.py"))


def test_the_page_is_what_the_code_says(script: dict[str, Any]) -> None:
    assert script["updated"](PAGE) == PAGE, "run python scripts/write_api_reference.py"


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (agent_rl, [name for name in agent_rl.__all__ if name != "__version__"]),
        (agent_rl.sandbox, agent_rl.sandbox._HOMES),
    ],
    ids=["agent_rl", "sandbox"],
)
def test_every_public_name_has_a_heading_and_an_explanation(package: ModuleType, names: list[str]) -> None:
    parts = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
    for name in names:
        assert getattr(package, name) is not None
        told = re.sub(r"```python\n.*?```|^In `[^\n]*|^\| [^\n]*", "", parts[name], flags=re.MULTILINE | re.DOTALL)
        assert len(told.split()) > 3, name


def test_a_signature_stands_as_it_is_written(tmp_path: Path, script: dict[str, Any]) -> None:
    source = '''
class Thing(Base):
    """What it is."""

    size: int = 3
    """How long | how wide."""
    _hidden: int = 0

    @classmethod
    def make(cls, name, /, *rest: int, deep: bool = False, **more: str) -> "Thing":
        """Make one.

        Args:
            name: Of the thing,
                in full.
        """

    def silent(self):
        pass
'''
    (node,) = ast.parse(source).body
    assert script["_definition"](node, "### Thing") == (
        "### Thing\n\n```python\nclass Thing(Base)\n```\n\nWhat it is.\n\n"
        "| field | type | default | what |\n| --- | --- | --- | --- |\n"
        "| `size` | `int` | `3` | How long \\| how wide. |\n\n"
        "**`Thing.make`**\n\n```python\n@classmethod\n"
        "def make(cls, name, /, *rest: int, deep: bool=False, **more: str) -> 'Thing'\n```\n\n"
        "Make one.\n\nArguments:\n\n- `name`: Of the thing,\n        in full.\n"
    )


def test_a_command_is_described_with_its_options(script: dict[str, Any]) -> None:
    described = dict(script["commands"]())
    text = script["described"]("agent-rl eval", described["agent-rl eval"])
    assert "| `--samples` | `1` |" in text and "| `--config` | must be given |" in text
    assert text.startswith("### agent-rl eval\n\n`agent-rl eval [OVERRIDES...]`\n\n")


def test_every_route_of_the_service_is_on_the_page(script: dict[str, Any]) -> None:
    document = script["openapi"]()
    routes = {f"`{method.upper()} {path}`" for path, methods in document["paths"].items() for method in methods}
    assert len(routes) > 10
    assert [route for route in routes if f"| {route} |" not in PAGE] == []
