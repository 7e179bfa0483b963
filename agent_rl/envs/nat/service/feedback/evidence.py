"""What a plan's oracle says of the cases that a user gives, and whether a stored plan makes a task.

Nothing that a project answered is looked at: the question is whether user and plan mean the same agent. Not here: which
jobs are exported (`export.py`).
"""

import math
import random
from collections.abc import Mapping
from typing import Any

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.cases import WORKFLOW
from agent_rl.envs.nat.factory.generate import fingerprint_of, finish
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.factory.telling import with_telling
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.spec import DIFFICULTY, InputField, Inputs, NATSpec, Value
from agent_rl.errors import DataError

_UNSOUND = (DataError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError)
"""What rules without sense lead to, in a plan that was written by hand."""


def plan_in(row: Mapping[str, Any]) -> NATSpec | None:
    """The plan of a stored row, with the id and the fingerprint of what it does; None where its rules make no sense, or
    its own examples are wrong."""
    try:
        spec = parse_spec(dict(row), "the plan")
        if any(oracle.answer(tool, tool.example.inputs, tool.defaults) != tool.example.output for tool in spec.tools):
            return None
        fingerprint = fingerprint_of(spec)
    except _UNSOUND:
        return None
    known = {"task_id": f"feedback-{fingerprint}", "fingerprint": fingerprint, "difficulty": DIFFICULTY[spec.level]}
    return spec.model_copy(update=known)


def task_of(plan: NATSpec, *, terse: bool) -> NATSpec | None:
    """The task of a plan; None where it cannot be judged.

    Only what the agent does is taken from the plan. Hidden cases, the workflow's example and the wording are made anew,
    whoever brought the plan may have written them by hand. Takes a second or more for each tool.
    """
    try:
        return finish(with_telling(plan), random.Random(plan.task_id), terse=terse)
    except _UNSOUND:
        return None


def right_answer(spec: NATSpec, case: Mapping[str, Any]) -> str | None:
    """What the plan answers to a user's case, as the validator takes it: `target`, `input`, `expected`.

    None where the plan does not decide: no such function, other arguments, an answer that depends on an HTTP API, an
    LLM, calls before it, or the rounding of the last digit.
    """
    flow, target = spec.workflow, case.get("target", WORKFLOW)
    if target == WORKFLOW and flow.kind == "direct" and spec.tools:
        target = spec.tools[0].instance
    instances = [tool.instance for tool in spec.tools]
    asked = [spec.tool(target)] if target in instances else [] if target else list(spec.tools)
    if spec.group or not asked or any(tool.family == "api_client" for tool in asked):
        return None
    if target:
        fields = asked[0].inputs
    elif flow.kind == "router":
        fields = (InputField(name="request", type="str"),)
    elif flow.kind == "pipeline":
        fields = flow.inputs
    else:
        return None
    config = flow_oracle.defaults(spec)
    try:
        inputs = _arguments(fields, case["input"])
        if inputs is None:
            return None
        if target:
            is_clear = oracle.is_robust(asked[0], inputs, config[target])
            return oracle.answer(asked[0], inputs, config[target]) if is_clear else None
        is_clear = flow_oracle.is_robust(spec, inputs, config)
        return flow_oracle.conversation(spec, [inputs], config)[0] if is_clear else None
    except _UNSOUND:
        return None


def _arguments(fields: tuple[InputField, ...], given: Any) -> Inputs | None:
    """The inputs by name, a bare text as the only one; None where they are others than the plan's."""
    if isinstance(given, str) and len(fields) == 1:
        given = {fields[0].name: given}
    if not isinstance(given, Mapping) or set(given) != {field.name for field in fields}:
        return None
    inputs: Inputs = {}
    for field in fields:
        value: Value = given[field.name]
        if isinstance(value, bool) or not isinstance(value, {"str": str, "int": int, "float": int | float}[field.type]):
            return None
        inputs[field.name] = float(value) if field.type == "float" else value
    is_finite = all(isinstance(value, str) or math.isfinite(value) for value in inputs.values())
    return inputs if is_finite else None
