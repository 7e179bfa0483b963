"""The workflow of a task as a subject: routers and pipelines, other fields of them and mutants of their reference.

The tools behind it are right, or the mocks of the hidden cases.
"""

import ast
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from code_mutants import code_mutants
from neighbours import list_steps
from running import drive, namespace_of, outcome
from weakness import Neighbour, Question, Subject, UnanswerableError, distinct

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.cases import CaseRun
from agent_rl.envs.nat.factory.families import GROUPS
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.factory.render.register import register
from agent_rl.envs.nat.factory.tool_sampler import TooFewCasesError
from agent_rl.envs.nat.factory.workflow_inputs import flow_errors, flow_inputs, line_of
from agent_rl.envs.nat.spec import UNUSED, Inputs, NATSpec, Pipeline, Router

Tools = Mapping[str, Callable[[Inputs], Any]]
_LINES = 10


class Flow:
    """The coroutine of a rendered workflow, without the toolkit."""

    def __init__(self, spec: NATSpec, module: Any = None) -> None:
        self._tools: Tools = {}
        names = set(_references(spec))
        module = module or compile(flow_source(spec), "<workflow>", "exec")
        self._scope = namespace_of(module, **{name: _Function(self, name) for name in names})

    def call(self, name: str, inputs: Inputs) -> Any:
        return self._tools[name]({key: value for key, value in inputs.items() if key != UNUSED.name})

    def answer(self, tools: Tools, inputs: Inputs) -> Any:
        if self._scope is None:
            return ("no module",)
        self._tools = tools
        run = self._scope["run"]
        return outcome(lambda: drive(run(**inputs)))


class _Function:
    def __init__(self, flow: Flow, name: str) -> None:
        self._flow, self._name = flow, name

    async def acall_invoke(self, **inputs: Any) -> Any:
        return self._flow.call(self._name, inputs)


def _references(spec: NATSpec) -> list[str]:
    flow = spec.workflow
    return list(flow.commands.values()) if isinstance(flow, Router) else [step.tool for step in flow.steps]


def flow_source(spec: NATSpec) -> str:
    """`commands`, where there is one, and `run` of the reference's workflow."""
    tree = ast.parse(register(spec))
    workflow = next(each for each in tree.body if getattr(each, "name", "") == "workflow")
    kept = [
        each
        for each in workflow.body  # type: ignore[attr-defined]
        if isinstance(each, ast.AsyncFunctionDef)
        or (isinstance(each, ast.Assign) and getattr(each.targets[0], "id", "") == "commands")
    ]
    return "\n".join(map(ast.unparse, kept))


def flow_subject(spec: NATSpec, runs: tuple[CaseRun, ...], rng: random.Random, num_fresh: int) -> Subject:
    """Questions are lists of inputs to one build, since a group remembers."""
    hidden = []
    for run in runs:
        asked = [(each.inputs, each.expected) for each in run.questions if not each.target]
        config = _config(spec, run.overrides)
        parts = [asked] if spec.group else [[each] for each in asked]
        for part in parts:
            given = {"asked": [inputs for inputs, _ in part], "config": config, "swapped": run.swapped}
            hidden.append(Question(given=given, expected=[text for _, text in part]))
    right = Flow(spec)
    hidden = list(distinct(hidden))
    is_sound = all(_ask_code(spec, right, question) == question.expected for question in hidden)
    fresh = [each for each in _fresh(spec, rng, num_fresh) if _ask_code(spec, right, each) == each.expected]

    def neighbours() -> Iterator[Neighbour]:
        for words, flow in flow_neighbours(spec.workflow):
            other = spec.model_copy(update={"workflow": flow})
            yield Neighbour(kind="workflow", words=words, ask=lambda question, o=other: _ask_oracle(o, question))
        for words, module in code_mutants(flow_source(spec)) if is_sound else ():
            mutant = Flow(spec, module)
            yield Neighbour(
                kind="workflow code", words=words, ask=lambda question, m=mutant: _ask_code(spec, m, question)
            )

    return Subject(name="workflow", hidden=hidden, fresh=fresh, neighbours=neighbours())


