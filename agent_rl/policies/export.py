"""A checkpoint's model as a folder that other programs load: copied, or its adapters merged into their base.

Not here: the model card (`reports/model_card.py`), uploading.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from agent_rl.config import flatten
from agent_rl.config.load import read_yaml
from agent_rl.distributed.checkpoint import MANIFEST_FILE, MODEL_FOLDER, latest_checkpoint, verify_checkpoint
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.modeling.tensor_files import load_tensors
from agent_rl.policies.hf_loading import check_tokens, load_causal_lm, load_config, load_hf_tokenizer, unreadable
from agent_rl.policies.hf_policy import ADAPTER_FILE, HuggingFaceModel, read_adapter
from agent_rl.policies.model_files.trained_for import keep_trained_for
from agent_rl.policies.trained_model import share_weights


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


def run_of(model: Path) -> Path | None:
    """The folder of the run that `RUN/checkpoints/step_00080/model` is of, however it is written; None for others."""
    parents = model.resolve().parents
    return parents[2] if len(parents) > 2 and parents[1].name == "checkpoints" else None


def is_adapter(model: Path) -> bool:
    """Whether the folder holds adapters, not a whole model."""
    return (model / ADAPTER_FILE).is_file()


def export_model(model: Path, output: Path, *, merge: bool, dtype: str | None = None) -> None:
    """Write the model to `output`, a new or empty folder; with `merge` the adapters in it become part of their base.

    CheckpointError, and nothing is written, for a model that does not load: no tokenizer, torn or missing weights.

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
        _check_loads(model)
        shutil.copytree(model, output, dirs_exist_ok=True)
        if dtype:
            _convert(output, dtype)
        share_weights(output)
        return
    if not is_adapter(model):
        raise ConfigError(f"{model} holds a whole model and no adapters; leave --merge out")
    _, lora = read_adapter(model)
    # Adapters on 4-bit weights learnt to go with the rounded ones, so they become part of these, in whole numbers.
    rounded = format_before_4bit(model)
    rounding = {"load_in_4bit": True, "dequantize": True} if rounded else {}
    dtype = dtype or "float32"
    loaded = HuggingFaceModel.from_pretrained(model, dtype=rounded or dtype, lora=lora, max_context=1, **rounding)
    merged = loaded.module.merge_and_unload().to(getattr(torch, dtype))
    output.mkdir(parents=True, exist_ok=True)
    HuggingFaceModel(merged, loaded.tokenizer).save_pretrained(output)
    keep_trained_for(model, output)


def _check_loads(model: Path) -> None:
    """CheckpointError for a folder that no program could load, found without reading the weights into memory."""
    tokenizer = load_hf_tokenizer(model)
    if is_adapter(model):  # what they are adapters of may be elsewhere
        read_adapter(model)
        _check_adapter_weights(model)
        return
    config = load_config(str(model))
    check_tokens(tokenizer, config.get_text_config().vocab_size, model)
    load_causal_lm(str(model), config, dtype=torch.float32, attention="sdpa", shapes_alone=True)


def _check_adapter_weights(model: Path) -> None:
    files = [*model.glob("adapter_model*.safetensors"), *model.glob("adapter_model*.bin")]
    if not files:
        raise CheckpointError(f"{model} has no adapter_model.safetensors, the adapters' weights; give another folder")
    for path in files:
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, "pt"):
                    pass
            else:
                load_tensors(path, mapped=True)
        except (OSError, SafetensorError) as error:
            raise unreadable(str(path), error) from None


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
    run = run_of(model)
    if run is None or not (run / "config.yaml").is_file():
        return None
    config = flatten(read_yaml(run / "config.yaml"))
    return config["model.dtype"] if config.get("model.load_in_4bit") else None
