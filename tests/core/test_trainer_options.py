"""What a run does besides the plain loop: refills, greedy baselines, critics, references, alarms, best checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_trainer
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model
from torch import nn

from agent_rl.agent.messages import Message
from agent_rl.algorithms import estimators
from agent_rl.distributed.checkpoint import best_checkpoint
from agent_rl.envs.base import StepResult, Task
from agent_rl.errors import AgentRLError, CheckpointError, ConfigError
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.telemetry.events import read_events


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path


def train(folder: Path, **options: Any) -> list[dict[str, Any]]:
    """The metrics rows of a run."""
    with make_trainer(folder, **options) as trainer:
        trainer.train()
    return rows_of(folder)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()]


def retained_steps(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "runs/tiny/checkpoints").iterdir())


class HalfDead(LetterEnv):
    """Tasks with an odd number always get the same reward; records the numbers that ran."""

    numbers_run: list[int] = []

    def reset(self, task: Task) -> list[Message]:
        self.number = task["number"]
        self.numbers_run.append(self.number)
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=1.0, terminated=True) if self.number % 2 else super().step(message)

    def truncate(self, reason: Any) -> StepResult:
        return StepResult(reward=1.0 if self.number % 2 else 0.0)


NUMBERED = [{"task_id": f"t{i}", "question": "post", "number": i} for i in range(8)]


def test_groups_without_signal_are_replaced_until_enough_have_one_or_attempts_run_out(folder: Path) -> None:
    HalfDead.numbers_run.clear()
    rollout = {"group_size": 8, "groups_per_step": 2, "async_workers": 0, "max_attempts": 4}
    rows = train(folder, env=HalfDead, tasks=NUMBERED, rollout=rollout, train={"steps": 2}, eval={"temperatures": []})
    for row in rows:
        assert 1 <= row["rollout/num_attempts"] <= 4
        assert row["rollout/num_groups"] >= 2
        assert row["batch/num_samples"] <= 16
    num_groups = sum(row["rollout/num_groups"] for row in rows)
    assert len(HalfDead.numbers_run) == 8 * num_groups
    # Some zero-variance groups ran as well.
    assert num_groups > 4
    assert sum(row["batch/num_samples"] for row in rows) < 8 * num_groups


def test_without_refills_every_group_is_used(folder: Path) -> None:
    rollout = {"group_size": 8, "groups_per_step": 2, "async_workers": 0}
    rows = train(folder, env=HalfDead, tasks=NUMBERED, rollout=rollout, train={"steps": 2})
    assert [row["batch/num_samples"] for row in rows] == [16, 16]
    assert not any("rollout/num_attempts" in row for row in rows)


def test_remax_runs_one_greedy_episode_more_of_every_task(folder: Path) -> None:
    HalfDead.numbers_run.clear()
    rollout = {"group_size": 3, "groups_per_step": 2, "async_workers": 0}
    train(folder, env=HalfDead, tasks=NUMBERED, rollout=rollout, train={"steps": 1}, algorithm={"advantage": "remax"})
    assert len(HalfDead.numbers_run) == 8


class Generous(LetterEnv):
    """One more than the share of the letter, whatever happens."""

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=1.0 + super().step(message).reward, terminated=True)

    def truncate(self, reason: Any) -> StepResult:
        return StepResult(reward=1.0)


def test_a_critic_learns_to_foresee_the_returns(folder: Path) -> None:
    rows = train(
        folder,
        env=Generous,
        train={"steps": 8, "learning_rate": 1e-3, "epochs": 2},
        algorithm={"advantage": "gae"},
        critic={"learning_rate": 1e-2, "warmup_steps": 2, "value_clip": None},
    )
    assert [row["loss/policy"] for row in rows[:2]] == [0.0, 0.0]
    # Whitened advantages may add up to exactly 0 now and then, while the ratio is 1.
    assert any(row["loss/policy"] != 0.0 for row in rows[2:])
    assert rows[0]["critic/value_mean"] == 0.0
    assert rows[-1]["loss/value"] < 0.1 * rows[0]["loss/value"]
    assert rows[-1]["critic/value_mean"] == pytest.approx(rows[-1]["critic/return_mean"], abs=0.2)


@pytest.mark.parametrize("backbone", ["own", "shared"])
def test_while_the_critic_learns_alone_the_policy_stays_and_then_learns_too(folder: Path, backbone: str) -> None:
    before = MiniMindForCausalLM.from_pretrained(folder / "model").state_dict()

    def has_moved(policy: nn.Module) -> list[bool]:
        return [not torch.equal(before[name], weight) for name, weight in policy.state_dict().items()]

    with make_trainer(
        folder,
        train={"steps": 4, "weight_decay": 0.1},
        algorithm={"advantage": "gae"},
        critic={"warmup_steps": 3, "backbone": backbone},
    ) as trainer:
        for _ in range(3):
            trainer._train_step(_Silent())
        assert not any(has_moved(trainer.policy.model))
        trainer._train_step(_Silent())
        assert all(has_moved(trainer.policy.model))


@pytest.mark.parametrize("backbone", ["own", "shared"])
def test_a_checkpoint_of_a_run_with_a_critic_is_the_policy_alone(folder: Path, backbone: str) -> None:
    train(folder, train={"steps": 1}, algorithm={"advantage": "gae"}, critic={"backbone": backbone})
    (path,) = (folder / "runs/tiny/checkpoints").iterdir()
    saved = MiniMindForCausalLM.from_pretrained(path / "model").state_dict()
    assert saved.keys() == MiniMindForCausalLM.from_pretrained(folder / "model").state_dict().keys()


def test_the_kl_to_the_start_is_0_at_first_and_its_coefficient_follows_the_target(folder: Path) -> None:
    kl = {"coef": 0.1, "kind": "full", "target": 1e-6, "horizon": 32}
    rows = train(folder, train={"steps": 3}, algorithm={"kl": kl}, rollout={"group_size": 4, "groups_per_step": 4})
    assert rows[0]["loss/kl"] == pytest.approx(0.0, abs=1e-6)
    assert rows[-1]["loss/kl"] > 1e-5
    # 16 of 32 episodes of the horizon, at most a fifth: the factor is 1.1 once the KL is far above the target.
    assert rows[-1]["loss/kl_coef"] / rows[-2]["loss/kl_coef"] == pytest.approx(1.1)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"algorithm": {"kl": {"coef": 0.1, "target": 0.001, "horizon": 64}}},
        {"algorithm": {"advantage": "gae"}, "critic": {"learning_rate": 1e-2}},
        {"algorithm": {"advantage": "gae"}, "critic": {"learning_rate": 1e-2, "backbone": "shared"}},
    ],
    ids=["reference", "critic", "shared critic"],
)
def test_a_resumed_run_has_the_critic_and_pulls_to_where_the_run_started(
    folder: Path, algorithm: dict[str, Any]
) -> None:
    options = algorithm | {
        "train": {"steps": 4},
        "rollout": {"async_workers": 0, "group_size": 4, "groups_per_step": 4},
    }
    straight = train(folder, **options)
    (folder / "runs/tiny").rename(folder / "runs/straight")
    with make_trainer(folder, **options) as trainer:
        for _ in range(2):
            trainer._train_step(_Silent())
        trainer.save_checkpoint()
    resumed = train(folder, checkpoint={"resume": "auto"}, **options)
    for one, other in zip(straight[2:], resumed, strict=True):
        for name in one.keys() | other.keys():
            assert name.startswith(("time", "perf/", "host/")) or one[name] == other[name], name


class _Silent:
    """Stands for the run's output."""

    def step(self, *_: object, **__: object) -> None: ...

    def message(self, _: str) -> None: ...

    def activity(self, _: str) -> None: ...

    def groups(self, *_: object) -> None: ...

    def table(self, *_: object) -> None: ...

    def notify(self, *_: object) -> None: ...

    def host_metrics(self) -> dict[str, float]:
        return {}


