"""Function groups: the oracle against values worked out by hand, and against every sampled reference class."""

import json
import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from agent_rl.envs.nat.factory.families.group.function_group import FunctionGroup
from agent_rl.envs.nat.factory.oracle.function_group import run_calls
from agent_rl.envs.nat.spec import Group, GroupCall

FAMILY = FunctionGroup()
NUM_DRAFTS = 160
LENGTH = 10


def record(level: int, seed: int) -> Group:
    rng = random.Random(seed)
    draft = FAMILY.draft(rng, level)
    group = Group(
        family="function_group",
        type_name="nat_x_group",
        instances=("desk", "vault")[: draft.num_instances],
        class_name=draft.class_name,
        functions=draft.functions,
        hidden=draft.hidden,
        rules=draft.rules,
        config_field=draft.config_field,
        errors=draft.errors,
        example=(),
    )
    calls = FAMILY.example(group, rng)
    answers = run_calls(group.rules, group.defaults, calls)
    example = [
        GroupCall(function=call[0], inputs=call[1], output=text) for call, text in zip(calls, answers, strict=True)
    ]
    return group.model_copy(update={"example": tuple(example)})


@cache
def groups_of(level: int) -> list[Group]:
    return [record(level, seed) for seed in range(NUM_DRAFTS)]


def configs(group: Group) -> list[dict[str, int]]:
    """The default, and both ends of the configuration field."""
    field = group.config_field
    return [group.defaults, *([{field.name: field.low}, {field.name: field.high}] if field else [])]


