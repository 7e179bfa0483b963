"""Checkpoints that are there whole or not at all.

`step_00012/` holds `model/` (Hugging Face format), `trainer.pt` (everything else a run needs to go on) and
`manifest.json` with the SHA-256 of every file. It is written beside its final name, flushed to disk, and renamed, so
that no moment of power loss or `kill -9` leaves half of one. What the state holds is the trainer's business.
"""

import hashlib
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agent_rl.errors import CheckpointError

MANIFEST_FILE = "manifest.json"
STATE_FILE = "trainer.pt"
MODEL_FOLDER = "model"
FORMAT_VERSION = 1
_PARTIAL = ".partial-"
_STEP_NAME = re.compile(r"step_(\d{5,})")


def save_checkpoint(
    folder: Path, step: int, *, write_model: Callable[[Path], None], state: dict[str, Any], keep: int
) -> Path:
    """Write `folder/step_<step>` and keep the newest `keep` of its kind; returns its path.

    `write_model` fills the model folder it is given; `state` holds tensors and plain values. A checkpoint of that
    step must not exist yet.
    """
    final = folder / f"step_{step:05d}"
    if final.exists():
        raise CheckpointError(f"{final} exists already; move it away, or continue it with checkpoint.resume=auto")
    folder.mkdir(parents=True, exist_ok=True)
    _remove_partial(folder)
    partial = folder / f"{_PARTIAL}{final.name}"
    partial.mkdir()
    write_model(partial / MODEL_FOLDER)
    torch.save(state, partial / STATE_FILE)
    files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
    manifest = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "files": {str(path.relative_to(partial)): _sha256(path) for path in files},
    }
    (partial / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for path in [*partial.rglob("*"), partial]:
        _fsync(path)
    os.rename(partial, final)
    _fsync(folder)
    for old in _checkpoints(folder)[:-keep]:
        # Renamed first: a checkpoint half deleted must not look like a torn one.
        doomed = old.with_name(f"{_PARTIAL}{old.name}")
        os.rename(old, doomed)
        shutil.rmtree(doomed)
    return final


def load_state(path: Path) -> dict[str, Any]:
    """The state of a checkpoint, after checking every file. Raises CheckpointError when one is missing or changed."""
    verify_checkpoint(path)
    return torch.load(path / STATE_FILE, map_location="cpu", weights_only=True)


def verify_checkpoint(path: Path) -> None:
    """Raise CheckpointError unless every file of the checkpoint is there with the content it was saved with."""
    try:
        manifest = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))
        version, files = manifest["format_version"], manifest["files"]
    except FileNotFoundError:
        raise CheckpointError(f"{path} is not a checkpoint: it has no {MANIFEST_FILE}; give a folder step_*") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{path / MANIFEST_FILE} cannot be read; remove {path} to use an older one") from None
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path} has format version {version}, this program reads {FORMAT_VERSION}")
    for name, digest in files.items():
        if not (path / name).is_file():
            raise CheckpointError(f"{path / name} is missing; remove {path} to use an older checkpoint")
        if _sha256(path / name) != digest:
            raise CheckpointError(
                f"{path / name} is not what was saved (its SHA-256 differs); remove {path} to use an older checkpoint"
            )


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder`, or None."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def get_rng_state() -> dict[str, Any]:
    """State of the global random generators of Python and PyTorch."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `get_rng_state` returned; CUDA generators only where there are as many devices."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _checkpoints(folder: Path) -> list[Path]:
    """Checkpoints by step, oldest first."""
    if not folder.is_dir():
        return []
    found = [(int(match[1]), path) for path in folder.iterdir() if (match := _STEP_NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def _remove_partial(folder: Path) -> None:
    for path in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
