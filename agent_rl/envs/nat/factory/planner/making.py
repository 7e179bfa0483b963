"""From a planner's answer to a spec: names are checked, rules are completed by their family, the oracle has its say.

Nothing that the model wrote is trusted: a name that is none is replaced, rules that do not hold together are refused
with a reason. Not here: the calls (`planner.py`), agents of several tools (`structure.py`).
"""

import keyword
import random
import re
from typing import Any

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.compose import INSTANCES, Composition
from agent_rl.envs.nat.factory.families.base import Family, unsafe_text
from agent_rl.envs.nat.factory.generate import WORDS, bare_spec, finish
from agent_rl.envs.nat.factory.planner.schema import PlannedAgent
from agent_rl.envs.nat.factory.tool_sampler import NUM_VALID, complete_tool, valid_cases
from agent_rl.envs.nat.spec import McpServer, NATSpec, Tool

_PACKAGE = re.compile(r"nat(_[a-z][a-z0-9]*){1,5}")
_INSTANCE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+){1,4}")
"""With an underscore: one word could hide a name that the project's files use."""
_MAX_NAME_CHARS = 48


class Refusal(Exception):
    """A plan that makes no spec; the text says why and is stored in the progress file."""


def make_spec(
    agent: PlannedAgent[Any], family: Family, rng: random.Random, *, task_id: str, terse: bool = False
) -> NATSpec:
    """The spec of a plan. Raises Refusal when the plan is not one sound tool of this family.

    `terse` words the request as in `wording.py`.
    """
    plan = agent.plan
    if agent.left_out:
        raise Refusal(f"the rules cannot say: {'; '.join(agent.left_out)}")
    if plan.scaffold_type != "simple_tool" or len(plan.custom_tools) != 1:
        raise Refusal(f"planned a {plan.scaffold_type} with {len(plan.custom_tools)} tools, not one simple_tool")
    rules = safe_rules(agent)
    try:
        return _finished(agent, family, rules, rng, task_id=task_id, terse=terse)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Each rule is in its family's vocabulary, but together they leave nothing to sample (such as an empty range).
        raise Refusal(f"the rules do not hold together: {type(error).__name__}: {error}") from error


def safe_rules(agent: PlannedAgent[Any]) -> dict[str, Any]:
    """The rules as they were given. Raises Refusal for texts that cannot be written into a project's files."""
    # Only the keys that were given: families read an absent key in their own way.
    rules: dict[str, Any] = agent.rules.model_dump(mode="json", exclude_unset=True)
    if (unsafe := unsafe_text(rules)) is not None:
        raise Refusal(f"rules may not hold quotes, backslashes, backticks or unprintable characters: {unsafe!r}")
    return rules


def package_name(proposed: str, rng: random.Random) -> str:
    """The model's name for the package where it is one, else a sampled one."""
    return _name(proposed, _PACKAGE, "nat_" + "_".join(rng.sample(WORDS, 2)))


def instance_name(proposed: str, rng: random.Random) -> str:
    """The model's name for a tool where it is one, else a sampled one."""
    return _name(proposed, _INSTANCE, rng.choice(INSTANCES))


def _finished(
    agent: PlannedAgent[Any], family: Family, rules: dict[str, Any], rng: random.Random, *, task_id: str, terse: bool
) -> NATSpec:
    package = package_name(agent.package, rng)
    instance = instance_name(agent.plan.custom_tools[0].name, rng)
    tool = make_tool(
        family,
        rules,
        agent.config_default,
        rng,
        type_name=f"{package}_tool",
        instance=instance,
        function=family.function,
    )
    if instance in family.exports(tool):
        tool = tool.model_copy(update={"instance": rng.choice(INSTANCES)})
    parts = Composition(tools=(tool,), server=McpServer(name=package))
    spec = bare_spec(family.name, 2 if tool.config_field else 1, package, parts, task_id=task_id)
    return finish(spec, rng, terse=terse)


def make_tool(
    family: Family,
    rules: dict[str, Any],
    default: int | None,
    rng: random.Random,
    *,
    type_name: str,
    instance: str,
    function: str,
) -> Tool:
    """The tool with its inputs, errors and example. Raises Refusal for rules on which it could not be judged."""
    draft = family.complete(rules, default)
    bounds = draft.config_field
    if bounds and not bounds.low <= bounds.default <= bounds.high:
        raise Refusal(f"config_default of {bounds.name} is {default}, not in {bounds.low}..{bounds.high}")
    tool = complete_tool(family, draft, rng, type_name=type_name, instance=instance, function=function)
    if tool is None:
        raise Refusal("not every error can be provoked, or too few inputs have another answer")
    cases = valid_cases(family, tool, rng, tool.defaults, NUM_VALID)
    if sum(oracle.answer(tool, case, tool.defaults).startswith("error") for case in cases) > NUM_VALID // 2:
        raise Refusal("most inputs that should be valid are answered with an error")
    return tool


def _name(proposed: str, pattern: re.Pattern[str], fallback: str) -> str:
    is_name = len(proposed) <= _MAX_NAME_CHARS and pattern.fullmatch(proposed) and not keyword.iskeyword(proposed)
    return proposed if is_name else fallback
