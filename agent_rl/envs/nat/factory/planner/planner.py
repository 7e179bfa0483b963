"""Plan specs online (optional): a Gemini model reads a user's free request and plans one tool for it.

The model chooses a family, rules in that family's vocabulary, a configuration default and names. Everything an answer
is judged by (inputs, errors, the example, the request's exact wording) comes from the family and the oracle, never
from the model; inconsistent rules are refused with a reason. Only one-tool agents (levels 1 and 2) are planned.
Not here: writing the dataset and its splits (`dataset.py`), the SDK (`client.py`).
"""

import keyword
import random
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.compose import INSTANCES
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import Family
from agent_rl.envs.nat.factory.generate import WORDS, fingerprint_of, finish
from agent_rl.envs.nat.factory.planner.client import CallError, GeminiClient, Generate, PatientCaller
from agent_rl.envs.nat.factory.planner.progress import Progress, ProgressLine
from agent_rl.envs.nat.factory.planner.prompts import choice_prompt, plan_prompt
from agent_rl.envs.nat.factory.planner.schema import NO_FAMILY, FamilyChoice, PlannedAgent, choice_schema, plan_schema
from agent_rl.envs.nat.factory.tool_sampler import NUM_VALID, complete_tool, valid_cases
from agent_rl.envs.nat.spec import DIFFICULTY, Direct, Inputs, McpServer, NATSpec, PlannedCase, Tool

ModelT = TypeVar("ModelT", bound=BaseModel)
_PACKAGE = re.compile(r"nat(_[a-z][a-z0-9]*){1,5}")
_INSTANCE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+){1,4}")
"""With an underscore: one word could hide a name that the project's files use."""
_UNSAFE = re.compile(r"[\"\\`]")
"""Rules are written into Python, YAML and backticks."""


