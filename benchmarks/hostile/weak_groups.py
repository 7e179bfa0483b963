"""The function group of a task as a subject: sequences of calls to one instance, other rules, mutants of the class."""

import random
from collections.abc import Iterator
from typing import Any

from code_mutants import code_mutants
from neighbours import rule_neighbours
from running import namespace_of, outcome
from weakness import Neighbour, Question, Subject, UnanswerableError, distinct

from agent_rl.envs.nat.factory.cases import SEQUENCE_LENGTH, CaseRun, other_setting
from agent_rl.envs.nat.factory.families import GROUPS
from agent_rl.envs.nat.factory.oracle import workflow as flow_oracle
from agent_rl.envs.nat.factory.oracle.function_group import run_calls
from agent_rl.envs.nat.spec import Group, Inputs, NATSpec, Router

Calls = list[tuple[str, Inputs]]


def group_subject(
    spec: NATSpec, group: Group, runs: tuple[CaseRun, ...], rng: random.Random, num_fresh: int
) -> Subject:
    """Questions are sequences of calls to a fresh instance."""
    hidden = list(distinct(_hidden(spec, group, runs)))
    fresh = [_question(group, overrides, calls) for overrides, calls in _fresh(group, rng, num_fresh)]
    source = GROUPS[group.family].definitions(group)
    right = namespace_of(compile(source, "<reference>", "exec"))
    is_sound = all(_ask_class(group, right, question) == question.expected for question in [*hidden, *fresh])

    def neighbours() -> Iterator[Neighbour]:
        for words, rules in rule_neighbours(group.family, group.rules, rng):
            yield Neighbour(kind="rules", words=words, ask=lambda question, r=rules: _ask_rules(group, r, question))
        for words, module in code_mutants(source) if is_sound else ():
            scope = namespace_of(module)
            yield Neighbour(kind="code", words=words, ask=lambda question, s=scope: _ask_class(group, s, question))

    return Subject(name=group.type_name, hidden=hidden, fresh=fresh, neighbours=neighbours())


def _question(group: Group, overrides: dict[str, int], calls: Calls) -> Question:
    answers = run_calls(group.rules, {**group.defaults, **overrides}, calls)
    return Question(given=calls, expected=answers, overrides=overrides)


def _hidden(spec: NATSpec, group: Group, runs: tuple[CaseRun, ...]) -> Iterator[Question]:
    """What each instance is asked in each build, by its functions or through the router."""
    assert isinstance(spec.workflow, Router)
    for run in runs:
        calls: dict[str, Calls] = {name: [] for name in group.instances}
        expected: dict[str, list[str]] = {name: [] for name in group.instances}
        for each in run.questions if not run.swapped else ():
            call: Any = (each.target, each.inputs)
            if not each.target:
                call = flow_oracle.parse_request(spec, spec.workflow, str(each.inputs["request"]))
            if not isinstance(call, str) and each.expected is not None:
                instance, _, function = call[0].partition("__")
                calls[instance].append((function, call[1]))
                expected[instance].append(each.expected)
        for name, own in calls.items():
            if own:
                yield Question(given=own, expected=expected[name], overrides=run.overrides.get(name, {}))


def _fresh(group: Group, rng: random.Random, count: int) -> Iterator[tuple[dict[str, int], Calls]]:
    family, field = GROUPS[group.family], group.config_field
    for number in range(count):
        overrides = other_setting(field, rng) if field and number % 3 == 2 else {}
        config = {**group.defaults, **overrides}
        yield overrides, family.sequence(group, rng, config, SEQUENCE_LENGTH * rng.randint(1, 2))


def _ask_rules(group: Group, rules: dict[str, Any], question: Question) -> Any:
    try:
        return run_calls(rules, {**group.defaults, **question.overrides}, question.given)
    except Exception as error:  # the oracle need not make sense of rules that make none
        raise UnanswerableError from error


def _ask_class(group: Group, scope: dict[str, Any] | None, question: Question) -> Any:
    if scope is None:
        return ["no module"]
    state = outcome(lambda: scope[group.class_name](**question.overrides))
    return [outcome(lambda n=name, i=inputs: getattr(state, n)(**i)) for name, inputs in question.given]
