"""Check a project: run hidden cases through the real toolkit and compare the answers with the oracle.

Only files that the spec requires are read. The toolkit's process runs the candidate and returns raw answers; it never
gets the expected ones, and nothing it reports about itself (built, loaded, passed) earns by itself: points come from
answers that agree with the oracle, schemas that agree with the spec, and tests that distinguish right code from wrong.
Does not: run candidate code in this process, or decide weights (`reward.py`).
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.cases import WORKFLOW, CaseRun, HiddenCase, hidden_cases
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.factory.questions import agent_runs, mcp_calls, served_schemas, wanted_schemas, workflow_type
from agent_rl.envs.nat.judge.check_static import Outlines, check_static, read_outlines
from agent_rl.envs.nat.judge.check_tests import check_tests
from agent_rl.envs.nat.judge.evidence import AgentEvidence, McpEvidence
from agent_rl.envs.nat.judge.report import Point, Stage, ValidationReport, point
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import Inputs, NATSpec, Pipeline, React, Router, Value
from agent_rl.sandbox.freeze import Flag, freeze, screen

MIN_USUAL, MAX_USUAL = 2, 12
"""Questions to a build with swapped tools before the first that leads to one of them."""
SERVER = "mcp_server.py"
CONSTANT = "errors alone, or one answer for everything, earn nothing"


def check_project(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], *, seed: int) -> ValidationReport:
    """Check a project against its spec. Infrastructure failures raise SandboxError; all else is in the report.

    What the hidden cases are depends on the spec and `seed`. Three processes work at the same time: the agent, its MCP
    server, and its tests. Equal files are checked once.
    """
    question = [spec.model_dump_json(), dict(files), seed]
    return toolkit.checks.answer(question, lambda: _check(toolkit, spec, files, seed))


def _check(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], seed: int) -> tuple[ValidationReport, bool]:
    """The report, and whether it is worth keeping."""
    required = {path: files[path] for path in spec.files if path in files}
    with ThreadPoolExecutor(max_workers=3) as pool:
        tested = pool.submit(check_tests, toolkit, spec, required)
        read = pool.submit(read_outlines, toolkit, spec, required)
        cases = _cases(spec.model_dump_json(), seed)
        served = pool.submit(_serve, toolkit, spec, required, cases[0])
        outlines = read.result()
        agent = None if outlines.unsafe else _run_agent(toolkit, spec, required, cases, confined=not outlines.reach)
        points = [_all_files(spec, required), *check_static(spec, required, outlines)]
        behaviour = _behaviour(spec, agent, cases)
        answers = [*behaviour, *_workflow(agent, cases, has_tools=any(each.score for each in behaviour))]
        built = [*_build(spec, agent, outlines), *(each for each in answers if each.stage == "workflow")]
        points += [*_believed(built, outlines.reach), *behaviour, *_served(spec, served.result(), cases[0])]
        is_right = all(each.score == 1.0 for each in answers if each.stage == "behaviour")
        judged, is_settled = tested.result()(is_right)
        points += judged
    gates = {}
    if not any(each.score for each in answers):
        gates["config"] = "no hidden case is answered right, and a file that merely loads is worth nothing"
    if not any(each.score for each in points if each.stage == "mcp" and each.name == "answers"):
        gates["mcp"] = "no call to the server is answered right"
    evidence = {"agent": agent, "mcp": served.result()}
    seconds = {name: each.seconds if each else 0.0 for name, each in evidence.items()}
    is_settled &= all(each is None or each.is_settled for each in evidence.values())
    report = ValidationReport(points=tuple(points), gates=gates, flags=flags_of(spec, files), seconds=seconds)
    return report, is_settled


@lru_cache(maxsize=256)
def _cases(spec: str, seed: int) -> tuple[CaseRun, ...]:
    """The hidden cases of a spec's JSON; all episodes of a group get the same ones."""
    return hidden_cases(NATSpec.model_validate_json(spec), seed)


def flags_of(spec: NATSpec, files: Mapping[str, str]) -> tuple[Flag, ...]:
    """Files that the spec does not list, and suspicious patterns in those it does."""
    found = set(freeze({path: text for path, text in files.items() if path not in spec.files}, keep=())[1])
    own = {path: text for path, text in files.items() if path in spec.files and path.endswith(".py")}
    tests = [text for path, text in own.items() if path.startswith("tests/")]
    found |= set(screen(*tests)) - {Flag.SOURCE_PATCHES_TESTS}  # they import pytest, as the task requires
    found |= set(screen(*(text for path, text in own.items() if not path.startswith("tests/"))))
    return tuple(flag for flag in Flag if flag in found)


