"""Choose the inputs that tell a tool's rules from rules one step away, once, when a spec is made.

They are asked in every episode beside inputs that differ from step to step. What is wrong: another setting, other
rules, and the reference's code with one change.
For a function group they are sequences of calls.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from agent_rl.data.neighbours import Program, changed_programs, changed_values, choose_telling, run_program
from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.cases import other_setting
from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.spec import (
    Calls,
    Group,
    GroupTelling,
    Inputs,
    NATSpec,
    PlannedCall,
    Telling,
    Tool,
    digest,
)

MAX_TELLING = 96
"""Inputs under the defaults, and as many under another setting."""
MAX_SEQUENCES = 6
_NUM_SEQUENCES, _SEQUENCE_LENGTH = 150, 10
_NUM_POOL = 400
"""Inputs that are looked through."""
_NUM_ERROR_SETS = 40
_NUM_DONORS = 4
"""Other rules of each level, whose parts stand in for the tool's."""
_TIMES = 2
"""How often a neighbour is told from the tool: one that nobody thought of may look like it only once."""

Asked = tuple[Inputs, ...]
Rules = Mapping[str, Any]
Config = Mapping[str, int]
GroupSolution = Callable[[Calls, Config], Any]
Solution = Callable[[Inputs, Config], Any]
"""What is answered, or what the answer is made of; None instead of an exception."""


def with_telling(spec: NATSpec) -> NATSpec:
    """The spec with the telling inputs of each tool, or sequences of its group."""
    tools = tuple(tool.model_copy(update={"telling": telling_of(tool)}) for tool in spec.tools)
    group = spec.group and spec.group.model_copy(update={"telling": telling_of_group(spec.group)})
    return spec.model_copy(update={"tools": tools, "group": group})


def telling_of(tool: Tool) -> Telling:
    """What tells the tool from its neighbours; the same for the same tool."""
    rng = random.Random(f"telling-{digest([tool.family, tool.rules, tool.defaults])}")
    groups = _neighbours(tool, rng)
    inputs = _chosen(tool, groups, tool.defaults, rng, known=())
    if not tool.config_field:
        return Telling(inputs=inputs)
    config = other_setting(tool.config_field, rng)
    return Telling(inputs=inputs, config=config, configured=_chosen(tool, groups, config, rng, known=inputs))


def _chosen(
    tool: Tool, groups: list[tuple[Solution, list[Solution]]], config: Config, rng: random.Random, *, known: Asked
) -> Asked:
    """Inputs under `config` for what `known` does not tell under the defaults."""
    pool, chosen = _pool(tool, config, rng), []
    for right, wrong in groups:
        answers = [right(inputs, tool.defaults) for inputs in known]
        left = [each for each in wrong if _is_like(each, tool.defaults, known, answers)]
        chosen += choose_telling(
            pool,
            lambda inputs, right=right: right(inputs, config),
            (lambda inputs, other=other: other(inputs, config) for other in left),
            at_most=MAX_TELLING - len(chosen),
            known=chosen,
            times=_TIMES,
        )
    return tuple(chosen)


def _sampled(tool: Tool, count: int, rng: random.Random) -> list[Inputs]:
    """Valid and bad inputs; none where a setting leaves no room for them."""
    family = FAMILIES[tool.family]
    try:
        valid = [family.valid_inputs(tool, rng) for _ in range(count)]
        bad = [inputs for _ in range(_NUM_ERROR_SETS) for inputs in family.error_inputs(tool, rng).values()]
        return [*valid, *bad, *family.edge_inputs(tool, rng)]
    except ValueError:
        return []


def _is_like(solution: Solution, config: Config, asked: Asked, answers: list[Any]) -> bool:
    return all(solution(inputs, config) == answer for inputs, answer in zip(asked, answers, strict=True))


