"""Function groups: two to five functions over one state, a counter, a ledger, a stock, a queue and so on.

The kinds of state are in the files beside this one; this module samples, names and composes them. Does not: decide the
right answers.
"""

import random
import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, RootModel

from agent_rl.envs.nat.factory.families.group.amounts import Counter, Ledger
from agent_rl.envs.nat.factory.families.group.base import GroupDraft, GroupFamily, Sequence
from agent_rl.envs.nat.factory.families.group.records import Cache, Poll
from agent_rl.envs.nat.factory.families.group.slots import Slots
from agent_rl.envs.nat.factory.families.group.state import FORMS, Edit, State
from agent_rl.envs.nat.factory.families.group.stores import Line, Stock
from agent_rl.envs.nat.spec import ConfigField, Group

# Queue and stack are one class, which is sampled as often as two.
_KINDS: tuple[type[State], ...] = (Counter, Ledger, Stock, Line, Line, Cache, Poll, Slots)
_EXTRAS = ("hidden", "undo", "two instances")
_NUMBER = re.compile(r'^return (str\(|f")', re.MULTILINE)
"""A function's answer in the form of the rules."""
_EXAMPLE_LENGTH = 20
"""Of a random sequence before calls that it does not need are taken out."""
_NUM_EXAMPLE_SAMPLES, _NUM_EAGER_SAMPLES = 1000, 25
_LEAST_CALLS, _MOST_CALLS = 4, 6


class GroupRules(
    RootModel[Annotated[Counter | Ledger | Stock | Line | Cache | Poll | Slots, Field(discriminator="kind")]]
):
    """Rules of any kind of state, told apart by `kind`."""


class FunctionGroup(GroupFamily):
    name = "function_group"
    Rules = GroupRules

    def draft(self, rng: random.Random, level: int) -> GroupDraft:
        kind = rng.choice(_KINDS)
        extra = rng.choice(_EXTRAS) if level == 5 else ""
        optional = [key for key, shape in kind.OPERATIONS.items() if not shape.required]
        operations = [key for key, shape in kind.OPERATIONS.items() if shape.required]
        num_most = min(len(optional), 4 - len(operations))
        operations += rng.sample(optional, rng.randint(0 if len(operations) > 1 else 1, num_most))
        operations += {"hidden": ["reset"], "undo": ["undo"]}.get(extra, [])
        state = _named(kind, operations, rng, rng.choice(["last", "every"]) if extra == "undo" else None)
        field = None
        choices = [key for key, description in kind.PARAMETERS.items() if description]
        if rng.random() < 0.5:
            field = rng.choice(choices)
            low, high = state.bounds(field)
            field = ConfigField(
                name=field, default=getattr(state, field), low=low, high=high, description=kind.PARAMETERS[field]
            )
        return GroupDraft(
            class_name=rng.choice(kind.CLASS_NAMES),
            functions=tuple(state.function(operation) for operation in state.names),
            hidden=(state.names["reset"],) if extra == "hidden" else (),
            num_instances=2 if extra == "two instances" else 1,
            rules=state.model_dump(),
            errors=tuple(state.errors.values()),
            config_field=field,
        )

    def sentences(self, group: Group, rng: random.Random) -> list[str]:
        state = _state(group)
        out = state.sentences(rng)
        out.append("A call that is answered with an error changes nothing.")
        if "reset" in state.names:
            out.append("`$reset` puts everything back to the start and answers `$cleared`.")
        if state.undo:
            out += state.undo_sentences()
        return [state.fill(sentence, group.config_field.name if group.config_field else None) for sentence in out]

    def definitions(self, group: Group) -> str:
        return _state(group).render(group)

    def sequence(self, group: Group, rng: random.Random, config: dict[str, int], length: int) -> Sequence:
        state = _state(group)
        # Now and then a call on an empty state comes first, or nothing leads to the bounds.
        calls = _random_calls(state, rng, config, int(rng.random() < 0.15))
        calls += state.opening(rng, config) if rng.random() < 0.95 else []
        if state.undo:
            # Twice in a row shows whether one change or many can be taken back.
            place = rng.randint(0, len(calls)) if rng.random() < 0.3 else max(0, min(len(calls), length - 3))
            calls[place:place] = [("undo", {}), ("undo", {})]
        calls += _random_calls(state, rng, config, max(0, length - len(calls)))
        return _called(state, calls[:length])

    def example(self, group: Group, rng: random.Random) -> Sequence:
        # The sources are this family's own, made from rules it has just sampled; rules of a data set never come here.
        right, wrong = _load(self.definitions(group), group), [_load(text, group) for text in self.mutants(group)]
        state = _state(group)

        def tells(calls: Sequence) -> bool:
            expected = _answers(right, calls)
            return group.errors[0] in expected and all(_answers(each, calls) != expected for each in wrong)

        best: Sequence | None = None
        for num_sampled in range(_NUM_EXAMPLE_SAMPLES):
            calls = _called(state, _random_calls(state, rng, group.defaults, _EXAMPLE_LENGTH))
            if tells(calls):
                best = min(best or calls, _shrunk(calls, tells), key=len)
            # Four calls are easily read; when they do not come up soon, six will do.
            if best and len(best) <= (_LEAST_CALLS if num_sampled < _NUM_EAGER_SAMPLES else _MOST_CALLS):
                return best
        raise AssertionError(f"no {_MOST_CALLS} calls tell the mutants of {group.rules} from the right class")

    def mutants(self, group: Group) -> list[str]:
        state = _state(group)
        code = state.code()
        first = next(condition for condition, text in state.errors.items() if text == group.errors[0])
        check = re.compile(rf'^if [^\n]+:\n    return "\${first}"\n', re.MULTILINE)
        attribute, _, start, _ = state.ATTRIBUTE
        changed = [
            {operation: check.sub("", text) for operation, text in code.items()},
            dict.fromkeys(code, f'return "${first}"'),
            {operation: f"{attribute} = {start}\n{text}" for operation, text in code.items()},
            {operation: _NUMBER.sub(r'return "x" + \1', text) for operation, text in code.items()},
        ]
        changed += [_edited(code, edit) for edit in state.faults()]
        if state.undo:
            changed.append(_edited(code, ("undo", f"{attribute} = self._past.pop()", "self._past.pop()")))
        return [state.render(group, each) for each in changed]

    def subtle_mutants(self, group: Group) -> list[str]:
        state = _state(group)
        return [state.render(group, _edited(state.code(), edit)) for edit in state.subtle_faults()]

    def canonical(self, rules: dict[str, Any]) -> Any:
        """The rules without the names of functions and arguments: equal for groups that differ in those alone."""
        return rules | {"names": sorted(rules["names"]), "inputs": sorted(rules["inputs"])}

    def is_held_out(self, rules: dict[str, Any]) -> bool:
        return GroupRules.model_validate(rules).root.is_held_out()


