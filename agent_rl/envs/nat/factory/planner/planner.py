"""Plan specs online (optional): a model reads a user's free request and plans the tools for it.

The model chooses families, rules in a family's vocabulary, a configuration default and names. Everything an answer
is judged by (inputs, errors, the example, the request's exact wording) comes from the family and the oracle, never
from the model; inconsistent rules are refused with a reason. With `max_tools` above 1 the first call says what connects
several tools (`structure.py`), else every agent has one.
Not here: writing the dataset and its splits (`dataset.py`), the services (`client.py`, `openai_client.py`).
"""

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import Family
from agent_rl.envs.nat.factory.planner.client import CallError, Generate
from agent_rl.envs.nat.factory.planner.making import Refusal, make_spec
from agent_rl.envs.nat.factory.planner.progress import Progress, ProgressLine
from agent_rl.envs.nat.factory.planner.prompts import choice_prompt, plan_prompt
from agent_rl.envs.nat.factory.planner.schema import NO_FAMILY, FamilyChoice, PlannedAgent, choice_schema, plan_schema
from agent_rl.envs.nat.factory.planner.services import PlannerSettings, open_service, paced
from agent_rl.envs.nat.factory.planner.structure import (
    AgentOutline,
    check_outline,
    compose_spec,
    outline_prompt,
    outline_schema,
)
from agent_rl.envs.nat.spec import Inputs, NATSpec, PlannedCase, Tool

ModelT = TypeVar("ModelT", bound=BaseModel)


def plan_specs(
    requests: Iterable[str],
    *,
    count: int,
    seed: int,
    settings: PlannerSettings,
    progress_path: Path,
    report: Callable[[str], None],
    generate: Generate | None = None,
) -> list[NATSpec]:
    """Plan requests in order until `count` different specs are made or the requests are used up.

    Specs have the ids `SOURCE-SEED-NNNNNN`, N being the request's position. With the same `progress_path` a later run
    continues where this one stopped. `generate` replaces the service of the settings. Raises PlannerError when the SDK
    or the key is missing, the progress file belongs to another run, or calls keep failing.
    """
    caller = paced(open_service(settings) if generate is None else generate, settings)
    specs: dict[str, NATSpec] = {}
    totals = _Totals()
    num_failures = num_since_report = 0
    with Progress(progress_path) as progress:
        for index, request in enumerate(requests):
            if len(specs) == count:
                break
            task_id = f"{settings.source}-{seed}-{index:06d}"
            line = progress.finished(index, request, task_id)
            if line is None:
                line = plan_request(
                    request, index=index, task_id=task_id, generate=caller, max_tools=settings.max_tools
                )
                progress.append(line)
                num_failures = num_failures + 1 if line.status == "failed" else 0
                num_since_report += 1
            totals.add(line)
            if line.status != "made":
                report(f"planner: {task_id} {line.status}, {request[:60]!r}: {line.reason}")
            if line.spec is not None and specs.setdefault(line.spec.fingerprint, line.spec) is not line.spec:
                totals.num_duplicates += 1
            if num_failures == settings.max_failures:
                report(totals.text(settings))
                raise PlannerError(
                    f"the last {num_failures} planner requests failed, finally with {line.reason!r}; {progress_path} "
                    f"keeps the {len(specs)} specs made so far: fix the cause and run the same command again"
                )
            if num_since_report == settings.report_every:
                num_since_report = 0
                report(totals.text(settings))
    report(totals.text(settings))
    if len(specs) < count:
        report(f"planner: the requests are used up after {len(specs)} of {count} specs")
    return list(specs.values())


def plan_request(
    request: str,
    *,
    index: int,
    task_id: str,
    generate: Generate,
    max_tools: int = 1,
    terse: bool = False,
    own_names: bool = True,
) -> ProgressLine:
    """Plan one request: one call for what the agent is made of, one for each tool, then everything else from the
    families and the oracle.

    `terse` words the request of a single tool as in `wording.py`. Without `own_names` package and tools get names like
    those of generated tasks: a small model copies no others.
    """
    rng = random.Random(task_id)
    meter = _Meter(generate, own_names=own_names)
    start_s = time.monotonic()

    def line(**result: Any) -> ProgressLine:
        return ProgressLine(
            index=index,
            request=request,
            task_id=task_id,
            num_tokens_in=meter.num_tokens_in,
            num_tokens_out=meter.num_tokens_out,
            seconds=round(time.monotonic() - start_s, 3),
            **result,
        )

    try:
        if max_tools == 1:
            family = _chosen(request, meter)
            agent = _planned(request, family, meter)
            spec = make_spec(agent, family, rng, task_id=task_id, terse=terse)
            cases = [(spec.tools[0], case) for case in agent.plan.test_cases]
        else:
            spec, cases = _several(request, meter, rng, task_id=task_id, max_tools=max_tools, terse=terse)
    except Refusal as refusal:
        return line(status="refused", reason=str(refusal))
    except CallError as error:
        return line(status="failed", reason=str(error))
    right = [_is_right(tool, case) for tool, case in cases if _fits(tool, case.inputs)]
    return line(status="made", spec=spec, num_answers=len(right), num_right_answers=sum(right))


