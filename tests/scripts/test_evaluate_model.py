"""The command that evaluates any model: training's own figures, continuing after a stop, refusals, comparisons."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from tiny_models import save_tiny_causal_lm

from agent_rl.agent.messages import Message
from agent_rl.config import load_config
from agent_rl.core.evaluation import tasks_per_chunk
from agent_rl.core.run.lock import RunLock
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.data.tasks import write_tasks
from agent_rl.envs.base import EnvFactory, Task
from agent_rl.envs.registry import register_env
from agent_rl.errors import CheckpointError, ConfigError, DataError, EpisodesFailedError
from agent_rl.reports.episodes import read_eval_file
from agent_rl.reports.evaluation import EvaluationFolder
from agent_rl.reports.run.data import read_run
from agent_rl.reports.run.report import history
from agent_rl.scripts.evaluate_model import main


class InterruptedEnv(LetterEnv):
    """Ctrl-C during task t35, the first time."""

    is_pressed = False

    def reset(self, task: Task) -> list[Message]:
        if task["task_id"] == "t35" and not InterruptedEnv.is_pressed:
            InterruptedEnv.is_pressed = True
            raise KeyboardInterrupt
        return super().reset(task)


class BrokenEnv(LetterEnv):
    """Fails from task `first_broken` on."""

    first_broken = 0

    def reset(self, task: Task) -> list[Message]:
        if int(task["task_id"][1:]) >= BrokenEnv.first_broken:
            raise OSError("no space left")
        return super().reset(task)


register_env("letters")(lambda _options, _seed: EnvFactory(LetterEnv))
register_env("interrupted_letters")(lambda _options, _seed: EnvFactory(InterruptedEnv))
register_env("broken_letters")(lambda _options, _seed: EnvFactory(BrokenEnv))


def write_config(folder: Path, *, tasks: list[Task] = LETTER_TASKS, **sections: dict[str, Any]) -> Path:
    """A configuration of the tiny model in `folder`/model, its tasks beside it."""
    write_tasks(folder / "tasks.jsonl", tasks)
    data = {"train_path": str(folder / "tasks.jsonl"), "eval_path": str(folder / "tasks.jsonl")}
    config = tiny_config(folder, data=data, **({"env": {"name": "letters"}} | sections))
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return folder / "config.yaml"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path


def report_of(output: Path) -> dict[str, Any]:
    return json.loads((output / "report.json").read_text(encoding="utf-8"))


def lines_of(output: Path) -> list[str]:
    return (output / "episodes.jsonl").read_text(encoding="utf-8").splitlines()


def test_a_checkpoint_gets_the_figures_that_training_logged(folder: Path) -> None:
    config = write_config(folder, train={"steps": 1, "learning_rate": 3e-2}, eval={"temperatures": [0.0, 1.0]})
    with GRPOTrainer.from_config(load_config(config)) as trainer:
        trained = trainer.train()
    assert history(read_run(folder / "runs/tiny")) == "in one go"  # the report reads the events that the trainer wrote
    checkpoint = str(folder / "runs/tiny/checkpoints/step_00001")
    for temperature, samples in ((0.0, 1), (1.0, 1), (1.0, 3)):
        output = folder / f"out-{temperature}-{samples}"
        main(config, output, checkpoint=[checkpoint], temperature=temperature, samples=samples)
        logged = read_eval_file(folder / f"runs/tiny/eval/step_00001_t{temperature:g}.json")
        evaluated = [e for e in EvaluationFolder(output).episodes() if e.sample == 0]
        assert [e.task_id for e in evaluated] == [e.task_id for e in logged] == ["t0", "t1", "t2", "t3"]
        assert [e.reward for e in evaluated] == [e.reward for e in logged]
        assert [e.messages for e in evaluated] == [e.messages for e in logged]
        if samples == 1:
            summary, result = report_of(output)["summary"], trained["after"][temperature]
            assert summary["success"]["rate"] == result.success_rate
            assert (summary["success"]["low"], summary["success"]["high"]) == pytest.approx(
                (result.success_low, result.success_high)
            )
            assert summary["reward"]["mean"] == result.mean_reward
    # The weights are the checkpoint's: the run's first model behaves differently.
    main(config, folder / "first", temperature=1.0)
    first, last = (EvaluationFolder(folder / name).episodes() for name in ("first", "out-1.0-1"))
    logged = read_eval_file(folder / "runs/tiny/eval/step_00000_t1.json")
    assert [e.messages for e in first] == [e.messages for e in logged]
    assert [e.messages for e in first] != [e.messages for e in last]
    assert len({e.reward for e in last}) > 1


def test_adapters_are_evaluated_on_the_base_that_they_belong_to(folder: Path) -> None:
    save_tiny_causal_lm(folder / "model")
    model = {"path": str(folder / "model"), "lora": {"rank": 2}}
    sections = {"policy": {"type": "huggingface"}, "model": model, "eval": {"temperatures": [1.0]}}
    config = write_config(folder, train={"steps": 1, "learning_rate": 0.1}, **sections)
    with GRPOTrainer.from_config(load_config(config)) as trainer:
        trainer.train()
    checkpoint = folder / "runs/tiny/checkpoints/step_00001"
    logged, first = (read_eval_file(folder / f"runs/tiny/eval/step_0000{n}_t1.json") for n in (1, 0))
    assert [e.messages for e in logged] != [e.messages for e in first]
    for given in (checkpoint, checkpoint / "model"):
        main(config, folder / f"out-{given.name}", checkpoint=[str(given)], temperature=1.0)
        evaluated = EvaluationFolder(folder / f"out-{given.name}").episodes()
        assert [e.messages for e in evaluated] == [e.messages for e in logged]


def without_times(output: Path) -> list[dict[str, Any]]:
    return [{**json.loads(line), "duration_s": 0} for line in lines_of(output)]


def test_a_stopped_evaluation_continues_and_ends_as_an_undisturbed_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, output = write_config(folder), folder / "out"
    main(config, folder / "whole", samples=2)
    main(config, output, samples=2)
    whole = lines_of(output)
    # The first task is whole, of the second one episode is there, the line of its other one is torn.
    (output / "episodes.jsonl").write_text("\n".join(whole[:3]) + "\n" + whole[3][:40], encoding="utf-8")
    capsys.readouterr()
    main(config, output, samples=2)
    assert "1 of 4 tasks were evaluated before" in capsys.readouterr().out
    assert lines_of(output)[:2] == whole[:2]
    assert without_times(output) == without_times(folder / "whole")
    main(config, output, samples=2)
    assert "all 8 episodes were run before" in capsys.readouterr().out


def test_ctrl_c_saves_finished_episodes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [{"task_id": f"t{n}", "question": "post"} for n in range(40)]
    sections = {"env": {"name": "interrupted_letters"}, "rollout": {"async_workers": 0}}
    config, output = write_config(folder, tasks=tasks, **sections), folder / "out"
    with pytest.raises(KeyboardInterrupt):
        main(config, output)
    printed = capsys.readouterr().out
    assert str(output) in printed and "the same command continues" in printed
    assert len(lines_of(output)) == 32
    main(config, output)
    printed = capsys.readouterr().out
    assert "32 of 40 tasks were evaluated before" in printed
    assert report_of(output)["summary"]["num_tasks"] == 40


def test_an_evaluation_with_other_settings_is_not_continued(folder: Path) -> None:
    config, output = write_config(folder), folder / "out"
    main(config, output, temperature=0.0)
    with pytest.raises(ConfigError, match=r"protocol\.temperature: 0\.0 there, 1\.0 here"):
        main(config, output, temperature=1.0)
    with pytest.raises(ConfigError, match=r"protocol\.max_turns"):
        main(config, output, overrides=["rollout.max_turns=3"])
    with pytest.raises(ConfigError, match=r"protocol\.episode_timeout_s: 300\.0 there, 9\.0 here"):
        main(config, output, task_timeout=9.0)
    save_tiny_model(folder / "model", seed=1)
    with pytest.raises(ConfigError, match=r"model\.sha256"):
        main(config, output)
    save_tiny_model(folder / "model", seed=0)
    write_tasks(folder / "tasks.jsonl", [*LETTER_TASKS[:3], {"task_id": "t3", "question": "stop"}])
    with pytest.raises(ConfigError, match=r"protocol\.tasks_sha256"):
        main(config, output)


def test_a_baseline_is_evaluated_alike_and_compared_with(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(folder / "other", seed=1)
    config, output = write_config(folder), folder / "out"
    main(config, output, samples=2, baseline=str(folder / "other"))
    report = report_of(output)
    assert report["comparison"]["method"] == "sign-flip"
    assert (report["comparison"]["num_tasks"], report["comparison"]["num_episodes"]) == (4, 8)
    expected = report["summary"]["reward"]["mean"] - report["baseline"]["reward"]["mean"]
    assert report["comparison"]["reward_change"]["mean"] == pytest.approx(expected)
    assert expected != 0.0
    assert f"Against {folder / 'other'}: Success" in capsys.readouterr().out.replace("\n", "")
    assert len(lines_of(output / "baseline")) == 8
    # The same as a comparison with the folder of an earlier one.
    main(config, folder / "again", samples=2, compare=output / "baseline")
    assert report_of(folder / "again")["comparison"] == report["comparison"]


def test_a_comparison_of_unlike_evaluations_is_refused_before_any_episode(folder: Path) -> None:
    config = write_config(folder)
    main(config, folder / "greedy")
    with pytest.raises(DataError, match=r"other settings \(samples: 1 there, 2 here\)"):
        main(config, folder / "out", samples=2, temperature=0.5, compare=folder / "greedy")
    with pytest.raises(DataError, match="num_tasks: 4 there, 2 here"):
        main(config, folder / "out", max_tasks=2, compare=folder / "greedy")
    with pytest.raises(DataError, match=r"has no settings\.json"):
        main(config, folder / "out", compare=folder / "model")
    assert not (folder / "out/episodes.jsonl").exists()
    (folder / "greedy/episodes.jsonl").write_text("\n".join(lines_of(folder / "greedy")[:3]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="has 3 of 4 episodes; let that evaluation end first"):
        main(config, folder / "out", compare=folder / "greedy")


def test_tasks_and_their_number_are_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(folder)
    tasks = [{"task_id": f"u{n}", "question": "post", "metadata": {"family": f"f{n % 2}"}} for n in range(5)]
    write_tasks(folder / "others.jsonl", tasks)
    main(config, folder / "out", tasks=folder / "others.jsonl", max_tasks=4)
    assert "the first 4 of 5 tasks" in capsys.readouterr().out
    summary = report_of(folder / "out")["summary"]
    assert {name: group["num_tasks"] for name, group in summary["by"]["family"].items()} == {"f0": 2, "f1": 2}


def test_what_cannot_be_evaluated_is_refused_with_a_sentence(folder: Path) -> None:
    config = write_config(folder)
    with pytest.raises(ConfigError, match="--samples 2 at temperature 0 would all be the same"):
        main(config, folder / "out", samples=2, temperature=0.0)
    with pytest.raises(ConfigError, match="--baseline and --compare"):
        main(config, folder / "out", baseline="a", compare=Path("b"))
    with pytest.raises(CheckpointError, match="no_such"):
        main(config, folder / "out", checkpoint=[str(folder / "no_such")])
    main(config, folder / "out", max_tasks=1)  # no episode ran there, so the folder is free
    (folder / "run/checkpoints/step_00001").mkdir(parents=True)
    with pytest.raises(CheckpointError, match="is the folder of a run; name one of its checkpoints"):
        main(config, folder / "out2", checkpoint=[str(folder / "run")])


def test_a_checkpoint_that_is_not_whole_is_refused(folder: Path) -> None:
    config = write_config(folder, train={"steps": 1})
    with GRPOTrainer.from_config(load_config(config)) as trainer:
        trainer.train()
    checkpoint = folder / "runs/tiny/checkpoints/step_00001"
    weights = checkpoint / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"changed!")
    with pytest.raises(CheckpointError, match="is not what was saved"):
        main(config, folder / "out", checkpoint=[str(checkpoint)])


def test_a_folder_that_is_no_model_is_refused_with_a_sentence(folder: Path) -> None:
    config = write_config(folder)
    checkpoints = folder / "run/checkpoints"
    (checkpoints / "step_00002/model").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"holds no files of a model; name .* such as .*step_00002"):
        main(config, folder / "out", checkpoint=[str(checkpoints)])
    with pytest.raises(CheckpointError, match="step_00002"):  # without a manifest it was not written whole
        main(config, folder / "out", checkpoint=[str(checkpoints / "step_00002")])


def test_a_baseline_that_cannot_be_evaluated_is_refused_before_any_episode(folder: Path) -> None:
    config = write_config(folder)
    with pytest.raises(CheckpointError, match="no_such"):
        main(config, folder / "out", baseline=str(folder / "no_such"))
    assert not (folder / "out/episodes.jsonl").exists()


def test_the_folder_of_a_run_is_no_place_for_an_evaluation(folder: Path) -> None:
    config = write_config(folder)
    (folder / "run").mkdir()
    (folder / "run/metrics.jsonl").touch()
    with pytest.raises(ConfigError, match="run is the folder of a run; name another --output-dir"):
        main(config, folder / "run")


def test_two_evaluations_do_not_write_to_one_folder(folder: Path) -> None:
    config, output = write_config(folder), folder / "out"
    lock = RunLock(output)
    lock.acquire()
    try:
        with pytest.raises(
            ConfigError, match=r"an evaluation that has not ended .*; wait for it, or name another --out"
        ):
            main(config, output)
    finally:
        lock.release()
    assert not (output / "episodes.jsonl").exists()
    main(config, output)
    main(config, output)
    assert len(lines_of(output)) == len(LETTER_TASKS)


@pytest.mark.parametrize("place", ["baseline", "models/model"])
def test_folders_within_an_evaluation_are_written_by_one_command_too(folder: Path, place: str) -> None:
    config, output = write_config(folder), folder / "out"
    more: dict[str, Any] = {"checkpoint": [str(folder / "model")]}
    if place == "baseline":
        more["baseline"] = str(folder / "model")
    else:
        save_tiny_model(folder / "another")
        more["checkpoint"].append(str(folder / "another"))
    with EvaluationFolder(output / place).locked(), pytest.raises(ConfigError, match="has not ended"):
        main(config, output, **more)
    assert not list(output.rglob("episodes.jsonl"))
    main(config, output, **more)
    assert len(lines_of(output / place)) == len(LETTER_TASKS)


def test_names_of_files_are_no_yaml(folder: Path) -> None:
    config = write_config(folder, model={"path": "2024"}, run={"device": "cpu"})
    (folder / "model").rename(folder / "2024 #1")
    write_tasks(folder / "tasks #2.jsonl", LETTER_TASKS[:2])
    main(config, folder / "out", tasks=folder / "tasks #2.jsonl", checkpoint=[str(folder / "2024 #1")])
    assert len(lines_of(folder / "out")) == 2


def test_other_settings_than_those_of_the_run_are_reported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(folder, train={"steps": 1})
    with GRPOTrainer.from_config(load_config(config)) as trainer:
        trainer.train()
    checkpoint = str(folder / "runs/tiny/checkpoints/step_00001")
    main(folder / "runs/tiny/config.yaml", folder / "alike", checkpoint=[checkpoint])
    assert "other settings" not in capsys.readouterr().out
    main(config, folder / "otherwise", checkpoint=[checkpoint], overrides=["rollout.max_turns=3"])
    assert f"note: the run of {checkpoint} had other settings: max_turns: " in capsys.readouterr().out


def test_machine_and_versions_are_saved_beside_the_settings(folder: Path) -> None:
    main(write_config(folder), folder / "out")
    assert report_of(folder / "out")["environment"]["packages"]["torch"]


def test_tasks_whose_environment_failed_run_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, output = write_config(folder, env={"name": "broken_letters"}), folder / "out"
    BrokenEnv.first_broken = 2
    main(config, output)
    assert "2 of 4 episodes dropped by environment errors." in capsys.readouterr().out
    assert "2 of 4 episodes dropped by environment errors." in (output / "report.html").read_text(encoding="utf-8")
    BrokenEnv.first_broken = 4
    main(config, output)
    assert "2 of 4 tasks were evaluated before" in capsys.readouterr().out
    assert report_of(output)["summary"]["num_env_errors"] == 0


def test_an_environment_that_fails_later_on_ends_it_too(folder: Path) -> None:
    tasks = [{"task_id": f"t{n}", "question": "post"} for n in range(70)]
    sections = {"env": {"name": "broken_letters"}, "rollout": {"async_workers": 8}}
    config, output = write_config(folder, tasks=tasks, **sections), folder / "out"
    BrokenEnv.first_broken = 32
    with pytest.raises(EpisodesFailedError, match="all 32 episodes failed in their environment"):
        main(config, output)
    assert len(lines_of(output)) == 32


@pytest.mark.parametrize(
    ("workers", "samples", "tasks"), [(0, 1, 32), (8, 1, 32), (24, 1, 48), (128, 1, 128), (8, 4, 8)]
)
def test_a_chunk_fills_the_workers_a_whole_number_of_times(workers: int, samples: int, tasks: int) -> None:
    assert tasks_per_chunk(workers, samples) == tasks


def test_environments_that_all_fail_end_it_and_nothing_is_saved(folder: Path) -> None:
    config = write_config(folder, env={"name": "broken_letters"})
    BrokenEnv.first_broken = 0
    with pytest.raises(EpisodesFailedError, match="all 4 episodes failed in their environment"):
        main(config, folder / "out")
    assert lines_of(folder / "out") == []


def test_tasks_that_leave_no_room_for_a_reply_are_refused_and_nothing_is_saved(folder: Path) -> None:
    config = write_config(folder, policy={"type": "minimind", "max_new_tokens": 8, "max_context": 12})
    with pytest.raises(ConfigError, match=r"no prompt of the first tasks .* policy\.max_context is 12"):
        main(config, output_dir=folder / "out", checkpoint=[str(folder / "model")])
    assert not (folder / "out/report.json").exists()
    assert lines_of(folder / "out") == []