def _all_files(spec: NATSpec, required: Mapping[str, str]) -> Point:
    missing = [path for path in spec.files if path not in required]
    evidence = f"missing {', '.join(missing)}" if missing else "all there"
    return point("files", "all files", 1 - len(missing) / len(spec.files), evidence)


# ---------------------------------------------------------------- the agent


def _run_agent(
    toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], cases: tuple[CaseRun, ...], *, confined: bool
) -> AgentEvidence | None:
    if any(path not in files for path in (spec.logic_path, spec.register_path, spec.config_path)):
        return None
    usual = [_usual_questions(spec, run, cases) for run in cases]
    asked = [
        replace(run, questions=(*first, *run.questions), exchanges={**cases[0].exchanges, **run.exchanges})
        if first
        else run
        for first, run in zip(usual, cases, strict=True)
    ]
    runs = agent_runs(spec, tuple(asked))
    for sent, first, run in zip(runs, usual, cases, strict=True):
        if run.swapped:
            sent["leads"] = [*([] for _ in first), *(leads_of(spec, run, each) for each in run.questions)]
    starts_server = any("mcp_server" in text for text in _sources(files).values())
    found = toolkit.run_agent(
        _sources(files, with_server=starts_server),
        package=spec.package,
        schemas=list(wanted_schemas(spec)),
        runs=runs,
        react=isinstance(spec.workflow, React),
        confined=confined,
    )
    kept = zip(found.runs, usual, strict=False)
    return replace(found, runs=tuple(replace(run, answers=run.answers[len(first) :]) for run, first in kept))


def _usual_questions(spec: NATSpec, run: CaseRun, cases: tuple[CaseRun, ...]) -> list[HiddenCase]:
    """Questions to put before those whose tools are swapped: a workflow that trusts its tools no longer once they have
    answered rightly a few times would show nothing else."""
    if not run.swapped or isinstance(spec.workflow, React):
        return []
    plain = [each for each in cases if not (each.swapped or each.overrides or each.through_client)]
    asks = [ask for each in plain for ask in each.questions if ask.target == WORKFLOW and is_valid(ask.expected)]
    rng = random.Random(repr((run.about, run.swapped, run.questions)))
    return rng.sample(asks, rng.randint(min(MIN_USUAL, len(asks)), min(MAX_USUAL, len(asks))))


def leads_of(spec: NATSpec, run: CaseRun, question: HiddenCase) -> list[tuple[str, Inputs]]:
    """The calls of tools that a right agent makes to answer a question in this run, as far as no group's state
    decides."""
    flow = spec.workflow
    if question.target or question.via:
        return [(question.target or question.via, question.inputs)]
    if isinstance(flow, Router):
        call = flow_oracle.parse_request(spec, flow, str(question.inputs["request"]))
        return [] if isinstance(call, str) else [call]
    if isinstance(flow, Pipeline):
        return _piped(spec, flow, run, question.inputs)
    return [(spec.tools[0].instance, question.inputs)]


def _piped(spec: NATSpec, flow: Pipeline, run: CaseRun, inputs: Inputs) -> list[tuple[str, Inputs]]:
    known, calls = dict(inputs), []
    for number, step in enumerate(flow.steps, start=1):
        tool = spec.tool(step.tool)
        given = {field.name: _read_as(field.type, known[step.arguments[field.name]]) for field in tool.inputs}
        text = str(known[next(iter(step.arguments.values()))])
        if not step.only_if_digit or any(char.isdigit() for char in text):
            calls.append((step.tool, given))
            config = {**tool.defaults, **run.overrides.get(step.tool, {})}
            text = run.swapped.get(step.tool) or oracle.answer(tool, given, config)
        if flow.on_error == "stop" and text.startswith("error"):
            break
        known[f"step {number}"] = text
    return calls


def _read_as(kind: str, value: Value) -> Value:
    """A number where a step's answer is given to a field that takes one."""
    if kind == "str" or not isinstance(value, str):
        return value
    return int(value) if kind == "int" else float(value)


