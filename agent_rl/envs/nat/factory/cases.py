"""Sample hidden cases: the questions that score an agent at the end of an episode, with the oracle's answers.

They depend on the spec and a seed alone, so all episodes of a group get the same ones. The inputs that tell the rules
from rules one step away (`telling.py`) are always among them; the others change with the seed. Only questions are sent
to the process that runs the candidate; the answers stay here. Each `CaseRun` is one build of the workflow.
"""

import random
from dataclasses import dataclass, field, replace
from typing import Any

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES, GROUPS
from agent_rl.envs.nat.factory.families.base import Exchange
from agent_rl.envs.nat.factory.families.group.base import Sequence
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.factory.tool_sampler import NUM_VALID, error_cases, valid_cases
from agent_rl.envs.nat.factory.workflow_inputs import flow_errors, flow_inputs, known_calls, line_of
from agent_rl.envs.nat.spec import Calls, ConfigField, Group, Inputs, NATSpec, Tool

NUM_CHANGING = 6
"""Valid inputs that change with the seed, at least."""
NUM_OVERRIDDEN = 4
NUM_SEQUENCES = 3
SEQUENCE_LENGTH = 10
_NUM_SEQUENCE_SAMPLES = 60
WORKFLOW = ""
"""The target of a question to the whole workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenCase:
    """One question to a freshly built agent, or to its MCP server."""

    target: str
    """Instance of a tool, `INSTANCE__NAME` of a group's function, or `WORKFLOW`."""
    inputs: Inputs
    expected: str | None
    """None: there must be no such function."""
    via: str = ""
    """The tool that a scripted LLM calls to answer a question to a ReAct workflow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """Questions in order to one build."""

    about: str
    """What the run checks, in words."""
    questions: tuple[HiddenCase, ...]
    overrides: dict[str, dict[str, int]] = field(default_factory=dict)
    """Instance -> values set in place of the defaults of its configuration."""
    swapped: dict[str, str] = field(default_factory=dict)
    """Tools that the checker replaces by mocks, with the mocks' answers."""
    through_client: bool = False
    """Built from config-mcp-client.yml."""
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    """What the network answers."""


def hidden_cases(spec: NATSpec, seed: int) -> tuple[CaseRun, ...]:
    """At least 12 valid inputs and one for every error of every tool, the telling ones among them, through the tool and
    through the workflow; other settings; tools swapped for mocks; the same through the MCP client.

    Raises TooFewCasesError when the rules allow fewer distinct inputs.
    """
    rng = random.Random(f"cases-{spec.fingerprint}-{seed}")
    if spec.group:
        return tuple(_group_runs(spec, spec.group, rng))
    config = flow_oracle.defaults(spec)
    sampled = {tool.instance: _tool_cases(tool, rng) for tool in spec.tools}
    runs = [_run(spec, "hidden cases", [(t, i) for t, each in sampled.items() for i in each], config, rng)]
    overrides = {
        tool.instance: tool.telling.config or other_setting(tool.config_field, rng)
        for tool in spec.tools
        if tool.config_field
    }
    if overrides:
        changed = {name: {**values, **overrides.get(name, {})} for name, values in config.items()}
        requests = [
            (tool.instance, inputs)
            for tool in spec.tools
            if tool.instance in overrides
            for inputs in (
                *tool.telling.configured,
                *valid_cases(FAMILIES[tool.family], tool, rng, changed[tool.instance], NUM_OVERRIDDEN),
            )
        ]
        runs.append(_run(spec, "other settings", requests, changed, rng, overrides))
    runs += _swapped_runs(spec, config, rng)
    if spec.client_group:
        runs.append(_flow_run(spec, "through the MCP client", config, rng, through_client=True))
    return tuple(runs)


