"""Requests that people wrote: under other names every fact stays, and nothing but names changes."""

import itertools
import json
import random
import re
from pathlib import Path

import pytest

from agent_rl.envs.demonstrations import Choice
from agent_rl.envs.nat.demonstrations import chosen_demonstrations
from agent_rl.envs.nat.factory.generate import generate_specs
from agent_rl.envs.nat.factory.requests.names import any_name, renamed
from agent_rl.envs.nat.factory.requests.written import endless_written, read_written, under_other_names
from agent_rl.envs.nat.spec import InputField, NATSpec
from agent_rl.errors import DataError

ROOT = Path(__file__).resolve().parents[5]
SHIPPED = ROOT / "dataset/nat_tasks/written.jsonl.gz"


def made(family: str, request: str, **changes: object) -> NATSpec:
    """A spec of the family with distinctive names and a request of ours."""
    spec = next(generate_specs(1, ["sft"], families=[family], levels=[1], terse=True))
    tool = spec.tools[0].model_copy(update={"type_name": "quarry_type", "instance": "mill", **changes})
    return spec.model_copy(update={"package": "nat_quarry", "tools": (tool,), "request": request})


def written_file(path: Path, *specs: NATSpec) -> Path:
    path.write_text("".join(f"{spec.model_dump_json()}\n" for spec in specs), encoding="utf-8")
    return path