def _pool(tool: Tool, config: Config, rng: random.Random) -> list[Inputs]:
    """Distinct inputs, bad ones among them, whose answers float rounding cannot blur."""
    # Where the setting is another one, inputs near the values of both.
    near = [tool] if config == tool.defaults else [tool, FAMILIES[tool.family].with_default(tool, *config.values())]
    given = [inputs for each in near for inputs in _sampled(each, _NUM_POOL // len(near), rng)]
    distinct = {repr(inputs): inputs for inputs in given if inputs != tool.example.inputs}
    return [inputs for inputs in distinct.values() if oracle.is_robust(tool, inputs, config)]


# ---------------------------------------------------------------- what is wrong


def _neighbours(tool: Tool, rng: random.Random) -> list[tuple[Solution, list[Solution]]]:
    """Right solutions, each with wrong ones that are told from it: by rules and settings, and by code. The code of a
    pure tool says all about its rules, in less time than the oracle."""
    family = FAMILIES[tool.family]
    source = family.definitions(tool)
    coded = _coded(tool, source)
    wrong_code = [_running(tool, program) for program in changed_programs(source)]
    changed = [reading_of(tool, each) for each in wrong_rules(tool, rng)]
    if family.is_pure:
        return [(coded, [*_wrong_settings(tool.defaults, coded), *changed, *wrong_code])]
    right = _ruled(tool, tool.rules)
    return [(right, [*_wrong_settings(tool.defaults, right), *changed]), (coded, wrong_code)]


def _wrong_settings(defaults: Config, right: Callable[[Any, Config], Any]) -> Iterator[Callable[[Any, Config], Any]]:
    """A setting that is never read, or read wrong by one."""
    for name, default in defaults.items():
        yield lambda asked, config, name=name, default=default: right(asked, {**config, name: default})
        for by in (-1, 1):
            yield lambda asked, config, name=name, by=by: right(asked, {**config, name: config[name] + by})


def wrong_rules(tool: Tool, rng: random.Random) -> Iterator[dict[str, Any]]:
    """Rules one step away that are of the family's shape and make sense together."""
    family = FAMILIES[tool.family]
    level = 2 if tool.config_field else 1
    donors = [family.draft(rng, each).rules for each in (level, 3, 4, 5) * _NUM_DONORS]
    default = next(iter(tool.defaults.values()), None)
    for rules in changed_values(tool.rules, donors):
        try:
            family.Rules.model_validate(rules)
            draft = family.complete(rules, default)
        except ValueError:  # a ValidationError too
            continue
        if (draft.inputs, draft.config_field) == (tool.inputs, tool.config_field):
            yield draft.rules


def _ruled(tool: Tool, rules: Rules) -> Solution:
    def answer(inputs: Inputs, config: Config) -> Any:
        try:
            return oracle.wrong_answer(tool, rules, inputs, config)
        except (AssertionError, AttributeError, LookupError, TypeError):  # a field that is not there
            return None

    return answer


def reading_of(tool: Tool, rules: Rules) -> Solution:
    """An agent that has other rules, in the world of the tool: by its code, which may be laxer than the rules, where
    one function is all there is to it."""
    family = FAMILIES[tool.family]
    if family.is_pure:
        return _coded(tool, family.definitions(tool.model_copy(update={"rules": rules})))
    return _ruled(tool, rules)


def _coded(tool: Tool, source: str) -> Solution:
    program = run_program(source)
    if program is None:
        raise AssertionError(f"the reference of {tool.rules} does not run")
    return _running(tool, program)


def _running(tool: Tool, program: Program) -> Solution:
    family = FAMILIES[tool.family]

    def answer(inputs: Inputs, config: Config) -> Any:
        try:
            return family.outcome(tool, program, inputs, config)
        except Exception:  # a changed program may fail in any way
            return None

    return answer


# ---------------------------------------------------------------- function groups


def telling_of_group(group: Group) -> GroupTelling:
    """What tells the group from its neighbours; the same for the same group."""
    rng = random.Random(f"telling-{digest([group.family, group.rules, group.defaults])}")
    right, wrong = _group_neighbours(group, rng)
    sequences = _chosen_sequences(group, right, wrong, group.defaults, rng)
    if not group.config_field:
        return GroupTelling(sequences=sequences)
    config = other_setting(group.config_field, rng)
    left = [each for each in wrong if all(each(c, group.defaults) == right(c, group.defaults) for c in sequences)]
    return GroupTelling(
        sequences=sequences, config=config, configured=_chosen_sequences(group, right, left, config, rng)
    )


def _chosen_sequences(
    group: Group, right: GroupSolution, wrong: list[GroupSolution], config: Config, rng: random.Random
) -> tuple[Calls, ...]:
    family = GROUPS[group.family]
    lengths = [_SEQUENCE_LENGTH * (1 + number % 3) for number in range(_NUM_SEQUENCES)]
    sampled = [family.sequence(group, rng, dict(config), length) for length in lengths]
    pool = [tuple(PlannedCall(function=name, inputs=inputs) for name, inputs in calls) for calls in sampled]
    answering = [lambda calls, other=other: other(calls, config) for other in wrong]
    return tuple(choose_telling(pool, lambda calls: right(calls, config), answering, at_most=MAX_SEQUENCES))


def _group_neighbours(group: Group, rng: random.Random) -> tuple[GroupSolution, list[GroupSolution]]:
    family = GROUPS[group.family]
    source = family.definitions(group)
    right = _called(group, run_program(source))
    wrong = [_called(group, program) for program in changed_programs(source)]
    wrong += _wrong_settings(group.defaults, right)
    donors = [family.draft(rng, level).rules for level in (4, 5) * 6]
    for rules in changed_values(group.rules, [each for each in donors if each["kind"] == group.rules["kind"]]):
        try:
            family.Rules.model_validate(rules)
            text = family.definitions(group.model_copy(update={"rules": rules}))
        except (LookupError, ValueError):  # not of the shape, or a name that nothing has
            continue
        wrong.append(_called(group, run_program(text)))
    return right, wrong


def _called(group: Group, program: Program | None) -> GroupSolution:
    """Answers of a fresh object, up to the first exception."""

    def answer(calls: Calls, config: Config) -> Any:
        out: list[Any] = []
        try:
            state = program[group.class_name](**config) if program else None
            for call in calls:
                out.append(getattr(state, call.function)(**call.inputs))
        except Exception:  # a changed program may fail in any way
            out.append(None)
        return out

    return answer
