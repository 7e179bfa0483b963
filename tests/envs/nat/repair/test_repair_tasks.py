"""Tasks that begin with files: planted faults, their proof by the real toolkit, rows, and the episodes they make."""

import itertools
import json
import random
from itertools import zip_longest
from typing import Any

import pytest
from nat_projects import SharedFactory, row, spec_of

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.envs.check_data import check_data
from agent_rl.envs.nat.env import NATAgentEnv, submission
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.repair.edits import EDITS
from agent_rl.envs.nat.repair.faults import FAULTS, HELD_OUT, SHOWN, plant
from agent_rl.envs.nat.repair.generate import extend_tasks, repair_tasks
from agent_rl.envs.nat.repair.proof import prove
from agent_rl.envs.nat.repair.task import NATTask, read_task
from agent_rl.envs.nat.repair.wording import repair_request
from agent_rl.errors import DataError

SPEC = spec_of("unit_converter", 2)
TOOL = SPEC.tools[0]


def broken(name: str, spec=SPEC) -> NATTask:
    files = plant(name, spec, random.Random(f"test-{name}"))
    assert files is not None, f"the class {name} does not go with {spec.family}"
    return NATTask(spec=spec, kind="repair", start_files=files, fault=name)


def changed(task: NATTask) -> list[str]:
    return [path for path, text in render_project(task.spec).items() if task.start_files[path] != text]


def read(path: str) -> Message:
    return Message.assistant("", (ToolCall(name="file_read", arguments={"path": path}),))


def test_some_classes_are_for_the_test_set_alone() -> None:
    assert set(HELD_OUT) < set(FAULTS) and not set(HELD_OUT) & set(SHOWN)
    assert len(SHOWN) >= 12 and len(HELD_OUT) >= 5


@pytest.mark.parametrize("name", sorted(set(FAULTS) - set(EDITS)))
def test_a_fault_is_one_file_changed_and_the_same_for_the_same_seed(name: str) -> None:
    task = broken(name)
    assert len(changed(task)) == 1
    assert task.start_files.keys() == render_project(SPEC).keys()
    assert broken(name) == task
    assert task.solution() == {path: render_project(SPEC)[path] for path in changed(task)}


@pytest.mark.parametrize("name", sorted(set(FAULTS) - set(EDITS) - {"wrong default", "field default", "unknown name"}))
def test_every_class_fails_the_hidden_check_and_is_shown_by_a_tool(name: str, nat_toolkit: NatToolkit) -> None:
    proof = prove(nat_toolkit, broken(name), seed=0)
    assert proof.holds and set(proof.shown_by) <= {"nat_check", "pytest_run"}


def test_an_edit_changes_a_little_of_one_file_that_a_machine_reads() -> None:
    files = render_project(SPEC)
    for name in EDITS:
        drawn = [plant(name, SPEC, random.Random(seed)) for seed in range(40)]
        paths = {path for each in drawn if each for path in each if each[path] != files[path]}
        assert len(paths) >= 2 and "pyproject.toml" not in paths, name
        for each in filter(None, drawn):
            [path] = [path for path in each if each[path] != files[path]]
            pairs = zip_longest(each[path].split("\n"), files[path].split("\n"))
            assert name == "lost line" or sum(new != old for new, old in pairs) <= 2


def test_no_edit_is_a_fault_of_the_classes_that_are_held_out() -> None:
    files = render_project(SPEC)
    held_out = [plant(name, SPEC, random.Random(seed)) for name in HELD_OUT for seed in range(20)]
    without_tool = files["mcp_server.py"].replace("@server.tool()\n", "")
    assert any(each and each["mcp_server.py"] == without_tool for each in held_out)
    drawn = [plant(name, SPEC, random.Random(seed)) for name in EDITS for seed in range(300)]
    assert not [each for each in drawn if each and each in held_out]


def test_a_project_without_a_fault_is_no_task(nat_toolkit: NatToolkit) -> None:
    whole = NATTask(spec=SPEC, kind="repair", start_files=render_project(SPEC), fault="none")
    proof = prove(nat_toolkit, whole, seed=0)
    assert not proof.holds and proof.shown_by == ()


