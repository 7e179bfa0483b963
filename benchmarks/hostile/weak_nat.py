"""What hidden cases of NAT tasks are asked for: each tool, function group and workflow of a task, with its neighbours.

Rules one step away are asked through the oracle; those of API clients are rendered and run, because the oracle invents
another world for other rules. Programs one step away are mutants of the reference: functions, classes, the workflow.
"""

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from code_mutants import code_mutants
from fake_network import FakeNetwork
from neighbours import rule_neighbours
from running import drive, namespace_of, outcome
from weak_flow import Flow, flow_subject
from weak_groups import group_subject
from weakness import Neighbour, Question, Subject, UnanswerableError, distinct

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.cases import CaseRun, hidden_cases, other_setting
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.spec import ConfigField, Inputs, NATSpec, Pipeline, Router, Tool

Answer = Callable[[Inputs, dict[str, int]], Any]
"""From inputs and overrides to a tool's answer."""


def nat_subjects(spec: NATSpec, seed: int, num_fresh: int) -> Iterator[Subject]:
    """Every tool, group and workflow of a task."""
    runs = hidden_cases(spec, seed)
    rng = random.Random(f"fresh-{spec.fingerprint}-{seed}")
    for tool in spec.tools:
        yield _tool_subject(spec, tool, runs, rng, num_fresh)
    if spec.group:
        yield group_subject(spec, spec.group, runs, rng, num_fresh)
    if spec.workflow.kind in ("router", "pipeline"):
        yield flow_subject(spec, runs, rng, num_fresh)


def _tool_subject(spec: NATSpec, tool: Tool, runs: tuple[CaseRun, ...], rng: random.Random, num_fresh: int) -> Subject:
    reference = _compiled_reference(tool)
    asker = _Asker(spec, tool)

    def agrees(question: Question) -> bool:
        return asker.ask(reference, question) == question.expected

    hidden = list(distinct(_hidden_questions(spec, tool, runs)))
    is_sound = all(map(agrees, hidden))
    fresh = [each for each in _fresh_questions(tool, rng, num_fresh) if agrees(each)]

    def neighbours() -> Iterator[Neighbour]:
        for kind, words, answer in [*_rule_answers(tool, rng), *_setting_answers(tool), *_input_answers(tool)]:
            yield Neighbour(kind=kind, words=words, ask=lambda question, a=answer: asker.ask(a, question))
        for words, module in code_mutants(_source(tool)) if is_sound else ():
            answer = _from_module(tool, module)
            yield Neighbour(kind="code", words=words, ask=lambda question, a=answer: asker.ask(a, question))

    return Subject(name=tool.instance, hidden=hidden, fresh=fresh, neighbours=neighbours())


# ---------------------------------------------------------------- questions


def _hidden_questions(spec: NATSpec, tool: Tool, runs: tuple[CaseRun, ...]) -> Iterator[Question]:
    """All that reach the tool itself, as its own inputs; those to a pipeline as they are."""
    flow = spec.workflow
    for run in runs:
        overrides = run.overrides.get(tool.instance, {})
        for each in run.questions if not run.swapped else ():
            if each.target == tool.instance:
                yield Question(given=each.inputs, expected=each.expected, overrides=overrides)
            elif not each.target and isinstance(flow, Router):
                call = flow_oracle.parse_request(spec, flow, str(each.inputs["request"]))
                if not isinstance(call, str) and call[0] == tool.instance:
                    yield Question(given=call[1], expected=each.expected, overrides=overrides)
            elif not each.target and isinstance(flow, Pipeline):
                given = {"workflow": each.inputs, "settings": run.overrides}
                yield Question(given=given, expected=each.expected, overrides=overrides)


