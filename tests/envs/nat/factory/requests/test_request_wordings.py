"""Requests in other words: every fact stays, nothing repeats, and the agents stay what they are."""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_rl.envs.demonstrations import Choice
from agent_rl.envs.nat import tools
from agent_rl.envs.nat.demonstrations import chosen_demonstrations, demonstration_turns
from agent_rl.envs.nat.factory import requests
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, fingerprint_of, generate_specs
from agent_rl.envs.nat.factory.oracle import answer
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.factory.requests.grammar import choose, fill, match, read_sections, read_synonyms, read_words
from agent_rl.envs.nat.factory.requests.loose import in_loose_words, tells_example
from agent_rl.envs.nat.factory.requests.names import any_name, in_any_case, renamed
from agent_rl.envs.nat.factory.requests.reword import in_any_words, reworded, sections
from agent_rl.envs.nat.factory.requests.slots import DIVIDERS, NUMBERS
from agent_rl.envs.nat.factory.wording import one_tool_sentences, request
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.prompts import first_messages
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.envs.nat.visible import visible_checks
from agent_rl.policies.minimind_policy import load_tokenizer

ANY = Choice(wordings="any")
CALL = re.compile(r"\b[A-Za-z]\w+(?=\()")
CAPITALS = re.compile(r"\b[A-Z]{3,}\b")
COMPARISON = re.compile(r"([\w.]+) (?:[<>!]=|[<>=]) (\w+)")
FACT = re.compile(r"`([^`]*)`|(\d+)")


@pytest.fixture(scope="module")
def specs() -> list[NATSpec]:
    made = generate_specs(3, ["sft"], families=STARTER_FAMILIES, levels=STARTER_LEVELS, terse=True)
    return list(itertools.islice(made, 240))


def facts(spec: NATSpec) -> set[str]:
    """All names, texts, numbers and formulas of the plain wording, but an escape that a phrasing may leave out."""
    tool = spec.tools[0]
    found = {text or number for text, number in FACT.findall(request(spec, random.Random(0), terse=True))}
    formulas = {tool.rules["formula"]} if spec.family == "calculator" else set()
    return {*found, *formulas, *tool.errors, spec.package, tool.type_name, tool.instance} - {"/", "%2F", "2"}


def is_told(fact: str, text: str) -> bool:
    """As it is; a small number, the sign between cells or a comparison's operator can be told by words."""
    if fact in text or any(re.search(rf"\b{word}s?\b", text) for word in DIVIDERS.get(fact, ())):
        return True
    if fact.isdecimal() and int(fact) < len(NUMBERS):
        return re.search(rf"\b{NUMBERS[int(fact)]}\b", text) is not None
    compared = COMPARISON.fullmatch(fact)
    return compared is not None and compared[1] in text and compared[2] in text


def untold(spec: NATSpec) -> list[str]:
    return [fact for fact in facts(spec) if not is_told(fact, spec.request)]


@pytest.mark.parametrize("seed", range(3))
def test_every_fact_is_in_every_wording(specs: list[NATSpec], seed: int) -> None:
    for number, spec in enumerate(specs):
        changed = in_any_words(spec, random.Random(1000 * seed + number))
        assert untold(changed) == [], changed.request


def test_code_in_a_request_keeps_its_words(specs: list[NATSpec]) -> None:
    """Calls and SQL have no synonyms: what is called is what a phrase file or the plain wording calls."""
    known = " ".join(path.read_text(encoding="utf-8") for path in Path(requests.__path__[0]).glob("phrases/*.txt"))
    known += " ".join(spec.request for spec in specs)
    texts = " ".join(reworded(spec, random.Random(number)) for number, spec in enumerate(specs * 12))
    calls = {word.lower() for word in CALL.findall(texts)}
    assert len(calls) > 8 and calls <= {word.lower() for word in CALL.findall(known)}
    capitals = {*CAPITALS.findall(texts)}
    assert len(capitals) > 8 and capitals <= {*CAPITALS.findall(known)}


