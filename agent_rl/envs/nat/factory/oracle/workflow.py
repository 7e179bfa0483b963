"""Oracle of workflows: routers and pipelines on top of the tools' oracles, and groups called in order.

`swapped` names tools (or functions of a group) that the checker has replaced by mocks, with the mocks' answers.
"""

from collections.abc import Iterable, Mapping

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.oracle import function_group
from agent_rl.envs.nat.spec import Group, InputField, Inputs, NATSpec, Pipeline, Router, Value

Config = Mapping[str, Mapping[str, int]]
"""Instance -> its configuration."""


def defaults(spec: NATSpec) -> dict[str, dict[str, int]]:
    """The configuration as it is when nothing is overridden."""
    config = {tool.instance: tool.defaults for tool in spec.tools}
    if spec.group:
        config |= dict.fromkeys(spec.group.instances, spec.group.defaults)
    return config


def conversation(
    spec: NATSpec, requests: Iterable[Inputs], config: Config, swapped: Mapping[str, str] | None = None
) -> list[str]:
    """Answers of a freshly built workflow to inputs in this order."""
    flow, swapped = spec.workflow, swapped or {}
    if isinstance(flow, Router):
        lines = [parse_request(spec, flow, str(inputs["request"])) for inputs in requests]
        return _routed(spec, lines, config, swapped)
    if isinstance(flow, Pipeline):
        return [_piped(spec, flow, inputs, config, swapped) for inputs in requests]
    return [_one(spec, spec.tools[0].instance, inputs, config, swapped) for inputs in requests]


def is_robust(spec: NATSpec, inputs: Inputs, config: Config) -> bool:
    """False when float rounding could blur the answer of any tool on the way."""
    flow = spec.workflow
    if isinstance(flow, Router):
        call = parse_request(spec, flow, str(inputs["request"]))
        return isinstance(call, str) or bool(spec.group) or _is_clear(spec, call[0], call[1], config)
    if isinstance(flow, Pipeline):
        known: dict[str, Value] = dict(inputs)
        for number, step in enumerate(flow.steps, start=1):
            given = _arguments(spec, step.tool, step.arguments, known)
            if given is not None and not _is_clear(spec, step.tool, given, config):
                return False
            known[f"step {number}"] = "" if given is None else _one(spec, step.tool, given, config, {})
        return True
    return _is_clear(spec, spec.tools[0].instance, inputs, config)


def _is_clear(spec: NATSpec, instance: str, inputs: Inputs, config: Config) -> bool:
    return oracle.is_robust(spec.tool(instance), inputs, config[instance])


def _one(spec: NATSpec, instance: str, inputs: Inputs, config: Config, swapped: Mapping[str, str]) -> str:
    if instance in swapped:
        return swapped[instance]
    return oracle.answer(spec.tool(instance), inputs, config[instance])


# ---------------------------------------------------------------- routers


def parse_request(spec: NATSpec, router: Router, request: str) -> tuple[str, Inputs] | str:
    """(reference, inputs) of a request line, or the answer that refuses it."""
    first, *rest = request.split(router.separator)
    reference = router.commands.get(first.strip())
    if reference is None:
        return router.unknown
    fields = fields_of(spec, reference)
    if len(rest) != len(fields):
        return router.malformed
    inputs: Inputs = {}
    for field, text in zip(fields, rest, strict=True):
        value = _number(field, text.strip())
        if value is None:
            return router.malformed
        inputs[field.name] = value
    return reference, inputs


def _number(field: InputField, text: str) -> Value | None:
    if field.type == "str":
        return text
    digits = text.removeprefix("-")
    whole, point, rest = digits.partition(".")
    if not whole.isdigit() or (point and (field.type == "int" or not rest.isdigit())):
        return None
    return int(text) if field.type == "int" else float(text)


def fields_of(spec: NATSpec, reference: str) -> tuple[InputField, ...]:
    """Inputs of a tool, or of a group's function by its `INSTANCE__NAME`."""
    if spec.group is None or "__" not in reference:
        return spec.tool(reference).inputs
    name = reference.rpartition("__")[2]
    return next(each.inputs for each in spec.group.functions if each.name == name)


def _routed(
    spec: NATSpec, lines: list[tuple[str, Inputs] | str], config: Config, swapped: Mapping[str, str]
) -> list[str]:
    answers: list[str] = [""] * len(lines)
    positions_of: dict[str, list[int]] = {}
    for position, line in enumerate(lines):
        if isinstance(line, str):
            answers[position] = line
        elif line[0] in swapped or spec.group is None:
            answers[position] = _one(spec, line[0], line[1], config, swapped)
        else:
            positions_of.setdefault(line[0].rpartition("__")[0], []).append(position)
    for instance, positions in positions_of.items():
        assert spec.group is not None
        calls = [(line[0].rpartition("__")[2], line[1]) for line in map(lines.__getitem__, positions)]  # type: ignore[misc]
        for position, text in zip(positions, run_calls(spec.group, config[instance], calls), strict=True):
            answers[position] = text
    return answers


def run_calls(group: Group, config: Mapping[str, int], calls: list[tuple[str, Inputs]]) -> list[str]:
    """Answers of one fresh instance of a group to calls in order."""
    return function_group.run_calls(group.rules, config, calls)


# ---------------------------------------------------------------- pipelines


def _arguments(spec: NATSpec, instance: str, sources: Mapping[str, str], known: Mapping[str, Value]) -> Inputs | None:
    """The inputs of a step; None when a number is needed and a text that is none would be given."""
    out: Inputs = {}
    for field in spec.tool(instance).inputs:
        value = known[sources[field.name]]
        if field.type != "str" and isinstance(value, str):
            number = _number(field, value)
            if number is None:
                return None
            value = number
        out[field.name] = value
    return out


def _piped(spec: NATSpec, flow: Pipeline, inputs: Inputs, config: Config, swapped: Mapping[str, str]) -> str:
    known: dict[str, Value] = dict(inputs)
    answers: list[str] = []
    for step in flow.steps:
        given = _arguments(spec, step.tool, step.arguments, known)
        if given is None:
            raise ValueError(f"{step.tool} of {spec.task_id} would get a text where it needs a number")
        first = str(known[next(iter(step.arguments.values()))])
        skipped = step.only_if_digit and not any(char.isdigit() for char in first)
        text = first if skipped else _one(spec, step.tool, given, config, swapped)
        if flow.on_error == "stop" and text[:5] == "error":
            return text
        answers.append(text)
        known[f"step {len(answers)}"] = text
    return answers[-1] if flow.joiner is None else flow.joiner.join(answers)
