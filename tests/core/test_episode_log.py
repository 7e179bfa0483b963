"""Which episodes a run keeps to be looked at, what becomes of them when it goes back, and a disk that is full."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from run_outcomes import lasting_metrics
from updates import make_step

from agent_rl.agent.messages import Message
from agent_rl.core.episode_log import EpisodeLog
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, Task
from agent_rl.errors import DataError, TrainingStoppedError
from agent_rl.learning.update import UpdateResult
from agent_rl.records import StopReason
from agent_rl.telemetry.files import whole_file, write_json
from agent_rl.telemetry.trajectory_json import json_line


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save_tiny_model(folder / "model")
    return folder


def read_samples(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def samples(*steps: int) -> list[str]:
    return [f"step_{step:05d}.jsonl.gz" for step in steps]


def transcripts(*steps: int) -> list[str]:
    return [f"step_{step:05d}.jsonl" for step in steps]


def trained(
    folder: Path, runs: Path, *, env: type[AgentEnv] = LetterEnv, tasks: Any = LETTER_TASKS, **sections: dict[str, Any]
) -> tuple[Path, list[torch.Tensor]]:
    """A run's folder and the weights it ends with."""
    sections["run"] = {"output_dir": str(runs)}
    sections["rollout"] = {"async_workers": 0, "group_size": 4, "groups_per_step": 2} | sections.get("rollout", {})
    sections["policy"] = {"max_new_tokens": 12} | sections.get("policy", {})
    with GRPOTrainer.from_config(
        tiny_config(folder, **sections), env_factory=EnvFactory(env), train_tasks=tasks
    ) as trainer:
        trainer.train()
        return runs / "tiny", [parameter.detach().clone() for parameter in trainer.model.module.parameters()]


def test_the_first_the_last_and_every_nth_step_are_logged_without_effect_on_training(
    folder: Path, tmp_path: Path
) -> None:
    train = {"steps": 4, "epochs": 2}
    run, weights = trained(folder, tmp_path / "with", train=train, log={"samples_every": 3})
    without, others = trained(folder, tmp_path / "without", train=train, log={"samples_every": 0})
    assert all(torch.equal(one, other) for one, other in zip(weights, others, strict=True))
    assert lasting_metrics(run) == lasting_metrics(without)
    assert not (without / "samples").exists()
    assert names(run / "samples") == samples(1, 3, 4)
    assert names(run / "transcripts") == transcripts(1, 2, 3, 4)

    records = read_samples(run / "samples" / "step_00001.jsonl.gz")
    assert [record["group_id"] for record in records] == [f"1/{group}" for group in range(2) for _ in range(4)]
    for record in records:
        (sample,) = record["samples"]
        is_sampled = [value is not None for value in sample["sampling_logprobs"]]
        assert sample["loss_mask"] == [int(sampled) for sampled in is_sampled]
        assert sum(is_sampled) == record["num_tokens"]
        assert f"user\n{record['messages'][0]['content']}<|im_end|>" in "".join(sample["texts"])
        assert sample["segments"][1]["weight_version"] == 0
        advantages = {value for value in sample["advantages"] if value is not None}
        assert len(advantages) == 1
        assert sample["num_updates"] == (0 if advantages == {0.0} else 2)  # one in each epoch
        if advantages != {0.0}:  # the first update's own pass, of the weights that sampled
            for trainer, sampling in zip(sample["trainer_logprobs"], sample["sampling_logprobs"], strict=True):
                assert trainer == (None if sampling is None else pytest.approx(sampling, abs=2e-4))
    assert any(record["samples"][0]["num_updates"] for record in records)


class TwoTurns(LetterEnv):
    """Answers the first reply, scores the second; a task with an odd number is always worth the same."""

    def reset(self, task: Task) -> list[Message]:
        self.is_even, self.num_replies = task["number"] % 2 == 0, 0
        return super().reset(task)

    def step(self, message: Message) -> StepResult:
        self.num_replies += 1
        if self.num_replies == 1:
            return StepResult(messages=(Message.tool("us"),))
        return super().step(message) if self.is_even else StepResult(reward=1.0, terminated=True)

    def truncate(self, reason: StopReason) -> StepResult:
        return StepResult(reward=0.5 if self.is_even else 1.0)


