"""Ctrl-C and SIGTERM around a step: what the step brought about is done, and what was open is caught up on resume."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import make_trainer
from fakes import save_tiny_model
from webhook import webhook

from agent_rl.core import evaluation
from agent_rl.core.interrupts import deferred_interrupt, sigterm_as_interrupt
from agent_rl.core.run.eval_result import EvalResult
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed.checkpoint import checkpoints_in
from agent_rl.errors import TrainingStoppedError
from agent_rl.telemetry.events import read_events
from agent_rl.telemetry.notify import Notifier

TASKS = [{"task_id": f"t{i}", "question": "post"} for i in range(64)]
OPTIONS = {
    "rollout": {"group_size": 4, "groups_per_step": 2, "async_workers": 0},
    "checkpoint": {"resume": "auto", "every": 1},
    "train": {"steps": 4},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path


def trainer_of(folder: Path, name: str, **sections: dict[str, Any]) -> GRPOTrainer:
    return make_trainer(folder, tasks=TASKS, run={"name": name}, **(OPTIONS | sections))


def alarm(action: str) -> dict[str, Any]:
    """The reward is above -1 always: the alarm fires at step 2."""
    rule = {"metric": "reward/mean", "above": -1.0, "steps": 2, "action": action}
    return {"progress": False, "trackers": [], "alarms": [rule]}


def press_in_step(trainer: GRPOTrainer, step: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes while a step is held together."""
    write = trainer._episode_log.write

    def pressed(at: int, *arguments: Any, **options: Any) -> None:
        write(at, *arguments, **options)
        if at == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(trainer._episode_log, "write", pressed)


def events_of(folder: Path, name: str) -> list[tuple[str, int]]:
    kinds = ("alarm", "rollback", "end", "interrupt")
    return [(event.kind, event.step) for event in read_events(folder / "runs" / name) if event.kind in kinds]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_step_of_an_alarm_does_not_lose_its_stop(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    with trainer_of(folder, "stopped", log=alarm("stop")) as trainer:
        press_in_step(trainer, 2, number, monkeypatch)
        with pytest.raises((TrainingStoppedError, KeyboardInterrupt, SystemExit)) as left:
            trainer.train()
    assert left.type is TrainingStoppedError
    assert events_of(folder, "stopped") == [("alarm", 2), ("end", 2)]


def test_nor_its_rollback_after_which_the_run_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with trainer_of(folder, "back", log=alarm("rollback")) as trainer:
        press_in_step(trainer, 2, signal.SIGINT, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert trainer._state.rate_factor == 0.5
    assert events_of(folder, "back") == [("alarm", 2), ("rollback", 2), ("interrupt", 1)]
    with trainer_of(folder, "back", log=alarm("rollback")) as trainer:
        assert (trainer.step, trainer._state.num_rollbacks, trainer._state.rate_factor) == (1, 1, 0.5)


def test_every_whole_step_is_told_under_the_number_of_its_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    with trainer_of(folder, "told", log=alarm("rollback")) as trainer:
        press_in_step(trainer, 2, signal.SIGINT, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            trainer.train(on_step=lambda step, _metrics: told.append(step))
    assert told == [1, 2]


def test_so_is_the_one_in_which_an_alarm_stops_the_run(folder: Path) -> None:
    told = []
    with trainer_of(folder, "told", log=alarm("stop")) as trainer, pytest.raises(TrainingStoppedError):
        trainer.train(on_step=lambda step, metrics: told.append((step, metrics["reward/mean"])))
    rows = [json.loads(line) for line in (folder / "runs/told/metrics.jsonl").read_text().splitlines()]
    assert told == [(row["step"], row["reward/mean"]) for row in rows]
    assert [step for step, _ in told] == [1, 2]


@pytest.mark.parametrize(("log", "reason"), [(None, KeyboardInterrupt), (alarm("stop"), TrainingStoppedError)])
def test_what_its_callback_raises_then_does_not_replace_what_ends_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, log: Any, reason: type[BaseException]
) -> None:
    sections = {"checkpoint": {"every": 0}, "log": log or {"progress": False, "trackers": []}}
    with trainer_of(folder, "told", **sections) as trainer, pytest.raises(reason):
        if log is None:
            press_in_step(trainer, 2, signal.SIGINT, monkeypatch)
        trainer.train(on_step=lambda step, _metrics: 1 // (2 - step))
    assert [path.name for path in checkpoints_in(folder / "runs/told/checkpoints")] == ["step_00002"]
    assert "ZeroDivisionError" in (folder / "runs/told/log.jsonl").read_text()


def test_a_signal_in_a_block_within_a_block_waits_for_the_outer_one() -> None:
    reached = []
    with pytest.raises(SystemExit), sigterm_as_interrupt(), deferred_interrupt():
        with deferred_interrupt():
            os.kill(os.getpid(), signal.SIGTERM)
        reached.append("end")
    assert reached == ["end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def scores_of(run: Path) -> dict[int, float | None]:
    manifests = [json.loads((path / "manifest.json").read_text()) for path in checkpoints_in(run / "checkpoints")]
    return {manifest["step"]: manifest["score"] for manifest in manifests}


def test_ctrl_c_in_an_evaluation_does_not_lose_the_best_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presses, successes = {2}, {0: 0, 1: 1, 2: 9, 3: 2}
    sections = {
        "checkpoint": {"resume": "auto", "every": 1, "keep": 1},
        "eval": {"temperatures": [0.0], "every": 1},
        "train": {"steps": 3},
        "log": {"progress": False, "trackers": []},
    }

    def evaluate(_rollout: Any, _tasks: Any, *, temperature: float, step: int) -> tuple[EvalResult, list[Any]]:
        if step in presses:
            presses.clear()
            raise KeyboardInterrupt
        result, episodes = real(_rollout, _tasks, temperature=temperature, step=step)
        return replace(result, num_successes=successes[step], num_scored=10), episodes

    real = evaluation.evaluate
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    with trainer_of(folder, "best", **sections) as trainer, pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert scores_of(folder / "runs/best") == {1: 0.1, 2: None}
    with trainer_of(folder, "best", **sections) as trainer:
        trainer.train()
    assert scores_of(folder / "runs/best") == {2: 0.9, 3: 0.2}


def test_a_notifier_that_was_closed_tells_again() -> None:
    with webhook() as (url, got):
        notifier = Notifier(url, {}, say=print)
        notifier.close()
        for event in ("alarm", "finished"):
            notifier.tell(event, 1, "")
            notifier.close()
    assert [each["event"] for each in got] == ["alarm", "finished"]


def test_what_raises_as_a_trainer_closes_does_not_keep_the_rest_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    trainer = trainer_of(folder, "closed")
    close_source, close_environments = trainer._source.close, trainer._env_factory.close

    def fails(name: str, close: Any) -> Any:
        def call() -> None:
            closed.append(name)
            close()
            raise KeyboardInterrupt

        return call

    monkeypatch.setattr(trainer._source, "close", fails("source", close_source))
    monkeypatch.setattr(trainer._env_factory, "close", fails("environments", close_environments))
    monkeypatch.setattr(trainer.policy, "close", fails("policy", trainer.policy.close))
    with pytest.raises(KeyboardInterrupt):
        trainer.close()
    assert closed == ["source", "policy", "environments"]