def run_class(source: str, group: Group, config: dict[str, int], calls: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """Answers of the class in `source`; a call that raises ends them with the exception's name."""
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    state, out = namespace[group.class_name](**config), []
    for name, inputs in calls:
        try:
            out.append(getattr(state, name)(**inputs))
        except (LookupError, ValueError) as error:
            return [*out, type(error).__name__]
    return out


def rules(kind: str, names: dict[str, str], **rest: Any) -> dict[str, Any]:
    """Rules in which arguments are called like their roles."""
    roles = (
        "value",
        "account",
        "amount",
        "source",
        "receiver",
        "item",
        "quantity",
        "key",
        "content",
        "voter",
        "option",
    )
    out = {"kind": kind, "names": names, "inputs": {role: role for role in (*roles, "slot", "person")}}
    return out | {"form": "{name}: {value}", "undo": None, "words": {}} | rest


# ---------------------------------------------------------------- the oracle, by eye


@pytest.mark.parametrize(
    ("at_bound", "expected"),
    [
        ("refuse", ["n 3", "n 5", "too high", "n 5"]),
        ("clamp", ["n 3", "n 5", "n 5", "n 3"]),
        ("wrap", ["n 3", "n 5", "n 1", "n 5"]),
    ],
)
def test_a_counter_refuses_clamps_or_wraps_at_its_bounds(at_bound: str, expected: list[str]) -> None:
    table = rules(
        "counter", {"up": "up", "down": "down", "jump": "jump"}, start=1, step=2, low=0, high=5, at_bound=at_bound,
        form="{name} {value}", words={"label": "n"}, errors={"above": "too high", "below": "too low"},
    )  # fmt: skip
    last = ("jump", {"value": 5}) if at_bound != "clamp" else ("down", {})
    assert run_calls(table, {}, [("up", {}), ("up", {}), ("up", {}), last]) == expected


def test_a_ledger_takes_a_fee_and_stops_at_the_overdraft() -> None:
    names = {"deposit": "pay_in", "withdraw": "pay_out", "transfer": "send", "total": "total", "balance": "balance"}
    errors = {"bad_amount": "bad", "unknown": "unknown", "short": "short"}
    table = rules("ledger", names, overdraft=5, fee=1, fold=True, unknown_balance="zero", errors=errors)
    table["words"] = {"total_label": "all"}
    calls = [
        ("pay_out", {"account": "ann", "amount": 1}),
        ("pay_in", {"account": "Ann", "amount": 10}),
        ("pay_out", {"account": "ann", "amount": 15}),
        ("pay_out", {"account": "ann", "amount": 14}),
        ("pay_in", {"account": "ben", "amount": 3}),
        ("send", {"source": "ben", "receiver": "ann", "amount": 8}),
        ("send", {"source": "ben", "receiver": "cleo", "amount": 1}),
        ("total", {}),
        ("balance", {"account": "cleo"}),
        ("pay_in", {"account": "ann", "amount": 0}),
    ]
    first = ["unknown", "ann: 10", "short", "ann: -5", "ben: 3", "ann: 3", "unknown", "all: -2", "cleo: 0", "bad"]
    assert run_calls(table, {}, calls) == first
    assert run_calls(table, {"overdraft": 6}, calls)[2:4] == ["ann: -6", "short"]


def test_a_stock_fills_up_to_its_capacity_and_forgets_what_is_used_up() -> None:
    errors = {"bad_amount": "bad", "unknown": "unknown", "full": "full"}
    names = {"add": "add", "take": "take", "report": "report", "space": "space"}
    table = rules("stock", names, capacity=5, excess="fill", lack="all", fold=False, errors=errors)
    table["words"] = {"space_label": "room", "empty": "nothing"}
    calls = [
        ("report", {}),
        ("add", {"item": "pen", "quantity": 3}),
        ("add", {"item": "cup", "quantity": 4}),
        ("add", {"item": "cup", "quantity": 1}),
        ("report", {}),
        ("take", {"item": "pen", "quantity": 9}),
        ("take", {"item": "pen", "quantity": 1}),
        ("space", {}),
    ]
    assert run_calls(table, {}, calls) == [
        "nothing",
        "pen: 3",
        "cup: 2",
        "full",
        "2 cup, 3 pen",
        "pen: 0",
        "unknown",
        "room: 3",
    ]
    refusing = table | {"excess": "refuse", "lack": "refuse", "errors": errors | {"short": "short"}}
    assert run_calls(refusing, {}, calls)[2:6] == ["full", "cup: 1", "1 cup, 3 pen", "short"]


@pytest.mark.parametrize(("kind", "out"), [("queue", "b"), ("stack", "c")])
def test_a_full_line_drops_its_oldest_item(kind: str, out: str) -> None:
    names = {"push": "push", "pop": "pop", "peek": "peek", "place": "place"}
    table = rules(
        kind, names, capacity=2, overflow="drop", unique=True, errors={"twice": "twice", "unknown": "unknown"}
    )
    table["words"] = {"size_label": "size", "place_label": "place"}
    calls = [
        *(("push", {"item": item}) for item in "abbc"),
        ("place", {"item": "c"}),
        ("place", {"item": "a"}),
        ("pop", {}),
    ]
    place = "place: 2" if kind == "queue" else "place: 1"
    assert run_calls(table, {}, calls) == ["size: 1", "size: 2", "twice", "size: 2", place, "unknown", out]
    refusing = table | {"overflow": "refuse", "errors": {"twice": "twice", "unknown": "unknown", "full": "full"}}
    assert run_calls(refusing, {}, calls)[3] == "full"
    assert run_calls(refusing, {"capacity": 3}, calls)[3] == "size: 3"


@pytest.mark.parametrize(("oldest", "keys"), [("used", "a, c"), ("written", "b, c"), ("inserted", "b, c")])
def test_what_is_thrown_out_of_a_cache_depends_on_what_makes_an_entry_old(oldest: str, keys: str) -> None:
    table = rules("cache", {"put": "put", "get": "get", "keys": "keys"}, capacity=2, oldest=oldest)
    table |= {"words": {"done": "ok", "thrown": "lost", "empty": "-"}, "errors": {"missing": "missing"}}
    puts = [("put", {"key": key, "content": 7}) for key in "ab"]
    calls = [*puts, ("get", {"key": "a"}), ("put", {"key": "c", "content": 8}), ("keys", {})]
    lost = "b" if oldest == "used" else "a"
    assert run_calls(table, {}, calls) == ["ok", "ok", "a: 7", f"ok, lost {lost}", keys]
    again = [*puts, ("put", {"key": "a", "content": 9}), ("put", {"key": "c", "content": 8}), ("get", {"key": "a"})]
    assert run_calls(table, {}, again)[3:] == (
        ["ok, lost a", "missing"] if oldest == "inserted" else ["ok, lost b", "a: 9"]
    )


@pytest.mark.parametrize(
    ("tie", "expected"),
    [("first", "tea: 1"), ("alphabet", "juice: 1"), ("last", "tea: 1"), ("report", "tie: juice, tea")],
)
def test_a_tie_in_a_poll_is_decided_by_the_rules(tie: str, expected: str) -> None:
    names = {"vote": "vote", "winner": "winner", "retract": "retract"}
    table = rules("poll", names, quorum=2, options=[], again="replace", tie=tie, words={"tied": "tie"})
    table["errors"] = {"too_few": "too few", "no_vote": "no vote"}
    votes = [("vote", {"voter": voter, "option": option}) for voter, option in (("ann", "tea"), ("ben", "juice"))]
    assert run_calls(table, {}, [votes[0], ("winner", {}), votes[1], ("winner", {})])[1::2] == ["too few", expected]
    # A vote given again is the latest.
    assert run_calls(table | {"tie": "first"}, {}, [*votes, votes[0], ("winner", {})])[2:] == ["tea: 1", "juice: 1"]
    gone = ("retract", {"voter": "ann"})
    assert run_calls(table, {}, [*votes, gone, gone, ("winner", {})])[2:] == ["tea: 0", "no vote", "too few"]


def test_slots_are_checked_for_number_holder_and_limit_in_that_order() -> None:
    names = {"reserve": "book", "cancel": "cancel", "free": "free", "holder": "who", "any": "any"}
    errors = {key: key for key in ("no_slot", "taken", "too_many", "not_taken", "not_yours", "full")}
    table = rules(
        "slots", names, slots=3, limit=1, pick="highest", free_form="list", errors=errors, words={"none": "-"}
    )
    calls = [
        ("book", {"slot": 4, "person": "ann"}),
        ("book", {"slot": 1, "person": "ann"}),
        ("book", {"slot": 1, "person": "ann"}),
        ("book", {"slot": 2, "person": "ann"}),
        ("any", {"person": "ben"}),
        ("free", {}),
        ("cancel", {"slot": 1, "person": "ben"}),
        ("cancel", {"slot": 2, "person": "ben"}),
        ("cancel", {"slot": 1, "person": "ann"}),
        ("who", {"slot": 3}),
    ]
    expected = ["no_slot", "ann: 1", "taken", "too_many", "ben: 3", "2", "not_yours", "not_taken", "ann: 1", "ben"]
    assert run_calls(table, {}, calls) == expected


@pytest.mark.parametrize(("undo", "second"), [("every", ["done", "size: 1"]), ("last", ["nothing", "size: 2"])])
def test_undo_takes_back_one_change_or_all_and_reset_forgets_them(undo: str, second: list[str]) -> None:
    names = {"push": "push", "pop": "pop", "undo": "undo", "reset": "reset"}
    table = rules("queue", names, capacity=3, overflow="refuse", unique=False, undo=undo)
    table |= {"words": {"size_label": "size", "undone": "done", "cleared": "new"}, "errors": {"nothing": "nothing"}}
    push = ("push", {"item": "a"})
    answers = run_calls(table, {}, [push, push, ("undo", {}), ("undo", {}), push, ("reset", {}), ("undo", {}), push])
    assert answers == ["size: 1", "size: 2", "done", *second, "new", "nothing", "size: 1"]


# ---------------------------------------------------------------- sampled groups


@pytest.mark.parametrize("level", [4, 5])
def test_the_oracle_agrees_with_every_sampled_class(level: int) -> None:
    for group in groups_of(level):
        source = FAMILY.definitions(group)
        rng = random.Random(group.class_name)
        for config in configs(group):
            for _ in range(3):
                calls = FAMILY.sequence(group, rng, config, LENGTH)
                assert len(calls) == LENGTH
                assert run_class(source, group, config, calls) == run_calls(group.rules, config, calls), (
                    group.rules,
                    config,
                    calls,
                )


@pytest.mark.parametrize("level", [4, 5])
def test_the_example_shows_the_first_error_and_catches_every_mutant(level: int) -> None:
    for group in groups_of(level):
        calls = [(call.function, call.inputs) for call in group.example]
        answers = [call.output for call in group.example]
        mutants = FAMILY.mutants(group)
        assert 3 <= len(calls) <= 6
        assert group.errors[0] in answers
        assert len(set(mutants)) == len(mutants) >= 4
        for mutant in mutants:
            assert run_class(mutant, group, group.defaults, calls) != answers, mutant


def test_three_sequences_catch_the_subtle_mutants() -> None:
    num_caught: Counter[bool] = Counter()
    for group in groups_of(4) + groups_of(5):
        rng = random.Random(7)
        sequences = [FAMILY.sequence(group, rng, group.defaults, LENGTH) for _ in range(3)]
        expected = [run_calls(group.rules, group.defaults, calls) for calls in sequences]
        for mutant in FAMILY.subtle_mutants(group):
            num_caught[[run_class(mutant, group, group.defaults, calls) for calls in sequences] != expected] += 1
    assert num_caught[True] >= 0.99 * num_caught.total()


def test_three_sequences_catch_a_class_that_ignores_its_configuration_field() -> None:
    num_caught: Counter[bool] = Counter()
    for group in groups_of(4) + groups_of(5):
        for config in configs(group):
            if config != group.defaults:
                rng = random.Random(1)
                sequences = [FAMILY.sequence(group, rng, config, LENGTH) for _ in range(3)]
                caught = any(
                    run_calls(group.rules, config, calls) != run_calls(group.rules, {}, calls) for calls in sequences
                )
                num_caught[caught] += 1
    assert num_caught[True] >= 0.99 * num_caught.total() > 100


@pytest.mark.parametrize("level", [4, 5])
def test_the_sentences_name_every_function_and_every_error(level: int) -> None:
    for group in groups_of(level):
        text = "\n".join(FAMILY.sentences(group, random.Random(3)))
        assert "$" not in text
        missing = [name for name in (f.name for f in group.functions) if f"`{name}`" not in text]
        assert missing == []
        assert [error for error in group.errors if f"`{error}`" not in text] == []
        if group.config_field:
            assert f"`{group.config_field.name}`" in text


def test_the_main_sentence_has_three_phrasings() -> None:
    for group in {group.rules["kind"]: group for group in groups_of(4)}.values():
        assert len({FAMILY.sentences(group, random.Random(seed))[0] for seed in range(40)}) == 3


def test_level_four_is_plain_and_level_five_adds_one_thing() -> None:
    extras = Counter(
        (bool(group.hidden), "undo" in group.rules["names"], len(group.instances)) for group in groups_of(5)
    )
    assert set(extras) == {(True, False, 1), (False, True, 1), (False, False, 2)}
    plain = {(bool(group.hidden), "undo" in group.rules["names"], len(group.instances)) for group in groups_of(4)}
    assert plain == {(False, False, 1)}
    kinds = Counter(group.rules["kind"] for group in groups_of(4))
    assert set(kinds) == {"counter", "ledger", "stock", "queue", "stack", "cache", "poll", "slots"}


def test_hidden_functions_exist_but_are_never_called() -> None:
    for group in groups_of(5):
        if group.hidden:
            (name,) = group.hidden
            assert f"def {name}(self) -> str:" in FAMILY.definitions(group)
            calls = [*group.example, *(FAMILY.sequence(group, random.Random(2), group.defaults, 40))]
            assert name not in [call[0] if isinstance(call, tuple) else call.function for call in calls]
            # The oracle knows what it does all the same.
            assert run_calls(group.rules, {}, [(name, {})]) == run_class(
                FAMILY.definitions(group), group, {}, [(name, {})]
            )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.sampled_from([4, 5]))
