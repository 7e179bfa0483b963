"""A request that is read wrong in one place: what is read, what the example tells, and what a teacher makes of it."""

import ast
import itertools
import random
from collections import Counter
from pathlib import Path

import pytest
from commands import one_line_error, run_here
from nat_projects import SharedFactory

from agent_rl.agent.messages import Message
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.envs.nat.env import NATEnvFactory
from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families import FAMILIES
from agent_rl.envs.nat.factory.families.base import literal
from agent_rl.envs.nat.factory.render import render_logic, render_project
from agent_rl.envs.nat.factory.requests.reword import in_any_names
from agent_rl.envs.nat.factory.telling import reading_of
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.repair import demonstrations as recording
from agent_rl.envs.nat.repair.generate import starter_specs
from agent_rl.envs.nat.repair.misread import miscopied, misread
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.scripts import prepare_dataset

NUM_SPECS, NUM_SHOWN = 200, 8


@pytest.fixture(scope="module")
def readings() -> list[tuple[NATSpec, tuple[NATSpec, ...] | None]]:
    """Specs, under names of any words, and what is made of each."""
    specs = [in_any_names(spec, random.Random(1)) for spec in itertools.islice(starter_specs(3, ["sft"]), NUM_SPECS)]
    return [(spec, misread(spec, random.Random(spec.task_id))) for spec in specs]


def rules_read_wrong(right: NATSpec, wrong: NATSpec) -> list[str]:
    (one,), (other,) = right.tools, wrong.tools
    return [name for name in one.rules if one.rules[name] != other.rules[name]]


def test_rules_of_every_family_are_read_wrong(readings) -> None:
    found = [(each[0].tools[0].family, rules_read_wrong(*each[:2])) for _, each in readings if each]
    rules = Counter((family, name) for family, names in found for name in names)
    assert {family for family, _ in rules} == {spec.tools[0].family for spec, _ in readings}
    assert {("note_search", name) for name in ("scoring", "separator", "tie", "score_format")} <= rules.keys()
    assert {("table_processor", name) for name in ("aggregate", "decimals", "pair")} <= rules.keys()
    assert {("api_client", name) for name in ("fields", "between", "joiner")} <= rules.keys()
    assert {("calculator", "formula"), ("unit_converter", "precision")} <= rules.keys()
    assert len(found) > 0.9 * NUM_SPECS


def test_one_rule_is_another_and_names_inputs_and_setting_are_the_same(readings) -> None:
    for spec, found in readings:
        if found is None:
            continue
        right, *others = found
        read = [{*rules_read_wrong(right, each)} - right.tools[0].defaults.keys() for each in others]
        assert all(1 <= len(each) <= 4 for each in read)  # one, and what follows from it
        assert {*map(len, read)} != {1} or read[0] == read[-1]
        (tool,), (other,) = right.tools, others[0].tools
        assert tool == spec.tools[0].model_copy(update={"example": tool.example})
        assert other == tool.model_copy(update={"rules": other.rules, "errors": other.errors})
        assert (right.package, right.server, right.fingerprint) == (spec.package, spec.server, spec.fingerprint)


def test_the_example_tells_the_right_rules_from_the_others_and_these_apart(readings) -> None:
    twice = 0
    for _, found in readings:
        if found is None:
            continue
        right, *others = found
        (tool,) = right.tools
        inputs, config = tool.example.inputs, tool.defaults
        assert oracle.answer(tool, inputs, config) == tool.example.output
        assert all(each.tools[0].example == tool.example for each in others)
        answers = [reading_of(tool, each.tools[0].rules)(inputs, config) for each in others]
        assert tool.example.output not in answers and len({*answers}) == len(answers)
        assert len({*map(render_logic, found)}) == len(found)
        assert (inputs, tool.example.output) in [(case.inputs, case.expected) for case in right.plan.test_cases]
        twice += len(others) == 2
    assert twice > NUM_SPECS / 2


def test_one_value_of_one_assertion_is_copied_wrong() -> None:
    for number, spec in enumerate(itertools.islice(starter_specs(3, ["sft"]), NUM_SPECS)):
        right, wrong = render_project(spec), miscopied(spec, random.Random(number))
        assert wrong is not None and {path for path in right if right[path] != wrong[path]} == {spec.tests_path}
        lines = zip(right[spec.tests_path].split("\n"), wrong[spec.tests_path].split("\n"), strict=True)
        ((before, after),) = ((one, other) for one, other in lines if one != other)
        assert before.startswith("    assert ") and after.startswith("    assert ")
        ast.parse(wrong[spec.tests_path])


def test_held_out_combinations_are_not_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = (each for each in itertools.islice(starter_specs(3, ["sft"]), 1))
    assert misread(spec, random.Random(0)) is not None
    family = type(FAMILIES[spec.tools[0].family])
    monkeypatch.setattr(family, "is_held_out", lambda _self, _rules: True)
    assert misread(spec, random.Random(0)) is None


@pytest.fixture(scope="module")
def shown(nat_toolkit: NatToolkit) -> list[Demonstration]:
    factory = SharedFactory(nat_toolkit, repair_turns=recording.REPAIR_TURNS)
    return list(itertools.islice(recording.misread_demonstrations(factory, seed=1), NUM_SHOWN))


