"""Checkpoints: whole or absent, checked when read, and continued bit for bit."""

import errno
import hashlib
import json
import math
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from run_outcomes import lasting_metrics
from safetensors.torch import load_file

from agent_rl.config import Config, load_config
from agent_rl.core.run_folder import RunFolder
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed import checkpoint
from agent_rl.distributed.checkpoint import (
    best_checkpoint,
    get_rng_state,
    latest_checkpoint,
    load_state,
    save_checkpoint,
    set_rng_state,
)
from agent_rl.distributed.processes import Processes
from agent_rl.envs.base import EnvFactory
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.modeling.tensor_files import load_tensors, save_tensors
from agent_rl.telemetry.events import read_events


def write_model(folder: Path) -> None:
    folder.mkdir()
    (folder / "weights").write_text("1 2 3")


def save(folder: Path, step: int, keep: int = 2, score: float | None = None) -> Path:
    state = {"step": step, "x": torch.ones(2)}
    return save_checkpoint(folder, step, write_model=write_model, state=state, keep=keep, score=score)


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    path = save(tmp_path, 12)
    assert path == tmp_path / "step_00012"
    assert (path / "model" / "weights").read_text() == "1 2 3"
    state = load_state(path)
    assert state["step"] == 12
    assert torch.equal(state["x"], torch.ones(2))


def test_the_newest_checkpoints_are_retained_and_found(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 10, 11):
        save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00010", "step_00011"]
    assert latest_checkpoint(tmp_path) == tmp_path / "step_00011"


