"""Checkpoints that exist whole or not at all, of one process or of many.

`step_00012/` holds `model/` (Hugging Face format), `trainer.pt` (everything else a run needs to continue), what each
process wrote beside them, and `manifest.json` with the SHA-256 of every file. It is written beside its final name,
flushed to disk, and renamed, so that no moment of power loss or `kill -9` leaves half of one. Only its state can change
after that. The processes of a run share one file system. What the state holds is the trainer's business.
"""

import hashlib
import json
import math
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agent_rl.distributed.processes import Processes
from agent_rl.errors import CheckpointError
from agent_rl.modeling.tensor_files import disk_refusal, load_tensors, save_tensors

MANIFEST_FILE = "manifest.json"
STATE_FILE = "trainer.pt"
OTHER_STATE_FILE = "trainer_replaced.pt"
"""In place of `STATE_FILE` where `replace_state` wrote it; a manifest names one of them."""
MODEL_FOLDER = "model"
FORMAT_VERSION = 3
_PARTIAL = ".partial-"
_MAX_MANIFEST_BYTES = 16 * 2**20
_STEP_NAME = re.compile(r"step_(\d{5,})")


def save_checkpoint(
    folder: Path,
    step: int,
    *,
    write_model: Callable[[Path], None],
    state: dict[str, Any],
    keep: int,
    write_rank: Callable[[Path], Mapping[Path, str]] | None = None,
    score: float | None = None,
    processes: Processes | None = None,
) -> Path:
    """Write `folder/step_<step>`; keep the newest `keep` of its kind and the one of the highest score; its path.

    `write_model` fills the model folder it is given, `write_rank` puts files into the checkpoint's folder and returns
    the SHA-256 of those that it knows: every process calls both, so they may gather. `state` holds tensors and plain
    values; rank 0's is saved. A higher `score` is better; None and not-a-number are no score. In a run of several
    processes this is collective. Raises CheckpointError, on all, when there is a checkpoint of that step.
    """
    processes = processes or _alone()
    final = folder / f"step_{step:05d}"
    partial = folder / f"{_PARTIAL}{final.name}"
    written: dict[Path, str] = {}
    processes.on_main(lambda: _begin(final, partial))
    try:
        with _on_all_disks(partial, processes):
            write_model(partial / MODEL_FOLDER)
        with _on_all_disks(partial, processes):
            if write_rank is not None:
                written |= write_rank(partial)
            if processes.is_main_process:
                written[partial / STATE_FILE] = save_tensors(state, partial / STATE_FILE)
        manifest = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "num_processes": processes.num_processes,
            "score": _measured(score),
            "files": _flushed_digests(partial, written, processes),
        }
        with _on_all_disks(partial, processes):
            if processes.is_main_process:
                _finish(final, partial, manifest, keep)
    except CheckpointError:
        if processes.is_main_process:  # the room it takes may be what the run needs to say so
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _alone() -> Processes:
    return Processes(device=torch.device("cpu"), timeout_s=math.inf)


@contextmanager
def _on_all_disks(path: Path, processes: Processes) -> Iterator[None]:
    """Around code that writes: where the disk refuses one process, all raise CheckpointError."""
    refusal = None
    try:
        yield
    except Exception as error:
        refusal = disk_refusal(error)
        if refusal is None:
            raise
    refusal = next(filter(None, processes.all_gather_object(refusal)), None)
    if refusal is not None:
        raise _everywhere(_unwritten(path, refusal))


def _unwritten(path: Path, refusal: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be written ({refusal}); make room, then continue with checkpoint.resume=auto"
    )


def _begin(final: Path, partial: Path) -> None:
    if final.exists():
        raise CheckpointError(f"{final} exists already; move it away, or continue it with checkpoint.resume=auto")
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        for path in final.parent.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path)
        partial.mkdir()
    except OSError as error:
        raise _unwritten(partial, error.strerror or type(error).__name__) from error


def _flushed_digests(partial: Path, written: Mapping[Path, str], processes: Processes) -> dict[str, str]:
    """SHA-256 of every file by its name, each on disk; `written` are those that this process wrote and hashed.

    The processes divide the others, as process 0 lists them: on a network's file system another process's list may be
    older. What a process wrote it flushes itself.
    """
    digests = {str(path.relative_to(partial)): digest for path, digest in written.items()}
    known = {name for share in processes.all_gather_object(sorted(digests)) for name in share}
    listed = [str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file()]
    unknown = sorted(set(processes.broadcast_object(listed)) - known)
    with _on_all_disks(partial, processes):
        for name in unknown[processes.rank :: processes.num_processes]:
            digests[name] = _sha256(partial / name)
        for name in digests:
            _fsync(partial / name)
    return dict(sorted(item for share in processes.all_gather_object(digests) for item in share.items()))