def test_the_request_of_a_repair_leaves_out_what_the_files_say() -> None:
    request = repair_request(SPEC, random.Random(0))
    assert SPEC.package in request and TOOL.example.output in request
    assert TOOL.type_name not in request and TOOL.instance not in request
    assert all(f"`{field.name}` (" not in request for field in TOOL.inputs)


def test_a_repair_begins_with_its_files_and_ends_by_their_repair(nat_toolkit: NatToolkit) -> None:
    task = broken("no yield")
    env = NATAgentEnv(SharedFactory(nat_toolkit))
    opening = env.reset(json.loads(json.dumps(task.to_row())))
    assert all(path in opening[0].content for path in task.start_files)
    assert opening[1].content == SPEC.request
    [reply] = env.step(read(SPEC.register_path)).messages
    assert reply.content == task.start_files[SPEC.register_path] and "return FunctionInfo" in reply.content
    [reply] = env.step(Message.assistant("", (ToolCall(name="nat_check", arguments={}),))).messages
    assert reply.content.startswith("error at build")
    last = env.step(submission(task.solution()))
    assert last.terminated and last.reward_parts["success"] == 1.0


def test_the_files_as_they_are_fail_and_the_reference_passes(nat_toolkit: NatToolkit) -> None:
    factory = SharedFactory(nat_toolkit)
    rows = [broken(name).to_row() | {"task_id": name} for name in ("lost check", "config type", "server runs")]
    outcomes = list(check_data(factory, rows, workers=1, group_by=lambda task: "repair"))
    assert [(each.solution, each.succeeded) for each in outcomes] == [
        pair
        for name in ("lost check", "config type", "server runs")
        for pair in (("reference", True), (f"start: {name}", False))
    ]


def test_the_same_seed_draws_the_same_proven_repairs(nat_toolkit: NatToolkit) -> None:
    def drawn() -> list[dict[str, Any]]:
        specs = iter([SPEC, spec_of("calculator", 1), spec_of("text_pipeline", 1)])
        return [task.to_row() for task in repair_tasks(nat_toolkit, 5, specs, SHOWN)]

    first = drawn()
    assert first == drawn()
    assert [each["kind"] for each in first] == ["repair"] * 3
    assert [each["fault"] for each in first] == list(SHOWN[:3])
    assert all(read_task(each, "x").to_row() == each for each in first)


def test_an_extension_has_a_working_tool_and_lacks_another(nat_toolkit: NatToolkit) -> None:
    [task] = itertools.islice(extend_tasks(nat_toolkit, 5, ["train"]), 1)
    first, second = task.spec.tools
    assert first.instance in task.start_files[task.spec.config_path]
    assert second.instance not in task.start_files[task.spec.config_path]
    factory = SharedFactory(nat_toolkit)
    outcomes = {o.solution: o.succeeded for o in check_data(factory, [task.to_row()], workers=1, group_by=str)}
    assert outcomes == {"reference": True, "start: extend": False}


def test_rows_come_back_from_files(tmp_path) -> None:
    rows = [broken("type name").to_row() | {"task_id": "a"}, broken("test import").to_row() | {"task_id": "b"}]
    for suffix in (".jsonl", ".parquet"):
        write_tasks(tmp_path / f"x{suffix}", rows)
        assert read_tasks(tmp_path / f"x{suffix}") == rows


def test_a_row_of_a_spec_alone_is_a_task_to_create() -> None:
    assert read_task(row(SPEC), "x") == NATTask(spec=SPEC)
    assert NATTask(spec=SPEC).to_row() == row(SPEC)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "mend"}, "there is no kind of task 'mend'"),
        ({"kind": "repair", "start_files": {}}, "must hold its files"),
        ({"kind": "repair", "start_files": {"../x": "1"}}, "start_files"),
        ({"kind": "repair", "start_files": {"x": 1}}, "must hold texts"),
        ({"start_files": {"x": "1"}}, "begins with no file"),
    ],
)
def test_rows_that_make_no_sense_are_refused_in_a_sentence(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read_task(row(SPEC) | changes, "tasks.jsonl:1")
