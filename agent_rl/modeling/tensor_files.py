"""Tensors and plain values in PyTorch's own files: written so that a full disk can be told, read so that nothing runs.

Not here: safetensors, and what the values mean.
"""

import hashlib
import pickle
import re
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from agent_rl.errors import CheckpointError

# Found by cutting files and changing bytes: the unpickler does not check what it works on.
_TORN = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    struct.error,
)
_ERRORS_OF_WRITERS = re.compile(r"([^:]*) \(os error \d+\)")


def save_tensors(value: Any, path: Path) -> str:
    """Write what `load_tensors` reads; the SHA-256 of the file. OSError when the disk refuses it."""
    with path.open("wb") as file:  # given a path, PyTorch reports a full disk as a RuntimeError about positions
        hashed = _HashedFile(file)
        torch.save(value, hashed)
    return hashed.digest.hexdigest()


class _HashedFile:
    """A file that is written from its beginning to its end, as PyTorch does, and the SHA-256 of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self.digest = hashlib.sha256()
        self._file = file

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def load_tensors(path: Path, *, mapped: bool = False) -> Any:
    """Tensors on the CPU, and plain values; FileNotFoundError when there is no file.

    With `mapped`, tensors are private views of the file, which are read when they are needed: take no such tensor over,
    copy it.
    CheckpointError for a file that is torn, holds more than plain values, or takes more memory than it has bytes.
    """
    refused = CheckpointError(
        f"{path} is torn or holds more than plain tensors, which could run code, so it was not loaded: "
        "expected a state dict as torch.save writes it"
    )
    try:
        _refuse_packed(path)
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RecursionError):
        raise refused from None
    except (*_TORN, zipfile.BadZipFile, NotImplementedError) as error:
        raise CheckpointError(
            f"{path} cannot be read ({type(error).__name__}): the file is torn, copy or download it again"
        ) from None
    for tensor in _tensors(value):
        # One number can be shown as a tensor of any shape, which the first copy would make real.
        is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not is_plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise refused
    return value


def disk_refusal(error: Exception) -> str | None:
    """Why the disk refused a file, or None for another error: writers in Rust and C++ have classes of their own."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    if isinstance(error, RuntimeError) and "inline_container.cc" in str(error):
        return "PyTorch could not write its file"
    match = _ERRORS_OF_WRITERS.search(str(error))
    return match[1].strip() if match else None


def _refuse_packed(path: Path) -> None:
    """ValueError for an archive with packed parts, which PyTorch never writes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                raise ValueError("packed parts")


def _tensors(value: Any) -> Iterator[Tensor]:
    todo, seen = [value], set()
    while todo:
        found = todo.pop()
        if isinstance(found, Tensor):
            yield found
        elif isinstance(found, dict | list | tuple | set) and id(found) not in seen:
            seen.add(id(found))
            todo.extend(found.values() if isinstance(found, dict) else found)


def models_inside(folder: Path) -> str:
    """`", such as model/math_minimind, ..."`: the folders of whole models in this one, also where it is a run's or a
    checkpoint's; empty where there is none."""
    places = ("*/config.json", "checkpoints/*/model/config.json")
    found = [path.parent for place in places for path in sorted(folder.glob(place))] if folder.is_dir() else []
    names = [str(path) for path in found if (path / "tokenizer.json").is_file()]
    return f", such as {', '.join(names[:8])}" if names else ""
