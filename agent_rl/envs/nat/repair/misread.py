"""Specs as somebody has them who reads a request wrong in one place, and whom the example proves wrong.

Who reads a sentence wrong reads it the same way a second time. What tells then is the example: it comes out otherwise
than the request says; or it was copied wrong itself, into the project's test. Not here: what is written, submitted and
mended (`demonstrations.py`).
"""

import random
import re
import string
from collections.abc import Iterator, Sequence
from functools import partial

from agent_rl.data.neighbours import changed_values
from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.planner.plan import plan_of
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.telling import reading_of
from agent_rl.envs.nat.spec import Example, NATSpec, Tool

_NUM_DONORS = 6
_MOST_READINGS = 40
"""Of one rule that are tried."""
_NUM_INPUTS = 12
_TESTED = re.compile(r"""'[^'\n]*'|"(?P<text>(?:[^"\\\n]|\\.)*)"|(?<![\w."])(?P<number>\d+\.\d+)""")
"""A text in either quotes, or a number, as a line of a test has it."""
_DATA = {"notes", "host", "path", "params", "units", "dimension", "token"}
"""Rules that are data and names: nobody reads one as another that makes sense."""


def misread(spec: NATSpec, rng: random.Random) -> tuple[NATSpec, ...] | None:
    """The spec, and the same with one rule read wrong in one way or two, all with the first one's example, which tells
    it from the others and these from each other.

    The example is another one where the spec's own tells nothing. None where no rule can be read wrong so.
    """
    (tool,) = spec.tools
    names = [name for name in tool.rules if name not in _DATA]
    for name in rng.sample(names, len(names)):
        readings = _readings(tool, name, spec.level, rng)
        for wrong in readings:
            example = _telling_example(tool, wrong, rng)
            if example is not None:
                told = [tool.model_copy(update={"example": example}), wrong]
                told += next(([each] for each in readings if _are_told_apart(example, tool, wrong, each)), [])
                return _with_tools(spec, [each.model_copy(update={"example": example}) for each in told])
    return None


def miscopied(spec: NATSpec, rng: random.Random) -> dict[str, str] | None:
    """The reference project with one value copied wrong into its test; None where the test has none."""
    files = render_project(spec)
    text = files[spec.tests_path]
    places = [place for place in map(partial(_value_at, text), _TESTED.finditer(text)) if place]
    if not places:
        return None
    start, end = rng.choice(places)
    return {**files, spec.tests_path: text[:start] + _garbled(text[start:end], spec, rng) + text[end:]}


def _value_at(text: str, found: re.Match[str]) -> tuple[int, int] | None:
    """Where the value begins and ends; None outside an assertion, and for texts with escapes or of one character."""
    span = found.span("text") if found["text"] else found.span("number")
    is_tested = text[: found.start()].rpartition("\n")[2].startswith("    assert ")
    return span if is_tested and span[1] - span[0] > 1 and "\\" not in text[slice(*span)] else None


def _garbled(value: str, spec: NATSpec, rng: random.Random) -> str:
    """Another value, as a hasty reader copies: a character lost, doubled or another one, or a word of elsewhere."""
    is_number = value.replace(".", "").isdigit()
    at = rng.choice([place for place, sign in enumerate(value) if not is_number or sign != "."])
    signs = string.digits if value[at].isdigit() else string.ascii_lowercase
    changed = [value[:at] + rng.choice(signs.replace(value[at], "")) + value[at + 1 :]]
    if not is_number:
        words = {*re.findall(r"[a-z]{3,}", spec.request)} - {value}
        changed += [value[:at] + value[at + 1 :], value[: at + 1] + value[at:], rng.choice(sorted(words))]
    return rng.choice(changed)


def _with_tools(spec: NATSpec, tools: Sequence[Tool]) -> tuple[NATSpec, ...]:
    """One spec for each, with the plan of the first."""
    changed = [spec.model_copy(update={"tools": (tool,)}) for tool in tools]
    plan = plan_of(changed[0])
    return tuple(each.model_copy(update={"plan": plan}) for each in changed)


def _are_told_apart(example: Example, tool: Tool, *wrong: Tool) -> bool:
    answers = [reading_of(tool, each.rules)(example.inputs, tool.defaults) for each in wrong]
    return None not in answers and len({example.output, *answers}) == 1 + len(answers)


def _readings(tool: Tool, name: str, level: int, rng: random.Random) -> Iterator[Tool]:
    """The tool with other values of one rule, in any order, as far as inputs and setting stay as they are."""
    family = FAMILIES[tool.family]
    donors = [family.draft(rng, level).rules for _ in range(_NUM_DONORS)]
    values = [donor[name] for donor in donors if name in donor and donor[name] != tool.rules[name]]
    changed = list(changed_values(tool.rules[name], values))
    values += rng.sample(changed, min(len(changed), _MOST_READINGS))
    for value in rng.sample(values, len(values)):
        rules = {**tool.rules, name: value}
        try:
            family.Rules.model_validate(rules)
            draft = family.complete(rules, next(iter(tool.defaults.values()), None))
        except ValueError:  # a ValidationError too
            continue
        # Of a tool with other names the inputs may be in another order.
        is_other = {*draft.inputs} != {*tool.inputs} or draft.config_field != tool.config_field
        if not is_other and not family.is_held_out(draft.rules):
            yield tool.model_copy(update={"rules": draft.rules, "errors": draft.errors})


def _telling_example(tool: Tool, wrong: Tool, rng: random.Random) -> Example | None:
    """The tool's example, or the shortest of some others, where the wrong one answers something else to it."""
    family, reading = FAMILIES[tool.family], reading_of(tool, wrong.rules)
    drawn = [family.valid_inputs(tool, rng) for _ in range(_NUM_INPUTS)]
    for inputs in (tool.example.inputs, *sorted(drawn, key=lambda each: len(str(each)))):
        output = oracle.answer(tool, inputs, tool.defaults)
        is_clear = oracle.is_robust(tool, inputs, tool.defaults)
        if is_clear and not output.startswith("error") and reading(inputs, tool.defaults) != output:
            return Example(inputs=inputs, output=output)
    return None