# Alarms


def alarm(**rule: Any) -> dict[str, Any]:
    return {"log": {"alarms": [rule], "progress": False}}


def test_an_alarm_that_stops_keeps_a_checkpoint_of_the_step(folder: Path) -> None:
    with (
        make_trainer(folder, **alarm(metric="reward/mean", above=-1.0, steps=2, action="stop")) as trainer,
        pytest.raises(AgentRLError, match=r"stopped after step 2 by the alarm on reward/mean; .*checkpoints"),
    ):
        trainer.train()
    assert retained_steps(folder) == ["step_00002"]


def test_an_alarm_that_warns_is_reported_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(folder, **alarm(metric="reward/mean", above=-1.0))
    assert capsys.readouterr().out.count("reward/mean above -1 since step 1") == 1


def test_an_alarm_that_rolls_back_goes_on_from_the_checkpoint_with_half_the_rate_and_other_tasks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The reward is above -1 always: the alarm goes off at step 3; after the way back two steps are left.
    rows = train(
        folder,
        tasks=[{"task_id": f"t{i}", "question": "post"} for i in range(64)],
        train={"steps": 4, "schedule": "constant", "learning_rate": 1e-3},
        checkpoint={"every": 2},
        **alarm(metric="reward/mean", above=-1.0, steps=3, action="rollback"),
    )
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert [row["optim/learning_rate"] for row in rows] == [1e-3, 1e-3, 5e-4, 5e-4]
    assert "back to step 2, from there with half the learning rate" in capsys.readouterr().out
    assert retained_steps(folder) == ["step_00002", "step_00004"]
    events = read_events(folder / "runs/tiny")
    assert [(event.kind, event.step) for event in events if event.kind not in ("evaluation", "alarm")] == [
        ("start", 0), ("checkpoint", 2), ("rollback", 3), ("checkpoint", 4), ("end", 4)
    ]  # fmt: skip
    (fired,) = [event for event in events if event.facts.get("action") == "rollback"]
    assert (fired.kind, fired.step, fired.facts["since_step"]) == ("alarm", 3, 1)
    (rollback,) = [event.facts for event in events if event.kind == "rollback"]
    assert (rollback["to_step"], rollback["rate_factor"]) == (2, 0.5)


