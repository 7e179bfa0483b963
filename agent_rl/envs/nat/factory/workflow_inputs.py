"""Sample requests to a workflow: lines for a router, inputs for a pipeline, and which tools they reach.

Does not: decide the right answers (`agent_rl.envs.nat.factory.oracle` does).
"""

import random

from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.oracle import workflow as oracle
from agent_rl.envs.nat.factory.tool_sampler import TooFewCasesError, valid_cases
from agent_rl.envs.nat.spec import Inputs, NATSpec, Pipeline, Router, Tool, Value

_MAX_SAMPLES = 200
NUM_LINES = 3
"""Valid requests for each tool of a router."""
NUM_PIPED = 8


def flow_inputs(
    spec: NATSpec, config: dict[str, dict[str, int]], rng: random.Random, count: int | None
) -> list[Inputs]:
    """Requests that a user would make: `count` for each tool of a router, or 4 times as many for a pipeline."""
    if isinstance(spec.workflow, Router):
        return [line for tool in spec.tools for line in _tool_lines(spec, tool, config, rng, count or NUM_LINES)]
    if isinstance(spec.workflow, Pipeline):
        return _piped(spec, spec.workflow, config, rng, 4 * count if count else NUM_PIPED)
    return []


def flow_errors(spec: NATSpec, rng: random.Random) -> list[Inputs]:
    """Requests that a right workflow answers with an error, of its own or of a tool."""
    flow = spec.workflow
    if isinstance(flow, Router):
        keyword, reference = rng.choice(list(flow.commands.items()))
        fields = oracle.fields_of(spec, reference)
        words = [keyword, *("1" for _ in fields)]
        lines = ["nonsense", f"nonsense {flow.separator} 1", _join(flow, [*words, "1"])]
        lines += [_join(flow, words[:-1])] if fields else []
        for name, reference in flow.commands.items():
            fields = oracle.fields_of(spec, reference)
            if any(field.type != "str" for field in fields):
                lines.append(_join(flow, [name, *("1" if field.type == "str" else "many" for field in fields)]))
        for tool in spec.tools:
            bad = FAMILIES[tool.family].error_inputs(tool, rng).values()
            lines += [line for inputs in bad if (line := fitting_line(spec, tool.instance, inputs)) is not None][:2]
        return [{"request": line} for line in lines]
    if isinstance(flow, Pipeline):
        return _piped_errors(spec, flow, rng)
    return []


def line_of(spec: NATSpec, reference: str, inputs: Inputs) -> str:
    """The request line of a router for this call."""
    flow = spec.workflow
    assert isinstance(flow, Router)
    keyword = next(word for word, name in flow.commands.items() if name == reference)
    fields = oracle.fields_of(spec, reference)
    return _join(flow, [keyword, *(_text(inputs[field.name]) for field in fields)])


def fitting_line(spec: NATSpec, reference: str, inputs: Inputs) -> str | None:
    """`line_of`, or None when an input could not be read back from the line."""
    flow = spec.workflow
    assert isinstance(flow, Router)
    texts = [value for value in inputs.values() if isinstance(value, str)]
    if any(flow.separator in text or text != text.strip() for text in texts):
        return None
    line = line_of(spec, reference, inputs)
    return line if line.count(flow.separator) == len(inputs) else None


def _join(flow: Router, words: list[str]) -> str:
    return f" {flow.separator} ".join(words)


def _text(value: Value) -> str:
    return value if isinstance(value, str) else repr(value)


def _tool_lines(
    spec: NATSpec, tool: Tool, config: dict[str, dict[str, int]], rng: random.Random, count: int
) -> list[Inputs]:
    family, lines = FAMILIES[tool.family], []
    for _ in range(_MAX_SAMPLES):
        (inputs,) = valid_cases(family, tool, rng, config[tool.instance], 1)
        line = fitting_line(spec, tool.instance, inputs)
        if line is not None and {"request": line} not in lines:
            lines.append({"request": line})
            if len(lines) == count:
                return lines
    raise TooFewCasesError(f"only {len(lines)} request lines for {tool.family} {tool.rules}, {count} are needed")


# ---------------------------------------------------------------- pipelines


def _piped(
    spec: NATSpec, flow: Pipeline, config: dict[str, dict[str, int]], rng: random.Random, count: int
) -> list[Inputs]:
    out: list[Inputs] = []
    for _ in range(_MAX_SAMPLES):
        inputs = _sampled(spec, flow, rng)
        if inputs not in out and oracle.is_robust(spec, inputs, config):
            out.append(inputs)
            if len(out) == count:
                return out
    raise TooFewCasesError(f"pipeline {spec.task_id} has only {len(out)} distinct inputs, {count} are needed")


def _sampled(spec: NATSpec, flow: Pipeline, rng: random.Random) -> Inputs:
    """Inputs of the workflow, each as the first tool that reads it would like it."""
    out: Inputs = {}
    for step in flow.steps:
        tool = spec.tool(step.tool)
        good = FAMILIES[tool.family].valid_inputs(tool, rng)
        for name, source in step.arguments.items():
            if not source.startswith("step "):
                out.setdefault(source, good[name])
    return out


def _piped_errors(spec: NATSpec, flow: Pipeline, rng: random.Random) -> list[Inputs]:
    """For each tool that reads an input of the workflow, inputs that it answers with an error."""
    out: list[Inputs] = []
    for step in flow.steps:
        tool = spec.tool(step.tool)
        for bad in FAMILIES[tool.family].error_inputs(tool, rng).values():
            inputs = _sampled(spec, flow, rng)
            changed = {source: bad[name] for name, source in step.arguments.items() if source in inputs}
            if changed and oracle.is_robust(spec, {**inputs, **changed}, oracle.defaults(spec)):
                out.append({**inputs, **changed})
    return out


# ---------------------------------------------------------------- which tools a question reaches


def known_calls(spec: NATSpec, target: str, inputs: Inputs) -> list[tuple[str, Inputs]]:
    """(instance, inputs) of the tools that a right agent calls with inputs known from the question alone."""
    if target:
        return [(target, inputs)] if spec.group is None else []
    if isinstance(spec.workflow, Router) and spec.group is None:
        call = oracle.parse_request(spec, spec.workflow, str(inputs["request"]))
        return [] if isinstance(call, str) else [call]
    return [(spec.tools[0].instance, inputs)] if spec.workflow.kind == "direct" else []