def test_a_draft_depends_on_its_seed_alone_and_its_rules_survive_json(seed: int, level: int) -> None:
    draft = FAMILY.draft(random.Random(seed), level)
    assert draft == FAMILY.draft(random.Random(seed), level)
    copied = json.loads(json.dumps(draft.rules))
    assert FunctionGroup.Rules.model_validate(copied).model_dump() == draft.rules
    assert 2 <= len({function.name for function in draft.functions}) == len(draft.functions) <= 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kind": "heap"}, "kind"),
        ({"form": "{value}!"}, "form"),
        ({"errors": {}}, "errors"),
        ({"names": {"push": "push"}}, "names"),
        ({"names": {"push": "push", "pop": "pop", "shake": "shake"}}, "names"),
        ({"inputs": {"item": 'x"; import os'}}, "inputs"),
        ({"undo": "every"}, "undo"),
        ({"capacity": None}, "capacity"),
    ],
)
def test_wrong_rules_are_refused_with_their_field(change: dict[str, Any], named: str) -> None:
    group = next(group for group in groups_of(4) if group.rules["kind"] == "queue")
    with pytest.raises(ValidationError, match=named):
        FunctionGroup.Rules.model_validate(group.rules | change)


def test_groups_that_differ_in_names_alone_are_the_same() -> None:
    group = next(group for group in groups_of(4) if group.rules["kind"] == "queue")
    renamed = group.rules | {"inputs": {"item": "thing"}}
    assert FAMILY.canonical(renamed) == FAMILY.canonical(group.rules)
    assert FAMILY.canonical(group.rules | {"capacity": 9}) != FAMILY.canonical(group.rules)


def test_about_a_tenth_is_held_out() -> None:
    num_held = sum(FAMILY.is_held_out(FAMILY.draft(random.Random(seed), 4).rules) for seed in range(1000))
    assert 80 <= num_held <= 140