def other_setting(field: ConfigField, rng: random.Random) -> dict[str, int]:
    """Another value of a config field."""
    if field.name == "precision":
        return {field.name: rng.choice([digits for digits in range(0, 5) if digits != field.default])}
    if field.name in ("k", "limit") and field.default < field.high:
        return {field.name: min(field.high, field.default + 2)}  # longer answers show more of the order
    # A limit that some ordinary inputs overstep.
    low = max(field.low, field.default // 2)
    return {field.name: low if low != field.default else min(field.high, field.default + 1)}


def _tool_cases(tool: Tool, rng: random.Random) -> list[Inputs]:
    """The telling inputs and others in one order that changes with the seed, so that the few which reach an MCP server
    are not always the same; errors last."""
    family = FAMILIES[tool.family]
    count = max(NUM_VALID - len(tool.telling.inputs), NUM_CHANGING)
    cases = [*tool.telling.inputs, *valid_cases(family, tool, rng, tool.defaults, count)]
    if tool.telling.inputs:
        rng.shuffle(cases)
    cases += error_cases(family, tool, rng)
    return list({repr(inputs): inputs for inputs in cases}.values())


def _run(
    spec: NATSpec,
    about: str,
    requests: list[tuple[str, Inputs]],
    config: dict[str, dict[str, int]],
    rng: random.Random,
    overrides: dict[str, dict[str, int]] | None = None,
) -> CaseRun:
    """Questions to each tool, and to the workflow: the same ones where the workflow is the tool."""
    questions = [
        HiddenCase(target=name, inputs=inputs, expected=oracle.answer(spec.tool(name), inputs, config[name]))
        for name, inputs in requests
    ]
    if spec.workflow.kind in ("direct", "react"):
        questions += [replace(each, target=WORKFLOW, via=each.target) for each in _direct_asks(spec, questions)]
    else:
        count = 2 if overrides else None
        questions += _flow_asks(spec, flow_inputs(spec, config, rng, count), config)
        questions += [] if overrides else _flow_asks(spec, flow_errors(spec, rng), config)
    exchanges = _exchanges(spec, questions, config)
    return CaseRun(about=about, questions=tuple(questions), overrides=overrides or {}, exchanges=exchanges)


def _direct_asks(spec: NATSpec, questions: list[HiddenCase]) -> list[HiddenCase]:
    """Of each tool a dozen valid ones and the last ones, which are its errors. Rules are told from others by asking the
    tool itself; a scripted agent is slower, so it gets a valid one and the last."""
    chosen = []
    for tool in spec.tools:
        own = [each for each in questions if each.target == tool.instance]
        valid = [each for each in own if each.expected is not None and not each.expected.startswith("error")]
        is_direct = spec.workflow.kind == "direct"
        asked = valid[:NUM_VALID] + own[-len(tool.errors) :] if is_direct else [*valid[:1], own[-1]]
        chosen += [each for number, each in enumerate(asked) if each not in asked[:number]]
    return chosen


def _flow_asks(
    spec: NATSpec, requests: list[Inputs], config: dict[str, dict[str, int]], swapped: dict[str, str] | None = None
) -> list[HiddenCase]:
    answers = flow_oracle.conversation(spec, requests, config, swapped)
    return [
        HiddenCase(target=WORKFLOW, inputs=each, expected=text) for each, text in zip(requests, answers, strict=True)
    ]


def _flow_run(spec: NATSpec, about: str, config: dict[str, dict[str, int]], rng: random.Random, **more: Any) -> CaseRun:
    swapped = more.get("swapped", {})
    questions = _flow_asks(spec, flow_inputs(spec, config, rng, 1 if swapped else 2), config, swapped)
    if swapped:
        # Answers that the mocks do not change prove nothing.
        usual = flow_oracle.conversation(spec, [each.inputs for each in questions], config)
        questions = [each for each, text in zip(questions, usual, strict=True) if each.expected != text]
    return CaseRun(about=about, questions=tuple(questions), exchanges=_exchanges(spec, questions, config), **more)


def _swapped_runs(spec: NATSpec, config: dict[str, dict[str, int]], rng: random.Random) -> list[CaseRun]:
    """Builds in which one tool is a mock, to detect a workflow that does not use its tools.

    A router takes one build for all tools, a pipeline one for each; served tools are swapped all at once. The mock
    answers a number, which any later step can read, or an error where only that can change the answer.
    """
    if spec.workflow.kind == "direct":
        return []
    number = f"{rng.randint(100, 999)}.5"
    if spec.workflow.kind == "react":
        first = spec.tools[0]
        question = HiddenCase(target=WORKFLOW, inputs=first.example.inputs, expected=number, via=first.instance)
        return [CaseRun(about="tools swapped", questions=(question,), swapped={first.instance: number})]
    every = {tool.instance: f"{number}{index}" for index, tool in enumerate(spec.tools)}
    runs = []
    if spec.workflow.kind == "router":
        runs.append(_flow_run(spec, "tools swapped", config, rng, swapped=every))
    else:
        for tool in spec.tools:
            for text in (number, f"error: {number}"):
                run = _flow_run(spec, f"{tool.instance} swapped", config, rng, swapped={tool.instance: text})
                if run.questions:
                    runs.append(run)
                    break
    if spec.client_group:
        runs.append(_flow_run(spec, "served tools swapped", config, rng, swapped=every, through_client=True))
    return runs


def _exchanges(spec: NATSpec, questions: list[HiddenCase], config: dict[str, dict[str, int]]) -> dict[str, Exchange]:
    """Network replies to the requests that right tools send for these questions."""
    out: dict[str, Exchange] = {}
    for question in questions:
        for name, inputs in known_calls(spec, question.target, question.inputs):
            tool = spec.tool(name)
            out |= FAMILIES[tool.family].exchanges(tool, inputs, config[name])
    return out


# ---------------------------------------------------------------- function groups


def _group_runs(spec: NATSpec, group: Group, rng: random.Random) -> list[CaseRun]:
    """Sequences through the functions and through the workflow; other settings; two instances; what is hidden."""
    family, runs = GROUPS[group.family], []
    instances = group.instances
    for number, (config, first_calls) in enumerate(_planned_sequences(group, rng)):
        overrides = dict.fromkeys(instances, config) if config != group.defaults else {}
        calls_by_instance = {name: family.sequence(group, rng, config, SEQUENCE_LENGTH) for name in instances[1:]}
        mixed = _interleaved({instances[0]: first_calls, **calls_by_instance}, rng)
        answers = {
            name: iter(flow_oracle.run_calls(group, config, calls))
            for name, calls in {instances[0]: first_calls, **calls_by_instance}.items()
        }
        calls = [
            HiddenCase(target=f"{name}__{function}", inputs=inputs, expected=next(answers[name]))
            for name, (function, inputs) in mixed
        ]
        if number == 0:
            calls += [
                HiddenCase(target=f"{name}__{hidden}", inputs={}, expected=None)
                for name in instances
                for hidden in group.hidden
            ]
        about = "other settings" if overrides else "sequences of calls"
        runs.append(CaseRun(about=about, questions=tuple(calls), overrides=overrides))
        if number == 0 or overrides:
            lines: list[Inputs] = [
                {"request": line_of(spec, f"{name}__{function}", inputs)} for name, (function, inputs) in mixed
            ]
            lines += [] if overrides else flow_errors(spec, rng)
            full = dict.fromkeys(instances, config)
            runs.append(CaseRun(about=about, questions=tuple(_flow_asks(spec, lines, full)), overrides=overrides))
    return [*runs, _swapped_group(spec, group, rng)]


def _swapped_group(spec: NATSpec, group: Group, rng: random.Random) -> CaseRun:
    """A build in which all functions are mocks."""
    instances = group.instances
    swapped = {
        f"{name}__{function.name}": f"{rng.randint(100, 999)}.5" for name in instances for function in group.visible
    }
    calls = [(f"{name}__{call.function}", call.inputs) for name in instances for call in group.example]
    requests: list[Inputs] = [{"request": line_of(spec, name, inputs)} for name, inputs in calls if name in swapped]
    full = dict.fromkeys(instances, group.defaults)
    return CaseRun(about="tools swapped", questions=tuple(_flow_asks(spec, requests, full, swapped)), swapped=swapped)


def _planned_sequences(group: Group, rng: random.Random) -> list[tuple[dict[str, int], Sequence]]:
    """What the first instance is asked, under which setting: the telling sequences and at least one that changes with
    the seed; without telling ones those that raise the most errors."""
    telling, family = group.telling, GROUPS[group.family]
    known = [_as_sequence(calls) for calls in telling.sequences]
    first = [*known, family.sequence(group, rng, group.defaults, SEQUENCE_LENGTH)] if known else _covering(group, rng)
    planned = [(group.defaults, calls) for calls in first]
    if group.config_field:
        config = telling.config or other_setting(group.config_field, rng)
        planned.append((config, family.sequence(group, rng, config, SEQUENCE_LENGTH)))
        planned += [(config, _as_sequence(calls)) for calls in telling.configured]
    return planned


def _as_sequence(calls: Calls) -> Sequence:
    return [(call.function, dict(call.inputs)) for call in calls]


def _covering(group: Group, rng: random.Random) -> list[Sequence]:
    """Sequences for fresh instances: of many samples, those that raise the most errors, so that one covers each."""
    family, left = GROUPS[group.family], set(group.errors)
    # Some bounds are far away: longer sequences reach them.
    lengths = [SEQUENCE_LENGTH, 2 * SEQUENCE_LENGTH, 3 * SEQUENCE_LENGTH] * (_NUM_SEQUENCE_SAMPLES // 3)
    pool = [family.sequence(group, rng, group.defaults, length) for length in lengths]
    met = [set(flow_oracle.run_calls(group, group.defaults, calls)) for calls in pool]
    chosen = []
    for _ in range(NUM_SEQUENCES):
        best = max(range(len(pool)), key=lambda number: len(met[number] & left))
        left -= met.pop(best)
        chosen.append(pool.pop(best))
    return chosen


def _interleaved(calls_by_instance: dict[str, list], rng: random.Random) -> list[tuple[str, Any]]:
    """The calls of all instances in one order that keeps each instance's own."""
    turns = [name for name, calls in calls_by_instance.items() for _ in calls]
    rng.shuffle(turns)
    left = {name: iter(calls) for name, calls in calls_by_instance.items()}
    return [(name, next(left[name])) for name in turns]


def example_run(spec: NATSpec) -> CaseRun:
    """The example of the request as a question to the workflow."""
    flow, config = spec.workflow, flow_oracle.defaults(spec)
    example = spec.tools[0].example if flow.kind in ("direct", "react") else flow.example
    via = spec.tools[0].instance if flow.kind == "react" else ""
    question = HiddenCase(target=WORKFLOW, inputs=example.inputs, expected=example.output, via=via)
    return CaseRun(about="example", questions=(question,), exchanges=_exchanges(spec, [question], config))
