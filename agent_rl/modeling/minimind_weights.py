"""MiniMind weights in their public formats: the file, its tensors, sizes and tokenizer.

Hugging Face folders (`model.safetensors`, `pytorch_model.bin`), and the `.pth` state dicts of public MiniMind's
trainers, which come without a config: their sizes are read off the tensors. Files are read as plain tensors; nothing in
them runs. Not here: the network, `config.json`, mixture of experts, LoRA matrices, sharded checkpoints.
"""

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from agent_rl.errors import CheckpointError
from agent_rl.modeling.tensor_files import load_tensors, models_inside

WEIGHTS_FILE, PICKLED_WEIGHTS_FILE = "model.safetensors", "pytorch_model.bin"
STATE_DICT_SUFFIX = ".pth"
EMBEDDING_KEY, HEAD_KEY = "model.embed_tokens.weight", "lm_head.weight"
PUBLIC_NUM_HEADS = 8
"""Attention heads of every public MiniMind without query and key norms, which the tensors do not show."""

_WRAPPERS = re.compile(r"^(?:_orig_mod\.|module\.)+")
_ROTARY_TABLES = re.compile(r"(?:^|\.)freqs_(?:cos|sin)$")
_LAYER = re.compile(r"model\.layers\.([0-9]+)\.")


def weights_file(folder: Path) -> Path:
    """The file with the weights of a folder in Hugging Face format. CheckpointError when `folder` is a file."""
    if folder.is_file():
        raise CheckpointError(
            f"{folder} is a file, expected a folder in Hugging Face format or a {STATE_DICT_SUFFIX} file: "
            "give the folder it lies in"
        )
    pickled = folder / PICKLED_WEIGHTS_FILE
    return pickled if pickled.is_file() and not (folder / WEIGHTS_FILE).exists() else folder / WEIGHTS_FILE


def read_weights(path: Path, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Read the tensors of one file onto the CPU, under the names of public MiniMind.

    `dtype` None keeps the file's, except for float16, which becomes float32: half precision is for storage, and neither
    trained nor run here. Raises CheckpointError for a file that is missing, torn, or not a dense MiniMind's.
    """
    raw = _read_safetensors(path) if path.suffix == ".safetensors" else _read_pickled(path)
    state: dict[str, Tensor] = {}
    for name, tensor in raw.items():
        if _ROTARY_TABLES.search(name):
            continue
        if not tensor.is_floating_point():
            raise CheckpointError(f"{path}: {name} holds {tensor.dtype}, expected floating point: it may be quantised")
        wanted = dtype or (torch.float32 if tensor.dtype == torch.float16 else tensor.dtype)
        # Copies, because tensors may be a view of the file: writing a new one in its place would crash the process.
        state[_WRAPPERS.sub("", name)] = tensor.to(dtype=wanted, copy=True)
    _refuse_other_kinds(state, path)
    return state


def sizes_of(state: dict[str, Tensor], path: Path) -> dict[str, Any]:
    """Keyword arguments of `MiniMindConfig` for a state dict without a config.

    What tensors do not tell (positions, rotary base, norm epsilon, special tokens) is as public MiniMind has it; so is
    the number of heads of its older generation, which has no query and key norms.
    """
    has_norms = "model.layers.0.self_attn.q_norm.weight" in state
    vocab_size, hidden_size = _shape(state, EMBEDDING_KEY, path)
    query_size, _ = _shape(state, "model.layers.0.self_attn.q_proj.weight", path)
    key_size, _ = _shape(state, "model.layers.0.self_attn.k_proj.weight", path)
    head_dim = query_size // PUBLIC_NUM_HEADS
    if has_norms:
        (head_dim,) = _shape(state, "model.layers.0.self_attn.q_norm.weight", path, num_dims=1)
    if not head_dim or head_dim % 2 or not key_size or key_size % head_dim or query_size % key_size:
        raise CheckpointError(
            f"{path}: {query_size} query and {key_size} key rows cannot be split into heads of {head_dim}: "
            "expected the state dict of a public MiniMind"
        )
    layers = {match[1] for name in state if (match := _LAYER.match(name))}
    return {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "num_hidden_layers": len(layers),
        "num_attention_heads": query_size // head_dim,
        "num_key_value_heads": key_size // head_dim,
        "head_dim": head_dim,
        "intermediate_size": _shape(state, "model.layers.0.mlp.gate_proj.weight", path)[0],
        "rms_norm_eps": 1e-6 if has_norms else 1e-5,
        "tie_word_embeddings": HEAD_KEY not in state or torch.equal(state[HEAD_KEY], state[EMBEDDING_KEY]),
        "qk_norm": has_norms,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def tokenizer_folder(path: str | Path) -> Path:
    """The folder with the tokenizer of the model in `path`.

    For a folder, itself. For a `.pth` file, the folder it lies in, or public MiniMind's `model/` beside that folder
    (`out/full_sft_768.pth` and `model/tokenizer.json`). Raises CheckpointError when there is none.
    """
    path = Path(path)
    here = path.absolute().parent
    is_file = path.suffix == STATE_DICT_SUFFIX
    candidates = [here, here.parent / "model"] if is_file else [path]
    for folder in candidates:
        if (folder / "tokenizer.json").is_file():
            return folder
    if is_file:
        raise CheckpointError(
            f"{path} has no tokenizer: neither {candidates[0]} nor {candidates[1]} holds a tokenizer.json; "
            "copy tokenizer.json and tokenizer_config.json of public MiniMind's model/ beside it"
        )
    if path.is_file():
        raise CheckpointError(f"{path} is a file: give the folder of the model, {path.parent}")
    raise CheckpointError(
        f"{path}/tokenizer.json does not exist: give the folder of a model with its tokenizer{models_inside(path)}"
    )


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise _missing(path) from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}): the file is torn, copy or download it again") from None


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        raw = load_tensors(path)
    except FileNotFoundError:
        raise _missing(path) from None
    if isinstance(raw, dict) and "optimizer" in raw:
        raise CheckpointError(
            f"{path} is the state of a training run, expected weights alone: give the {STATE_DICT_SUFFIX} file without "
            "_resume in its name"
        )
    if not isinstance(raw, dict) or not all(isinstance(tensor, Tensor) for tensor in raw.values()):
        raise CheckpointError(f"{path} holds something else than named tensors, expected the state dict of a MiniMind")
    return {str(name): tensor for name, tensor in raw.items()}


def _missing(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} does not exist: expected all weights in this one file")


def _refuse_other_kinds(state: dict[str, Tensor], path: Path) -> None:
    """Raise CheckpointError for MiniMind weights that are not of a dense model, with what to use instead."""
    if any(".lora." in name for name in state):
        raise CheckpointError(
            f"{path} holds LoRA matrices: merge them into their base with public MiniMind's convert_merge_base_lora "
            "and give the merged file"
        )
    if any(".mlp.experts." in name or ".mlp.gate." in name for name in state):
        raise CheckpointError(f"{path} is a mixture of experts, which is not supported: use a dense MiniMind")


def _shape(state: dict[str, Tensor], name: str, path: Path, *, num_dims: int = 2) -> tuple[int, ...]:
    if name not in state:
        raise CheckpointError(f"{path} has no tensor {name}: expected the state dict of a public MiniMind")
    shape = tuple(state[name].shape)
    if len(shape) != num_dims:
        raise CheckpointError(f"{path}: {name} has the shape {shape}, expected {num_dims} dimensions")
    return shape