def _build(spec: NATSpec, agent: AgentEvidence | None, outlines: Outlines) -> list[Point]:
    """Loads and builds, with the requested names, arguments and settings."""
    if agent is None:
        why = outlines.unsafe or "logic.py, register.py or config.yml is missing"
        return [point("build", name, 0, why) for name in ("loads and builds", "workflow", "functions")]
    built = {"import": 0.0, "load": 0.0, "build": 0.5}.get(agent.stage, 1.0)
    evidence = f"at {agent.stage}: {agent.error}" if agent.error else "built and ran"
    points = [point("build", "loads and builds", built if built < 1.0 or not agent.error else 0.5, evidence)]
    wanted = workflow_type(spec)
    points.append(point("build", "workflow", agent.workflow_type == wanted, f"{agent.workflow_type!r} for {wanted!r}"))
    schemas = wanted_schemas(spec)
    wrong = [name for name, schema in schemas.items() if agent.schemas.get(name) != schema]
    evidence = f"{wrong[0]!r} takes {agent.schemas.get(wrong[0])}, not {schemas[wrong[0]]}" if wrong else "as specified"
    points.append(point("build", "functions", 1 - len(wrong) / len(schemas), evidence))
    if any(each.config_field for each in (*spec.tools, *([spec.group] if spec.group else []))):
        live = bool(agent.runs) and all(run.applied for run in agent.runs)
        points.append(point("build", "settings", live, "the fields exist" if live else "a config field is missing"))
    return points


def _believed(points: list[Point], reach: str | None) -> list[Point]:
    """Toolkit and project are one process: code that gets at the toolkit could have said anything about its build."""
    if reach is None:
        return points
    return [point(each.stage, each.name, 0, f"{each.evidence[:150]}; not believed: {reach}") for each in points]


Answered = list[tuple[HiddenCase, Any]]
"""Questions with what came back; `None` where nothing did."""


def _answered(agent: AgentEvidence | None, cases: tuple[CaseRun, ...]) -> list[tuple[CaseRun, Answered]]:
    out = []
    for index, run in enumerate(cases):
        given = agent.runs[index].answers if agent and index < len(agent.runs) else ()
        out.append(
            (run, [(question, given[i] if i < len(given) else None) for i, question in enumerate(run.questions)])
        )
    return out


def is_right(question: HiddenCase, given: Any) -> bool:
    """Whether an answer is exactly the text that was expected, or nothing was where nothing should be."""
    if question.expected is None:
        return isinstance(given, dict) and "missing" in given
    return type(given) is str and given == question.expected


def _behaviour(spec: NATSpec, agent: AgentEvidence | None, cases: tuple[CaseRun, ...]) -> list[Point]:
    """Hidden cases answered by each function itself."""
    answered = [pair for _, pairs in _answered(agent, cases) for pair in pairs if pair[0].target != WORKFLOW]
    points = []
    for name in spec.group.instances if spec.group else [tool.instance for tool in spec.tools]:
        own = [pair for pair in answered if pair[0].target == name or pair[0].target.startswith(f"{name}__")]
        points += _divided("behaviour", own, f"{name}, valid inputs", f"{name}, bad inputs")
    return points


def _workflow(agent: AgentEvidence | None, cases: tuple[CaseRun, ...], *, has_tools: bool) -> list[Point]:
    """Hidden cases through the workflow, by what each build is about. Its own errors and mocks are easily right, so
    they need a tool that works, or several right answers to valid requests."""
    points: list[Point] = []
    for run, pairs in _answered(agent, cases):
        own = [pair for pair in pairs if pair[0].target == WORKFLOW]
        if own and not points:
            points += _divided("workflow", own, "valid requests", "bad requests")
            right = {
                question.expected
                for question, given in own
                if is_valid(question.expected) and is_right(question, given)
            }
            has_tools |= len(right) > 1
        elif own:
            points.append(_judged("workflow", run.about, own))
    if not has_tools or not any(each.score for each in points[:1]):
        return [each.model_copy(update={"score": 0.0}) for each in points]
    return points


def _divided(stage: Stage, pairs: Answered, valid_name: str, bad_name: str) -> list[Point]:
    """One point for valid inputs, one for the rest: errors, and functions that must not be there."""
    parts: dict[str, Answered] = {valid_name: [], bad_name: []}
    for pair in pairs:
        parts[valid_name if is_valid(pair[0].expected) else bad_name].append(pair)
    points = [_judged(stage, name, part) for name, part in parts.items() if part]
    if follows_rules((question.expected, is_right(question, given)) for question, given in pairs):
        return points
    return [
        point(stage, each.name, 0, f"{CONSTANT}: {each.evidence}" if each.score else each.evidence) for each in points
    ]


