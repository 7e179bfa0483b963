"""Demonstrations that call tools are recorded in the environment: what is shown is what an episode gives."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import one_line_error, run_here
from nat_projects import SharedFactory, spec_of

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import write_tasks
from agent_rl.envs.demonstrations import Demonstration, mixed, read_demonstrations, to_conversation
from agent_rl.envs.nat.env import NATEnvFactory
from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.repair import demonstrations as recording
from agent_rl.envs.nat.repair.demonstrations import recorded_demonstrations, suspects
from agent_rl.envs.nat.repair.faults import PRACTISED, SHOWN, plant
from agent_rl.envs.nat.tools import TOOL_SPECS
from agent_rl.envs.nat.visible import VisibleChecks
from agent_rl.errors import DataError
from agent_rl.scripts import prepare_dataset

SPEC = spec_of("unit_converter", 2)
NUM = 5


@pytest.fixture(scope="module")
def shown(nat_toolkit: NatToolkit) -> list[Demonstration]:
    factory = SharedFactory(nat_toolkit, repair_turns=recording.REPAIR_TURNS)
    return list(itertools.islice(recorded_demonstrations(factory, seed=1), NUM))


def names_of(turns) -> list[list[str]]:
    return [[call.name for call in message.tool_calls] for message, _ in turns]


def test_a_teacher_checks_reads_writes_and_submits(shown: list[Demonstration]) -> None:
    repairs = [each for each in shown if not each.unlearned]
    assert repairs
    for each in repairs:
        calls = names_of(each.turns)
        assert calls[0][0] == "nat_check" and calls[-1][-1] == "submit"
        assert ["file_read"] in calls and any("file_write" in names for names in calls)
        assert each.tools == TOOL_SPECS
        assert each.turns[-1][1] == ()
        read = [
            reply
            for (message, replies), names in zip(each.turns, calls, strict=True)
            for reply in replies
            if names == ["file_read"]
        ]
        written = next(c for m, _ in each.turns for c in m.tool_calls if c.name == "file_write")
        assert written.arguments["content"] != read[-1].content  # the last file read is the one that is wrong


def test_every_call_but_the_last_message_s_has_a_real_reply(shown: list[Demonstration]) -> None:
    for each in shown:
        for message, replies in each.turns[:-1]:
            assert len(replies) == len(message.tool_calls)
            assert [reply.name for reply in replies if reply.name] == [call.name for call in message.tool_calls]


def test_they_are_the_same_for_the_same_seed(shown: list[Demonstration], nat_toolkit: NatToolkit) -> None:
    factory = SharedFactory(nat_toolkit, repair_turns=recording.REPAIR_TURNS)
    assert list(itertools.islice(recorded_demonstrations(factory, seed=1), 2)) == shown[:2]


def test_only_the_classes_that_are_asked_for_are_planted(
    nat_toolkit: NatToolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted: list[str] = []
    monkeypatch.setattr(recording, "plant", lambda name, *given: planted.append(name) or plant(name, *given))
    factory = SharedFactory(nat_toolkit, repair_turns=recording.REPAIR_TURNS)
    assert len(list(itertools.islice(recorded_demonstrations(factory, 1, ["lost check", "no yield"]), 4))) == 4
    assert {*planted} == {"lost check", "no yield"}


def conversation(files: dict[str, str], last: str = "submit") -> list[dict]:
    calls = [{"name": "file_write", "arguments": {"path": path, "content": text}} for path, text in files.items()]
    reply = {"role": "assistant", "content": "", "tool_calls": [*calls, {"name": last, "arguments": {}}]}
    return [{"role": "user", "content": "x"}, reply]


def test_a_teacher_mends_what_a_model_submitted_in_vain(nat_toolkit: NatToolkit) -> None:
    right = render_project(SPEC)
    wrong = {**right, SPEC.logic_path: right[SPEC.logic_path].replace("return f", "return g")}
    episodes = [
        {"task_id": "a", "messages": conversation(wrong)},
        {"task_id": "a", "messages": conversation(right)},  # taken
        {"task_id": "b", "messages": conversation(wrong)},  # of another task file
        {"task_id": "a", "messages": conversation(wrong, last="nat_check")},
        {"task_id": "a", "messages": [{"role": "user", "content": "x"}]},
    ]
    factory = SharedFactory(nat_toolkit, repair_turns=2)
    [made] = recording.mended_submissions(factory, {"a": SPEC}, episodes)
    assert made.unlearned == {0}
    (first, replies), (second, _) = made.turns
    assert {call.arguments["path"]: call.arguments["content"] for call in first.tool_calls[:-1]} == wrong
    assert "not taken" in replies[-1].content
    assert [call.arguments for call in second.tool_calls] == [
        {"path": SPEC.logic_path, "content": right[SPEC.logic_path]},
        {},
    ]
    assert "wordings" not in made.covers


def test_a_submission_with_a_path_that_is_refused_is_mended_too(nat_toolkit: NatToolkit) -> None:
    right = render_project(SPEC)
    wrong = {path if path != SPEC.logic_path else "src/lo\ngic.py": text for path, text in right.items()}
    episodes = [{"task_id": "a", "messages": conversation(wrong)}]
    [made] = recording.mended_submissions(SharedFactory(nat_toolkit, repair_turns=2), {"a": SPEC}, episodes)
    assert [call.arguments.get("path") for call in made.turns[1][0].tool_calls] == [SPEC.logic_path, None]


def test_a_failed_submission_is_read_and_not_learned(nat_toolkit: NatToolkit) -> None:
    from agent_rl.envs.nat.repair.task import NATTask

    files = {**render_project(SPEC), "mcp_server.py": "x = 1\n"}
    factory = SharedFactory(nat_toolkit, repair_turns=2)
    made = recording.record(factory, NATTask(spec=SPEC), recording.mending(SPEC, files), unlearned=frozenset([0]))
    assert names_of(made.turns)[-1] == ["file_write", "submit"]
    assert "not taken" in made.turns[0][1][-1].content
    row = to_conversation(made, "a")
    assert [message.get("weight") for message in row["messages"] if message["role"] == "assistant"] == [0, None]


@pytest.mark.parametrize(
    ("failed", "texts", "first"),
    [
        (["built"], ("error at load: x\nmcp: y", "2 passed"), SPEC.config_path),
        (["built"], ("error at import: x\nmcp: y", "2 passed"), SPEC.register_path),
        (["example"], ("built; the example gives 'x'\nmcp: y", "2 passed"), SPEC.register_path),
        (["example", "tests"], ("built; the example gives 'x'\nmcp: y", "1 failed"), SPEC.logic_path),
        (["served"], ("built\nmcp: error at initialize", "2 passed"), "mcp_server.py"),
        (["tests"], ("built\nmcp: y", "1 failed\nfailed tests/test_x.py::test_error"), SPEC.logic_path),
        (["tests"], ("built\nmcp: y", "1 failed\nfailed tests/test_x.py::test_example"), SPEC.tests_path),
        (["tests"], ("built\nmcp: y", "1 failed\nerror tests/test_x.py"), SPEC.tests_path),
    ],
)
def test_a_teacher_reads_first_what_the_replies_point_to(failed, texts, first) -> None:
    passed = {name: name not in failed for name in ("files", "built", "example", "served", "tests")}
    found = VisibleChecks(passed=passed, texts=dict(zip(("nat_check", "pytest_run"), texts, strict=True)))
    order = suspects(SPEC, found)
    assert order[0] == first and sorted(order) == sorted(SPEC.files)


def test_they_come_back_from_a_file(shown: list[Demonstration], tmp_path: Path) -> None:
    path = tmp_path / "demonstrations.jsonl"
    write_tasks(path, [to_conversation(each, str(number)) for number, each in enumerate(shown)])
    again = read_demonstrations(path)
    assert [each.unlearned for each in again] == [each.unlearned for each in shown]
    assert [names_of(each.turns) for each in again] == [names_of(each.turns) for each in shown]
    assert [each.messages for each in again] == [each.messages for each in shown]
    assert again[0].tools == shown[0].tools
    write_tasks(path, [{"task_id": "a", "messages": [{"role": "user", "content": "x"}]}])
    with pytest.raises(DataError, match="at least one message of the assistant"):
        read_demonstrations(path)


def test_a_share_of_recorded_ones_is_mixed_in_and_begins_again() -> None:
    def of(kind: str) -> Demonstration:
        return Demonstration([Message.user("x")], [(Message.assistant("y"), ())], (), kind=kind)

    recorded = [of("a"), of("b")]
    kinds = [each.kind for each in itertools.islice(mixed(itertools.repeat(of("own")), recorded, 0.5, seed=0), 400)]
    assert 150 < kinds.count("own") < 250
    assert abs(kinds.count("a") - kinds.count("b")) <= 1
    assert kinds == [
        each.kind for each in itertools.islice(mixed(itertools.repeat(of("own")), recorded, 0.5, seed=0), 400)
    ]
    assert {each.kind for each in itertools.islice(mixed(iter([]), recorded, 1.0, seed=0), 9)} == {"a", "b"}
    assert [each.kind for each in mixed(iter([of("own")]), recorded, 0.0, seed=0)] == ["own"]


@pytest.mark.parametrize(("words", "classes"), [([], PRACTISED), (["--no-edits"], SHOWN)])
def test_edits_are_among_the_faults_unless_they_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], classes: tuple[str, ...]
) -> None:
    given: list[tuple[str, ...]] = []

    def recorded(_factory: NATEnvFactory, _seed: int, chosen: tuple[str, ...]) -> Iterator[Demonstration]:
        given.append(chosen)
        yield Demonstration([Message.user("a")], [(Message.assistant("b"), ())], ())

    monkeypatch.setattr(NATEnvFactory, "start", lambda _self: None)
    monkeypatch.setattr(recording, "recorded_demonstrations", recorded)
    done = run_here("--kind", "demonstrations", "--output-dir", tmp_path, *words, app=prepare_dataset.app)
    assert (done.returncode, given) == (0, [classes])


@pytest.mark.parametrize("words", [["--kind", "repair"], ["--kind", "demonstrations", "--submissions", "x"], []])
def test_edits_are_left_out_of_planted_faults_alone(tmp_path: Path, words: list[str]) -> None:
    done = run_here("--output-dir", tmp_path / "new", "--no-edits", *words, app=prepare_dataset.app)
    assert "--no-edits" in one_line_error(done)
    assert not (tmp_path / "new").exists()