def test_words_that_carry_a_fact_stay_in_every_layout(specs: list[NATSpec]) -> None:
    """Files, names before the values of an example, terms of a definition, quotes of stop words."""
    texts = [(spec, reworded(spec, random.Random(number))) for number, spec in enumerate(specs * 6)]
    for spec, text in texts:
        (tool,) = spec.tools
        if tool.family == "api_client":
            assert "logic.py" in text and "AsyncClient" in text
        if tool.family == "note_search":
            assert all(re.search(rf"[`'\"“]{word}[`'\"”]", text) for word in tool.rules["stop_words"]), text
            assert all(name in text for name in re.findall(r"\w+(?= = )", spec.request)), text
        if tool.family == "calculator":
            names, values = {field.name for field in tool.inputs}, map(str, tool.example.inputs.values())
            before = [re.findall(rf"(\w+) ?= ?{re.escape(value)}\b", text) for value in values]
            assert names.issuperset(name for found in before for name in found), text


def test_held_out_families_and_combinations_can_be_worded_too() -> None:
    made = generate_specs(7, ["test_generalisation"], families=STARTER_FAMILIES, levels=STARTER_LEVELS, terse=True)
    held_out = list(itertools.islice(made, 60))
    held_out += itertools.islice(generate_specs(7, ["test_generalisation"], families=["date_tool"], levels=[1, 2]), 30)
    for number, spec in enumerate(spec for spec in held_out if len(spec.tools) == 1):
        changed = in_any_words(spec, random.Random(number))
        assert untold(changed) == [], changed.request


def test_errors_are_told_in_the_order_in_which_they_are_checked(specs: list[NATSpec]) -> None:
    for number, spec in enumerate(spec for spec in specs if spec.tools[0].family in ("code_validator", "calculator")):
        text, plain = reworded(spec, random.Random(number)), spec.request
        errors = [error for error in spec.tools[0].errors if plain.count(error) == 1]
        assert sorted(errors, key=text.index) == sorted(errors, key=plain.index)


def test_every_sentence_of_the_generator_is_known(specs: list[NATSpec]) -> None:
    for spec in specs:
        for part in one_tool_sentences(spec, spec.tools[0], random.Random(0), terse=True):
            for sentence in part:
                pieces = re.split(r"(?<=\.) (?=Spaces around|There, an)", sentence)
                assert all(match(sections(), piece) for piece in pieces), sentence


def test_one_spec_has_no_two_requests_alike(specs: list[NATSpec]) -> None:
    for spec in specs[:8]:
        texts = {reworded(spec, random.Random(seed)) for seed in range(60)}
        assert len(texts) == 60


def test_other_names_leave_the_agent_as_it_is(specs: list[NATSpec]) -> None:
    for number, spec in enumerate(specs):
        changed = renamed(spec, random.Random(number))
        (before,), (after,) = spec.tools, changed.tools
        assert changed.package != spec.package
        assert changed.fingerprint == spec.fingerprint
        assert after.family == "api_client" or fingerprint_of(changed) == spec.fingerprint
        assert answer(after, after.example.inputs, after.defaults) == after.example.output
        assert [each.type for each in after.inputs] == [each.type for each in before.inputs]
        assert FAMILIES[after.family].bad_inputs(after)
        assert changed.plan.mcp_servers[0].name == changed.server.name


def test_task_files_take_agents_of_other_names_and_words(specs: list[NATSpec]) -> None:
    for number, spec in enumerate(specs * 4):
        other = in_any_words(spec, random.Random(number))
        assert parse_spec(other.model_dump(mode="json"), "here") == other


def test_variables_get_other_names_too(specs: list[NATSpec]) -> None:
    calculators = [spec for spec in specs if spec.family == "calculator"]
    changed = [renamed(spec, random.Random(number)) for number, spec in enumerate(calculators)]
    other = [new for old, new in zip(calculators, changed, strict=True) if new.tools[0].inputs != old.tools[0].inputs]
    assert len(other) > len(calculators) / 4
    for spec in other:
        for field in spec.tools[0].inputs:
            assert field.name in spec.tools[0].rules["formula"]