def _chosen(request: str, meter: "_Meter") -> Family:
    choice = _parsed(FamilyChoice, meter(choice_prompt(request, FAMILIES), choice_schema(FAMILIES)))
    if choice.family not in FAMILIES:
        known = choice.family == NO_FAMILY
        raise Refusal(f"no family fits: {choice.reason}" if known else f"there is no family {choice.family!r}")
    return FAMILIES[choice.family]


def _planned(request: str, family: Family, meter: "_Meter") -> PlannedAgent[Any]:
    agent = _parsed(PlannedAgent[family.Rules], meter(plan_prompt(request, family), plan_schema(family.Rules)))
    if meter.own_names:
        return agent
    tools = tuple(tool.model_copy(update={"name": ""}) for tool in agent.plan.custom_tools)
    return agent.model_copy(update={"package": "", "plan": agent.plan.model_copy(update={"custom_tools": tools})})


def _several(
    request: str, meter: "_Meter", rng: random.Random, *, task_id: str, max_tools: int, terse: bool
) -> tuple[NATSpec, list[tuple[Tool, PlannedCase]]]:
    """The spec, and the model's own test cases with the tools they are about."""
    prompt = outline_prompt(request, FAMILIES, max_tools=max_tools)
    outline = _parsed(AgentOutline, meter(prompt, outline_schema(FAMILIES)))
    check_outline(outline, max_tools=max_tools)
    families = [FAMILIES[part.family] for part in outline.parts]
    if outline.structure == "direct":
        planned = [_planned(request, families[0], meter)]
        spec = make_spec(planned[0], families[0], rng, task_id=task_id, terse=terse)
    else:
        planned = [_planned(part.request, family, meter) for part, family in zip(outline.parts, families, strict=True)]
        spec = compose_spec(outline.structure, list(zip(families, planned, strict=True)), rng, task_id=task_id)
    pairs = zip(spec.tools, planned, strict=True)
    return spec, [(tool, case) for tool, agent in pairs for case in agent.plan.test_cases]


def _parsed(model: type[ModelT], text: str) -> ModelT:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise Refusal(f"{where}: {first['msg']}") from None


def _fits(tool: Tool, inputs: Inputs) -> bool:
    kinds = {"str": str, "int": int, "float": (int, float)}
    return set(inputs) == {each.name for each in tool.inputs} and all(
        isinstance(inputs[each.name], kinds[each.type]) for each in tool.inputs
    )


def _is_right(tool: Tool, case: PlannedCase) -> bool:
    """Whether the model expects what the oracle answers; an input the oracle cannot compute with is not right."""
    numbers = {each.name for each in tool.inputs if each.type == "float"}
    inputs = {name: float(value) if name in numbers else value for name, value in case.inputs.items()}
    try:
        return oracle.answer(tool, inputs, tool.defaults) == case.expected
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False


@dataclass(slots=True)
class _Meter:
    """A `Generate` that adds up the tokens of one request."""

    generate: Generate
    own_names: bool = True
    """Whether names that the model proposes are used."""
    num_tokens_in: int = 0
    num_tokens_out: int = 0

    def __call__(self, prompt: str, schema: dict[str, Any]) -> str:
        text, usage = self.generate(prompt, schema)
        self.num_tokens_in += usage.num_tokens_in
        self.num_tokens_out += usage.num_tokens_out
        if not text:
            raise Refusal("the model gave no text (blocked, or cut off)")
        return text


@dataclass(slots=True)
class _Totals:
    """What has been made and spent, earlier runs on the same progress file included."""

    num_requests: int = 0
    num_made: int = 0
    num_refused: int = 0
    num_failed: int = 0
    num_duplicates: int = 0
    num_tokens_in: int = 0
    num_tokens_out: int = 0
    seconds: float = 0.0
    num_answers: int = 0
    num_right_answers: int = 0

    def add(self, line: ProgressLine) -> None:
        self.num_requests += 1
        self.num_made += line.status == "made"
        self.num_refused += line.status == "refused"
        self.num_failed += line.status == "failed"
        for name in ("num_tokens_in", "num_tokens_out", "seconds", "num_answers", "num_right_answers"):
            setattr(self, name, getattr(self, name) + getattr(line, name))

    def text(self, settings: PlannerSettings) -> str:
        cost = ""
        if settings.price_in is not None and settings.price_out is not None:
            price = (self.num_tokens_in * settings.price_in + self.num_tokens_out * settings.price_out) / 1e6
            cost = f"; cost {price:.4f} at the given prices"
        return (
            f"planner: {self.num_requests} requests, {self.num_made - self.num_duplicates} specs, "
            f"{self.num_duplicates} duplicates, {self.num_refused} refused, {self.num_failed} failed; "
            f"{self.num_tokens_in} tokens in, {self.num_tokens_out} out; {self.seconds:.0f} s; "
            f"the model's own test cases right {self.num_right_answers} of {self.num_answers}{cost}"
        )