def _state(group: Group) -> State:
    return GroupRules.model_validate(group.rules).root


def _named(kind: type[State], operations: list[str], rng: random.Random, undo: str | None) -> State:
    """A state with sampled rules, and sampled names and texts for all that its code needs."""
    names: dict[str, str] = {}
    for operation in operations:
        known = kind.vocabulary()[operation].synonyms
        names[operation] = rng.choice([name for name in known if name not in names.values()])
    rules = kind.sample(rng, operations) | {"names": names, "undo": undo, "form": rng.choice(FORMS)}
    # Which texts are needed is known only from the code.
    needed = kind.model_construct(**rules).placeholders()
    inputs: dict[str, str] = {}
    for role, (_, synonyms) in kind.ROLES.items():
        if role in needed:
            inputs[role] = rng.choice([name for name in synonyms if name not in inputs.values()])
    errors, words = ({key: rng.choice(texts) for key, texts in part.items() if key in needed} for part in kind.texts())
    return kind.model_validate(rules | {"inputs": inputs, "errors": errors, "words": words})


def _edited(code: dict[str, str], edit: Edit) -> dict[str, str]:
    operation, old, new = edit
    if old not in code[operation]:
        raise AssertionError(f"{old!r} is not in the code of {operation!r}: {code[operation]}")
    return code | {operation: code[operation].replace(old, new)}


def _random_calls(state: State, rng: random.Random, config: dict[str, int], count: int) -> Sequence:
    """Calls by operation and role; those that change the state come more often."""
    operations = [key for key in state.names if key != "reset"]
    weights = [3 if state.vocabulary()[key].required else 2 for key in operations]
    chosen = rng.choices(operations, weights, k=count)
    return [(operation, {} if operation == "undo" else state.call(rng, operation, config)) for operation in chosen]


def _called(state: State, calls: Sequence) -> Sequence:
    """Calls by operation and role -> by the names of functions and arguments."""
    return [
        (state.names[operation], {state.inputs[role]: value for role, value in inputs.items()})
        for operation, inputs in calls
    ]


def _shrunk(calls: Sequence, tells: Callable[[Sequence], bool]) -> Sequence:
    """The calls without those that can be left out, while enough are left."""
    for place in reversed(range(len(calls))):
        fewer = calls[:place] + calls[place + 1 :]
        if len(fewer) >= _LEAST_CALLS and tells(fewer):
            calls = fewer
    return calls


def _load(source: str, group: Group) -> type:
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    return namespace[group.class_name]


def _answers(cls: type, calls: Sequence) -> list[str]:
    """Answers of a fresh object, up to the first exception, which is noted by its name."""
    state, out = cls(), []
    for name, inputs in calls:
        try:
            out.append(getattr(state, name)(**inputs))
        except (LookupError, ValueError, TypeError) as error:
            return [*out, type(error).__name__]
    return out
