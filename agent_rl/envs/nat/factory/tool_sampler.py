"""Sample one tool: rules from its family, an example from the oracle, inputs for hidden cases."""

import random

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families.base import Draft, Family
from agent_rl.envs.nat.spec import Example, Inputs, Tool

NUM_VALID = 12
_DRAFT_ATTEMPTS = 50
_NUM_EXAMPLE_SAMPLES = 25
_MAX_CASE_SAMPLES = 400


class TooFewCasesError(ValueError):
    """The rules allow too few distinct inputs to judge an answer by; sample other rules."""


def sample_tool(
    family: Family, level: int, rng: random.Random, *, type_name: str, instance: str, function: str
) -> Tool:
    """Sample one tool. Drafts on which the oracle and the family's own error inputs disagree are sampled again."""
    for _ in range(_DRAFT_ATTEMPTS):
        draft = family.draft(rng, level)
        tool = complete_tool(family, draft, rng, type_name=type_name, instance=instance, function=function)
        if tool is not None:
            return tool
    raise AssertionError(f"family {family.name} gave no sound tool in {_DRAFT_ATTEMPTS} drafts")


def complete_tool(
    family: Family, draft: Draft, rng: random.Random, *, type_name: str, instance: str, function: str
) -> Tool | None:
    """The tool of a draft, with names and an example; None when it is not sound (`is_sound`) or gives only errors."""
    tool = Tool(
        family=family.name,
        type_name=type_name,
        instance=instance,
        function=function,
        inputs=draft.inputs,
        rules=draft.rules,
        config_field=draft.config_field,
        errors=draft.errors,
        example=Example(inputs={}, output=""),
    )
    example = _example(family, tool, rng)
    if example is None:
        return None
    tool = tool.model_copy(update={"example": example})
    return tool if is_sound(family, tool, rng) else None


def _example(family: Family, tool: Tool, rng: random.Random) -> Example | None:
    candidates = []
    for _ in range(_NUM_EXAMPLE_SAMPLES):
        inputs = family.valid_inputs(tool, rng)
        output = oracle.answer(tool, inputs, tool.defaults)
        if not output.startswith("error") and oracle.is_robust(tool, inputs, tool.defaults):
            candidates.append(Example(inputs=inputs, output=output))
    # An example is there to be read.
    return min(candidates, key=lambda example: len(str(example)), default=None)


def is_sound(family: Family, tool: Tool, rng: random.Random) -> bool:
    """Whether every error can be provoked, and there are enough distinct inputs to judge an answer by."""
    errors = {**family.error_inputs(tool, rng), tool.errors[0]: family.bad_inputs(tool)}
    if any(oracle.answer(tool, inputs, tool.defaults) != text for text, inputs in errors.items()):
        return False
    try:
        valid_cases(family, tool, rng, tool.defaults, NUM_VALID)
    except TooFewCasesError:
        return False
    return True


def valid_cases(family: Family, tool: Tool, rng: random.Random, config: dict[str, int], count: int) -> list[Inputs]:
    """Distinct inputs other than the example's, with an answer that float rounding cannot blur."""
    out: list[Inputs] = []
    for _ in range(_MAX_CASE_SAMPLES):
        case = family.valid_inputs(tool, rng)
        if case != tool.example.inputs and case not in out and oracle.is_robust(tool, case, config):
            out.append(case)
            if len(out) == count:
                return out
    raise TooFewCasesError(f"{tool.family} {tool.rules} allows only {len(out)} distinct cases, {count} are needed")


def error_cases(family: Family, tool: Tool, rng: random.Random) -> list[Inputs]:
    """One input for every error, other than the example's."""
    return [case for case in family.error_inputs(tool, rng).values() if case != tool.example.inputs]