def _config(spec: NATSpec, overrides: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {name: {**values, **overrides.get(name, {})} for name, values in flow_oracle.defaults(spec).items()}


def _ask_oracle(spec: NATSpec, question: Question) -> Any:
    given = question.given
    try:
        return flow_oracle.conversation(spec, given["asked"], given["config"], given["swapped"])
    except Exception as error:  # the oracle need not make sense of a workflow that makes none
        raise UnanswerableError from error


def _ask_code(spec: NATSpec, flow: Flow, question: Question) -> Any:
    tools = _tools(spec, question.given["config"], question.given["swapped"])
    return [flow.answer(tools, inputs) for inputs in question.given["asked"]]


def _tools(spec: NATSpec, config: dict[str, dict[str, int]], swapped: Mapping[str, str]) -> Tools:
    out: dict[str, Callable[[Inputs], Any]] = {}
    for tool in spec.tools:
        out[tool.instance] = lambda inputs, t=tool: oracle.answer(t, inputs, config[t.instance])  # type: ignore[misc]
    if spec.group:
        scope: dict[str, Any] = {}
        exec(GROUPS[spec.group.family].definitions(spec.group), scope)
        for instance in spec.group.instances:
            state = scope[spec.group.class_name](**config[instance])
            for function in spec.group.visible:
                method = getattr(state, function.name)
                out[f"{instance}__{function.name}"] = lambda inputs, m=method: m(**inputs)  # type: ignore[misc]
    for name, text in swapped.items():
        out[name] = lambda inputs, t=text: t  # type: ignore[misc]
    return out


def _fresh(spec: NATSpec, rng: random.Random, count: int) -> Iterator[Question]:
    config = flow_oracle.defaults(spec)
    for part in _requests(spec, rng, config, count):
        yield Question(
            given={"asked": part, "config": config, "swapped": {}},
            expected=flow_oracle.conversation(spec, part, config),
        )


def _requests(
    spec: NATSpec, rng: random.Random, config: dict[str, dict[str, int]], count: int
) -> Iterator[list[Inputs]]:
    """Single requests, or lists of some for a group."""
    num_made = 0
    while num_made < count:
        if spec.group:
            calls = GROUPS[spec.group.family].sequence(spec.group, rng, spec.group.defaults, _LINES)
            name = rng.choice(spec.group.instances)
            lines: list[Inputs] = [{"request": line_of(spec, f"{name}__{each}", given)} for each, given in calls]
            lines += rng.sample(errors := flow_errors(spec, rng), min(3, len(errors)))
            num_made += _LINES
            yield lines
            continue
        try:
            good = flow_inputs(spec, config, rng, None)
        except TooFewCasesError:
            good = []
        both = [*good, *flow_errors(spec, rng)]
        num_made += len(both) or count
        yield from ([inputs] for inputs in both)


# ---------------------------------------------------------------- neighbours


def flow_neighbours(flow: Any) -> Iterator[tuple[str, Any]]:
    """Workflows one step away."""
    yield from _routers(flow) if isinstance(flow, Router) else _pipelines(flow)


def _routers(flow: Router) -> Iterator[tuple[str, Router]]:
    for field in ("unknown", "malformed"):
        for text in (f"{getattr(flow, field)}.", {"unknown": flow.malformed, "malformed": flow.unknown}[field]):
            yield f"{field} is {text!r}", flow.model_copy(update={field: text})
    yield "another separator", flow.model_copy(update={"separator": f"{flow.separator} "})
    yield "half a separator", flow.model_copy(update={"separator": flow.separator[0]})
    names = list(flow.commands)
    for one in names:
        rest = {name: reference for name, reference in flow.commands.items() if name != one}
        yield f"no keyword {one}", flow.model_copy(update={"commands": rest})
        yield (
            f"keyword {one.upper()} too",
            flow.model_copy(update={"commands": {**flow.commands, one.upper(): flow.commands[one]}}),
        )
        for other in names:
            if flow.commands[one] != flow.commands[other]:
                commands = {**flow.commands, one: flow.commands[other]}
                yield f"keyword {one} like {other}", flow.model_copy(update={"commands": commands})


def _pipelines(flow: Pipeline) -> Iterator[tuple[str, Pipeline]]:
    for joiner in {None, " / ", " + ", ", ", " "} - {flow.joiner}:
        yield f"joiner {joiner!r}", flow.model_copy(update={"joiner": joiner})
    other = {"stop": "go on", "go on": "stop"}[flow.on_error]
    yield f"on error {other}", flow.model_copy(update={"on_error": other})
    for words, steps in list_steps(list(flow.steps), "steps"):
        yield words, flow.model_copy(update={"steps": tuple(steps)})
    for at, step in enumerate(flow.steps):
        sources = [field.name for field in flow.inputs] + [f"step {number + 1}" for number in range(at)]
        changed = [("only if digit", step.model_copy(update={"only_if_digit": not step.only_if_digit}))]
        for name, source in step.arguments.items():
            for each in sources:
                if each != source:
                    arguments = {**step.arguments, name: each}
                    changed.append((f"{name} from {each}", step.model_copy(update={"arguments": arguments})))
        for words, new in changed:
            yield (
                f"step {at + 1}: {words}",
                flow.model_copy(update={"steps": (*flow.steps[:at], new, *flow.steps[at + 1 :])}),
            )