def test_without_a_checkpoint_a_rollback_only_halves_the_rate(folder: Path) -> None:
    rows = train(
        folder,
        train={"steps": 2, "schedule": "constant", "learning_rate": 1e-3},
        **alarm(metric="reward/mean", above=-1.0, action="rollback"),
    )
    assert [row["optim/learning_rate"] for row in rows] == [1e-3, 5e-4]


def test_an_alarm_that_stays_bad_rolls_back_three_times_and_then_stops(folder: Path) -> None:
    with (
        make_trainer(
            folder,
            train={"steps": 40, "schedule": "constant", "learning_rate": 1e-3},
            checkpoint={"every": 1},
            rollout={"group_size": 2, "groups_per_step": 2},
            **alarm(metric="reward/mean", above=-1.0, steps=2, action="rollback"),
        ) as trainer,
        pytest.raises(AgentRLError, match="stopped after step"),
    ):
        trainer.train()
    assert rows_of(folder)[-1]["optim/learning_rate"] == 1e-3 / 8
    events = read_events(folder / "runs/tiny")
    assert [event.kind for event in events].count("rollback") == 3
    assert (events[-1].kind, events[-1].facts["reason"]) == ("end", "stopped")


# Checkpoints


def test_a_checkpoint_of_another_algorithm_is_refused_in_a_sentence(folder: Path) -> None:
    train(folder, train={"steps": 1})
    with pytest.raises(CheckpointError, match="the checkpoint's critic is none, this run's is own"):
        make_trainer(folder, train={"steps": 2}, algorithm={"advantage": "gae"}, checkpoint={"resume": "auto"})


