"""What the exporter says of a run: its state, its alarms, its counters, also after a kill, a resume and a rollback."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from run_folders import WrittenRun
from waiting import wait_for

from agent_rl.core.run.lock import RunLock
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import EnvFactory
from agent_rl.monitoring.run_follower import RunFollower
from agent_rl.monitoring.run_series import run_series
from agent_rl.monitoring.run_state import FIRST_STEP_S, LEAST_SILENCE_S, allowed_silence_s, state_of

LATER = 4e9
"""Long after everything: silence alone would make any run under way stalled."""


def looked(folder: Path, now: float | None = None) -> RunFollower:
    follower = RunFollower(folder)
    follower.look(now)
    return follower


def values(follower: RunFollower) -> dict[tuple[str, ...], float]:
    """By family and the labels beside the run."""
    return {
        (
            series.family.removeprefix("agent_rl_"),
            *(value for name, value in series.labels if name != "run"),
        ): series.value
        for series in run_series(follower)
    }


@pytest.mark.parametrize(
    ("event", "reason", "is_alive", "silence_s", "state"),
    [
        (None, None, None, 0.0, None),
        ("start", None, True, 10.0, "running"),
        ("start", None, None, 10.0, "running"),
        ("start", None, False, 0.0, "stalled"),  # killed: its lock is free
        ("checkpoint", None, True, 101.0, "stalled"),  # it hangs
        ("resume", None, None, 101.0, "stalled"),
        ("end", "finished", False, 1e9, "ended"),
        ("end", "stopped", False, 1e9, "stopped"),
        ("end", "failed", False, 1e9, "failed"),
        ("interrupt", None, False, 1e9, "interrupted"),
    ],
)
def test_a_state_follows_from_events_lock_and_silence(
    event: str | None, reason: str | None, is_alive: bool | None, silence_s: float, state: str | None
) -> None:
    assert state_of(event, reason, is_alive=is_alive, silence_s=silence_s, allowed_s=100.0) == state


def test_slow_steps_and_long_evaluations_may_be_silent_for_longer() -> None:
    assert allowed_silence_s(float("nan"), 0.0) == FIRST_STEP_S
    assert allowed_silence_s(1.0, 0.0) == LEAST_SILENCE_S
    assert allowed_silence_s(60.0, 0.0) == 900.0
    assert allowed_silence_s(1.0, 1000.0) == 3000.0


def test_a_lock_that_is_held_tells_that_the_run_lives_and_a_free_one_of_this_machine_that_it_does_not(
    tmp_path: Path,
) -> None:
    run = WrittenRun(tmp_path / "run")
    run.event("start", 0, time=100.0)
    follower = RunFollower(run.folder)
    follower.look(110.0)
    assert follower.state == "running"  # without a lock, silence decides
    lock = RunLock(run.folder)
    lock.acquire()
    follower.look()
    assert follower.state == "running"
    lock.release()
    follower.look()
    assert follower.state == "stalled"
    lock.acquire()  # the exporter holds nothing
    follower.look()
    assert follower.state == "running"
    lock.release()
    follower.look()
    assert follower.state == "stalled"


def test_a_free_lock_of_another_machine_tells_nothing(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.event("start", 0, time=100.0)
    (run.folder / ".lock").write_text("process 12 on elsewhere\n")
    assert looked(run.folder).state == "running"  # since the lock was taken just now
    assert looked(run.folder, LATER).state == "stalled"
    (run.folder / ".lock").write_text(f"process 12 on {socket.gethostname()}\n")
    assert looked(run.folder).state == "stalled"


KILLED = """
    import sys
    from pathlib import Path
    from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
    from agent_rl.core.trainer_grpo import GRPOTrainer
    from agent_rl.envs.base import EnvFactory

    folder = Path(sys.argv[1])
    config = tiny_config(folder, train={"steps": 100_000}, checkpoint={"every": 2, "resume": "auto"})
    with GRPOTrainer.from_config(config, env_factory=EnvFactory(LetterEnv), train_tasks=LETTER_TASKS) as trainer:
        trainer.train()
