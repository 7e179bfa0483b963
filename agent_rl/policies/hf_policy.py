"""Any Hugging Face causal LM as a trained model and as a policy, with LoRA adapters or without.

`HuggingFacePolicy.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")`. The model is Transformers' own. It has no dropout, so
train mode and eval mode are one function: the trainer must compute the log-probs that were sampled with. With a LoRA
rank peft's adapters are put into it, and only they are trained and saved.
Not here: training, generation, reading files (`hf_loading.py`).
"""

import json
import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from agent_rl.config import LoraConfig
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.policies.hf_loading import (
    UNREADABLE,
    check_tokens,
    load_causal_lm,
    load_config,
    load_hf_tokenizer,
    quiet,
    unreadable,
)
from agent_rl.policies.in_process_policy import InProcessPolicy
from agent_rl.policies.template_values import TemplateValue
from agent_rl.policies.trained_model import TrainedModel, check_window, share_weights
from agent_rl.resources import install_command

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

ADAPTER_FILE = "adapter_config.json"


class HuggingFaceModel(TrainedModel):
    """`HuggingFaceModel.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")`."""

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        dtype: str = "float32",
        device: str | torch.device = "cpu",
        attention: str = "sdpa",
        gradient_checkpointing: bool = False,
        lora: LoraConfig | None = None,
        seed: int = 0,
        max_context: int = 1024,
        loading: AbstractContextManager | None = None,
        chat_template_kwargs: Mapping[str, TemplateValue] | None = None,
        chat_template: Path | None = None,
        load_in_4bit: bool = False,
        dequantize: bool = False,
    ) -> "HuggingFaceModel":
        """Read a folder or a hub name; a folder with `adapter_config.json` holds adapters for the base it names.

        `dtype` is `float32` or `bfloat16`; `seed` initialises new adapters. `loading` is entered while weights
        are read, for a back end that shards them; `chat_template_kwargs` are values of the chat template's variables,
        `chat_template` a file in its place.
        `load_in_4bit` holds the frozen linear layers under adapters in 4 bits; `dequantize` gives them whole numbers
        again, of the same values, so that adapters can be merged into them without rounding.
        Raises CheckpointError for what cannot be read or is no decoder-only language model, ConfigError for a setting
        that the model or this machine does not take.
        """
        lora = lora or LoraConfig()
        has_adapter = (Path(source) / ADAPTER_FILE).is_file()
        base = base_of_adapter(Path(source), lora) if has_adapter else str(source)
        config = load_config(base)
        text_config = config.get_text_config()
        check_window(max_context, getattr(text_config, "max_position_embeddings", None), base)
        tokenizer = load_hf_tokenizer(source, chat_template_kwargs, chat_template)
        check_tokens(tokenizer, text_config.vocab_size, source)
        with loading or nullcontext():
            in_4bit_on = torch.device(device) if load_in_4bit else None
            number_format = getattr(torch, dtype)
            model = load_causal_lm(base, config, dtype=number_format, attention=attention, in_4bit_on=in_4bit_on)
        if dequantize:
            with quiet():
                model = model.dequantize()
        if gradient_checkpointing:
            enable_gradient_checkpointing(model)
        if has_adapter:
            model = _load_adapter(model, Path(source))
        elif lora.rank:
            model = add_adapter(model, base, lora, seed=seed)
        return cls(model.to(device).eval(), tokenizer)

    def save_pretrained(self, folder: str | Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write tokenizer and whole model, or tokenizer and adapters, into `folder`."""
        # peft would ask the hub whether the vocabulary has grown; it has not.
        options: dict[str, Any] = {"save_embedding_layers": False} if hasattr(self.module, "peft_config") else {}
        if weights is not None:
            options["state_dict"] = dict(weights)
        with quiet():
            self.module.save_pretrained(folder, **options)
            self.tokenizer.save_pretrained(folder)
        share_weights(folder)

    def load_weights(self, folder: Path) -> None:
        if hasattr(self.module, "peft_config"):
            peft = _peft()
            peft.set_peft_model_state_dict(self.module, peft.load_peft_weights(str(folder), device="cpu"))
            return
        source = str(folder)
        loaded = load_causal_lm(source, load_config(source), dtype=self.module.dtype, attention="sdpa")
        self.module.load_state_dict(loaded.state_dict())


class HuggingFacePolicy(InProcessPolicy):
    """Any causal language model of Transformers, sampled from in this process.

    `HuggingFacePolicy.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", max_context=2048, dtype="bfloat16")`.
    """

    model_class = HuggingFaceModel


def enable_gradient_checkpointing(model: "PreTrainedModel") -> None:
    """Also makes the embeddings' output need a gradient, which adapters on frozen layers rely on."""
    try:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except ValueError:
        raise ConfigError(
            f"model.gradient_checkpointing: {type(model).__name__} cannot compute its activations again; switch it off"
        ) from None


def _peft() -> Any:
    # peft imports bitsandbytes where it is installed, which asks processors with bfloat16 for one more package.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        import peft
    except ImportError:
        raise ConfigError(f"LoRA adapters need peft; {install_command('lora')}") from None
    return peft


def add_adapter(model: "PreTrainedModel", base: str, lora: LoraConfig, *, seed: int) -> "PeftModel":
    """Put new adapters into the model, whose weights came from `base`. ConfigError for layers that it does not have."""
    peft = _peft()
    if Path(base).is_dir():
        model.name_or_path = str(Path(base).resolve())  # goes into adapter_config.json, to be found from anywhere
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        target_modules=list(lora.target_modules) or "all-linear",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            return _leave_formats_to_autocast(peft.get_peft_model(model, settings))
        except ValueError:
            raise ConfigError(
                f"model.lora.target_modules = {list(lora.target_modules)}: {type(model).__name__} has no linear layers "
                "of these names; its layers are listed by print(model)"
            ) from None


def _leave_formats_to_autocast(model: "PeftModel") -> "PeftModel":
    """Under autocast adapters take their input as it is; peft would first widen it to their own float32."""

    def cast(x: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
        return x if x is None or torch.is_autocast_enabled(x.device.type) else x.to(dtype)

    for module in model.modules():
        if hasattr(module, "cast_input_dtype_enabled"):
            module._cast_input_dtype = cast
    return model


def read_adapter(folder: Path) -> tuple[str, LoraConfig]:
    """Name of the model that the adapters in `folder` were trained on, and what they are."""
    path = folder / ADAPTER_FILE
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        kind, dropout, base = raw["peft_type"], raw["lora_dropout"], raw["base_model_name_or_path"]
        lora = LoraConfig(rank=raw["r"], alpha=raw["lora_alpha"], target_modules=tuple(sorted(raw["target_modules"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read as a LoRA adapter's ({error!r}); restore the file") from None
    if kind != "LORA" or dropout:
        raise CheckpointError(f"{path}: {kind} adapters with dropout {dropout}; expected LORA without dropout")
    return str(base), lora


def base_of_adapter(folder: Path, lora: LoraConfig) -> str:
    """Name of the model that the adapters in `folder` were trained on; they must match `lora`."""
    base, found = read_adapter(folder)
    rank, alpha, modules = found.rank, found.alpha, list(found.target_modules)
    wanted_modules = sorted(lora.target_modules) or modules
    if (lora.rank, lora.alpha, wanted_modules) != (rank, alpha, modules):
        raise ConfigError(
            f"model.lora has rank {lora.rank}, alpha {lora.alpha:g}, layers {wanted_modules}, but the adapters in "
            f"{folder} have {rank}, {alpha:g}, {modules}; set model.lora to these"
        )
    return base


def _load_adapter(model: "PreTrainedModel", folder: Path) -> "PeftModel":
    try:
        return _leave_formats_to_autocast(_peft().PeftModel.from_pretrained(model, folder, is_trainable=True))
    except UNREADABLE as error:
        raise unreadable(str(folder), error) from None