def test_names_are_what_the_toolkit_takes() -> None:
    rng = random.Random(0)
    names = [any_name(rng) for _ in range(2000)]
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in names)
    assert len(set(names)) > 1900
    shapes = {in_any_case("one_two3", random.Random(seed)) for seed in range(60)}
    joined = {"one_two3", "one-two3", "one.two3", "one:two3", "one+two3"}
    assert joined | {"OneTwo3", "oneTwo3", "One-Two3", "ONE_TWO3"} == shapes


def test_types_hold_signs_of_every_kind_in_any_place(specs: list[NATSpec]) -> None:
    changed = [renamed(specs[0], random.Random(number)) for number in range(600)]
    types = [(spec.package, spec.tools[0].type_name) for spec in changed]
    assert all(re.fullmatch(r"[A-Za-z][\w.:+-]*", name) for _, name in types)
    for sign in ".:+-":
        assert sum(name.startswith(package + sign) for package, name in types) > 12
        assert sum(sign in name.replace(package, "") for package, name in types) > 50
    assert sum(len({*re.findall(r"[.:+-]", name)}) > 1 for _, name in types) > 50
    assert sum(re.fullmatch(r".*[.:+_-]v?\d+(\.\d)?", name) is not None for _, name in types) > 25


def test_a_type_of_all_signs_passes_the_checker(specs: list[NATSpec], nat_toolkit: NatToolkit) -> None:
    (tool,) = specs[0].tools
    name = f"{specs[0].package}.Lift:lower-case+v7.1"
    changed = specs[0].model_copy(update={"tools": (tool.model_copy(update={"type_name": name}),)})
    assert visible_checks(nat_toolkit, changed, render_project(changed)).all_passed


def test_choices_nest_and_parts_are_left_as_they_are() -> None:
    rng = random.Random(0)
    assert {choose("[a[1|2]|b]", rng) for _ in range(50)} == {"a1", "a2", "b"}
    assert fill("{x} of {y}", {"x": "{y}", "y": "[1|2]"}) == "{y} of [1|2]"


def all_ways() -> Iterator[tuple[tuple[str, ...], str]]:
    for section in sections():
        for way in section.ways:
            yield section.sources, way


def test_every_way_uses_every_part_of_what_it_stands_for() -> None:
    for sources, way in all_ways():
        rng = random.Random(0)
        wanted = set(re.findall(r"\{(\w+)\}", sources[0]))
        # units say what they measure
        used = [set(re.findall(r"\{(\w+)\}", choose(way, rng))) for _ in range(20)]
        assert all(parts - {"dimension"} == wanted - {"dimension"} for parts in used), way
        assert way.count("[") == way.count("]")


def test_synonyms_and_words_are_plain() -> None:
    for word, others in read_synonyms("synonyms.txt").items():
        assert word not in others and all(other.isalpha() for other in others)
    words = read_words("words.txt")
    assert len(words) == len(set(words)) > 12_000 and all(word.isalpha() and word.islower() for word in words)


def test_names_are_made_of_every_piece_of_the_tokenizer() -> None:
    """A name of words that were never shown falls into pieces that were."""
    rng = random.Random(3)
    pieces = set(read_words("pieces.txt"))
    tokenizer = load_tokenizer(Path(__file__).resolve().parents[5] / "model/nat_minimind_words")
    known = {piece for piece in tokenizer.get_vocab() if re.fullmatch("[a-z]{2,}", piece)}
    shown: set[str] = set()
    for _ in range(300):
        shown.update(tokenizer.tokenize(" ".join(f"`{any_name(rng)}`" for _ in range(50))))
    assert pieces == known and pieces <= shown


def test_demonstrations_are_the_same_for_the_same_seed() -> None:
    first, second = (
        [
            each.messages[-1].content
            for each in itertools.islice(chosen_demonstrations(5, faulty_share=0.5, choice=ANY), 6)
        ]
        for _ in range(2)
    )
    assert first == second


