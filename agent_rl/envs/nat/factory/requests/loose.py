"""Word a spec loosely, as who has no plan does: no names of packages and types, and not every rule.

What the request leaves out is the model's to choose, so nobody can judge the answers of what it writes: only that it
builds, answers and passes its own tests. Not here: requests that tell every fact (`reword.py`).
"""

import random

from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.requests.reword import in_any_words, reworded
from agent_rl.envs.nat.spec import Direct, NATSpec

TOLD_SHARES = (1.0, 0.6, 0.3)
"""How much of what the tool does, takes and gives a request tells."""
NAMED_SHARE = 0.3
"""Requests that tell every fact all the same, names included."""


def in_loose_words(spec: NATSpec, rng: random.Random) -> NATSpec:
    """A spec of one tool with a request that need not tell its names and rules."""
    if rng.random() < NAMED_SHARE:
        return in_any_words(spec, rng)
    spec = _named_by_family(spec)
    return spec.model_copy(update={"request": reworded(spec, rng, told_share=rng.choice(TOLD_SHARES))})


def tells_example(spec: NATSpec) -> bool:
    """Whether the request tells what comes out for the example, as those of agents of several tools always do."""
    return not isinstance(spec.workflow, Direct) or literal(spec.tools[0].example.output) in spec.request


def _named_by_family(spec: NATSpec) -> NATSpec:
    """Under the names that what it does suggests, which nobody has to tell."""
    (tool,) = spec.tools
    package = f"nat_{tool.family}"
    tool = tool.model_copy(update={"type_name": f"{package}_tool", "instance": "agent_tool"})
    server = spec.server
    if server.name == spec.package:
        server = server.model_copy(update={"name": package})
    changed = spec.model_copy(update={"package": package, "tools": (tool,), "server": server})
    return changed.model_copy(update={"plan": plan_of(changed)})