def follows_rules(judged: Iterable[tuple[str | None, bool]]) -> bool:
    """Whether the right ones among expected answers hold a valid one and more than one text: the same answer to
    everything is now and then right."""
    right = {expected for expected, good in judged if good and expected is not None}
    return len(right) > 1 and any(map(is_valid, right))


def is_valid(expected: str | None) -> bool:
    """Whether an answer is one that only the rules give, and neither an error nor nothing."""
    return expected is not None and not expected.startswith("error")


def _judged(stage: Stage, name: str, pairs: Answered) -> Point:
    wrong = [pair for pair in pairs if not is_right(*pair)]
    if not wrong:
        return point(stage, name, 1, f"{len(pairs)} of {len(pairs)} right")
    question, given = wrong[0]
    right = f"{len(pairs) - len(wrong)} of {len(pairs)} right"
    evidence = f"{right}; {question.inputs} gave {show(given)}, expected {question.expected!r}"
    return point(stage, name, 1 - len(wrong) / len(pairs), evidence)


def show(value: Any) -> str:
    """An answer in few characters. A forged one may be nested too deep for `repr`, so only known shapes are shown."""
    if value is None:
        return "nothing"
    if isinstance(value, dict) and isinstance(value.get("exception"), str):
        return value["exception"][:200]
    return repr(value[:200]) if isinstance(value, str) else f"a {type(value).__name__}"


# ---------------------------------------------------------------- the MCP server


def _serve(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], run: CaseRun) -> McpEvidence | None:
    if SERVER not in files or spec.logic_path not in files:
        return None
    return serve(toolkit, files, run, [(tool, inputs) for tool, inputs, _ in mcp_calls(spec, run)])


def serve(
    toolkit: NatToolkit, files: Mapping[str, str], run: CaseRun, calls: Sequence[tuple[str, Mapping[str, Any]]]
) -> McpEvidence:
    """Start the project's MCP server and make these calls, with the network answers of `run`."""
    exchanges = {request: asdict(each) for request, each in run.exchanges.items()}
    return toolkit.run_mcp(_sources(files, with_server=True), server_path=SERVER, calls=calls, exchanges=exchanges)


def _sources(files: Mapping[str, str], *, with_server: bool = False) -> dict[str, str]:
    """What an agent runs with: projects that differ in their tests or their packaging alone are one to it."""
    return {path: text for path, text in files.items() if path.startswith("src/") or (with_server and path == SERVER)}


def _served(spec: NATSpec, server: McpEvidence | None, run: CaseRun) -> list[Point]:
    """Handshake, tools with their schemas, right answers, errors as requested, nothing but the protocol on stdout."""
    names = ("handshake", "server name", "tools and schemas", "answers")
    if server is None or server.error:
        why = f"at {server.stage}: {server.error}" if server else "mcp_server.py or logic.py is missing"
        return [point("mcp", name, 0, why) for name in names]
    wanted = served_schemas(spec)
    judged: dict[str, list[tuple[str, bool]]] = {}
    evidence = ""
    calls = mcp_calls(spec, run)
    for index, (tool, inputs, expected) in enumerate(calls):
        text = server.answers[index] if index < len(server.answers) else None
        is_error = index < len(server.is_error) and server.is_error[index]
        if spec.server.raises and not is_valid(expected):
            good = is_error and text is not None and text.endswith(expected)
        else:
            good = text == expected and not is_error
        judged.setdefault("" if spec.group else tool, []).append((expected, good))
        if not good and not evidence:
            evidence = f"; {tool} {inputs} gave {show(text)}{' as an error' * is_error}, expected {expected!r}"
    right = sum(good for each in judged.values() if follows_rules(each) for _, good in each)
    if any(good for each in judged.values() if not follows_rules(each) for _, good in each):
        evidence = f"; {CONSTANT}{evidence}"
    name = server.server_name
    offered = "as specified" if server.tools == wanted else f"offers {server.tools}"
    points = [
        point("mcp", names[0], 1, "initialize, tools/list and tools/call were answered"),
        point("mcp", names[1], name == spec.server.name, f"{name!r} for {spec.server.name!r}"),
        point("mcp", names[2], server.tools == wanted, offered),
        point("mcp", names[3], right / len(calls), f"{right} of {len(calls)} calls right{evidence}"),
    ]
    refused = bool(server.unknown_tool_refused)
    points.append(point("mcp", "unknown tool", refused, "refused" if refused else "was not refused"))
    return points
