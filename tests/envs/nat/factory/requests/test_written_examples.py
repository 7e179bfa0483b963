"""Written requests with another example: what the agent answers to it, where the old one stood, and nothing else."""

import itertools
import random
from pathlib import Path

import pytest

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.generate import generate_specs
from agent_rl.envs.nat.factory.requests.examples import with_other_example
from agent_rl.envs.nat.factory.requests.written import endless_written, read_written
from agent_rl.envs.nat.spec import Example, NATSpec, Value

SHIPPED = Path(__file__).resolve().parents[5] / "dataset/nat_tasks/written.jsonl.gz"


def made(family: str, request: str, **inputs: Value) -> NATSpec:
    """A spec of the family with an example of ours; {out} in the request is what comes out for it."""
    spec = next(generate_specs(1, ["sft"], families=[family], levels=[1], terse=True))
    (tool,) = spec.tools
    given = {**tool.example.inputs, **inputs}
    example = Example(inputs=given, output=oracle.answer(tool, given, tool.defaults))
    tool = tool.model_copy(update={"example": example})
    return spec.model_copy(update={"tools": (tool,), "request": request.replace("{out}", example.output)})


def test_another_example_stands_where_the_old_one_stood() -> None:
    spec = made("unit_converter", "{out} for 40.7 (these stay: 40.75, x40.7, v2.40.7)", value=40.7)
    changed = with_other_example(spec, random.Random(0))
    (old,), (tool,) = spec.tools, changed.tools
    value = tool.example.inputs["value"]
    assert value != 40.7 and {**tool.example.inputs, "value": 40.7} == old.example.inputs
    assert tool.example.output == oracle.answer(tool, tool.example.inputs, tool.defaults)
    assert changed.request == f"{tool.example.output} for {value} (these stay: 40.75, x40.7, v2.40.7)"
    assert changed.plan.test_cases[0].inputs == tool.example.inputs
    assert (tool.rules, changed.fingerprint, changed.task_id) == (old.rules, spec.fingerprint, spec.task_id)


def test_a_whole_number_is_told_as_the_old_one_was() -> None:
    spec = made("unit_converter", "6 makes {out}", value=6.0)
    told = {with_other_example(spec, random.Random(seed)).request.split()[0] for seed in range(30)}
    assert "6.0" not in told and any(each.isdigit() for each in told)


@pytest.mark.parametrize(
    ("family", "request_text", "inputs"),
    [
        ("unit_converter", "40.7 makes {out}, as 40.7 is a lot", {"value": 40.7}),  # something is said about it
        ("unit_converter", "an example is not told", {"value": 40.7}),
        ("table_processor", "{out}", {}),
    ],
)
def test_an_example_that_is_told_twice_or_not_at_all_stays(
    family: str, request_text: str, inputs: dict[str, Value]
) -> None:
    spec = made(family, request_text, **inputs)
    assert all(with_other_example(spec, random.Random(seed)) is spec for seed in range(10))


def test_what_comes_out_stays_where_it_is_told_twice() -> None:
    spec = made("unit_converter", "40.7 makes {out}, and {out} is a lot", value=40.7)
    for seed in range(20):
        changed = with_other_example(spec, random.Random(seed))
        assert changed.tools[0].example.output == spec.tools[0].example.output
        assert changed.request.count(spec.tools[0].example.output) == 2


def test_a_unit_is_never_exchanged() -> None:
    tool = made("unit_converter", "").tools[0]
    source, target = sorted(tool.rules["units"])[:2]
    spec = made("unit_converter", f"of {source} and {target}: {{out}}", value=40.7, from_unit=source, to_unit=target)
    assert all(with_other_example(spec, random.Random(seed)) is spec for seed in range(20))


def test_a_text_has_any_words() -> None:
    spec = made("text_pipeline", "berry comes out as <{out}>", text="berry")
    texts = {with_other_example(spec, random.Random(seed)).tools[0].example.inputs["text"] for seed in range(20)}
    assert len(texts) > 15


def test_most_shipped_requests_get_other_examples_that_they_tell() -> None:
    written = [spec for spec in read_written(SHIPPED) if spec.tools[0].family not in ("table_processor", "note_search")]
    pairs = [(spec, with_other_example(spec, random.Random(spec.task_id))) for spec in written]
    changed = [new for old, new in pairs if new is not old]
    assert len(changed) > 0.8 * len(written)
    for (tool,), request in ((each.tools, each.request) for each in changed):
        assert tool.example.output == oracle.answer(tool, tool.example.inputs, tool.defaults)
        assert tool.example.output in request


def test_later_rounds_have_other_examples() -> None:
    spec = made("unit_converter", "40.7 makes {out}", value=40.7)
    shown = list(itertools.islice(endless_written([spec], random.Random(0)), 40))
    values = [each.tools[0].example.inputs["value"] for each in shown]
    assert values[0] == 40.7 and 20 <= sum(value != 40.7 for value in values) < 40