def test_the_example_proves_a_submission_wrong_that_is_not_learned(shown: list[Demonstration]) -> None:
    for each in shown:
        assert each.unlearned == {*range(len(each.turns) - 1)}
        assert each.covers["wordings"] == ("any",) and each.covers["kinds"] == ("create",)
        assert all(message.tool_calls[-1].name == "submit" for message, _ in each.turns)
        assert all("not taken" in replies[-1].content for _, replies in each.turns[:-1])
    assert {len(each.turns) for each in shown} == {2, 3}
    written = [{call.arguments["path"] for call in each.turns[-1][0].tool_calls[:-1]} for each in shown]
    # What was read wrong is mended in the code, what was copied wrong in the test alone.
    assert {path.partition("/")[0] for paths in written if len(paths) == 1 for path in paths} == {"src", "tests"}


def test_before_it_is_mended_it_is_said_which_lines_change(shown: list[Demonstration]) -> None:
    for each in shown:
        there: dict[str, str] = {}
        for number, (message, _) in enumerate(each.turns):
            lines = message.content.split("\n") if number else []
            wrote = {call.arguments["path"]: call.arguments["content"] for call in message.tool_calls[:-1]}
            before, after = ("\n".join(texts.values()).split("\n") for texts in (there, wrote))
            assert all(line[1:] in (before if line[0] == "-" else after) for line in lines if line[0] in "+-")
            assert not number or any(line[0] in "+-" for line in lines)
            there |= wrote


def test_the_report_has_what_the_request_says_where_the_example_came_out_otherwise(shown: list[Demonstration]) -> None:
    told = 0
    for each in shown:
        request = each.messages[-1].content.replace("\\t", "\t").replace("\\n", "\n")
        for _, replies in each.turns[:-1]:
            _, _, line = replies[-1].content.partition("\nthe example, ")
            got, differs, wanted = line.partition("\n")[0].partition(", gives ")[2].partition(", the request says ")
            if differs:
                assert f"nat_check: built; the example gives {got}\n" in replies[-1].content
                assert ast.literal_eval(wanted) in request
                told += 1
    assert told > len(shown) / 3


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a\nb\nc", "a\nd\nc", ["x.py:", "-b", "+d"]),
        ("a\nc", "a\n\nc\nd", ["x.py:", "+d"]),
        ("a", "a\n", []),
        ("", "\n".join(map(str, range(12))), ["x.py:", *(f"+{number}" for number in range(12))]),
        ("", "\n".join(map(str, range(13))), []),
    ],
)
def test_few_lines_are_said_and_blank_ones_are_not(before: str, after: str, said: list[str]) -> None:
    assert recording.changed_lines({"x.py": before}, {"x.py": after}) == said


def test_what_is_mended_is_complete_and_as_the_example_of_the_request_says(
    nat_toolkit: NatToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[NATSpec] = []
    record = recording.record

    def noted(factory, task, *given, **options) -> Demonstration:
        told.append(task.spec)
        return record(factory, task, *given, **options)

    monkeypatch.setattr(recording, "record", noted)
    factory = SharedFactory(nat_toolkit, repair_turns=recording.REPAIR_TURNS)
    made = list(itertools.islice(recording.misread_demonstrations(factory, seed=2), 4))
    specs = {spec.request: spec for spec in told}
    for each in made:
        spec = specs[each.messages[-1].content]
        writes = [call.arguments for message, _ in each.turns for call in message.tool_calls if call.arguments]
        files = {each["path"]: each["content"] for each in writes}
        assert literal(spec.tools[0].example.output) in files[spec.tests_path]
        assert check_project(nat_toolkit, spec, files, seed=0).complete


def test_they_are_the_same_for_the_same_seed(shown: list[Demonstration], nat_toolkit: NatToolkit) -> None:
    factory = SharedFactory(nat_toolkit, repair_turns=recording.REPAIR_TURNS)
    assert list(itertools.islice(recording.misread_demonstrations(factory, seed=1), 2)) == shown[:2]


def test_they_are_recorded_where_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Demonstration([Message.user("a")], [(Message.assistant("b"), ())], ())
    monkeypatch.setattr(NATEnvFactory, "start", lambda _self: None)
    monkeypatch.setattr(recording, "misread_demonstrations", lambda _factory, seed: itertools.repeat(made, seed))
    words = ["--kind", "demonstrations", "--misread", "--seed", "3", "--output-dir", tmp_path]
    assert run_here(*words, app=prepare_dataset.app).returncode == 0
    assert len((tmp_path / "demonstrations.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--kind", "repair", "--misread"], "--misread"),
        (["--misread"], "--misread"),
        (["--kind", "demonstrations", "--submissions", "x", "--misread"], "--misread"),
        (["--kind", "demonstrations", "--no-edits", "--misread"], "--no-edits"),
    ],
)
def test_misreadings_are_a_source_of_their_own(tmp_path: Path, words: list[str], named: str) -> None:
    done = run_here("--output-dir", tmp_path / "new", *words, app=prepare_dataset.app)
    assert named in one_line_error(done)
    assert not (tmp_path / "new").exists()