def test_truncated_and_zero_variance_episodes_are_logged_too(folder: Path, tmp_path: Path) -> None:
    run, _ = trained(
        folder,
        tmp_path,
        env=TwoTurns,
        tasks=[{"task_id": f"t{number}", "question": "post", "number": number} for number in range(4)],
        policy={"max_new_tokens": 24, "max_context": 128},
        rollout={"group_size": 8, "max_attempts": 2},
        algorithm={"mask_truncated": True},
        train={"steps": 1},
    )
    records = read_samples(run / "samples" / "step_00001.jsonl.gz")
    ended: set[tuple[str, bool]] = set()
    for record in records:
        (sample,) = record["samples"]
        is_cut_off, has_advantage = record["stop_reason"] == "max_tokens", any(sample["advantages"])
        is_sampled = [int(value is not None) for value in sample["sampling_logprobs"]]
        assert sample["loss_mask"] == (is_sampled if has_advantage and not is_cut_off else [0] * len(is_sampled))
        assert sample["num_updates"] == int(has_advantage and not is_cut_off)
        kinds = [segment["kind"] for segment in sample["segments"]]
        assert kinds == ["prompt", "assistant", "tool", "assistant"][: len(kinds)]
        assert is_cut_off or len(kinds) == 4
        if record["task_id"] in ("t1", "t3"):  # zero variance: other groups replace them
            assert not has_advantage
        ended.add((record["stop_reason"], has_advantage))
    assert len(records) % 8 == 0
    assert len(records) > 16
    assert ended == {("finished", True), ("max_tokens", True), ("finished", False), ("max_tokens", False)}


def test_greedy_episodes_are_logged_and_marked(folder: Path, tmp_path: Path) -> None:
    run, _ = trained(folder, tmp_path, algorithm={"advantage": "remax"}, train={"steps": 1})
    records = read_samples(run / "samples" / "step_00001.jsonl.gz")
    assert [record.get("greedy", False) for record in records] == 2 * [False, False, False, False, True]
    assert [record["group_id"] for record in records[:5]] == ["1/0"] * 5


# Going back


def test_a_resumed_run_removes_what_steps_that_it_runs_again_have_left(folder: Path, tmp_path: Path) -> None:
    checkpoint = {"every": 2, "resume": "auto"}
    run, _ = trained(folder, tmp_path, train={"steps": 3}, checkpoint=checkpoint, log={"samples_every": 1})
    (run / "samples" / "step_00001.jsonl.gz.partial").write_bytes(b"cut off")
    (run / "samples" / "notes.txt").write_text("mine")
    (run / "eval").mkdir()
    for name in ("step_00002_t0.json", "step_00003_t0.json", "step_00003_t0.7.json.partial"):
        (run / "eval" / name).write_text("{}")
    shutil.rmtree(run / "checkpoints/step_00003")  # as if killed after step 3 was logged, before it was saved
    trained(folder, tmp_path, train={"steps": 5}, checkpoint=checkpoint, log={"samples_every": 0})
    assert names(run / "samples") == ["notes.txt", *samples(1, 2)]
    assert names(run / "eval") == ["step_00002_t0.json"]
    assert names(run / "transcripts") == transcripts(1, 2, 3, 4, 5)


def test_a_step_that_was_gone_back_from_leaves_no_samples(folder: Path, tmp_path: Path) -> None:
    """The alarm fires at step 3; after the rollback to step 2 it is checked again from step 5 on."""
    log = {"samples_every": 3, "alarms": [{"metric": "reward/mean", "above": -1.0, "steps": 3, "action": "rollback"}]}
    seen: list[list[str]] = []

    class Watched(LetterEnv):
        def reset(self, task: Task) -> list[Message]:
            seen.append(names(tmp_path / "tiny" / "samples"))
            return super().reset(task)

    run, _ = trained(folder, tmp_path, env=Watched, train={"steps": 4}, checkpoint={"every": 2}, log=log)
    num_episodes = 8
    before = seen[::num_episodes]
    assert before == [[], samples(1), samples(1), samples(1), samples(1, 3)]  # at steps 1, 2, 3, 3 again and 4
    assert names(run / "samples") == samples(1, 3, 4)


