"""Checksums of the weights in a model's files, one tensor after the other, in the number format of an engine.

Both sides of a comparison compute them so: who names a model, and a server that was started with one. Not here: the
checksum of a tensor (`checksums.py`), comparing (`inference/vllm/weight_check.py`).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agent_rl.distributed.checksums import checksum

_INDEX = "model.safetensors.index.json"


class UnreadableWeightsError(ValueError):
    """Why the weights of a model have no checksums here, as a clause."""


def checksums_of_model(source: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> dict[str, str]:
    """By name, of all tensors of a folder or a name on the Hub that this machine has; numbers are cast to `dtype`.

    UnreadableWeightsError for files that are missing, torn, or not safetensors.
    """
    paths = weight_files(source)
    try:
        return checksums_of(read_tensors(paths, device), dtype)
    except (OSError, SafetensorError) as error:
        raise UnreadableWeightsError(f"the weights in {paths[0].parent} cannot be read ({error})") from None


def checksums_of(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> dict[str, str]:
    """Of each tensor, numbers cast to `dtype`."""
    return {name: checksum(each.to(dtype) if each.is_floating_point() else each) for name, each in weights}


def read_tensors(paths: Sequence[str | Path], device: torch.device | str) -> Iterator[tuple[str, Tensor]]:
    """All tensors of safetensors files, each on `device`."""
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name).to(device)


def weight_files(source: str | Path) -> list[Path]:
    """The safetensors files of a model; UnreadableWeightsError where there are none."""
    folder = Path(source)
    if not folder.is_dir():
        folder = _cached(str(source))
    found = sorted(folder.glob("*.safetensors"))
    if (folder / _INDEX).is_file():  # beside it may lie the same weights in another format
        try:
            named = set(json.loads((folder / _INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UnreadableWeightsError(f"{folder / _INDEX} cannot be read ({error!r})") from None
        found = [path for path in found if path.name in named]
    if not found:
        raise UnreadableWeightsError(f"{source} holds no weights as safetensors files")
    return found


def changed_since(source: str | Path, time_s: float) -> str | None:
    """Which file of the weights, or link or folder on the way to them, was written or renamed after a UNIX time."""
    files = weight_files(source)
    folder = files[0].parent
    links = [path for path in (folder, *folder.absolute().parents) if path.is_symlink()]
    stats = [(path, path.lstat()) for path in (*files, *links)] + [(path, path.stat()) for path in files]
    # A folder of the Hub's cache gets new files at any time, and those that lie there stay.
    if Path(source).is_dir():
        stats.append((folder, folder.stat()))
    return next((str(path) for path, stat in stats if stat.st_ctime > time_s), None)


def _cached(name: str) -> Path:
    """The folder of a model in the Hub's cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        found = None
    if not isinstance(found, str):
        raise UnreadableWeightsError(f"{name} is neither a folder nor in the Hub's cache of this machine")
    return Path(found).parent
