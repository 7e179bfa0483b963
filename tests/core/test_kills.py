"""`kill -9` at any moment of a run: every restart continues, and the end is that of an undisturbed run."""

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
from distributed.ranks import context
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config
from run_outcomes import outcome

from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed import checkpoint
from agent_rl.envs.base import EnvFactory


def run(folder: Path, num_steps: int, is_slow_to_save: bool) -> None:
    """The program that is killed: a whole run, from wherever it stands."""
    if is_slow_to_save:  # so that a kill that aims at a save hits it
        digest = checkpoint._sha256
        checkpoint._sha256 = lambda path: (time.sleep(0.03), digest(path))[1]
    config = tiny_config(
        folder,
        train={"steps": num_steps, "epochs": 2},
        rollout={"group_size": 4, "groups_per_step": 4, "async_workers": 0},
        algorithm={"kl": {"coef": 0.1, "target": 0.001, "horizon": 64}},
        eval={"temperatures": [1.0], "every": 4},
        checkpoint={"every": 1, "resume": "auto"},
        log={"progress": False, "transcripts_per_step": 1},
    )
    with GRPOTrainer.from_config(
        config, env_factory=EnvFactory(LetterEnv), train_tasks=LETTER_TASKS, eval_tasks=LETTER_TASKS
    ) as trainer:
        trainer.train()


def start(folder: Path, num_steps: int, *, is_slow_to_save: bool) -> multiprocessing.process.BaseProcess:
    process = context().Process(target=run, args=(folder, num_steps, is_slow_to_save))
    process.start()
    return process


def is_saving(folder: Path) -> bool:
    return any((folder / "runs/tiny/checkpoints").glob(".partial-*"))


def wait_for_a_save(folder: Path) -> None:
    """Until half a checkpoint is there that was not there before."""
    before = {path.name for path in (folder / "runs/tiny/checkpoints").glob(".partial-*")}
    deadline = time.monotonic() + 200  # for hangs: a slow machine may need half a minute
    while not {path.name for path in (folder / "runs/tiny/checkpoints").glob(".partial-*")} - before:
        assert time.monotonic() < deadline, "no checkpoint is saved"
        time.sleep(0.002)


@pytest.mark.parametrize(
    ("num_kills", "num_steps"), [(4, 20), pytest.param(30, 150, marks=[pytest.mark.long, pytest.mark.timeout(1500)])]
)
def test_a_run_that_is_killed_again_and_again_ends_as_one_that_was_not(
    tmp_path: Path, num_kills: int, num_steps: int
) -> None:
    for name in ("quiet", "killed"):
        save_tiny_model(tmp_path / name / "model")
    quiet = start(tmp_path / "quiet", num_steps, is_slow_to_save=False)
    quiet.join(500)
    assert quiet.exitcode == 0
    delays = random.Random(0)
    num_torn = num_finished = 0
    for number in range(num_kills):
        process = start(tmp_path / "killed", num_steps, is_slow_to_save=True)
        time.sleep(delays.uniform(0.3, 1.5))
        if number % 3 == 0:
            wait_for_a_save(tmp_path / "killed")
        num_finished += not process.is_alive()
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        num_torn += is_saving(tmp_path / "killed")
    last = start(tmp_path / "killed", num_steps, is_slow_to_save=False)
    last.join(500)
    assert last.exitcode == 0
    assert num_finished == 0, "the run ended before it was killed often enough; make it longer"
    assert num_torn > 0, "no kill hit a save"
    assert outcome(tmp_path / "killed/runs/tiny", num_steps) == outcome(tmp_path / "quiet/runs/tiny", num_steps)