def test_lists_end_with_other_words_than_and_too(specs: list[NATSpec]) -> None:
    searches = [spec for spec in specs if spec.tools[0].family == "note_search"]
    texts = [reworded(spec, random.Random(seed)) for spec in searches for seed in range(20)]
    joints = [found[1] for text in texts for found in re.finditer(r"` ([a-z]+) `n\d\d \| ", text)]
    others = {joint for joint in joints if joint != "and"}
    assert 0.05 < 1 - joints.count("and") / len(joints) < 0.4 and len(others) > 10


def test_loose_words_tell_no_name_and_may_leave_rules_out(specs: list[NATSpec]) -> None:
    told, num_loose = [], 0
    for number, spec in enumerate(specs):
        changed = in_loose_words(spec, random.Random(number))
        if changed.package != f"nat_{spec.tools[0].family}":
            assert untold(changed) == []
            continue
        num_loose += 1
        tool = changed.tools[0]
        assert changed.package not in changed.request and tool.type_name not in changed.request
        assert changed.fingerprint == spec.fingerprint and fingerprint_of(changed) == spec.fingerprint
        left_out = facts(changed) - {changed.package, tool.type_name, tool.instance}
        told.append(all(is_told(fact, changed.request) for fact in left_out))
    assert 0.6 < num_loose / len(specs) < 0.8
    assert 0.2 < sum(told) / len(told) < 0.7  # some tell all the rules, others not


def test_an_example_that_nobody_told_is_not_tested(specs: list[NATSpec]) -> None:
    told = 0
    for number, spec in enumerate(specs):
        changed = in_loose_words(spec, random.Random(number))
        [(first, _), *_] = demonstration_turns(changed, faulty_share=0.0, seed=0)
        files = {call.arguments["path"]: call.arguments["content"] for call in first.tool_calls if call.arguments}
        text = files[changed.tests_path]
        told += tells_example(changed)
        assert ("def test_example" in text) == tells_example(changed)
        assert "def test_error" in text
        assert tells_example(changed) or repr(spec.tools[0].example.output) not in text
    assert 0.5 < told / len(specs) < 0.95


def test_a_report_counts_the_tests_of_its_project(specs: list[NATSpec]) -> None:
    reports = set()
    for spec in specs:
        first, *rest = demonstration_turns(spec, faulty_share=0.0, seed=0)
        if rest:
            (text,) = (call.arguments["content"] for call in first[0].tool_calls if "tests/" in str(call.arguments))
            num = text.count("def test_")
            assert first[1][-1].content == tools.test_report(passed=num, failed=0)
            reports.add(num)
    assert reports == {2, 3}


def test_every_family_of_the_starter_has_an_opening(specs: list[NATSpec]) -> None:
    assert {spec.tools[0].family for spec in specs} == {each.sources[0] for each in read_sections("openings.txt")}


def test_a_share_of_the_demonstrations_has_the_opening_that_a_request_without_a_plan_gets() -> None:
    choice = Choice(wordings="any", free_share=0.25)
    shown = list(itertools.islice(chosen_demonstrations(5, faulty_share=0, choice=choice), 100))
    free = [each for each in shown if "free" in each.covers["wordings"]]
    assert 12 < len(free) < 40
    for each in shown:
        as_free = first_messages(None, each.messages[-1].content)
        assert (each.messages == as_free) == ("free" in each.covers["wordings"])


def test_without_a_share_every_demonstration_has_a_plan() -> None:
    shown = itertools.islice(chosen_demonstrations(5, faulty_share=0, choice=ANY), 60)
    assert {each.covers["wordings"] for each in shown} == {("any",)}


def test_projects_of_loose_words_pass_the_checker(specs: list[NATSpec], nat_toolkit: NatToolkit) -> None:
    for number, spec in enumerate(specs[:7]):
        changed = in_loose_words(spec, random.Random(number))
        assert visible_checks(nat_toolkit, changed, render_project(changed)).all_passed
