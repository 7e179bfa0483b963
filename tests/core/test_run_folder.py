"""The folder of a run: no other run's files are overwritten or moved, and changed settings are told without secrets."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import make_trainer
from fakes import save_tiny_model, tiny_config

from agent_rl.core.run.record import run_config_of
from agent_rl.core.run_folder import RunFolder, changed_keys, edited_files
from agent_rl.errors import ConfigError
from agent_rl.telemetry.events import read_events

OPTIONS = {
    "rollout": {"group_size": 4, "groups_per_step": 1, "async_workers": 0},
    "checkpoint": {"every": 1},
    "train": {"steps": 3},
    "log": {"progress": False, "trackers": []},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny_model(tmp_path / "model")
    return tmp_path


def trainer_of(folder: Path, **sections: dict[str, Any]) -> Any:
    return make_trainer(folder, **(OPTIONS | sections))


def steps_in(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def stop_after(last: int) -> Any:
    def on_step(step: int, _metrics: Any) -> None:
        if step == last:
            raise KeyboardInterrupt

    return on_step


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("resume", ["never", "auto"])
def test_of_two_trainers_made_for_one_folder_the_second_leaves_the_first_ones_run(folder: Path, resume: str) -> None:
    first, second = (trainer_of(folder, checkpoint={"every": 0, "resume": resume}) for _ in range(2))
    with first, second:
        first.train()
        with pytest.raises(ConfigError):
            second.train()
    assert steps_in(folder / "runs/tiny") == [1, 2, 3]
    assert [event.kind for event in read_events(folder / "runs/tiny")] == ["start", "checkpoint", "end"]


def test_a_trainer_does_not_rewind_the_run_that_another_has_continued(folder: Path) -> None:
    with trainer_of(folder) as first:
        with pytest.raises(KeyboardInterrupt):
            first.train(on_step=stop_after(1))
        with trainer_of(folder, checkpoint={"every": 1, "resume": "auto"}) as second:
            second.train()
        with pytest.raises(ConfigError):
            first.train()
    assert steps_in(folder / "runs/tiny") == [1, 2, 3]


def test_a_trainer_that_trains_again_goes_on_where_it_was_also_after_a_start_without_a_step(folder: Path) -> None:
    run = folder / "runs/tiny"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{}\n")
    with trainer_of(folder) as trainer:
        with pytest.raises(KeyboardInterrupt):
            trainer.train(on_step=stop_after(2))
        trainer.train()
    assert [path.name for path in (folder / "runs").iterdir()] == ["tiny"]
    assert steps_in(run) == [1, 2, 3]


def test_steps_by_hand_and_their_checkpoint_belong_to_the_run_that_follows(folder: Path) -> None:
    with trainer_of(folder) as trainer:
        trainer.update(trainer._source.collect(step=1).groups)
        trainer.save_checkpoint()
        trainer.train()
    assert steps_in(folder / "runs/tiny") == [2, 3]


def test_a_checkpoint_by_hand_does_not_make_another_ones_run_ones_own(folder: Path) -> None:
    first, second = (trainer_of(folder, checkpoint={"every": 0}) for _ in range(2))
    with first, pytest.raises(ZeroDivisionError):
        first.train(on_step=lambda step, _metrics: 1 // (2 - step))
    with second, pytest.raises(ConfigError):
        second.save_checkpoint()
        second.train()
    assert steps_in(folder / "runs/tiny") == [1, 2]


def test_metrics_that_no_run_can_continue_are_not_said_to_be_continued(folder: Path) -> None:
    file = folder / "runs/tiny/metrics.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text('{"loss": 1}\n')
    with pytest.raises(ConfigError) as refused:
        RunFolder.open(tiny_config(folder))
    assert str(file) in str(refused.value)
    assert "auto" not in str(refused.value)


@pytest.mark.parametrize("resume", ["auto", "link"])
def test_a_checkpoint_that_lies_on_another_disk_is_continued_and_removed_as_any(folder: Path, resume: str) -> None:
    with trainer_of(folder, train={"steps": 1}) as trainer:
        trainer.train()
    newest, moved, link = folder / "runs/tiny/checkpoints/step_00001", folder / "moved", folder / "link"
    newest.rename(moved)
    newest.symlink_to(moved)
    link.symlink_to(newest)
    assert run_config_of(newest) == folder / "runs/tiny/config.yaml"
    given = resume if resume == "auto" else str(link)
    with trainer_of(folder, checkpoint={"every": 1, "keep": 1, "resume": given}) as trainer:
        trainer.train()
    assert steps_in(folder / "runs/tiny") == [1, 2, 3]
    assert not newest.is_symlink()
    assert moved.is_dir()


def test_a_run_whose_checkpoint_was_moved_away_ends_again(folder: Path) -> None:
    sections = {"eval": {"temperatures": [0.0], "every": 1}, "train": {"steps": 1}}
    with trainer_of(folder, **sections) as trainer:
        trainer.train()
        (folder / "runs/tiny/checkpoints/step_00001").rename(folder / "published")
        assert trainer.train()["step"] == 1


@pytest.mark.parametrize("left", ["checkpoints/step_00020/manifest.json", "metrics.jsonl"])
def test_steps_without_a_configuration_are_a_run_too(folder: Path, left: str) -> None:
    file = folder / "runs/tiny" / left
    file.parent.mkdir(parents=True)
    file.write_text('{"step": 20}\n')
    with pytest.raises(ConfigError):
        RunFolder.open(tiny_config(folder))
    assert files_below(folder / "runs") == [f"tiny/{left}"]


def test_files_that_are_no_runs_stay_where_they_are(folder: Path) -> None:
    run = folder / "runs/tiny"
    for name in ("src/a.py", "config.yaml", "eval/step_00000_t0.json", "metrics.jsonl"):
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_text("")
    opened = RunFolder.open(tiny_config(folder))
    assert opened.begin(tiny_config(folder), {}, step=0).kept_in == folder / "runs/tiny.unfinished-1"
    assert files_below(folder / "runs") == [
        *("tiny.unfinished-1/config.yaml", "tiny.unfinished-1/eval/step_00000_t0.json"),
        *("tiny.unfinished-1/metrics.jsonl", "tiny/config.yaml", "tiny/environment.json", "tiny/src/a.py"),
    ]


def test_a_project_without_a_configuration_of_a_run_is_left_alone(folder: Path) -> None:
    mine = folder / "runs/tiny/eval/mine.py"
    mine.parent.mkdir(parents=True)
    mine.write_text("")
    opened = RunFolder.open(tiny_config(folder))
    assert opened.begin(tiny_config(folder), {}, step=0).kept_in is None
    assert mine.is_file()


def search_key(key: str) -> dict[str, Any]:
    return {"tools": {"search": {"default_params": {"api_key": key, "cx": "0123"}}}, "train": {"steps": len(key)}}


def test_a_changed_secret_is_named_and_neither_value_is_shown() -> None:
    told = changed_keys(search_key("sk-OLD11112222"), search_key("sk-NEW333344445"))
    assert [line.split()[0] for line in told] == ["tools.search.default_params.api_key", "train.steps"]
    assert "14 -> 15" in told[1]
    assert not any(secret in " ".join(told) for secret in ("sk-", "OLD", "NEW"))
    assert changed_keys(search_key("sk-OLD11112222"), search_key("sk-OLD11112222")) == []


@pytest.mark.parametrize(
    ("section", "named"),
    [
        (lambda key: {"headers": {"X-Key": {"a": key}}}, "headers.X-Key.a"),
        (lambda key: {"headers": {"X": key}} if key == "one-1111" else {}, "headers.X"),
        (lambda key: {"url": f"https://me:{key}@host/"}, "url"),
    ],
)
def test_so_is_one_that_is_hidden_with_its_section_or_within_a_text(section: Any, named: str) -> None:
    told = changed_keys(section("one-1111"), section("two-2222"))
    assert [line.split()[0] for line in told] == [named]
    assert "1111" not in told[0] and "2222" not in told[0]


def test_a_file_of_tasks_that_was_edited_is_told_of_on_resume(folder: Path) -> None:
    tasks = folder / "train.jsonl"
    config = tiny_config(folder, data={"train_path": str(tasks)}, checkpoint={"resume": "auto"})
    told = []
    for question in ("a", "a", "b"):
        tasks.write_text(json.dumps({"task_id": "one", "question": question}) + "\n")
        told.append(RunFolder.open(config).begin(config, {}, step=0).changed)
    assert [[line.split()[:2] for line in lines] for lines in told] == [[], [], [["data.train_path", str(tasks)]]]


def test_an_edited_file_of_an_environment_of_a_mixture_is_told_of_on_resume(folder: Path) -> None:
    tasks = folder / "train.jsonl"
    options = {"environments": {"sums": {"name": "math_qa", "train_path": str(tasks)}}}
    config = tiny_config(folder, env={"name": "mixture", "options": options}, checkpoint={"resume": "auto"})
    told = []
    for question in ("a", "b"):
        tasks.write_text(json.dumps({"task_id": "one", "question": question}) + "\n")
        told.append(RunFolder.open(config).begin(config, {}, step=0).changed)
    named = ["env.options.environments.sums.train_path", str(tasks)]
    assert [[line.split()[:2] for line in lines] for lines in told] == [[], [named]]


@pytest.mark.parametrize("before", [None, [], {"train_path": 3}, {"train_path": {"path": "b", "of": "all bytes"}}])
def test_another_file_and_a_damaged_record_are_no_edit(before: Any) -> None:
    assert edited_files(before, {"train_path": {"path": "a", "sha256": "12", "of": "all bytes"}}) == []
