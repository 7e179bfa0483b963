"""A disk that fills up or refuses at any moment of a run: one sentence, and the last whole checkpoint goes on."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import one_line_error, run_here
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from run_outcomes import outcome
from safetensors.torch import save_file

from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.data.tasks import write_tasks
from agent_rl.distributed.checkpoint import latest_checkpoint, save_checkpoint, verify_checkpoint
from agent_rl.envs.base import EnvFactory
from agent_rl.errors import UserError
from agent_rl.modeling.tensor_files import save_tensors


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, whose size `mount -o remount,size=` changes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root can mount a small file system here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def resize(folder: Path, kilobytes: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", folder], check=True)


def used_kilobytes(folder: Path) -> int:
    return shutil.disk_usage(folder).used // 1024


WRITERS = {
    "safetensors": lambda folder: (folder.mkdir(), save_file({"a": torch.zeros(10**6)}, folder / "a")),
    "tensors": lambda folder: (folder.mkdir(), save_tensors({"a": torch.zeros(10**6)}, folder / "a")),
    "PyTorch's own": lambda folder: (folder.mkdir(), torch.save({"a": torch.zeros(10**6)}, folder / "a")),
    "bytes": lambda folder: (folder.mkdir(), (folder / "a").write_bytes(bytes(10**7))),
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_writer_of_a_checkpoint_is_told_by_one_sentence(small_disk: Path, name: str) -> None:
    checkpoints = small_disk / "checkpoints"
    save_checkpoint(checkpoints, 1, write_model=lambda folder: folder.mkdir(), state={}, keep=1)
    resize(small_disk, 300)
    with pytest.raises(UserError, match=r"cannot be written .*make room, then continue with checkpoint\.resume=auto"):
        save_checkpoint(checkpoints, 2, write_model=WRITERS[name], state={}, keep=1)
    assert [path.name for path in checkpoints.iterdir()] == ["step_00001"]
    verify_checkpoint(checkpoints / "step_00001")


def train(folder: Path, runs: Path) -> GRPOTrainer:
    config = tiny_config(
        folder,
        run={"output_dir": str(runs)},
        train={"steps": 4, "epochs": 2},
        rollout={"group_size": 4, "groups_per_step": 4, "async_workers": 0},
        eval={"temperatures": [1.0], "every": 2},
        checkpoint={"every": 1, "resume": "auto", "keep": 2},
    )
    trainer = GRPOTrainer.from_config(
        config, env_factory=EnvFactory(LetterEnv), train_tasks=LETTER_TASKS, eval_tasks=LETTER_TASKS
    )
    with trainer:
        trainer.train()
    return trainer


def test_a_run_on_a_disk_that_is_too_small_goes_on_once_there_is_room(tmp_path: Path, small_disk: Path) -> None:
    save_tiny_model(tmp_path / "model")
    train(tmp_path, tmp_path / "undisturbed")
    needed = sum(path.stat().st_size for path in (tmp_path / "undisturbed").rglob("*") if path.is_file()) // 1024
    stopped = 0
    for share in (0.02, 0.1, 0.3, 0.45, 0.6, 0.8, 1.0):
        resize(small_disk, max(int(needed * share), used_kilobytes(small_disk) + 4))
        try:
            train(tmp_path, small_disk)
        except (UserError, OSError) as error:  # scripts make a sentence of both
            stopped += 1
            assert isinstance(error, UserError) or error.strerror == "No space left on device"
        checkpoints = small_disk / "tiny" / "checkpoints"
        if newest := latest_checkpoint(checkpoints):
            verify_checkpoint(newest)
    assert stopped >= 3
    resize(small_disk, 64 * 1024)
    train(tmp_path, small_disk)
    assert outcome(small_disk / "tiny", 4) == outcome(tmp_path / "undisturbed" / "tiny", 4)


def test_a_command_whose_disk_is_full_is_one_sentence(tmp_path: Path, small_disk: Path) -> None:
    resize(small_disk, 64)
    line = one_line_error(
        run_here("prepare-tasks", "--domain", "math", "--output-dir", small_disk / "tasks", "--num-train", "2000")
    )
    assert "No space left on device" in line


def test_a_task_file_is_there_whole_or_not_at_all(small_disk: Path) -> None:
    resize(small_disk, 64)
    with pytest.raises(OSError, match="No space left"):
        write_tasks(small_disk / "tasks.jsonl", [{"task_id": str(n), "text": "x" * 1000} for n in range(500)])
    assert list(small_disk.iterdir()) == []