def _fresh_questions(tool: Tool, rng: random.Random, num_fresh: int) -> Iterator[Question]:
    """Two thirds good inputs and one third bad ones under the defaults; half as many again under another setting."""
    yield from _sampled(tool, {}, rng, num_fresh)
    if tool.config_field:
        yield from _sampled(tool, _another(tool.config_field, rng), rng, num_fresh // 2)


def _another(field: ConfigField, rng: random.Random) -> dict[str, int]:
    near = {field.default - 1, field.default + 1, field.default // 2, 2 * field.default} - {field.default}
    allowed = sorted(value for value in near if field.low <= value <= field.high)
    return {field.name: rng.choice(allowed)} if allowed else other_setting(field, rng)


def _sampled(tool: Tool, overrides: dict[str, int], rng: random.Random, count: int) -> Iterator[Question]:
    family, config = FAMILIES[tool.family], {**tool.defaults, **overrides}
    num_good, num_tries = 0, 0
    while num_good < count * 2 // 3 and num_tries < 3 * count:
        num_tries += 1
        inputs = family.valid_inputs(tool, rng)
        if oracle.is_robust(tool, inputs, config):
            num_good += 1
            yield Question(given=inputs, expected=oracle.answer(tool, inputs, config), overrides=overrides)
    for _ in range(-(-count // (3 * len(tool.errors)))):
        for inputs in family.error_inputs(tool, rng).values():
            if oracle.is_robust(tool, inputs, config):
                yield Question(given=inputs, expected=oracle.answer(tool, inputs, config), overrides=overrides)


class _Asker:
    """Asks one tool of a task, alone or within the task's pipeline, where the other tools are right."""

    def __init__(self, spec: NATSpec, tool: Tool) -> None:
        self._spec, self._tool = spec, tool
        self._flow = Flow(spec) if isinstance(spec.workflow, Pipeline) else None

    def ask(self, answer: Answer, question: Question) -> Any:
        if "workflow" not in question.given or self._flow is None:
            return answer(question.given, question.overrides)
        tools: dict[str, Callable[[Inputs], Any]] = {
            each.instance: self._right(each, question.given["settings"].get(each.instance, {}))
            for each in self._spec.tools
        }
        tools[self._tool.instance] = lambda inputs: answer(inputs, question.overrides)
        return self._flow.answer(tools, question.given["workflow"])

    def _right(self, tool: Tool, overrides: dict[str, int]) -> Callable[[Inputs], Any]:
        return lambda inputs: oracle.answer(tool, inputs, {**tool.defaults, **overrides})


# ---------------------------------------------------------------- neighbours


def _rule_answers(tool: Tool, rng: random.Random) -> Iterator[tuple[str, str, Answer]]:
    for words, rules in rule_neighbours(tool.family, tool.rules, random.Random(rng.random())):
        other = tool.model_copy(update={"rules": rules})
        if tool.family == "api_client":
            yield "rules", words, _rendered(tool, other)
        else:
            yield "rules", words, _by_oracle(other)
    if tool.family == "date_tool":  # the oracle is strict in any case; it is the code that may be lenient
        flipped = {**tool.rules, "leading_zeros": not tool.rules["leading_zeros"]}
        yield "rules", "leading zeros otherwise", _rendered(tool, tool.model_copy(update={"rules": flipped}))


def _by_oracle(tool: Tool, change: Callable[[dict[str, int]], dict[str, int]] = dict) -> Answer:
    def answer(inputs: Inputs, overrides: dict[str, int]) -> Any:
        try:
            return oracle.answer(tool, inputs, change({**tool.defaults, **overrides}))
        except Exception as error:  # the oracle need not make sense of rules that make none
            raise UnanswerableError from error

    return answer


def _setting_answers(tool: Tool) -> Iterator[tuple[str, str, Answer]]:
    """Another default, a setting that is not read, one that is taken for one more or less."""
    field = tool.config_field
    if field is None or tool.family == "api_client":
        return
    for more in (-1, 1):
        other = tool.model_copy(update={"config_field": field.model_copy(update={"default": field.default + more})})
        yield "setting", f"default of {field.name} {field.default + more}", _by_oracle(other)
        shifted = {field.name: more}
        yield (
            "setting",
            f"{field.name} taken as {more:+} of it",
            _by_oracle(tool, lambda config, s=shifted: {name: value + s[name] for name, value in config.items()}),
        )
    yield "setting", f"{field.name} not read", _by_oracle(tool, lambda config: tool.defaults)


_READINGS: dict[str, dict[str, Callable[[Any], Any]]] = {
    "str": {
        "without blanks at its ends": str.strip,
        "in lower case": str.lower,
        "in capitals": str.upper,
        "with single spaces": lambda text: re.sub(" +", " ", text),
        "up to its first line": lambda text: text.split("\n")[0],
        "without its last character": lambda text: text[:-1],
    },
    "float": {
        "without its sign": abs,
        "cut to a whole number": lambda number: float(int(number)),
        "rounded to one decimal": lambda number: round(number, 1),
        "at least 0": lambda number: max(number, 0.0),
    },
    "int": {
        "without its sign": abs,
        "at least 0": lambda number: max(number, 0),
        "one more": lambda number: number + 1,
    },
}


def _input_answers(tool: Tool) -> Iterator[tuple[str, str, Answer]]:
    """An input that is changed before anything is done with it, an answer that is trimmed."""
    right = _by_oracle(tool)
    if tool.family == "api_client":
        return
    for each in tool.inputs:
        for words, read in _READINGS[each.type].items():

            def answer(inputs: Inputs, overrides: dict[str, int], name: str = each.name, change: Any = read) -> Any:
                return right({**inputs, name: change(inputs[name])}, overrides)

            yield "input", f"{each.name} {words}", answer
    for words, change in (("stripped", str.strip), ("in lower case", str.lower)):
        yield "answer", f"answer {words}", lambda inputs, overrides, c=change: c(right(inputs, overrides))


def _rendered(right: Tool, other: Tool) -> Answer:
    """The reference of other rules, asked in the world of the right ones."""
    try:
        source = _source(other)
    except Exception:  # rules that the renderer refuses
        return _unanswerable
    return _from_module(right, compile(source, "<neighbour>", "exec"))


def _unanswerable(inputs: Inputs, overrides: dict[str, int]) -> Any:
    raise UnanswerableError


def _source(tool: Tool) -> str:
    """The reference's code; of an API client with the coroutine that sends the requests."""
    family = FAMILIES[tool.family]
    source = family.definitions(tool)
    if tool.family != "api_client":
        return source
    lines = family.answer(tool, "setting" if tool.config_field else None).statements
    names = ", ".join([*(each.name for each in tool.inputs), *(["setting"] if tool.config_field else [])])
    return source + f"\n\nasync def run({names}):\n" + "".join(f"    {line}\n" for line in lines)


def _compiled_reference(tool: Tool) -> Answer:
    return _from_module(tool, compile(_source(tool), "<reference>", "exec"))


def _from_module(tool: Tool, module: Any) -> Answer:
    network = FakeNetwork(tool) if tool.family == "api_client" else None
    scope = namespace_of(module, **({"httpx": network} if network else {}))
    if scope is None:
        return lambda inputs, overrides: ("no module",)

    def answer(inputs: Inputs, overrides: dict[str, int]) -> Any:
        if network is None:
            return outcome(lambda: scope[tool.function](**inputs, **overrides))
        network.connect(inputs, {**tool.defaults, **overrides})
        given = list(({**tool.defaults, **overrides}).values())
        return outcome(lambda: drive(scope["run"](*inputs.values(), *given)))

    return answer
