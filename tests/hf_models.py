"""Tiny random models of Transformers, in memory and as folders with a tokenizer of single letters."""

from pathlib import Path
from typing import Any

import torch
import transformers
from fakes import save_tiny_model
from transformers import PreTrainedModel


def tiny_causal_lm(name: str = "Llama", *, scale: float = 1.0, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A causal LM of two layers, `name` as in `LlamaConfig`; `scale` multiplies the weights of its head."""
    sizes = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
    }
    config = getattr(transformers, f"{name}Config")(**(sizes | changes))
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    return model


def save_tiny_causal_lm(folder: Path, name: str = "Llama", **changes: Any) -> Path:
    """The same as a folder, with the 20 ids and the tokenizer of `save_tiny_model`."""
    save_tiny_model(folder)
    ids = {"vocab_size": 20, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    tiny_causal_lm(name, **(ids | changes)).save_pretrained(folder)
    return folder
