"""Checkpoints that a stranger made: every value of their metadata is checked, and what is wrong is one sentence."""

import hashlib
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config

from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.distributed.checkpoint import best_checkpoint, verify_checkpoint
from agent_rl.envs.base import EnvFactory
from agent_rl.errors import CheckpointError
from agent_rl.modeling.tensor_files import load_tensors


def trainer_of(folder: Path, num_steps: int) -> GRPOTrainer:
    config = tiny_config(
        folder,
        train={"steps": num_steps},
        rollout={"group_size": 4, "groups_per_step": 4, "async_workers": 0},
        checkpoint={"resume": "auto"},
    )
    return GRPOTrainer.from_config(config, env_factory=EnvFactory(LetterEnv), train_tasks=LETTER_TASKS)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_tiny_model(folder / "model")
    with trainer_of(folder, 1) as trainer:
        trainer.train()
    return folder


def sign(checkpoint: Path) -> None:
    """Make the manifest fit the files, as whoever changed them would."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["files"] = {
        name: hashlib.sha256((checkpoint / name).read_bytes()).hexdigest() for name in manifest["files"]
    }
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/hostile_checkpoint_was_here",)


def _set(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda state: state.update(values)


STATES: dict[str, Callable[[dict[str, Any]], object]] = {
    "no step": lambda state: state.pop("step"),
    "a step of text": _set(step="many"),
    "an infinite step": _set(step=float("inf")),
    "a step of tensors": _set(step=torch.ones(3)),
    "no updater": _set(updater={}),
    "a list as updater": _set(updater=[1, 2]),
    "a source of text": _set(source="abc"),
    "no source": _set(source={}),
    "a source with wrong numbers": lambda state: state["source"].update(remaining=7),
    "alarms of text": _set(alarms="abc"),
    "rollbacks of text": _set(num_rollbacks="x"),
    "a rate of lists": _set(rate_factor=[[]]),
    "evaluations with other names": _set(evals=[{"nothing": 1}]),
    "evaluations of a number": _set(evals=3),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_of_wrong_values_is_one_sentence(run: Path, name: str) -> None:
    checkpoint = run / "runs/tiny/checkpoints/step_00001"
    original = (checkpoint / "trainer.pt").read_bytes()
    state = load_tensors(checkpoint / "trainer.pt")
    STATES[name](state)
    torch.save(state, checkpoint / "trainer.pt")
    sign(checkpoint)
    try:
        with pytest.raises(CheckpointError) as raised:
            trainer_of(run, 2).close()
        assert len(str(raised.value)) < 600 and "\n" not in str(raised.value)
    finally:
        (checkpoint / "trainer.pt").write_bytes(original)
        sign(checkpoint)


def deflated(path: Path) -> None:
    torch.save({"a": torch.zeros(30_000_000)}, path)
    with zipfile.ZipFile(path) as stored, zipfile.ZipFile(path.with_suffix(".z"), "w", zipfile.ZIP_DEFLATED) as packed:
        for part in stored.infolist():
            packed.writestr(part.filename, stored.read(part))
    os.replace(path.with_suffix(".z"), path)


FILES: dict[str, Callable[[Path], object]] = {
    "a pickle": lambda path: path.write_bytes(pickle.dumps(Runs())),
    "a pickle within PyTorch's file": lambda path: torch.save(Runs(), path),
    "an old file": lambda path: torch.save(Runs(), path, _use_new_zipfile_serialization=False),
    "a deep pickle": lambda path: path.write_bytes(b"\x80\x02" + b"(" * 200_000 + b"l" * 200_000 + b"."),
    "nothing": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(10_000)),
    "a packed archive": deflated,
    "one number as many": lambda path: torch.save({"a": torch.zeros(1).expand(10**12)}, path),
    "a sparse tensor": lambda path: torch.save({"a": torch.sparse_coo_tensor([[0]], [1.0], (10**12,))}, path),
    "a tensor of no device": lambda path: torch.save({"a": torch.empty(10**12, device="meta")}, path),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_tensors_that_holds_more_or_less_is_one_sentence(tmp_path: Path, name: str) -> None:
    path = tmp_path / "x.pt"
    FILES[name](path)
    with pytest.raises(CheckpointError, match=r"^[^\n]*x\.pt (is torn|cannot be read)[^\n]*$"):
        load_tensors(path)
    assert not Path("/tmp/hostile_checkpoint_was_here").exists()


MANIFESTS: dict[str, Any] = {
    "a device": {"files": {"/dev/zero": "0"}},
    "a file outside": {"files": {"../../../../../etc/passwd": "0"}},
    "a pipe": {"files": {"pipe": "0"}},
    "a folder": {"files": {"model": "0"}},
    "a link to a device": {"files": {"link": "0"}},
    "a link to itself": {"files": {"loop": "0"}},
    "a NUL": {"files": {"a\0b": "0"}},
    "a long name": {"files": {"a" * 5000: "0"}},
    "a number as digest": {"files": {"trainer.pt": 1}},
    "a list of files": {"files": ["trainer.pt"]},
    "a number of files": {"files": 7},
    "another version": {"format_version": [3]},
}
TEXTS = {
    "deep": "[" * 100_000,
    "a huge integer": '{"step": ' + "9" * 10_000 + "}",
    "not UTF-8": "\udcff",
    "a list": "[]",
    "null": "null",
    "nothing": "",
}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", [*MANIFESTS, *TEXTS])
def test_a_manifest_of_wrong_values_is_one_sentence(tmp_path: Path, name: str) -> None:
    checkpoint = tmp_path / "step_00001"
    (checkpoint / "model").mkdir(parents=True)
    (checkpoint / "trainer.pt").write_bytes(b"x")
    os.mkfifo(checkpoint / "pipe")
    (checkpoint / "link").symlink_to("/dev/zero")
    (checkpoint / "loop").symlink_to("loop")
    text = TEXTS.get(name) if name in TEXTS else json.dumps({"format_version": 3, "files": {}, **MANIFESTS[name]})
    (checkpoint / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(CheckpointError, match=r"^[^\n]{,400}$"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("score", ["high", [1], {}, None, True])
def test_a_score_that_is_no_number_is_no_score(tmp_path: Path, score: Any) -> None:
    for step, value in ((1, 0.5), (2, score)):
        (tmp_path / f"step_0000{step}").mkdir()
        (tmp_path / f"step_0000{step}" / "manifest.json").write_text(json.dumps({"score": value}))
    assert best_checkpoint(tmp_path) in (tmp_path / "step_00001", tmp_path / "step_00002")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_a_manifest_that_is_no_file_is_one_sentence(tmp_path: Path, make: Callable[[Path], None]) -> None:
    (tmp_path / "step_00001").mkdir()
    make(tmp_path / "step_00001" / "manifest.json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        verify_checkpoint(tmp_path / "step_00001")
