"""The forward pass of generation: new tokens in, last hidden states and logits out, keys and values into the cache.

`LlamaDecoder` runs models of Llama's shape (MiniMind, Llama, Qwen2, Qwen3, Mistral) with few operations. It reads the
trained module's weights in place, except for a fused copy of the query, key and value projections (an eighth of all).
Every other Hugging Face causal LM, and adapters, run their own code (`hf_decoder.py`).
Not here: gradients, batching, sampling.
"""

from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_rl.inference.local.kernels import add_linear, attend, gated, linear
from agent_rl.inference.local.kv_cache import CachePass
from agent_rl.modeling.hf_causal_lm import sliding_window
from agent_rl.modeling.minimind import MiniMindForCausalLM, rope_tables
from agent_rl.modeling.onednn import OneDNNLinear, num_spare_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LLAMA_SHAPED = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "MistralForCausalLM")
STATIC_ROPE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose angles depend on the position alone."""


class Decoder(Protocol):
    """What the batch needs of a model."""

    vocab_size: int
    device: torch.device
    dtype: torch.dtype

    def hidden_states(self, token_ids_RT: Tensor, work: CachePass) -> Tensor:
        """Run new tokens; return the hidden states that `logits` takes, [R, T, d]."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Return next-token logits [R, vocab_size] for hidden states [R, d]."""

    def reload(self) -> None:
        """Look the weights up again, after they were changed or exchanged."""


class LlamaDecoder:
    """Pre-norm blocks with rotary positions, grouped-query attention and SwiGLU, biases and head norms optional."""

    def __init__(self, model: "MiniMindForCausalLM | PreTrainedModel", cos: Tensor, sin: Tensor) -> None:
        """`cos` and `sin` [width, D] are the rotary tables, in the number format of the weights."""
        config = model.config
        self._model = model
        self._eps = config.rms_norm_eps
        self._num_heads, self._num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._cos = cos
        # The sign of the rotation sits in the table: (x1, x2) * cos + (x2, x1) * (-sin, sin).
        half = sin.shape[-1] // 2
        self._sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
        self.vocab_size = config.vocab_size
        self.device, self.dtype = cos.device, cos.dtype
        self.reload()

    def reload(self) -> None:
        """Copy the projections to queries, keys and values, as one matrix a layer; all else is read where it is."""
        self._layers = list(self._model.model.layers)
        self._qkv = [_fused_qkv(layer.self_attn) for layer in self._layers]
        self._qk_norms = [self._fused_norms(layer.self_attn) for layer in self._layers]

    def hidden_states(self, token_ids_RT: Tensor, work: CachePass) -> Tensor:
        num_rows, num_new = token_ids_RT.shape
        num_tokens = num_rows * num_new
        num_spare = num_spare_rows(num_tokens, self.device, self.dtype)
        token_ids = F.pad(token_ids_RT.flatten(), (0, num_spare))
        x = F.embedding(token_ids, self._model.model.embed_tokens.weight)
        cos, sin = (table[work.positions_RT.flatten()][:, None] for table in (self._cos, self._sin))
        mask = work.mask(self.dtype)
        num_rotated = self._num_heads + self._num_kv_heads
        for index, layer in enumerate(self._layers):
            normed = self._norm(x, layer.input_layernorm.weight)
            heads = linear(normed, *self._qkv[index]).view(len(x), -1, self._head_dim)[:num_tokens]
            rotated = _rotate(self._norm_heads(heads[:, :num_rotated], index), cos, sin)
            queries, keys, values = (
                part.view(num_rows, num_new, -1, self._head_dim).transpose(1, 2)
                for part in (rotated[:, : self._num_heads], rotated[:, self._num_heads :], heads[:, num_rotated:])
            )
            keys, values = work.update(index, keys, values)
            out = attend(queries, keys, values, mask, scale=self._head_dim**-0.5)
            out = out.transpose(1, 2).reshape(num_tokens, -1)
            x = add_linear(F.pad(out, (0, 0, 0, num_spare)), layer.self_attn.o_proj, residual=x)
            normed = self._norm(x, layer.post_attention_layernorm.weight)
            x = add_linear(gated(normed, layer.mlp.gate_proj, layer.mlp.up_proj), layer.mlp.down_proj, residual=x)
        return self._norm(x[:num_tokens], self._model.model.norm.weight).view(num_rows, num_new, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        num_spare = num_spare_rows(len(hidden), self.device, self.dtype)
        return linear(F.pad(hidden, (0, 0, 0, num_spare)), self._model.lm_head.weight, None)[: len(hidden)]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self._eps)

    def _norm_heads(self, heads: Tensor, index: int) -> Tensor:
        """Queries and keys [N, heads + kv_heads, D], normalised where the model does that."""
        weight = self._qk_norms[index]
        return heads if weight is None else F.rms_norm(heads, heads.shape[-1:], None, self._eps) * weight

    def _fused_norms(self, attention: nn.Module) -> Tensor | None:
        """[heads + kv_heads, D]: the query norm once per query head, then the key norm once per key head."""
        if not hasattr(attention, "q_norm"):
            return None
        norms = (attention.q_norm.weight, self._num_heads), (attention.k_norm.weight, self._num_kv_heads)
        return torch.cat([weight.detach().expand(count, -1) for weight, count in norms])


def _fused_qkv(attention: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of the three projections as one."""
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    weight = torch.cat([projection.weight.detach() for projection in projections])
    if projections[0].bias is None:
        return weight, None
    return weight, torch.cat([projection.bias.detach() for projection in projections])


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [N, heads, D]; cos and sin [N, 1, D], sin with its sign."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((second, first), dim=-1), sin)


def make_decoder(model: nn.Module, width: int) -> Decoder:
    """The fastest decoder for a model, for sequences of up to `width` tokens."""
    if isinstance(model, MiniMindForCausalLM):
        config = model.config
        cos, sin = rope_tables(torch.arange(width, device=model.device), config.head_dim, config.rope_theta)
        return LlamaDecoder(model, cos.to(model.dtype), sin.to(model.dtype))
    if _is_llama_shaped(model, width):
        sample = model.lm_head.weight.new_empty(1, 1, 1)
        cos, sin = model.model.rotary_emb(sample, torch.arange(width, device=sample.device)[None])
        return LlamaDecoder(model, cos[0], sin[0])
    from agent_rl.inference.local.hf_decoder import HFDecoder

    return HFDecoder(model, width)


def _is_llama_shaped(model: "PreTrainedModel", width: int) -> bool:
    """Whether `LlamaDecoder` computes what the model does; adapters and quantised layers are no plain linear layers."""
    if type(model).__name__ not in LLAMA_SHAPED:
        return False
    config = model.config
    window = sliding_window(config)
    projections = [m for name, m in model.model.layers.named_modules() if name.endswith("_proj")]
    return (
        all(type(projection) in (nn.Linear, OneDNNLinear) for projection in projections)
        and config.hidden_act == "silu"
        and config.rope_parameters.get("rope_type", "default") in STATIC_ROPE
        and (window is None or window >= width)
    )