def test_a_file_that_cannot_be_removed_ends_the_start_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "samples" / "step_00004.jsonl.gz").mkdir(parents=True)
    with pytest.raises(DataError, match="left of a step that is run again, and cannot be removed"):
        RunFolder(path=tmp_path, resume_from=None).remove_later(3)


def test_the_step_at_which_an_alarm_stops_the_run_is_logged(folder: Path, tmp_path: Path) -> None:
    log = {"samples_every": 9, "alarms": [{"metric": "reward/mean", "above": -1.0, "steps": 2, "action": "stop"}]}
    with pytest.raises(TrainingStoppedError, match="stopped after step 2"):
        trained(folder, tmp_path, log=log)
    assert names(tmp_path / "tiny/samples") == samples(1, 2)
    (sample,) = read_samples(tmp_path / "tiny/samples/step_00002.jsonl.gz")[0]["samples"]
    assert sample["segments"][1]["weight_version"] == 1
    assert any(sample["loss_mask"])


# A disk that refuses


NO_SAMPLES = UpdateResult(metrics={}, build_samples=list)


class Words:
    """A fake chat format: each id is a word."""

    @staticmethod
    def token_texts(ids: Any) -> list[str]:
        return [f"{token} " for token in ids]


def test_a_full_disk_is_reported_once_and_leaves_no_torn_file(folder: Path, tmp_path: Path) -> None:
    config = tiny_config(folder, log={"samples_every": 1})
    log = EpisodeLog(config, RunFolder(path=tmp_path, resume_from=None), [], Words(), is_main=True)
    (tmp_path / "samples").mkdir()
    reported: list[str] = []
    for step in (1, 2):
        (tmp_path / f"samples/step_{step:05d}.jsonl.gz.partial").symlink_to("/dev/full")
        log.write(step, make_step(0), NO_SAMPLES, report=reported.append)
    log.write(3, make_step(0), NO_SAMPLES, report=reported.append)
    (sentence,) = reported
    assert sentence.startswith(f"{tmp_path}: episodes of step 1 ")
    assert "No space left on device" in sentence
    assert names(tmp_path / "samples") == samples(3)
    assert names(tmp_path / "transcripts") == transcripts(1, 2, 3)


def test_a_disk_that_is_full_does_not_end_a_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny").mkdir()
    for name in ("samples", "transcripts"):
        (tmp_path / "tiny" / name).write_text("in the way of the folder")
    run, _ = trained(folder, tmp_path, train={"steps": 2})
    assert len(lasting_metrics(run)) == 2
    assert capsys.readouterr().out.count("episodes of step 1 cannot be written") == 1


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    with whole_file(path) as file:
        file.write(b"first")
    with pytest.raises(ValueError, match="halfway"), whole_file(path) as file:
        file.write(b"second")
        raise ValueError("halfway")
    assert path.read_bytes() == b"first"
    assert names(path.parent) == ["file"]


def test_numbers_of_other_libraries_are_written_as_numbers(tmp_path: Path) -> None:
    record = {"reward": np.float32(0.25), "success": np.bool_(True), "at": Path("a/b")}
    write_json(tmp_path / "file.json", record)
    expected = {"reward": 0.25, "success": 1.0, "at": "a/b"}
    assert json.loads((tmp_path / "file.json").read_text()) == expected
    assert json.loads(json_line(record)) == expected


# Which process, and when


def test_the_main_process_alone_writes_samples_and_builds_them_only_when_they_are_due(
    folder: Path, tmp_path: Path
) -> None:
    config = tiny_config(folder, log={"samples_every": 3}, train={"steps": 8})
    reported: list[str] = []
    for is_main in (False, True):
        log = EpisodeLog(config, RunFolder(path=tmp_path, resume_from=None), [], Words(), is_main=is_main)
        built: list[int] = []
        for step in range(1, 9):
            update = UpdateResult(metrics={}, build_samples=lambda step=step, built=built: built.append(step) or [])
            log.write(step, make_step(0), update, report=reported.append)
        assert built == ([1, 3, 6, 8] if is_main else [])
        assert names(tmp_path / "samples") == samples(*built)
    assert reported == []