def _finish(final: Path, partial: Path, manifest: dict[str, Any], keep: int) -> None:
    _write_manifest(partial / MANIFEST_FILE, manifest)
    for path in [partial / MANIFEST_FILE, *(path for path in partial.rglob("*") if path.is_dir()), partial]:
        _fsync(path)
    os.rename(partial, final)
    _fsync(final.parent)
    best = best_checkpoint(final.parent)
    for old in checkpoints_in(final.parent)[:-keep]:
        if old == best:
            continue
        _remove(old)


def load_state(path: Path, processes: Processes | None = None) -> dict[str, Any]:
    """The state of a checkpoint, after checking every file. Raises CheckpointError when one is missing or changed.

    With `processes` this is collective.
    """
    processes = processes or _alone()
    verify_checkpoint(path, processes)
    return load_tensors(path / processes.broadcast_object(_state_file(_read_files(path)[1])))


def replace_state(path: Path, state: dict[str, Any], processes: Processes | None = None) -> None:
    """Give a checkpoint that is whole another state; its other files stay.

    A power loss or `kill -9` leaves it whole, with the old state or the new one: the new file counts once a manifest
    that names it takes the place of the old one, in one move. With `processes` this is collective; rank 0's state is
    saved.
    """
    processes = processes or _alone()
    with _on_all_disks(path, processes):
        if processes.is_main_process:
            manifest = _read_manifest(path)
            old = _state_file(manifest["files"])
            new = OTHER_STATE_FILE if old == STATE_FILE else STATE_FILE
            digests = manifest["files"] | {new: save_tensors(state, path / new)}
            del digests[old]
            _fsync(path / new)
            _replace_manifest(path, manifest | {"files": dict(sorted(digests.items()))})
            (path / old).unlink()


def add_score(folder: Path, step: int, score: float, processes: Processes | None = None) -> None:
    """Give the checkpoint of a step, in `folder`, its score, where it is still there and without one. Collective."""
    processes, path = processes or _alone(), folder / f"step_{step:05d}"
    with _on_all_disks(path, processes):
        if processes.is_main_process and (path / MANIFEST_FILE).exists():
            manifest = _read_manifest(path)
            if manifest["score"] is None and _measured(score) is not None:
                _replace_manifest(path, manifest | {"score": score})


def _measured(score: float | None) -> float | None:
    return None if score is None or math.isnan(score) else score


def _replace_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """In one move, so that there is the old one or the new one at any moment."""
    partial = path / f"{_PARTIAL}{MANIFEST_FILE}"
    _write_manifest(partial, manifest)
    _fsync(partial)
    _fsync(path)
    os.replace(partial, path / MANIFEST_FILE)
    _fsync(path)


def _state_file(files: Mapping[str, str]) -> str:
    return OTHER_STATE_FILE if OTHER_STATE_FILE in files else STATE_FILE


def _write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    path.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextmanager
def restoring(path: Path) -> Iterator[None]:
    """Around code that takes a checkpoint's values: CheckpointError for values that no run of ours saves."""
    try:
        yield
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
        RuntimeError,
        FileNotFoundError,
    ) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise CheckpointError(
            f"{path} does not hold the state of a run ({type(error).__name__}: {str(error)[:100]!r}); "
            "take another checkpoint, or start a new run from its model folder"
        ) from error


def verify_checkpoint(path: Path, processes: Processes | None = None) -> None:
    """Raise CheckpointError unless every file of the checkpoint is there with the content it was saved with.

    The sentence names the file, and the newest older checkpoint that is whole. With `processes` this is collective:
    they share the files out, and all raise.
    """
    processes = processes or _alone()
    if (complaint := _complaint(path, processes)) is not None:
        raise _everywhere(CheckpointError(f"{complaint}; {_way_out(path, processes)}"))


def _everywhere(error: CheckpointError) -> CheckpointError:
    error.is_everywhere = True
    return error


def _complaint(path: Path, processes: Processes) -> str | None:
    """The problem with a checkpoint, or None; the same on all processes."""
    complaint, files = processes.broadcast_object(_read_files(path) if processes.is_main_process else ("", {}))
    if complaint is not None:
        return complaint
    for name in sorted(files)[processes.rank :: processes.num_processes]:
        try:
            if _sha256(path / name) != files[name]:
                complaint = f"{path / name} is not what was saved (its SHA-256 differs)"
        except FileNotFoundError:
            complaint = f"{path / name} is missing"
        except OSError as error:
            complaint = f"{path / name} cannot be read ({error.strerror})"
    return next((found for found in processes.all_gather_object(complaint) if found is not None), None)


