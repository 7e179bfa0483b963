"""What a user says who has a project that does not work, or that is to do more.

A repair's request tells what the tool is for and nothing that the files say themselves: names of types, instances and
inputs are to be read there. Samples phrasings only.
"""

import random

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.spec import NATSpec

_OPENINGS = (
    "The agent in `{package}` does not work as it should; repair it.",
    "Something is wrong in the NAT project `{package}`. Please fix it.",
    "Find the fault in the agent `{package}` and repair it.",
    "My NAT agent `{package}` is broken. Mend it.",
)
_EXTENSIONS = (
    "The project in the workspace, `{package}`, works, but has only the tool `{tool}`. Extend it to this:",
    "`{package}` is a working agent with the one tool `{tool}`. Add what is missing of this:",
)


def repair_request(spec: NATSpec, rng: random.Random) -> str:
    """The behaviour of each tool and its example, behind a sentence that asks for the repair."""
    parts = [rng.choice(_OPENINGS).format(package=spec.package)]
    for tool in spec.tools:
        given = ", ".join(literal(value) for value in tool.example.inputs.values())
        parts += FAMILIES[tool.family].sentences(tool, rng)
        parts.append(f"Example: {given} gives {literal(tool.example.output)}.")
    if spec.server.raises:
        parts.append("Its MCP server raises an answer that begins with `error`.")
    return " ".join(parts)


def extend_request(spec: NATSpec, rng: random.Random) -> str:
    """The request of the whole project, behind a sentence that says what is there."""
    opening = rng.choice(_EXTENSIONS).format(package=spec.package, tool=spec.tools[0].instance)
    return f"{opening}\n{spec.request}"
