"""Parse text that a model wrote in a child process: the host gets plain JSON, or the reason for the refusal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox

Kind = Literal["yaml", "json", "toml", "python", "reach"]
LIMITS = Limits(wall_s=2.0, cpu_s=2, memory_mb=256, processes=4, output_kb=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """`Parsed(value={"a": 1}, refused=None)`, or a sentence in `refused`."""

    value: Any
    """YAML, JSON and TOML: the value. Python: the outline of `worker/read_python.py`, or what `read_reach.py` found."""
    refused: str | None


def parse_texts(sandbox: Sandbox, texts: Sequence[tuple[Kind, str]]) -> list[Parsed]:
    """Read every text; one that hangs or crashes its parser is refused, the others are read all the same.

    Raises SandboxError when the sandbox failed.
    """
    found: list[Parsed] = []
    while len(found) < len(texts):
        result = sandbox.call("parse_texts", limits=LIMITS, texts=[list(text) for text in texts[len(found) :]])
        found += [_read(item) for item in result.items]
        if len(found) < len(texts):
            found.append(
                Parsed(value=None, refused=f"reading it did not end well: {result.error or result.status.value}")
            )
    return found


def _read(item: Any) -> Parsed:
    return Parsed(value=item.get("value"), refused=item.get("refused"))