def _read_files(path: Path) -> tuple[str | None, dict[str, str]]:
    """The problem with a checkpoint's manifest, or None; SHA-256 of its files by name."""
    try:
        manifest = _read_manifest(path)
        version, files = manifest["format_version"], manifest["files"]
        are_files = all(_is_file_below(path, name) and isinstance(files[name], str) for name in files)
    except FileNotFoundError:
        return f"{path} is not a checkpoint: it has no {MANIFEST_FILE}", {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"{path / MANIFEST_FILE} cannot be read", {}
    if not are_files:
        return f"{path / MANIFEST_FILE} names files that are none, or outside of the checkpoint", {}
    if version != FORMAT_VERSION:
        return f"{path} has format version {version}, this program reads {FORMAT_VERSION}", {}
    return None, files


def _is_file_below(folder: Path, name: str) -> bool:
    """Whether a name stays within the folder; what it names may be missing, but is no device, pipe or folder."""
    path = folder / name
    is_below = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    return is_below and (path.is_file() or not path.exists())


def _way_out(path: Path, processes: Processes) -> str:
    if _STEP_NAME.fullmatch(path.name) is None:
        return "give a folder step_*"
    older = [other for other in checkpoints_in(path.parent) if step_of(other) < step_of(path)]
    whole = next((other for other in reversed(older) if _complaint(other, processes) is None), None)
    if whole is None:
        return "no older checkpoint beside it is whole; begin the run again under another run.name"
    return f"remove {path} to continue from {whole.name}, which is whole"


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint in `folder`, or None."""
    found = checkpoints_in(folder)
    return found[-1] if found else None


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint with the highest score in `folder`, the oldest of equals, or None when none has a score."""
    scored = [(score, path) for path in checkpoints_in(folder) if (score := _score_of(path)) is not None]
    return max(scored, key=lambda pair: pair[0])[1] if scored else None


def remove_later_checkpoints(path: Path) -> None:
    """Delete the checkpoints beside `path` that are of later steps."""
    for later in checkpoints_in(path.parent):
        if step_of(later) > step_of(path):
            _remove(later)


def get_rng_state() -> dict[str, Any]:
    """State of the global random generators of Python and PyTorch in this process, on the current GPU if there is one.

    A process trains on one GPU; how many others it sees may change until the run is resumed.
    """
    cuda = [torch.cuda.get_rng_state()] if torch.cuda.is_available() else []
    return {"python": random.getstate(), "torch": torch.get_rng_state(), "cuda": cuda}


def set_rng_state(state: dict[str, Any]) -> None:
    """Restore what `get_rng_state` returned. CheckpointError for the state of a GPU without one, and the other way."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(state["torch"])
    states = state["cuda"]  # in earlier checkpoints of all GPUs that were visible
    if bool(states) != torch.cuda.is_available():
        then, now = ("a GPU", "without one") if states else ("a CPU", "on a GPU")
        raise CheckpointError(
            f"the checkpoint was made on {then}, and this run continues {now}; continue on the same kind of device, or "
            "start another run from its model folder"
        )
    if states:
        torch.cuda.set_rng_state(states[0] if len(states) == 1 else states[torch.cuda.current_device()])


def _remove(path: Path) -> None:
    # Renamed first: a checkpoint half deleted must not look like a torn one.
    removed = path.with_name(f"{_PARTIAL}{path.name}")
    os.rename(path, removed)
    removed.unlink() if removed.is_symlink() else shutil.rmtree(removed)


def checkpoints_in(folder: Path) -> list[Path]:
    """Checkpoints by step, oldest first; none where there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _STEP_NAME.fullmatch(path.name)), key=step_of)


def step_of(path: Path) -> int:
    """The step of a checkpoint by its name; -1 for what is not named like one."""
    named = _STEP_NAME.fullmatch(path.name)
    return int(named[1]) if named else -1


def _score_of(path: Path) -> float | None:
    try:
        score = _read_manifest(path).get("score")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None  # a torn manifest is reported when the checkpoint is loaded
    return score if isinstance(score, int | float) else None


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST_FILE
    if file.exists() and not (file.is_file() and file.stat().st_size <= _MAX_MANIFEST_BYTES):
        raise ValueError("no manifest of ours")
    return json.loads(file.read_text(encoding="utf-8"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