def test_a_run_that_continues_takes_no_other_model_but_the_same_one_from_elsewhere(folder: Path) -> None:
    train(folder, train={"steps": 1})
    save_tiny_model(folder / "other", seed=7)
    shutil.copytree(folder / "model", folder / "moved")
    more = {"train": {"steps": 2}, "checkpoint": {"resume": "auto"}}
    with pytest.raises(ConfigError, match="is another model than"):
        make_trainer(folder, model={"path": str(folder / "other")}, **more)
    assert len(train(folder, model={"path": str(folder / "moved")}, **more)) == 2


def test_held_out_tasks_that_are_trained_on_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = "held-out tasks are training tasks too"
    train(folder, train={"steps": 1})  # the builder holds out what it trains on
    assert told in capsys.readouterr().out
    others = [task | {"question": task["question"] + "b"} for task in LETTER_TASKS]
    train(folder, tasks=others, train={"steps": 1}, run={"name": "apart"})
    assert told not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model/model.safetensors", "model/tokenizer.json", "critic.pt", "rng_00000.pt"])
def test_a_torn_file_of_a_checkpoint_is_named_and_the_older_whole_one_offered(folder: Path, name: str) -> None:
    options = {"algorithm": {"advantage": "gae"}, "checkpoint": {"every": 1}}
    train(folder, train={"steps": 2}, **options)
    torn = folder / "runs/tiny/checkpoints/step_00002" / name
    torn.write_bytes(torn.read_bytes()[:10])
    with pytest.raises(CheckpointError, match="step_00001, which is whole") as caught:
        make_trainer(folder, train={"steps": 3}, **(options | {"checkpoint": {"resume": "auto"}}))
    assert name in str(caught.value)


def test_the_checkpoint_of_the_best_evaluation_is_retained_besides_the_newest(folder: Path) -> None:
    train(
        folder,
        train={"steps": 6},
        eval={"temperatures": [1.0], "every": 1},
        checkpoint={"every": 1, "keep": 1},
    )
    scores = {
        f"step_{step:05d}": json.loads((folder / f"runs/tiny/eval/step_{step:05d}_t1.json").read_text())["result"]
        for step in range(1, 7)
    }
    rates = {name: result["num_successes"] for name, result in scores.items()}
    best = max(rates, key=lambda name: rates[name])
    assert best_checkpoint(folder / "runs/tiny/checkpoints").name == best
    assert retained_steps(folder) == sorted({best, "step_00006"})


# Algorithms of one's own


def test_an_estimator_of_ones_own_is_one_decorated_function(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    @estimators.group_advantages("best_of_group_for_test")
    def best_of_group(rewards_G: torch.Tensor) -> torch.Tensor:
        seen.append(len(rewards_G))
        return (rewards_G == rewards_G.max()).double()

    rows = train(folder, train={"steps": 1}, algorithm={"advantage": "best_of_group_for_test"})
    assert rows[0]["optim/skipped"] == 0.0
    assert seen[0] == 8


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        ({"advantage": "grop"}, "unknown advantage estimator 'grop'.*did you mean 'grpo'"),
        ({"loss": "ppo_clib"}, "unknown policy loss 'ppo_clib'.*did you mean 'ppo_clip'"),
    ],
)
def test_an_unknown_algorithm_is_refused_before_the_first_rollout(
    folder: Path, algorithm: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        make_trainer(folder, algorithm=algorithm)


def test_without_an_evaluation_before_training_the_first_one_later_is_compared_with(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = {"temperatures": [0.0], "every": 1, "before_training": False}
    with make_trainer(folder, train={"steps": 3}, eval=evaluation) as trainer:
        result = trainer.train()
    assert sorted(path.name for path in (folder / "runs/tiny/eval").glob("*.json")) == [
        f"step_0000{step}_t0.json" for step in (1, 2, 3)
    ]
    assert (result["before"][0.0].step, result["after"][0.0].step) == (1, 3)
    table = capsys.readouterr().out
    assert "after 1 step " in table and "after 3 steps" in table
