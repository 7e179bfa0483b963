"""What every family of tools must hold, checked on sampled tools; the family's own test file has the golden values."""

import json
import random
from collections.abc import Callable

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families.base import Family
from agent_rl.envs.nat.factory.tool_sampler import NUM_VALID, error_cases, sample_tool, valid_cases
from agent_rl.envs.nat.spec import Inputs, Tool


def tools_of(family: Family, level: int, count: int) -> list[tuple[Tool, random.Random]]:
    out = []
    for seed in range(count):
        rng = random.Random(f"{family.name}-{level}-{seed}")
        tool = sample_tool(family, level, rng, type_name="nat_x_tool", instance="main_tool", function=family.function)
        out.append((tool, rng))
    return out


def tool_of(family: Family, level: int, seed: int) -> Tool:
    """One sampled tool of the family."""
    names = {"type_name": "nat_x_tool", "instance": "main_tool", "function": family.function}
    return sample_tool(family, level, random.Random(seed), **names)


def cases_of(family: Family, tool: Tool, rng: random.Random, config: dict[str, int]) -> list[Inputs]:
    """The hidden cases of a tool: valid inputs, then one for each error."""
    return valid_cases(family, tool, rng, config, NUM_VALID) + error_cases(family, tool, rng)


def function_of(tool: Tool, definitions: str) -> Callable[..., str]:
    namespace: dict[str, Callable[..., str]] = {}
    exec(definitions, namespace)
    return namespace[tool.function]


def _configs(tool: Tool) -> list[dict[str, int]]:
    field = tool.config_field
    if field is None:
        return [{}]
    return [{field.name: value} for value in (field.default, max(field.low, field.default // 2), field.default + 1)]


def reference_agrees_with_the_oracle(family: Family, level: int, count: int = 150) -> None:
    for tool, rng in tools_of(family, level, count):
        reference = function_of(tool, family.definitions(tool))
        errors = family.error_inputs(tool, rng)
        assert list(errors) == list(tool.errors)
        for text, inputs in {**errors, tool.errors[0]: family.bad_inputs(tool)}.items():
            assert reference(**inputs) == oracle.answer(tool, inputs, tool.defaults) == text, (tool.rules, inputs)
        for config in _configs(tool):
            for inputs in valid_cases(family, tool, rng, config, 12):
                expected = oracle.answer(tool, inputs, config)
                assert reference(**inputs, **config) == expected, (tool.rules, inputs, config)
                assert config != tool.defaults or not expected.startswith("error"), (tool.rules, inputs)


def mutants_fail_the_assertions(family: Family, level: int, count: int = 40) -> None:
    for tool, _ in tools_of(family, level, count):
        tests = [line for lines in family.assertions(tool).values() for line in lines]
        assert _passes(family.definitions(tool), tests)
        for mutant in family.mutants(tool):
            assert not _passes(mutant, tests), (tool.rules, mutant)


def _passes(definitions: str, tests: list[str]) -> bool:
    try:
        exec(definitions + "\n".join(tests), {})
    except Exception:  # any failure of a test or of the code under it
        return False
    return True


def subtle_bodies_are_caught(family: Family, level: int, count: int = 60) -> None:
    tries = misses = 0
    for tool, rng in tools_of(family, level, count):
        subtle = family.subtle_mutants(tool)
        assert subtle and family.definitions(tool) not in subtle
        cases = cases_of(family, tool, rng, tool.defaults)
        for mutant in subtle:
            tries += 1
            misses += all(
                _answer(tool, mutant, inputs) == oracle.answer(tool, inputs, tool.defaults) for inputs in cases
            )
    assert misses <= tries * 0.01, f"{misses} of {tries}"


def _answer(tool: Tool, definitions: str, inputs: Inputs) -> str | None:
    try:
        return function_of(tool, definitions)(**inputs)
    except Exception:  # a wrong body may raise anything
        return None


def rules_and_requests(family: Family, level: int, count: int = 60) -> None:
    for (tool, rng), (again, _) in zip(tools_of(family, level, count), tools_of(family, level, count), strict=True):
        assert tool == again
        assert (tool.config_field is not None) == (level == 2) or level > 2
        rules = json.loads(json.dumps(tool.rules))
        assert rules == tool.rules
        family.Rules.model_validate(rules)
        request = " ".join(family.sentences(tool, rng))
        assert all(f"`{error}`" in request for error in tool.errors), request
        assert not set('"\\\n') & set(request)
        assert all(error.startswith("error: ") for error in tool.errors)


def held_out_share(family: Family, count: int = 1000) -> None:
    """About a tenth, and decided by rules that were read back from JSON."""
    for level in (1, 3):
        rules = [json.loads(json.dumps(family.draft(random.Random(seed), level).rules)) for seed in range(count)]
        assert 0.06 * count < sum(map(family.is_held_out, rules)) < 0.14 * count
