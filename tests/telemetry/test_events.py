"""events.jsonl: what is written is read back, a torn last line is no event, damage is named."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent_rl.errors import DataError
from agent_rl.telemetry.events import EventLog, read_events


def test_events_are_read_back_in_order_with_their_facts(tmp_path: Path) -> None:
    before = datetime.now(UTC)
    EventLog(tmp_path / "run").write("start", 0, planned_steps=4)
    EventLog(tmp_path / "run").write("alarm", 2, metric="reward/mean", value=math.nan, folder=Path("a"))
    first, second = read_events(tmp_path / "run")
    assert (first.kind, first.step, first.facts) == ("start", 0, {"planned_steps": 4})
    assert second.facts == {"metric": "reward/mean", "value": None, "folder": "a"}
    assert 0 <= (first.time - before).total_seconds() + 0.001 < 60
    assert first.time <= second.time


def test_a_process_that_is_not_the_main_one_writes_nothing(tmp_path: Path) -> None:
    EventLog(tmp_path, enabled=False).write("start", 0)
    assert list(tmp_path.iterdir()) == []
    assert read_events(tmp_path) == []


def test_a_line_that_was_cut_off_is_left_out_and_then_removed(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.write("start", 0)
    path = tmp_path / "events.jsonl"
    path.write_bytes(path.read_bytes() + b'{"time": "2026-')
    assert [event.kind for event in read_events(tmp_path)] == ["start"]
    log.write("resume", 3, from_step=3)
    assert [event.kind for event in read_events(tmp_path)] == ["start", "resume"]


@pytest.mark.parametrize(
    "line",
    [
        '{"step": 3}',
        '{"time": "0001-01-01T00:00:00", "step": 3, "kind": "end", "facts": {}}',
        '{"time": "2026-03-01T12:00:00+00:00", "step": 1e999, "kind": "end", "facts": {}}',
        "[" * 100_000,
    ],
    ids=["no event", "a time without its zone", "a step without end", "too deep"],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "events.jsonl").write_text(f"{line}\n")
    with pytest.raises(DataError, match=r"events\.jsonl:1"):
        read_events(tmp_path)


def test_a_disk_that_refuses_an_event_is_named(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").mkdir()
    with pytest.raises(DataError, match=r"events\.jsonl.*start at step 0"):
        EventLog(tmp_path).write("start", 0)
