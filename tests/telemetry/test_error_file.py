"""`errors.jsonl` is bounded, counts by place, also of a resumed run; what tools raise is in it."""

import json
from pathlib import Path
from typing import Any

from fakes import ScriptedPolicy

from agent_rl.agent.messages import Message
from agent_rl.core.run.failures import FailureReport
from agent_rl.envs.base import StepResult, Task, ToolEnv
from agent_rl.failures import MAX_TRACEBACK_CHARS, FailedCall
from agent_rl.records import StopReason, Trajectory
from agent_rl.rollout.episode import run_episode
from agent_rl.rollout.turns import EpisodeLimits
from agent_rl.telemetry.error_file import MAX_PLACES, ErrorFile
from agent_rl.tools.decorator import make_tool


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "errors.jsonl").read_text().splitlines()]


def failed(place: str, error: str = "KeyError: 'x'") -> FailedCall:
    return FailedCall(source="environment", error=error, place=place, traceback="Traceback ...")


def test_rows_are_counted_by_place_and_a_later_start_counts_on(tmp_path: Path) -> None:
    assert len(ErrorFile(tmp_path).add(1, [failed("a.py:1"), failed("a.py:1", "KeyError: 'y'"), failed("b.py:2")])) == 2
    assert ErrorFile(tmp_path).add(5, [failed("a.py:1")]) == []
    assert [(row["place"], row["count"], row["first_step"], row["last_step"]) for row in rows(tmp_path)] == [
        ("a.py:1", 3, 1, 5),
        ("b.py:2", 1, 1, 1),
    ]


def test_a_text_with_line_ends_of_unicode_and_a_bad_row_lose_no_other(tmp_path: Path) -> None:
    ErrorFile(tmp_path).add(1, [failed("a.py:1", "ValueError: one\u2028two\x85three"), failed("b.py:2")])
    with (tmp_path / "errors.jsonl").open("ab") as file:
        file.write(b'{"source": "environment"}\n[]\n\xff\n')
    assert [each.place for each in ErrorFile(tmp_path).add(2, [failed("b.py:2"), failed("c.py:3")])] == ["c.py:3"]
    lines = (tmp_path / "errors.jsonl").read_bytes().split(b"\n")[:-1]
    assert [(row["place"], row["count"]) for row in map(json.loads, lines)] == [
        ("a.py:1", 1),
        ("b.py:2", 2),
        ("c.py:3", 1),
    ]


def test_the_number_of_rows_and_the_length_of_a_traceback_are_bounded(tmp_path: Path) -> None:
    ErrorFile(tmp_path).add(1, [failed(f"a.py:{line}") for line in range(MAX_PLACES + 7)])
    found = rows(tmp_path)
    assert (len(found), found[-1]["source"], found[-1]["count"]) == (MAX_PLACES + 1, "others", 7)

    def deep(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 50_000)
        deep(depth - 1)

    try:
        deep(100)
    except ValueError as error:
        call = FailedCall.of(error, "environment")
    assert len(call.traceback) < MAX_TRACEBACK_CHARS + 100
    assert call.place.endswith("in deep")


def broken(x: int) -> str:
    """Look x up.

    Args:
        x: A number.
    """
    return {}[x]


class Calls(ToolEnv):
    def reset(self, task: Task) -> list[Message]:
        self.registry = self.add_tools(task, [make_tool(broken)])
        return [Message.user("go")]

    def no_call(self, message: Message) -> StepResult:
        return StepResult(reward=1.0, terminated=True)


def test_what_a_tool_raises_is_text_for_the_model_and_a_traceback_for_its_author(tmp_path: Path) -> None:
    policy = ScriptedPolicy(['<tool_call>{"name": "broken", "arguments": {"x": 3}}</tool_call>', "done"])
    episode = run_episode(
        policy, Calls(), {"task_id": "t"}, group_id="g", seed=0, limits=EpisodeLimits(max_new_tokens=200), temperature=1
    )
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.FINISHED)
    said: list[str] = []
    report = FailureReport(tmp_path)
    for _ in range(2):
        report.episodes(1, [episode], said.append)
    (line,) = said
    assert line.startswith(f"step 1: the tool broken raised KeyError: 3 at {__file__}:")
    (row,) = rows(tmp_path)
    assert (row["source"], row["count"]) == ("tool broken", 2)
    assert "return {}[x]" in row["traceback"]


def test_a_disk_that_refuses_tracebacks_is_told_of_once_and_ends_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "errors.jsonl").mkdir()
    report = FailureReport(tmp_path)
    episode = Trajectory(
        task_id="t",
        group_id="g",
        turns=(),
        stop_reason=StopReason.ENV_ERROR,
        reward=None,
        error="KeyError",
        failures=(failed("a.py:1"),),
    )
    for step in (1, 2):
        report.episodes(step, [episode], said.append)
    assert sum("cannot be written" in line for line in said) == 1
    assert sum("dropped" in line for line in said) == 2
