"""Counts a model's weights and their sizes on the meta device, without reading a weight.

The shape comes from a folder's `config.json`, from the hub or its cache, or from the table here, so that a plan for the
models of `configs/` needs no network. For mixture-of-experts models every expert counts as active.
Does not: compute bytes (`memory.py`), load models (`hf_loading.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from agent_rl.errors import ConfigError
from agent_rl.modeling.hf_causal_lm import largest_heads
from agent_rl.policies.hf_loading import is_folder, load_config, quiet

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """`ModelShape(name="tiny", num_weights=..., ...)`; counts are elements, not bytes."""

    name: str
    num_weights: int
    """All trainable weights; a head tied to the embedding counts once."""
    num_matmul_weights: int
    """Matrices of the layers, without the head."""
    num_head_weights: int
    """Vocabulary times hidden size, also for a head tied to the embedding."""
    largest_weight: int
    """Elements of the largest single tensor."""
    largest_layer: int
    """Elements of the largest block of the stack."""
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    linear_widths: Mapping[str, int] = field(default_factory=dict)
    """By last name of a linear layer, without the head: inputs and outputs of all layers of that name, summed."""

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding as well."""
        return self.num_weights - self.num_matmul_weights < 2 * self.num_head_weights

    @property
    def layer_matrix(self) -> int:
        """Elements of a layer's largest matrix."""
        return self.hidden_size * max(self.intermediate_size, self.num_heads * self.head_dim)

    def num_adapter_weights(self, rank: int, target_modules: Sequence[str] = ()) -> int:
        """Weights of LoRA adapters; without `target_modules` on all linear layers except the head."""
        names = target_modules or self.linear_widths
        return rank * sum(self.linear_widths.get(name, 0) for name in names)

    def cache_bytes(self, bytes_per_number: int) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * bytes_per_number


def _qwen2(hidden: int, inner: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen2",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
    }


SHIPPED = {
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen2(896, 4864, 24, 14, 2, 151_936, True),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": _qwen2(1536, 8960, 28, 12, 2, 151_936, True),
    "Qwen/Qwen2.5-Coder-7B-Instruct": _qwen2(3584, 18_944, 28, 28, 4, 152_064, False),
    "Qwen/Qwen2.5-Coder-32B-Instruct": _qwen2(5120, 27_648, 64, 40, 8, 152_064, False),
}
"""The size-related keys of the published `config.json`; the resulting counts are those of the published weights
(494,032,768, 1,543,714,304, 7,615,616,512 and 32,763,876,352)."""


def read_shape(source: str) -> ModelShape:
    """Read the shape of a model folder or hub name. UserError for anything else, or if it is unavailable."""
    return shape_of(model_config(source), source)


def model_config(source: str) -> "PreTrainedConfig":
    """The sizes of a model, as Transformers builds it from them. UserError as of `read_shape`."""
    from transformers import AutoConfig

    if source.endswith(".pth"):
        raise ConfigError(
            f"model.path = {source!r}: a .pth file does not describe its model; use a folder in Hugging Face format"
        )
    if not is_folder(source) and source in SHIPPED:
        values = dict(SHIPPED[source])
        return AutoConfig.for_model(values.pop("model_type"), **values)
    return load_config(source)


def shape_of(config: "PreTrainedConfig", name: str) -> ModelShape:
    """Compute the shape of the causal LM that Transformers builds from `config`. ConfigError without attention."""
    from transformers import AutoModelForCausalLM

    text = config.get_text_config()
    heads = largest_heads(text)
    if not heads.num_heads:
        raise ConfigError(
            f"model.path = {name!r}: {config.model_type} has no attention heads, and a plan counts their keys and "
            "values; plan for a model with attention, or measure a short run"
        )
    with quiet(), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head, table = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    num_weights = sum(weight.numel() for weight in model.parameters())
    matrices = sum(weight.numel() for weight in model.parameters() if weight.dim() > 1)
    outside = head.numel() if head is table else head.numel() + table.numel()
    widths: dict[str, int] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.weight is not head:
            last = path.rpartition(".")[2]
            widths[last] = widths.get(last, 0) + module.in_features + module.out_features
    return ModelShape(
        name=name,
        num_weights=num_weights,
        num_matmul_weights=matrices - outside,
        num_head_weights=head.numel(),
        largest_weight=max(weight.numel() for weight in model.parameters()),
        largest_layer=_largest_layer(model, text.num_hidden_layers),
        num_layers=text.num_hidden_layers,
        hidden_size=text.hidden_size,
        intermediate_size=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        vocab_size=text.vocab_size,
        linear_widths=widths,
    )


def _largest_layer(model: nn.Module, num_layers: int) -> int:
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) == num_layers]
    return max((sum(weight.numel() for weight in layer.parameters()) for stack in stacks for layer in stack), default=0)
