"""A checkpoint's model as a folder that other programs load: copied, or its adapters merged into their base.

Not here: the model card (`reports/model_card.py`), uploading.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from agent_rl.config import LoraConfig, flatten
from agent_rl.config.load import read_yaml
from agent_rl.distributed.checkpoint import MANIFEST_FILE, MODEL_FOLDER, latest_checkpoint, verify_checkpoint
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.policies.hf_policy import ADAPTER_FILE, HuggingFaceModel
from agent_rl.policies.model_files.trained_for import keep_trained_for


def find_model(given: Path) -> Path:
    """The model folder of a checkpoint, of a run's newest one, or the folder itself. CheckpointError without one."""
    if (given / "checkpoints").is_dir():
        newest = latest_checkpoint(given / "checkpoints")
        if newest is None:
            raise CheckpointError(f"{given} holds no whole checkpoint; name a model's folder")
        given = newest
    if (given / MODEL_FOLDER).is_dir():
        if (given / MANIFEST_FILE).exists():
            verify_checkpoint(given)
        return given / MODEL_FOLDER
    if not any((given / name).is_file() for name in ("config.json", ADAPTER_FILE)):
        raise CheckpointError(f"{given} is no checkpoint and no model's folder; name runs/NAME/checkpoints/step_*")
    return given


def is_adapter(model: Path) -> bool:
    """Whether the folder holds adapters, not a whole model."""
    return (model / ADAPTER_FILE).is_file()


def export_model(model: Path, output: Path, *, merge: bool, dtype: str | None = None) -> None:
    """Write the model to `output`, a new or empty folder; with `merge` the adapters in it become part of their base.

    `dtype`, of a whole model's weights, is `float32` or `bfloat16`; None keeps a copy's, and merged ones are float32.
    Adapters are taken for ones of 4-bit weights where the folder lies in such a run. ConfigError for a folder in use,
    for nothing to merge, and for a `dtype` of adapters or of weights that are not in safetensors.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output-dir {output} is not an empty folder; name another")
    if not merge:
        if dtype and (is_adapter(model) or not any(model.glob("*.safetensors"))):
            raise ConfigError(
                f"{model} is no whole model in safetensors, which --dtype is for; leave it out, or --merge"
            )
        shutil.copytree(model, output, dirs_exist_ok=True)
        if dtype:
            _convert(output, dtype)
        return
    if not is_adapter(model):
        raise ConfigError(f"{model} holds a whole model and no adapters; leave --merge out")
    raw = json.loads((model / ADAPTER_FILE).read_text(encoding="utf-8"))
    lora = LoraConfig(rank=raw["r"], alpha=raw["lora_alpha"], target_modules=tuple(raw["target_modules"]))
    # Adapters on 4-bit weights learnt to go with the rounded ones, so they become part of these, in whole numbers.
    rounded = format_before_4bit(model)
    rounding = {"load_in_4bit": True, "dequantize": True} if rounded else {}
    dtype = dtype or "float32"
    loaded = HuggingFaceModel.from_pretrained(model, dtype=rounded or dtype, lora=lora, max_context=1, **rounding)
    merged = loaded.module.merge_and_unload().to(getattr(torch, dtype))
    output.mkdir(parents=True, exist_ok=True)
    HuggingFaceModel(merged, loaded.tokenizer).save_pretrained(output)
    keep_trained_for(model, output)


def _convert(folder: Path, dtype: str) -> None:
    """Round the weights of a model's folder to `dtype`, or widen them, in place."""
    for path in folder.glob("*.safetensors"):
        tensors = load_file(path)
        floats = {name: each.to(getattr(torch, dtype)) for name, each in tensors.items() if each.is_floating_point()}
        save_file({**tensors, **floats}, path, metadata={"format": "pt"})
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)  # its name until Transformers 5
    file.write_text(json.dumps({**config, "dtype": dtype}, indent=2) + "\n", encoding="utf-8")


def format_before_4bit(model: Path) -> str | None:
    """`model.dtype` of the run whose checkpoint this is, if it trained adapters on 4-bit weights; None otherwise."""
    run = model.parents[2] if len(model.parents) > 2 and model.parents[1].name == "checkpoints" else None
    if run is None or not (run / "config.yaml").is_file():
        return None
    config = flatten(read_yaml(run / "config.yaml"))
    return config["model.dtype"] if config.get("model.load_in_4bit") else None