class Refusal(Exception):
    """A plan that makes no spec; the text says why and is stored in the progress file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    model: str = "gemini-3.8-flash"
    base_url: str | None = None
    """Another address of the service; None is Google's."""
    timeout_s: float = 120.0
    """Of one call."""
    requests_per_minute: float = 60.0
    """Calls, repeated ones included; a request takes two."""
    max_attempts: int = 6
    """Of one call, when it fails for a passing reason."""
    max_failures: int = 3
    """Requests in a row whose calls may fail before the run stops."""
    report_every: int = 10
    price_in: float | None = None
    """Per million input tokens; the cost is shown when both prices are given."""
    price_out: float | None = None

    def __post_init__(self) -> None:
        for name in ("timeout_s", "requests_per_minute", "max_attempts", "max_failures", "report_every"):
            if not getattr(self, name) > 0:
                raise PlannerError(f"planner setting {name} is {getattr(self, name)}; it must be above 0")


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

    Specs have the ids `gemini-SEED-NNNNNN`, N being the request's position. With the same `progress_path` a later run
    continues where this one stopped. `generate` replaces the Gemini client. Raises PlannerError when the SDK or the key
    is missing, the progress file belongs to another run, or calls keep failing.
    """
    if generate is None:
        generate = GeminiClient(model=settings.model, timeout_s=settings.timeout_s, base_url=settings.base_url)
    caller = PatientCaller(
        generate=generate, requests_per_minute=settings.requests_per_minute, max_attempts=settings.max_attempts
    )
    specs: dict[str, NATSpec] = {}
    totals = _Totals()
    num_failures = num_since_report = 0
    with Progress(progress_path) as progress:
        for index, request in enumerate(requests):
            if len(specs) == count:
                break
            task_id = f"gemini-{seed}-{index:06d}"
            line = progress.finished(index, request, task_id)
            if line is None:
                line = plan_request(request, index=index, task_id=task_id, generate=caller)
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


def plan_request(request: str, *, index: int, task_id: str, generate: Generate) -> ProgressLine:
    """Plan one request: two calls, then everything else from the family and the oracle."""
    rng = random.Random(task_id)
    meter = _Meter(generate)
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
        choice = _parsed(FamilyChoice, meter(choice_prompt(request, FAMILIES), choice_schema(FAMILIES)))
        if choice.family not in FAMILIES:
            known = choice.family == NO_FAMILY
            raise Refusal(f"no family fits: {choice.reason}" if known else f"there is no family {choice.family!r}")
        family = FAMILIES[choice.family]
        agent = _parsed(PlannedAgent[family.Rules], meter(plan_prompt(request, family), plan_schema(family.Rules)))
        spec = make_spec(agent, family, rng, task_id=task_id)
    except Refusal as refusal:
        return line(status="refused", reason=str(refusal))
    except CallError as error:
        return line(status="failed", reason=str(error))
    right = [_is_right(spec.tools[0], case) for case in agent.plan.test_cases if _fits(spec.tools[0], case.inputs)]
    return line(status="made", spec=spec, num_answers=len(right), num_right_answers=sum(right))


def make_spec(agent: PlannedAgent[Any], family: Family, rng: random.Random, *, task_id: str) -> NATSpec:
    """The spec of a plan. Raises Refusal when the plan is not one sound tool of this family."""
    if agent.left_out:
        raise Refusal(f"the rules cannot say: {'; '.join(agent.left_out)}")
    plan = agent.plan
    if plan.scaffold_type != "simple_tool" or len(plan.custom_tools) != 1:
        raise Refusal(f"planned a {plan.scaffold_type} with {len(plan.custom_tools)} tools, not one simple_tool")
    # Only the keys that were given: families read an absent key in their own way.
    rules = agent.rules.model_dump(mode="json", exclude_unset=True)
    if unsafe := [text for text in _texts(rules) if _UNSAFE.search(text) or not text.isprintable()]:
        raise Refusal(f"rules may not hold quotes, backslashes, backticks or unprintable characters: {unsafe[0]!r}")
    try:
        return _finished(agent, family, rules, rng, task_id=task_id)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Each rule is in its family's vocabulary, but together they leave nothing to sample (such as an empty range).
        raise Refusal(f"the rules do not hold together: {type(error).__name__}: {error}") from error


def _finished(
    agent: PlannedAgent[Any], family: Family, rules: dict[str, Any], rng: random.Random, *, task_id: str
) -> NATSpec:
    plan = agent.plan
    package = _name(agent.package, _PACKAGE, "nat_" + "_".join(rng.sample(WORDS, 2)))
    instance = _name(plan.custom_tools[0].name, _INSTANCE, rng.choice(INSTANCES))
    tool = _tool(family, rules, agent.config_default, rng, type_name=f"{package}_tool", instance=instance)
    if instance in family.exports(tool):
        tool = tool.model_copy(update={"instance": rng.choice(INSTANCES)})
    level = 2 if tool.config_field else 1
    spec = NATSpec(
        task_id=task_id,
        family=family.name,
        level=level,
        difficulty=DIFFICULTY[level],
        fingerprint="",
        package=package,
        tools=(tool,),
        workflow=Direct(),
        server=McpServer(name=package),
        plan=plan,
        request="",
    )
    spec = spec.model_copy(update={"fingerprint": fingerprint_of(spec)})
    return finish(spec, rng)


def _tool(
    family: Family, rules: dict[str, Any], default: int | None, rng: random.Random, *, type_name: str, instance: str
) -> Tool:
    draft = family.complete(rules, default)
    bounds = draft.config_field
    if bounds and not bounds.low <= bounds.default <= bounds.high:
        raise Refusal(f"config_default of {bounds.name} is {default}, not in {bounds.low}..{bounds.high}")
    tool = complete_tool(family, draft, rng, type_name=type_name, instance=instance, function=family.function)
    if tool is None:
        raise Refusal("not every error can be provoked, or too few inputs have another answer")
    cases = valid_cases(family, tool, rng, tool.defaults, NUM_VALID)
    if sum(oracle.answer(tool, case, tool.defaults).startswith("error") for case in cases) > NUM_VALID // 2:
        raise Refusal("most inputs that should be valid are answered with an error")
    return tool


def _parsed(model: type[ModelT], text: str) -> ModelT:
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise Refusal(f"{where}: {first['msg']}") from None


def _texts(value: Any) -> list[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [*value, *(text for each in value.values() for text in _texts(each))]
    return [text for each in value for text in _texts(each)] if isinstance(value, list) else []


def _name(proposed: str, pattern: re.Pattern[str], fallback: str) -> str:
    return proposed if pattern.fullmatch(proposed) and not keyword.iskeyword(proposed) else fallback


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
