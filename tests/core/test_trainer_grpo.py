"""The trainer: gradients that can be checked against a plain forward pass, what is skipped, and that learning works."""

import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import episode, make_trainer, turn
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from torch.optim.optimizer import register_optimizer_step_pre_hook

from agent_rl.agent.messages import Message
from agent_rl.config import TrainConfig
from agent_rl.core.interrupts import deferred_interrupt
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.checkpoint import verify_checkpoint
from agent_rl.envs.base import EnvFactory, StepResult, Task
from agent_rl.errors import AgentRLError, CheckpointError, ConfigError, DataError, SandboxError
from agent_rl.learning.optimizer import learning_rate_at
from agent_rl.learning.update import UpdateResult
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path


def metrics_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()]


def group(*episodes: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(task_id="t", trajectories=episodes)


@contextmanager
def recorded_gradients() -> Iterator[list[list[torch.Tensor]]]:
    """The gradients that every optimizer step in the block is made with."""
    steps: list[list[torch.Tensor]] = []

    def record(optimizer: torch.optim.Optimizer, *_args: object) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        steps.append([parameter.grad.clone() for parameter in parameters])

    handle = register_optimizer_step_pre_hook(record)
    try:
        yield steps
    finally:
        handle.remove()


def in_optimizer_order(model: MiniMindForCausalLM) -> list[torch.nn.Parameter]:
    return sorted(model.parameters(), key=lambda parameter: parameter.dim() <= 1)


def ids_of_conversation() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two turns: read 7 8 9, sampled 10 2, read 11 12, sampled 13 2; mask 1 where sampled."""
    return (7, 8, 9, 10, 2, 11, 12, 13, 2), (0, 0, 0, 1, 1, 0, 0, 1, 1)


def test_the_gradient_is_that_of_the_sampled_ids_alone(folder: Path) -> None:
    ids, mask = ids_of_conversation()
    other = (7, 8, 9, 14, 2)
    reference = MiniMindForCausalLM.from_pretrained(folder / "model")

    def logprobs(row: Sequence[int]) -> torch.Tensor:
        """Log-prob of every id given those before it, at temperature 0.7; that of id t is at t - 1."""
        scaled = torch.log_softmax(reference(torch.tensor([row]))[0] / 0.7, dim=-1)
        return scaled[:-1].gather(1, torch.tensor(row[1:])[:, None])[:, 0]

    first, second = logprobs(ids), logprobs(other)
    sampled = [first[2], first[3], first[6], first[7]]
    assert [ids[position] for position in (3, 4, 7, 8)] == [ids[i] for i, bit in enumerate(mask) if bit]
    # Two rewards 1 and 0 have advantages +-0.5 / std, std = sqrt(0.5); 6 trained tokens in all; the ratio is 1.
    advantage = 0.5 / (math.sqrt(0.5) + 1e-6)
    (-(advantage * sum(sampled) - advantage * (second[2] + second[3])) / 6).backward()
    expected = [parameter.grad for parameter in in_optimizer_order(reference)]

    one, two, three, four = (value.item() for value in sampled)
    good = episode(1.0, turn(ids[:3], ids[3:5], (one, two)), turn(ids[5:7], ids[7:], (three, four)))
    bad = episode(0.0, turn(other[:3], other[3:], (second[2].item(), second[3].item())))
    with (
        make_trainer(folder, policy={"temperature": 0.7}, train={"max_grad_norm": 1e6}) as trainer,
        recorded_gradients() as steps,
    ):
        metrics = trainer.update([group(good, bad)]).metrics
    assert metrics["batch/num_loss_tokens"] == 6
    assert metrics["loss/abs_log_ratio_max"] < 1e-5
    for got, wanted in zip(steps[0], expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-6, rtol=1e-4)


def test_training_learns_from_what_a_subclass_makes_of_the_groups(folder: Path) -> None:
    seen: list[int] = []

    class Watching(GRPOTrainer):
        def update(self, groups: Sequence[TrajectoryGroup]) -> UpdateResult:
            seen.append(len(groups))
            return super().update(groups)

    config = tiny_config(folder, train={"steps": 2}, rollout={"groups_per_step": 3})
    with Watching.from_config(config, env_factory=LetterEnv, train_tasks=LETTER_TASKS) as trainer:
        trainer.train()
    assert seen == [3, 3]


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_mean"])
def test_the_gradient_is_the_same_for_any_micro_batch(folder: Path, aggregation: str) -> None:
    ids, _ = ids_of_conversation()
    logprobs = [-2.9] * 6
    groups = [
        group(*(episode(float(i), turn(ids[:3], ids[3 : 4 + i], logprobs[: i + 1])) for i in range(6))),
        group(episode(1.0, turn(ids[:2], ids[2:4], logprobs[:2])), episode(0.0, turn(ids[:4], ids[4:5], logprobs[:1]))),
    ]
    gradients, num_batches = [], []
    for max_tokens in (1, 5, 10_000):
        sections = {"train": {"micro_batch_tokens": max_tokens}, "algorithm": {"aggregation": aggregation}}
        with make_trainer(folder, **sections) as trainer, recorded_gradients() as steps:
            num_batches.append(trainer.update(groups).metrics["batch/num_micro_batches"])
        gradients.append(steps[0])
    assert num_batches[0] == 8
    assert num_batches[2] == 1
    assert num_batches[0] > num_batches[1] > 1
    for other in gradients[1:]:
        for got, wanted in zip(other, gradients[0], strict=True):
            torch.testing.assert_close(got, wanted, atol=1e-7, rtol=1e-4)


def weights_of(trainer: GRPOTrainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.policy.model.parameters()]


def is_unchanged(trainer: GRPOTrainer, before: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(weights_of(trainer), before, strict=True))


def test_a_step_without_signal_changes_no_weight_but_counts(folder: Path) -> None:
    same = episode(1.0, turn((7,), (8, 2), (-1.0, -1.0)))
    with make_trainer(folder) as trainer:
        before = weights_of(trainer)
        metrics = trainer.update([group(same, same)]).metrics
        assert is_unchanged(trainer, before)
        assert (metrics["optim/skipped"], metrics["batch/num_samples"]) == (1.0, 2.0)
        assert (trainer.step, trainer.policy.weight_version) == (1, 1)


def test_an_episode_that_could_not_be_scored_changes_nothing(folder: Path) -> None:
    good, bad = episode(1.0, turn((7,), (8, 2), (-3.0, -3.0))), episode(0.0, turn((7,), (9, 2), (-3.0, -3.0)))
    lost = episode(None, turn((7,), (10, 2), (-3.0, -3.0)))
    results = []
    for episodes in ((good, bad), (good, lost, bad)):
        with make_trainer(folder) as trainer, recorded_gradients() as steps:
            trainer.update([group(*episodes)])
        results.append(steps[0])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def poisoned_group() -> TrajectoryGroup:
    return group(
        episode(1.0, turn((7,), (8, 2), (math.nan, -1.0))),
        episode(0.0, turn((7,), (9, 2), (-1.0, -1.0))),
    )


def test_a_gradient_that_is_not_finite_is_not_applied_and_three_in_a_row_end_the_run(folder: Path) -> None:
    healthy = group(episode(1.0, turn((7,), (8, 2), (-3.0, -3.0))), episode(0.0, turn((7,), (9, 2), (-3.0, -3.0))))
    with make_trainer(folder, train={"steps": 6}) as trainer:
        before = weights_of(trainer)
        for _ in range(2):
            metrics = trainer.update([poisoned_group()]).metrics
            assert (metrics["optim/skipped"], metrics["optim/nonfinite"]) == (1.0, 1.0)
        assert is_unchanged(trainer, before)
        assert trainer.update([healthy]).metrics["optim/skipped"] == 0.0
        assert not is_unchanged(trainer, before)
        for _ in range(2):
            trainer.update([poisoned_group()])
        with pytest.raises(AgentRLError, match="3 updates in a row"):
            trainer.update([poisoned_group()])


def test_the_learning_rate_rises_to_its_peak_and_falls_to_its_end() -> None:
    config = TrainConfig(steps=6, learning_rate=0.4, final_learning_rate=0.1, warmup_steps=3)
    assert [round(learning_rate_at(step, config), 6) for step in range(6)] == [0.1, 0.2, 0.3, 0.4, 0.3, 0.2]
    cosine = TrainConfig(steps=4, learning_rate=0.4, schedule="cosine")
    assert [round(learning_rate_at(step, cosine), 4) for step in range(4)] == [0.4, 0.3414, 0.2, 0.0586]
    assert learning_rate_at(0, TrainConfig(steps=1, learning_rate=0.4)) == 0.4


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("warmup_steps", [0, 4])
def test_the_learning_rate_stays_at_its_end_after_the_last_step(schedule: str, warmup_steps: int) -> None:
    config = TrainConfig(
        steps=4, learning_rate=0.4, final_learning_rate=0.1, warmup_steps=warmup_steps, schedule=schedule
    )
    assert [learning_rate_at(step, config) for step in (4, 5, 9)] == [0.1, 0.1, 0.1]


def test_updates_after_the_last_step_learn_at_the_final_rate_and_are_refused_where_that_is_0(folder: Path) -> None:
    differing = group(episode(1.0, turn((7,), (8, 2), (-3.0, -3.0))), episode(0.0, turn((7,), (9, 2), (-3.0, -3.0))))
    with make_trainer(folder, train={"steps": 1, "learning_rate": 1e-3, "final_learning_rate": 1e-4}) as trainer:
        rates = [trainer.update([differing]).metrics["optim/learning_rate"] for _ in range(3)]
    assert rates == [1e-3, 1e-4, 1e-4]
    with make_trainer(folder, train={"steps": 1, "learning_rate": 1e-3}) as trainer:
        trainer.update([differing])
        after = weights_of(trainer)
        with pytest.raises(ConfigError, match=r"update 2 would learn nothing: train.steps is 1, .*set train.steps"):
            trainer.update([differing])
        assert trainer.step == 1
        assert is_unchanged(trainer, after)


# Whole runs on the tiny model


def test_training_raises_the_reward_and_the_trainer_agrees_with_the_sampler(folder: Path) -> None:
    with make_trainer(folder, rollout={"group_size": 16}, train={"steps": 25, "learning_rate": 2e-2}) as trainer:
        result = trainer.train()
    rows = metrics_of(folder)
    rewards = [row["reward/mean"] for row in rows]
    assert result["step"] == 25
    assert sum(rewards[-3:]) / 3 > 0.5 + sum(rewards[:3]) / 3
    # Every update is on-policy: the log-probs are those of the sampler as long as it has the newest weights.
    # A policy that has learned everything has steps without signal, which measure nothing.
    learned = [row for row in rows if row["optim/skipped"] == 0.0]
    assert len(learned) > 15
    assert max(row["loss/abs_log_ratio_max"] for row in learned) < 1e-4
    assert max(row["loss/clip_frac"] for row in learned) == 0.0


def test_a_run_starts_from_a_pth_file_with_its_tokenizer_beside_it(folder: Path) -> None:
    model = MiniMindForCausalLM.from_pretrained(folder / "model")
    torch.save(model.half().state_dict(), folder / "model/rl_32.pth")
    (folder / "model/model.safetensors").unlink()
    with make_trainer(folder, model={"path": str(folder / "model/rl_32.pth")}, train={"steps": 1}) as trainer:
        assert is_unchanged(trainer, [parameter.float() for parameter in model.parameters()])
        trainer.train()
    saved = MiniMindForCausalLM.from_pretrained(folder / "runs/tiny/checkpoints/step_00001/model")
    assert saved.dtype == torch.float32
    assert metrics_of(folder)[0]["optim/grad_norm"] > 0.0


def test_training_runs_with_bfloat16_products(folder: Path) -> None:
    with make_trainer(folder, train={"steps": 2, "autocast": "bfloat16"}) as trainer:
        trainer.train()
    assert all(row["optim/skipped"] == 0.0 and row["loss/abs_log_ratio_max"] < 0.1 for row in metrics_of(folder))


# Curriculum

SUCCESS_CURRICULUM = {"mode": "success", "threshold": 0.5, "window": 4, "review": 0.25}


class GoodAtLevelOne(LetterEnv):
    """Tasks of level 1 always succeed, the others never; records the levels that ran."""

    levels_run: list[int] = []

    def reset(self, task: Task) -> list[Message]:
        self.level = task["level"]
        self.levels_run.append(self.level)
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=0.5, reward_parts={"success": float(self.level == 1)}, terminated=True)

    def truncate(self, reason: StopReason) -> StepResult:
        return StepResult(reward=0.0, reward_parts={"success": float(self.level == 1)}, terminated=True)


def train_with_levels(folder: Path, env: Any, *, curriculum: dict[str, Any], steps: int) -> None:
    config = tiny_config(
        folder,
        data={"curriculum": curriculum},
        rollout={"group_size": 2, "groups_per_step": 4, "async_workers": 0},
        train={"steps": steps},
    )
    tasks = [{"task_id": f"t{i}", "question": "post", "level": 1 + i // 4} for i in range(12)]
    with GRPOTrainer.from_config(config, env_factory=EnvFactory(env), train_tasks=tasks) as trainer:
        trainer.train()


def test_a_level_opens_after_success_and_stays_the_highest_until_it_is_mastered(folder: Path) -> None:
    GoodAtLevelOne.levels_run.clear()
    train_with_levels(folder, GoodAtLevelOne, curriculum=SUCCESS_CURRICULUM, steps=3)
    rows = metrics_of(folder)
    assert [(row["curriculum/max_level"], row["curriculum/success_at_max_level"]) for row in rows] == [
        (1, 1.0),
        (2, 0.0),
        (2, 0.0),
    ]
    assert GoodAtLevelOne.levels_run == [1] * 8 + ([2] * 6 + [1] * 2) * 2


def test_without_a_curriculum_all_levels_are_sampled_and_no_metric_is_written(folder: Path) -> None:
    GoodAtLevelOne.levels_run.clear()
    train_with_levels(folder, GoodAtLevelOne, curriculum={}, steps=3)
    assert sorted(GoodAtLevelOne.levels_run) == [1] * 8 + [2] * 8 + [3] * 8
    assert not any(key.startswith("curriculum/") for row in metrics_of(folder) for key in row)


class NoSuccess(LetterEnv):
    def step(self, message: Message) -> StepResult:
        return StepResult(reward=1.0, reward_parts={"style": 1.0}, terminated=True)


def test_a_curriculum_by_success_ends_before_the_first_update_where_none_is_reported(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"data\.curriculum\.mode = 'success', but the environment reports no success"
    ):
        train_with_levels(folder, NoSuccess, curriculum=SUCCESS_CURRICULUM, steps=3)
    assert metrics_of(folder) == []


def test_stages_need_no_success(folder: Path) -> None:
    stages = {"mode": "stages", "stages": [{"until_step": 1, "max_level": 2}]}
    train_with_levels(folder, NoSuccess, curriculum=stages, steps=2)
    rows = metrics_of(folder)
    assert [row["curriculum/max_level"] for row in rows] == [2, 3]
    assert not any("curriculum/success_at_max_level" in row for row in rows)


class AlwaysCutOff(LetterEnv):
    """Continues until the turns are used up, and then reports no success."""

    def step(self, message: Message) -> StepResult:
        return StepResult(messages=(Message.user("t"),), reward=0.1)


def test_episodes_that_were_cut_off_count_as_failures(folder: Path) -> None:
    train_with_levels(folder, AlwaysCutOff, curriculum=SUCCESS_CURRICULUM, steps=2)
    assert [row["curriculum/success_at_max_level"] for row in metrics_of(folder)] == [0.0, 0.0]


def test_a_row_of_the_training_file_without_a_level_is_named_by_file_and_line(folder: Path) -> None:
    path = folder / "tasks.jsonl"
    path.write_text('{"task_id": "a", "level": 1}\n\n{"task_id": "b"}\n')
    config = tiny_config(folder, data={"train_path": str(path), "curriculum": SUCCESS_CURRICULUM})
    with pytest.raises(
        ConfigError, match=r"tasks\.jsonl:3: level is None, but data\.curriculum\.mode = 'success' needs"
    ):
        GRPOTrainer.from_config(config, env_factory=EnvFactory(LetterEnv))


class SometimesBroken(LetterEnv):
    """Cannot be reset for the task `t1`."""

    def reset(self, task: Task) -> list[Message]:
        if task["task_id"] == "t1":
            raise SandboxError("no room left")
        return super().reset(task)


def test_environment_errors_are_dropped_counted_and_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with make_trainer(folder, env=SometimesBroken, train={"steps": 1}) as trainer:
        trainer.train()
    row = metrics_of(folder)[0]
    assert (row["rollout/env_errors"], row["batch/num_samples"]) == (8, 24)
    assert "step 1: 8 of 32 episodes dropped by environment errors, first: SandboxError: no room left" in (
        capsys.readouterr().out
    )


class SolvedEnv(LetterEnv):
    def step(self, message: Message) -> StepResult:
        return replace(super().step(message), reward_parts={"success": 1.0})


def test_a_run_ends_at_the_evaluation_that_solves_what_was_wanted(folder: Path) -> None:
    settings = {"every": 2, "before_training": False, "temperatures": [1.0], "stop_at": 0.25}
    for _ in range(2):  # the second start continues, and finds nothing to do
        with make_trainer(
            folder, env=SolvedEnv, train={"steps": 50}, eval=settings, checkpoint={"every": 0, "resume": "auto"}
        ) as trainer:
            report = trainer.train()
        assert report["step"] == trainer.step == 2
    assert [path.name for path in (folder / "runs/tiny/checkpoints").iterdir()] == ["step_00002"]
    with make_trainer(folder, run={"name": "other"}, train={"steps": 3}, eval={**settings, "every": 1}) as trainer:
        assert trainer.train()["step"] == 3


def test_evaluations_come_first_last_and_when_due(folder: Path) -> None:
    with make_trainer(folder, eval={"temperatures": [0.0], "every": 2}, train={"steps": 5}) as trainer:
        result = trainer.train()
    assert [row["step"] for row in metrics_of(folder) if "eval/t0/reward" in row] == [0, 2, 4, 5]
    assert result["before"][0.0].step == 0
    assert result["after"][0.0].step == 5


def test_the_environment_and_the_policy_are_closed(folder: Path) -> None:
    events = []

    class Factory(EnvFactory):
        def start(self) -> None:
            events.append("start")

        def close(self) -> None:
            events.append("close")

    factory = Factory(LetterEnv)
    config = tiny_config(folder)
    with GRPOTrainer.from_config(config, env_factory=factory, train_tasks=LETTER_TASKS, eval_tasks=()):
        assert events == ["start"]
    assert events == ["start", "close"]


# What a user can fix is one sentence


def test_a_window_longer_than_the_models_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.max_context = 129: the model in .* was made for 128 tokens"):
        make_trainer(folder, policy={"max_context": 129})


def test_a_model_folder_without_a_tokenizer_is_refused(folder: Path) -> None:
    (folder / "model/tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json does not exist"):
        make_trainer(folder)


def test_a_task_that_the_environment_refuses_names_the_file(folder: Path) -> None:
    class Picky(EnvFactory):
        def check_task(self, task: Task, where: str) -> None:
            if "question" not in task:
                raise DataError(f"{where}: 'question' is missing; add it")

    path = folder / "tasks.jsonl"
    path.write_text('{"task_id": "a", "question": "?"}\n{"task_id": "b"}\n')
    config = tiny_config(folder, data={"train_path": str(path)})
    with pytest.raises(DataError, match=r"tasks\.jsonl:2: 'question' is missing"):
        GRPOTrainer.from_config(config, env_factory=Picky(LetterEnv))


@pytest.mark.parametrize("device", ["tpu", "cuda:99", "meta"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"run.device = '{device}'"):
        Backend(device)


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    reached = []
    with pytest.raises(KeyboardInterrupt), deferred_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("end")
    assert reached == ["end"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_leaves_the_block_at_once() -> None:
    reached = []
    with pytest.raises(SystemExit) as left, deferred_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("first")
        os.kill(os.getpid(), signal.SIGINT)
        reached.append("second")
    assert (left.value.code, reached) == (130, ["first"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_between_updates_keeps_the_last_whole_step(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class PressedInStep(LetterEnv):
        num_steps = 0

        def step(self, message: Message) -> StepResult:
            type(self).num_steps += 1
            if type(self).num_steps == 40:
                os.kill(os.getpid(), signal.SIGINT)
            return super().step(message)

    with make_trainer(folder, env=PressedInStep, train={"steps": 50}) as trainer, pytest.raises(KeyboardInterrupt):
        trainer.train()
    (checkpoint,) = (folder / "runs/tiny/checkpoints").iterdir()
    assert checkpoint.name == f"step_{trainer.step:05d}"
    assert f"Interrupted after step {trainer.step}; checkpoint saved in" in capsys.readouterr().out
    assert len(metrics_of(folder)) == trainer.step


def test_ctrl_c_while_saving_lets_the_checkpoint_be_finished(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with make_trainer(folder, train={"steps": 3}, checkpoint={"every": 2}) as trainer:
        save_model = trainer.model.save_pretrained

        def press_and_save(model_folder: Path, weights: None) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            save_model(model_folder, weights)

        monkeypatch.setattr(trainer.model, "save_pretrained", press_and_save)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    assert "Interrupted after step 2" in capsys.readouterr().out
    checkpoint = folder / "runs/tiny/checkpoints/step_00002"
    verify_checkpoint(checkpoint)
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
