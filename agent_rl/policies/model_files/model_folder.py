"""Check a stranger's model folder before anything of it is loaded: sizes of files, names in its index, sizes it claims.

A few lines of JSON can claim a model of a terabyte, or weights elsewhere on the disk. Everything is decided from
metadata, in bounded time. Not here: the weights themselves (safetensors and `tensor_files.py` read nothing that runs).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_rl.errors import CheckpointError
from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, read_json

_LONGEST_MB = {"tokenizer.json": 128, "tokenizer_config.json": 32, "*.index.json": 64, "*.json": 16, "*.jinja": 2}
"""Of the files that are read as text; the first that fits a name holds. The largest tokenizers have some 35 MB."""
_MAX_VALUES = 2_000_000
_WEIGHTS = ("*.safetensors", "*.bin", "*.pth")
_MAX_LAYERS = 10_000
_COUNTS = ("vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads", "n_embd")


def check_model_folder(folder: Path) -> None:
    """CheckpointError, one sentence, for a folder that cannot be what it says; missing files are others' business."""
    for pattern in _LONGEST_MB:
        for path in sorted(folder.glob(pattern)):
            if not path.is_file():
                raise CheckpointError(f"{path} is no file; give the folder of a model")
            limit = next(mb for each, mb in _LONGEST_MB.items() if path.match(each))
            if path.stat().st_size > limit * 2**20:
                raise CheckpointError(f"{path} has more than {limit} MB; take the model from its source")
    for path in sorted(folder.glob("*.index.json")):
        _check_index(path)
    _check_sizes(folder)


def _check_index(path: Path) -> None:
    """Shards lie beside the index."""
    names = _mapping(path).get("weight_map")
    if not isinstance(names, Mapping):
        raise CheckpointError(f"{path} has no weight_map; copy or download it again")
    for name in sorted({name if isinstance(name, str) else repr(name) for name in names.values()}):
        if Path(name).name != name or not (path.parent / name).is_file():
            raise CheckpointError(
                f"{path} names {name!r:.100}, and no such file lies beside it; download the model again"
            )


def _check_sizes(folder: Path) -> None:
    """No model has more weights than its files have bytes, of the sizes that config.json gives."""
    if not (folder / "config.json").is_file() or (folder / "adapter_config.json").exists():
        return  # adapters lie in files of their own, the model elsewhere
    config = _mapping(folder / "config.json")
    parts = [config, *(part for name in ("text_config", "llm_config") if isinstance(part := config.get(name), Mapping))]
    num_bytes = sum(path.stat().st_size for pattern in _WEIGHTS for path in folder.glob(pattern) if path.is_file())
    for part in parts:
        sizes = {name: part[name] for name in _COUNTS if name in part}
        for name, size in sizes.items():
            if type(size) is not int or not 0 < size < 2**31:
                raise CheckpointError(f"{folder / 'config.json'}: {name} = {size!r:.60}, expected a size; correct it")
        layers, width = sizes.get("num_hidden_layers", 1), sizes.get("hidden_size", sizes.get("n_embd", 1))
        claimed = max(sizes.get("vocab_size", 1) * width, layers * width, width * sizes.get("intermediate_size", 1))
        if layers > _MAX_LAYERS or (num_bytes and claimed > 8 * num_bytes):
            raise CheckpointError(
                f"{folder / 'config.json'} claims {layers} layers and at least {claimed} weights, and the files hold "
                f"{num_bytes} bytes; give the folder of a whole model"
            )


def _mapping(path: Path) -> Mapping[str, Any]:
    try:
        value = read_json(path.read_bytes(), max_values=_MAX_VALUES)
    except (OSError, UnreadableJSON) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); copy or download it again") from None
    if not isinstance(value, Mapping):
        raise CheckpointError(f"{path} holds no JSON object; copy or download it again")
    return value