"""


@pytest.fixture
def started(tmp_path: Path):
    """A run of its own process that trains until somebody ends it."""
    save_tiny_model(tmp_path / "model")
    paths = [str(Path(__file__).resolve().parents[1] / "support"), str(Path(__file__).resolve().parents[2])]
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(KILLED), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    yield process, tmp_path / "runs/tiny"
    process.kill()
    process.wait()


def test_a_run_that_was_killed_is_stalled_and_one_that_was_interrupted_is_not(started) -> None:
    process, folder = started
    follower = RunFollower(folder)

    def has_steps() -> bool:
        assert process.poll() is None, "the run ended by itself"
        follower.look()
        return bool(follower.rows.step) and follower.checkpoint is not None

    wait_for(has_steps, timeout_s=100.0)
    assert follower.state == "running"
    assert values(follower)["checkpoint_bytes",] > 0.0
    process.send_signal(signal.SIGKILL)
    process.wait()
    follower.look()
    assert follower.state == "stalled"
    WrittenRun(folder).event("interrupt", 3, time=LATER)
    follower.look()
    assert follower.state == "interrupted"


def test_counters_and_replayed_alarms_of_a_real_run_are_those_that_it_wrote(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    alarms = [{"metric": "reward/mean", "above": -1.0, "steps": 2}, {"metric": "reward/max", "below": -1.0}]
    config = tiny_config(
        tmp_path, train={"steps": 3}, log={"alarms": alarms}, eval={"temperatures": [0.0]}, checkpoint={"every": 2}
    )
    factory = EnvFactory(LetterEnv)
    with GRPOTrainer.from_config(
        config, env_factory=factory, train_tasks=LETTER_TASKS, eval_tasks=LETTER_TASKS
    ) as trainer:
        trainer.train()
    folder = tmp_path / "runs/tiny"
    follower = looked(folder)
    found = values(follower)
    assert follower.state == "ended" and found["run_state", "ended"] == 1.0 and found["run_state", "stalled"] == 0.0
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "reward/mean" in row]
    assert found["train_steps",] == found["last_step",] == found["target_steps",] == found["checkpoint_step",] == 3.0
    assert found["episodes",] == 3 * 8 * 4 == sum(row["rollout/num_episodes"] for row in steps)
    assert found["generated_tokens",] == sum(row["rollout/sampled_tokens"] for row in steps)
    assert found["reward_mean",] == steps[-1]["reward/mean"]
    assert found["eval_success_ratio", "0"] == [row for row in rows if "eval/t0/success" in row][-1]["eval/t0/success"]
    written = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    fired = [event["facts"]["metric"] for event in written if event["kind"] == "alarm"]
    assert "reward/mean" in fired
    for metric in {rule.metric for rule in follower.rows.alarms.rules}:
        assert found["alarms", metric, "warn"] == fired.count(metric)
    assert found["alarm_active", "reward/mean", "warn"] == 1.0 and found["alarm_active", "reward/max", "warn"] == 0.0


BAD, GOOD = {"reward/mean": 0.0}, {"reward/mean": 1.0}


def watched(folder: Path, steps: int = 2) -> WrittenRun:
    rule = {"metric": "reward/mean", "below": 0.5, "steps": steps, "action": "rollback"}
    return WrittenRun(folder, {"log": {"alarms": [rule]}})


def test_an_alarm_is_active_from_the_step_it_fires_at_until_a_healthy_one(tmp_path: Path) -> None:
    run = watched(tmp_path / "run")
    follower = RunFollower(run.folder)
    seen = []
    for step, metrics in enumerate((BAD, BAD, BAD, GOOD, BAD, BAD), start=1):
        run.row(step, time=float(step), **metrics)
        follower.look()
        found = values(follower)
        seen.append((found["alarm_active", "reward/mean", "rollback"], found["alarms", "reward/mean", "rollback"]))
    assert seen == [(0, 0), (1, 1), (1, 1), (0, 1), (0, 1), (1, 2)]
    assert values(looked(run.folder)) == values(follower)  # at once as step by step


def test_alarms_begin_anew_where_a_run_went_back_to_a_checkpoint(tmp_path: Path) -> None:
    run = watched(tmp_path / "run")
    for step in (1, 2):
        run.row(step, time=float(step), **BAD)
    run.event("rollback", 2, time=2.5, to_step=1, checkpoint="checkpoints/step_00001")
    run.row(2, time=3.0, **BAD)
    found = values(looked(run.folder))
    assert (found["rollbacks",], found["alarms", "reward/mean", "rollback"]) == (1.0, 1.0)
    assert found["alarm_active", "reward/mean", "rollback"] == 0.0
    # A run that is started again takes its alarms from the checkpoint, which is of before.
    run.event("resume", 1, time=3.5, from_step=1)
    (run.folder / "metrics.jsonl").unlink()
    run.row(1, time=1.0, **BAD)
    run.row(2, time=4.0, **BAD)
    found = values(looked(run.folder))
    assert (found["alarms", "reward/mean", "rollback"], found["alarm_active", "reward/mean", "rollback"]) == (1.0, 1.0)


def test_rows_that_a_resumed_run_writes_again_count_once(tmp_path: Path) -> None:
    run = watched(tmp_path / "run", steps=3)
    follower = RunFollower(run.folder)
    for step in (1, 2, 3):
        run.row(step, time=float(step), **BAD)
    follower.look()
    assert values(follower)["alarm_active", "reward/mean", "rollback"] == 1.0
    lines = (run.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.folder / "metrics.jsonl").write_text("".join(lines[:2]))
    run.row(3, time=10.0, **GOOD)
    follower.look()
    found = values(follower)
    assert (found["train_steps",], found["reward_mean",], found["alarm_active", "reward/mean", "rollback"]) == (3, 1, 0)


def test_damage_is_counted_and_hides_nothing_else(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run", {"train": {"steps": 5}})
    run.row(1, time=1.0, **{"reward/mean": 0.25, "policy/entropy": None})
    for text in (
        "{}\n",
        "[1]\n",
        "nonsense\n",
        '{"step": 2, "time": 2, "reward/mean": {}}\n',
        '{"step": 1e999, "time": 1}\n',
    ):
        run.append("metrics.jsonl", text)
    run.append("metrics.jsonl", '{"step": 3, "time": 3, "reward/me')
    run.append("events.jsonl", "{}\n")
    run.append("events.jsonl", '{"time": "0001-01-01T00:00:00", "step": 0, "kind": "start", "facts": {}}\n')
    (run.folder / "environment.json").write_text("[")
    found = values(looked(run.folder))
    assert (found["reward_mean",], found["run_bad_lines",], found["run_unreadable_files",]) == (0.25, 7.0, 1.0)
    assert found["policy_entropy",] != found["policy_entropy",]  # it was not finite
    assert found["last_step",] == 1.0 and ("run_state", "running") not in found
    (run.folder / "environment.json").write_text("{}")
    (run.folder / "config.yaml").write_text("a: [")
    assert values(looked(run.folder))["run_unreadable_files",] == 1.0