def test_the_best_checkpoint_is_retained_beside_the_newest(tmp_path: Path) -> None:
    assert best_checkpoint(tmp_path) is None
    for step, score in enumerate((0.2, 0.7, 0.7, None, math.nan, 0.1)):
        save(tmp_path, step, keep=2, score=score)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00001", "step_00004", "step_00005"]
    assert best_checkpoint(tmp_path) == tmp_path / "step_00001"
    save(tmp_path, 6, keep=2, score=0.8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_00005", "step_00006"]


def test_what_a_process_writes_is_part_of_the_checkpoint(tmp_path: Path) -> None:
    def write_rank(folder: Path) -> dict[Path, str]:
        (folder / "rank_00000.pt").write_text("mine")
        return {}

    path = save_checkpoint(tmp_path, 1, write_model=write_model, write_rank=write_rank, state={}, keep=1)
    (path / "rank_00000.pt").write_text("yours")
    with pytest.raises(CheckpointError, match=r"rank_00000\.pt is not what was saved"):
        load_state(path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_save_that_is_cut_off_leaves_the_older_checkpoint_and_no_torn_one(
    tmp_path: Path, error: type[BaseException]
) -> None:
    save(tmp_path, 1)

    def cut_off(folder: Path) -> None:
        write_model(folder)
        raise error

    with pytest.raises(CheckpointError if error is OSError else error):
        save_checkpoint(tmp_path, 2, write_model=cut_off, state={}, keep=1)
    assert latest_checkpoint(tmp_path) == tmp_path / "step_00001"
    save(tmp_path, 2, keep=1)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00002"]


def test_a_changed_missing_or_foreign_file_is_refused_by_name(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    weights = path / "model" / "weights"
    weights.write_text("1 2 4")
    with pytest.raises(CheckpointError, match="model/weights is not what was saved"):
        load_state(path)
    weights.unlink()
    with pytest.raises(CheckpointError, match="model/weights is missing"):
        load_state(path)
    (path / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"manifest.json cannot be read"):
        load_state(path)
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        load_state(tmp_path)


class _OfTwo(Processes):
    """One of two processes, which are threads here."""

    def __init__(self, rank: int, values: list[Any], meeting: threading.Barrier) -> None:
        super().__init__(device=torch.device("cpu"), timeout_s=10)
        self.rank, self.num_processes, self._values, self._meeting = rank, 2, values, meeting

    def barrier(self) -> None:
        self._meeting.wait(timeout=10)

    def all_gather_object(self, value: Any) -> list[Any]:
        self._values[self.rank] = value
        self.barrier()
        everything = list(self._values)
        self.barrier()
        return everything

    def broadcast_object(self, value: Any) -> Any:
        return self.all_gather_object(value)[0]


def in_two_processes(work: Callable[[Processes], object]) -> list[object]:
    """What `work` returns or raises in each."""
    values, meeting = [None, None], threading.Barrier(2)

    def one(rank: int) -> object:
        try:
            return work(_OfTwo(rank, values, meeting))
        except CheckpointError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, range(2)))


def save_by_two(folder: Path, step: int) -> list[object]:
    def save_mine(processes: Processes) -> Path:
        def write(model_folder: Path) -> None:
            if processes.is_main_process:
                write_model(model_folder)

        def write_rank(path: Path) -> dict[Path, str]:
            own = path / f"rank_{processes.rank}.pt"
            if processes.is_main_process:  # of which the hash is made later
                own.write_text("0")
                return {}
            return {own: save_tensors({"rank": 1}, own)}

        return save_checkpoint(
            folder, step, write_model=write, write_rank=write_rank, state={"step": step}, keep=3, processes=processes
        )

    return in_two_processes(save_mine)


@pytest.mark.parametrize("name", ["model/weights", "rank_0.pt", "rank_1.pt", "trainer.pt"])
def test_a_torn_file_is_refused_by_all_processes_whichever_of_them_reads_it(tmp_path: Path, name: str) -> None:
    for step in (1, 2):
        assert save_by_two(tmp_path, step) == [tmp_path / f"step_0000{step}"] * 2
    path = tmp_path / "step_00002"
    assert set(json.loads((path / "manifest.json").read_text())["files"]) == {
        "model/weights",
        "rank_0.pt",
        "rank_1.pt",
        "trainer.pt",
    }
    assert [state["step"] for state in in_two_processes(lambda two: load_state(path, two))] == [2, 2]
    (path / name).write_text("torn")
    for error in in_two_processes(lambda two: load_state(path, two)):
        assert f"{path / name} is not what was saved" in str(error)
        assert "continue from step_00001, which is whole" in str(error)
        assert error.is_everywhere


@pytest.mark.parametrize("name", ["model/weights", "rank_0.pt"])
def test_a_disk_that_fails_one_process_ends_the_save_of_all(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = checkpoint._fsync

    def fail(path: Path) -> None:
        if str(path).endswith(name):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(path)

    monkeypatch.setattr(checkpoint, "_fsync", fail)
    for error in save_by_two(tmp_path, 1):
        assert "cannot be written (No space left on device)" in str(error)
    assert latest_checkpoint(tmp_path) is None


def test_the_newest_older_checkpoint_that_is_whole_is_offered_and_not_taken(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=4)
    (tmp_path / "step_00004" / "trainer.pt").write_bytes(b"torn")
    (tmp_path / "step_00003" / "model" / "weights").unlink()
    with pytest.raises(CheckpointError, match=r"remove \S+step_00004 to continue from step_00002, which is whole$"):
        load_state(tmp_path / "step_00004")
    assert latest_checkpoint(tmp_path) == tmp_path / "step_00004"
    (tmp_path / "step_00001" / "manifest.json").write_text("[]")
    (tmp_path / "step_00002" / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no older checkpoint beside it is whole; begin the run again"):
        load_state(tmp_path / "step_00004")


def test_a_step_is_never_saved_over(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="exists already"):
        save(tmp_path, 1)


def test_the_hash_that_is_made_while_a_file_is_written_is_that_of_the_file(tmp_path: Path) -> None:
    state = {"weights": torch.arange(1000.0), "text": "x" * 5000, "none": torch.zeros(0)}
    digest = save_tensors(state, tmp_path / "state.pt")
    assert digest == hashlib.sha256((tmp_path / "state.pt").read_bytes()).hexdigest()
    assert torch.equal(load_tensors(tmp_path / "state.pt")["weights"], state["weights"])


def test_a_file_that_process_0_does_not_see_yet_is_in_the_manifest(tmp_path: Path, monkeypatch: Any) -> None:
    def without_that_of_rank_1(folder: Path, pattern: str) -> list[Path]:
        return [path for path in listing(folder, pattern) if path.name != "rank_1.pt"]

    listing = Path.rglob
    monkeypatch.setattr(Path, "rglob", without_that_of_rank_1)
    save_by_two(tmp_path, 1)
    assert "rank_1.pt" in json.loads((tmp_path / "step_00001" / "manifest.json").read_text())["files"]


@pytest.mark.parametrize(("saved", "device", "restored"), [(1, 3, 0), (4, 3, 3), (8, 3, 3)])
def test_the_generator_of_the_current_gpu_is_restored_however_many_are_in_sight(
    monkeypatch: pytest.MonkeyPatch, saved: int, device: int, restored: int
) -> None:
    """Earlier checkpoints hold the states of all GPUs that were visible, now it is one."""
    put: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.cuda, "set_rng_state", put.append)
    state = get_rng_state()
    assert [int(each) for each in state["cuda"]] == [7]
    set_rng_state(state | {"cuda": [torch.tensor([index]) for index in range(saved)]})
    assert [int(each) for each in put] == [restored]


def test_a_generator_of_a_gpu_is_refused_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(CheckpointError, match="made on a GPU"):
        set_rng_state(get_rng_state() | {"cuda": [torch.tensor([1])]})


def test_random_generators_go_on_where_they_were(tmp_path: Path) -> None:
    torch.save(get_rng_state(), tmp_path / "rng.pt")
    expected = torch.rand(3)
    set_rng_state(torch.load(tmp_path / "rng.pt", weights_only=True))
    assert torch.equal(torch.rand(3), expected)


# Resuming a run

TASKS = [task | {"level": 1 + i // 2} for i, task in enumerate(LETTER_TASKS)]
"""Two of level 1, two of level 2."""


def train(config: Config, steps: int | None = None, env: type[LetterEnv] = LetterEnv) -> dict[str, Any]:
    factory = EnvFactory(env)
    with GRPOTrainer.from_config(config, env_factory=factory, train_tasks=TASKS, eval_tasks=TASKS) as trainer:
        return trainer.train()


def run_config(folder: Path, name: str, *, curriculum: dict[str, Any] | None = None, **checkpoint: Any) -> Config:
    return tiny_config(
        folder,
        run={"name": name},
        data={"curriculum": curriculum or {}},
        train={"steps": 5, "final_learning_rate": 1e-3, "warmup_steps": 1, "weight_decay": 0.1},
        # One after the other: with threads, who shares a batch with whom changes the rounding of log-probs.
        rollout={"groups_per_step": 3, "async_workers": 0},
        eval={"temperatures": [0.0, 1.0], "every": 2},
        checkpoint={"every": 2, **checkpoint},
    )


class InterruptingEnv(LetterEnv):
    """Ctrl-C arrives while an episode of the fourth step runs."""

    num_resets = 0

    def reset(self, task: dict[str, Any]) -> list:
        type(self).num_resets += 1
        if type(self).num_resets == 5 * 4 + 3 * 3 * 8 + 10:  # evaluations, three steps, a few more
            raise KeyboardInterrupt
        return super().reset(task)


@pytest.mark.parametrize(
    ("curriculum", "max_levels"),
    [
        ({}, [None] * 5),
        ({"mode": "stages", "stages": [{"until_step": 2, "max_level": 1}]}, [1, 1, 2, 2, 2]),
        ({"mode": "success", "threshold": 0.0, "window": 4, "review": 0.5}, [1, 1, 2, 2, 2]),
    ],
    ids=["no curriculum", "stages", "success"],
)
def test_interrupted_and_resumed_is_the_same_run_bit_for_bit(
    tmp_path: Path, curriculum: dict[str, Any], max_levels: list[int | None]
) -> None:
    save_tiny_model(tmp_path / "model")
    InterruptingEnv.num_resets = 0
    straight = train(run_config(tmp_path, "straight", curriculum=curriculum))
    with pytest.raises(KeyboardInterrupt):
        train(run_config(tmp_path, "stopped", curriculum=curriculum, resume="auto"), env=InterruptingEnv)
    runs = tmp_path / "runs"
    assert latest_checkpoint(runs / "stopped" / "checkpoints").name == "step_00003"
    resumed = train(run_config(tmp_path, "stopped", curriculum=curriculum, resume="auto"), env=InterruptingEnv)
    events = [(event.kind, event.step) for event in read_events(runs / "stopped") if event.kind != "alarm"]
    assert events == [
        ("start", 0), ("evaluation", 0), ("evaluation", 0), ("evaluation", 2), ("evaluation", 2), ("checkpoint", 2),
        ("checkpoint", 3), ("interrupt", 3), ("resume", 3), ("evaluation", 4), ("evaluation", 4), ("checkpoint", 4),
        ("evaluation", 5), ("evaluation", 5), ("checkpoint", 5), ("end", 5),
    ]  # fmt: skip
    assert resumed["before"] == straight["before"]
    assert resumed["after"] == straight["after"]
    assert lasting_metrics(runs / "stopped") == lasting_metrics(runs / "straight")
    steps = [row for row in lasting_metrics(runs / "straight") if "optim/skipped" in row]
    assert [row.get("curriculum/max_level") for row in steps] == max_levels
    weights = [
        load_file(runs / name / "checkpoints/step_00005/model/model.safetensors") for name in ("straight", "stopped")
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_a_killed_run_goes_on_from_its_last_checkpoint_and_writes_the_lost_steps_again(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    train(run_config(tmp_path, "run"))
    runs = tmp_path / "runs"
    expected = lasting_metrics(runs / "run")
    shutil.rmtree(runs / "run/checkpoints/step_00005")  # as if killed after step 5 was logged, before it was saved
    train(run_config(tmp_path, "run", resume="auto"))
    assert lasting_metrics(runs / "run") == expected


def test_a_finished_run_returns_its_result_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model")
    first = train(run_config(tmp_path, "run"))
    expected = lasting_metrics(tmp_path / "runs/run")
    capsys.readouterr()
    again = train(run_config(tmp_path, "run", resume="auto"))
    assert again == first
    assert lasting_metrics(tmp_path / "runs/run") == expected
    printed = capsys.readouterr().out
    assert "is finished (5 steps)" in printed
    assert "solved %, T=0" in printed


def test_a_run_is_never_overwritten_nor_rewound(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    train(run_config(tmp_path, "run"))
    with pytest.raises(ConfigError, match=r"already holds a run; set checkpoint\.resume=auto"):
        train(run_config(tmp_path, "run"))
    older = tmp_path / "runs/run/checkpoints/step_00004"
    with pytest.raises(ConfigError, match=r"not its newest checkpoint; set another run\.name to branch"):
        RunFolder.open(run_config(tmp_path, "run", resume=str(older)))
    with pytest.raises(CheckpointError, match="no such folder"):
        RunFolder.open(run_config(tmp_path, "run", resume="yes"))
    assert RunFolder.open(run_config(tmp_path, "branch", resume=str(older))).resume_from == older


def test_a_resumed_run_reports_changed_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_tiny_model(tmp_path / "model")
    train(run_config(tmp_path, "run"))
    longer = run_config(tmp_path, "run", resume="auto").model_dump(mode="json")
    train(Config.model_validate(longer | {"train": longer["train"] | {"steps": 6}}))
    assert "Settings changed since the last start: train.steps 5 -> 6" in capsys.readouterr().out


def test_the_run_folder_records_its_versions(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    config = run_config(tmp_path, "run")
    train(config)
    folder = tmp_path / "runs/run"
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["packages"]["torch"].startswith("2.")
    assert environment["seed"] == 0
    recorded, given = load_config(folder / "config.yaml"), config
    assert recorded.env.name == "python:fakes:LetterEnv"
    assert recorded.model_copy(update={"env": given.env, "data": given.data}) == given
    assert {path.name for path in (folder / "eval").iterdir()} == {
        f"step_{step:05d}_t{temperature}.json" for step in (0, 2, 4, 5) for temperature in (0, 1)
    }
    assert len(list((folder / "transcripts").iterdir())) == 5
