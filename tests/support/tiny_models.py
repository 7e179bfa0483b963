"""Random models of a few thousand weights: by kind as generation treats them, by Transformers' name, as folders."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from fakes import save_tiny_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM

VOCAB_SIZE = 64
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}

OWN_PASS = ("minimind", "llama", "llama3_rope", "qwen2", "qwen3", "mistral")
THROUGH_TRANSFORMERS = ("mistral_window", "gemma2", "gpt2", "longrope", "lora")
KINDS = OWN_PASS + THROUGH_TRANSFORMERS


def longrope(boundary: int) -> dict[str, object]:
    """Other angles as soon as one sequence of a pass is longer than `boundary`."""
    return {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 4.0,
        "short_factor": [1.0] * 4,
        "long_factor": [3.0] * 4,
        "original_max_position_embeddings": boundary,
    }


def config_of(kind: str, window: int) -> PreTrainedConfig:
    sizes = SIZES | SPECIAL_IDS | {"max_position_embeddings": window}
    llama3 = {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    configs = {
        "llama": lambda: LlamaConfig(**sizes, tie_word_embeddings=True),
        "llama3_rope": lambda: LlamaConfig(**sizes, rope_parameters=llama3),
        "lora": lambda: LlamaConfig(**sizes),
        "qwen2": lambda: Qwen2Config(**sizes, tie_word_embeddings=True),
        "qwen3": lambda: Qwen3Config(**sizes, head_dim=16),
        "mistral": lambda: MistralConfig(**sizes, sliding_window=None),
        "mistral_window": lambda: MistralConfig(**sizes, sliding_window=6),
        # Sliding and full layers in turn, softcaps on scores and on logits, another scale.
        "gemma2": lambda: Gemma2Config(**sizes, head_dim=8, sliding_window=6, query_pre_attn_scalar=16),
        "longrope": lambda: LlamaConfig(**sizes, rope_parameters=longrope(window)),
        "gpt2": lambda: GPT2Config(
            vocab_size=VOCAB_SIZE, n_embd=32, n_layer=2, n_head=4, n_positions=window, bos_token_id=1, eos_token_id=2
        ),
    }
    return configs[kind]()


def tiny_model(
    kind: str = "minimind", *, seed: int = 0, dtype: torch.dtype = torch.float32, window: int = 128
) -> nn.Module:
    """A model whose weights are large enough that every token of the context matters to the next."""
    torch.manual_seed(seed)
    if kind == "minimind":
        model = MiniMindForCausalLM(MiniMindConfig(**SIZES, max_position_embeddings=window))
    else:
        model = AutoModelForCausalLM.from_config(config_of(kind, window), attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    if kind == "lora":
        model = with_adapters(model)
    return model.to(dtype).eval()


def tiny_gemma4() -> PreTrainedModel:
    """Every other layer has twice the head width and half the heads of keys; a config that is asked for one raises."""
    return tiny_causal_lm(
        "Gemma4Text",
        scale=30.0,
        vocab_size_per_layer_input=VOCAB_SIZE,
        hidden_size_per_layer_input=8,
        global_head_dim=16,
        num_global_key_value_heads=1,
        attention_k_eq_v=True,
        sliding_window=6,
        num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention"],
    )


def tiny_causal_lm(name: str = "Llama", *, scale: float = 1.0, seed: int = 0, **changes: Any) -> PreTrainedModel:
    """A causal LM as Transformers initialises it, `name` as in `LlamaConfig`; `scale` multiplies its head's weights."""
    sizes = SIZES | {"head_dim": 8, "max_position_embeddings": 128}
    config = getattr(transformers, f"{name}Config")(**(sizes | changes))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(scale)
    return model


def save_tiny_causal_lm(folder: Path, name: str = "Llama", **changes: Any) -> Path:
    """The same as a folder, with the 20 ids and the tokenizer of `save_tiny_model`."""
    save_tiny_model(folder)
    ids = {"vocab_size": 20, "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    tiny_causal_lm(name, **(ids | changes)).save_pretrained(folder)
    return folder


def with_adapters(model: nn.Module) -> nn.Module:
    """The model with LoRA adapters that change what it computes."""
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    return adapted


def plain_logits(model: nn.Module, token_ids: list[int]) -> torch.Tensor:
    """Logits [T, V] of one plain forward pass."""
    with torch.no_grad():
        output = model(torch.tensor([token_ids]))
    return (output if isinstance(output, torch.Tensor) else output.logits)[0]


def plain_logprobs(model: nn.Module, prompt: list[int], sampled: tuple[int, ...], temperature: float) -> torch.Tensor:
    """Log-probs of `sampled` after `prompt` in one plain forward pass, as a trainer computes them."""
    logits = plain_logits(model, [*prompt, *sampled])
    logprobs = torch.log_softmax(logits.float() / (temperature or 1.0), dim=-1)
    return logprobs[len(prompt) - 1 : -1].gather(1, torch.tensor(sampled)[:, None])[:, 0]


# Number formats of products


_PRODUCTS = {torch.ops.aten.mm: 0, torch.ops.aten.addmm: 1, torch.ops.aten.bmm: 0, torch.ops.aten.baddbmm: 1}
"""Place of the left factor among the arguments."""


class _Watch(TorchDispatchMode):
    def __init__(self, formats: set[torch.dtype]) -> None:
        super().__init__()
        self.formats = formats

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func.overloadpacket in _PRODUCTS:
            self.formats.add(args[_PRODUCTS[func.overloadpacket]].dtype)
        return func(*args, **(kwargs or {}))


@contextmanager
def watched_products() -> Iterator[set[torch.dtype]]:
    """The formats of the products inside, those of backward passes too."""
    formats: set[torch.dtype] = set()
    with _Watch(formats):
        yield formats