def is_said(name: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def test_other_names_stand_where_the_old_ones_stood() -> None:
    spec = made("text_pipeline", "Type quarry_type, `mill` in src/nat_quarry/, please. A windmill, a mill-like thing?")
    changed = under_other_names(spec, random.Random(1))
    tool = changed.tools[0]
    assert len({spec.package, changed.package, "quarry_type", tool.type_name, "mill", tool.instance}) == 6
    assert changed.request == (
        f"Type {tool.type_name}, `{tool.instance}` in src/{changed.package}/, please. "
        f"A windmill, a {tool.instance}-like thing?"
    )
    assert tool.rules == spec.tools[0].rules and tool.example == spec.tools[0].example


def test_a_text_that_holds_a_name_is_kept_whole() -> None:
    spec = made("text_pipeline", "call it mill; a blank one gives error: empty mill", errors=("error: empty mill",))
    changed = under_other_names(spec, random.Random(1))
    assert changed.request == f"call it {changed.tools[0].instance}; a blank one gives error: empty mill"


def test_an_instance_that_is_a_common_word_keeps_its_name() -> None:
    spec = made("text_pipeline", "The service is called service", instance="service")
    for seed in range(5):
        changed = under_other_names(spec, random.Random(seed))
        assert (changed.request, changed.tools[0].instance) == (spec.request, "service")


def test_variables_of_a_formula_are_exchanged_in_the_request_too() -> None:
    spec = made("calculator", "")
    first, *_ = (each.name for each in spec.tools[0].inputs)
    spec = spec.model_copy(update={"request": f"compute {spec.tools[0].rules['formula']}, {first} first"})
    other = next(
        each
        for each in (under_other_names(spec, random.Random(seed)) for seed in range(30))
        if first not in [field.name for field in each.tools[0].inputs]
    )
    assert other.request == f"compute {other.tools[0].rules['formula']}, {other.tools[0].inputs[0].name} first"


@pytest.mark.parametrize("name", ["rules", "default", "output", "precision", "inputs"])
def test_a_variable_named_as_a_part_of_a_tool_keeps_its_name(name: str) -> None:
    spec = made("calculator", "")
    tool = spec.tools[0]
    old = tool.inputs[0].name
    inputs = tuple(InputField(name=name if each.name == old else each.name, type=each.type) for each in tool.inputs)
    rules = {**tool.rules, "formula": re.sub(rf"\b{old}\b", name, tool.rules["formula"])}
    given = {name if key == old else key: value for key, value in tool.example.inputs.items()}
    tool = tool.model_copy(
        update={"inputs": inputs, "rules": rules, "example": tool.example.model_copy(update={"inputs": given})}
    )
    spec = spec.model_copy(update={"tools": (tool,)})
    for seed in range(8):
        assert name in [each.name for each in renamed(spec, random.Random(seed)).tools[0].inputs]


def test_a_service_keeps_its_address_and_its_answers() -> None:
    spec = made("api_client", "read_answer_path(x) beside read_answer(status) at https://api.depot.example/mill")
    for seed in range(10):
        changed = under_other_names(spec, random.Random(seed))
        tool = changed.tools[0]
        assert (tool.rules, tool.example) == (spec.tools[0].rules, spec.tools[0].example)
        assert f"{tool.function}_path(x) beside {tool.function}(status)" in changed.request


def test_every_spec_is_shown_once_a_round_first_as_it_was_written() -> None:
    specs = [made("text_pipeline", f"nat_quarry number {at}").model_copy(update={"task_id": f"w{at}"}) for at in (1, 2)]
    shown = list(itertools.islice(endless_written(specs, random.Random(0)), 6))
    assert sorted(each.task_id for each in shown) == ["w1-0", "w1-1", "w1-2", "w2-0", "w2-1", "w2-2"]
    assert {each.request for each in shown[:2]} == {"nat_quarry number 1", "nat_quarry number 2"}
    assert all("nat_quarry" not in each.request for each in shown[2:])


def test_a_share_of_the_demonstrations_is_of_written_requests(tmp_path: Path) -> None:
    path = written_file(tmp_path / "written.jsonl", made("unit_converter", "as we say it: nat_quarry"))
    choice = Choice(wordings="any", written=path, written_share=0.5)
    shown = list(itertools.islice(chosen_demonstrations(2, faulty_share=0.0, choice=choice), 60))
    written = [each for each in shown if str(each.messages[-1].content).startswith("as we say it")]
    assert 18 <= len(written) <= 42
    assert {each.kind for each in written} == {"unit_converter"}
    assert {each.covers["wordings"] for each in written} == {("any",)}


def test_an_example_that_is_told_without_quotes_is_tested_too(tmp_path: Path) -> None:
    spec = made("text_pipeline", "")
    example = spec.tools[0].example
    spec = spec.model_copy(update={"request": f"nat_quarry: {example.inputs['text']} gives {example.output}"})
    choice = Choice(wordings="any", written=written_file(tmp_path / "written.jsonl", spec), written_share=1.0)
    first = next(chosen_demonstrations(2, faulty_share=0.0, choice=choice))
    [(message, _), *_] = first.turns
    tests = [call.arguments["content"] for call in message.tool_calls if "tests/" in str(call.arguments.get("path"))]
    assert "def test_example" in "".join(map(str, tests))


def test_rows_that_are_not_for_demonstrations_are_refused_by_their_number(tmp_path: Path) -> None:
    held_out = next(generate_specs(1, ["val"], families=["calculator"], levels=[1], terse=True))
    with pytest.raises(DataError, match=r"written\.jsonl:2: the fingerprint"):
        read_written(written_file(tmp_path / "written.jsonl", made("calculator", "x"), held_out))
    several = next(generate_specs(1, ["sft"], levels=[3]))
    assert len(several.tools) > 1
    with pytest.raises(DataError, match=r"several\.jsonl:1: not an agent of one tool"):
        read_written(written_file(tmp_path / "several.jsonl", several))


def test_shipped_requests_are_many_and_keep_their_facts_under_other_names() -> None:
    specs, rng = read_written(SHIPPED), random.Random(0)
    assert len(specs) > 1000 and len({spec.request for spec in specs}) == len(specs)
    for spec in specs:
        changed = under_other_names(spec, rng)
        tool = changed.tools[0]
        names = [changed.package, tool.type_name, tool.instance, changed.server.name]
        names = names[:3] if changed.server.name == changed.package else names
        assert all(is_said(each, changed.request) for each in (*names, *(field.name for field in tool.inputs)))
        assert all(error in changed.request for error in tool.errors), spec.task_id
        output = str(tool.example.output)
        told = [output, json.dumps(output, ensure_ascii=False)[1:-1]]
        assert any(each in changed.request for each in told), spec.task_id
        assert [each in changed.request for each in told] == [each in spec.request for each in told], spec.task_id


def test_names_are_drawn_from_thousands_of_words() -> None:
    rng = random.Random(0)
    parts = {part for _ in range(4000) for part in any_name(rng).split("_") if part.isalpha()}
    assert len(parts) > 4000
