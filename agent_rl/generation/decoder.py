"""A snapshot of the model's weights laid out for inference, and the forward pass over it.

Query, key and value projections are one matrix, gate and up another, so a decode step is few, large products.
Attention itself is passed in, because prefill and decode differ in nothing else. Not here: gradients, the cache.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from model.model_minimind import DecoderLayer, MiniMindForCausalLM, apply_rope, rope_tables

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [N, heads, D], keys [N, kv_heads, D], values [N, kv_heads, D]) -> [N, heads * D]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedLayer:
    """Weights of one layer, copied; D is the head size, d the hidden size, F the feed-forward size."""

    attention_norm: Tensor
    """[d]"""
    qkv: Tensor
    """[(heads + 2 * kv_heads) * D, d]"""
    qk_norm: Tensor
    """[heads + kv_heads, D]: the query norm once per query head, then the key norm once per key head."""
    out: Tensor
    """[d, heads * D]"""
    mlp_norm: Tensor
    """[d]"""
    gate_up: Tensor
    """[2 * F, d]"""
    down: Tensor
    """[d, F]"""

    @classmethod
    def copy_of(cls, layer: DecoderLayer, num_heads: int, num_kv_heads: int) -> "FusedLayer":
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            attention_norm=layer.input_layernorm.weight.detach().clone(),
            qkv=torch.cat([p.weight.detach() for p in (attention.q_proj, attention.k_proj, attention.v_proj)]),
            qk_norm=torch.cat(
                [
                    attention.q_norm.weight.detach().expand(num_heads, -1),
                    attention.k_norm.weight.detach().expand(num_kv_heads, -1),
                ]
            ),
            out=attention.o_proj.weight.detach().clone(),
            mlp_norm=layer.post_attention_layernorm.weight.detach().clone(),
            gate_up=torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()]),
            down=mlp.down_proj.weight.detach().clone(),
        )


class FusedDecoder:
    """The forward pass on flat tokens [N]; `reload` takes the model's weights of that moment."""

    def __init__(self, model: MiniMindForCausalLM, max_context: int) -> None:
        config = model.config
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim, self.eps = config.head_dim, config.rms_norm_eps
        cos, sin = rope_tables(torch.arange(max_context, device=model.device), config.head_dim, config.rope_theta)
        self.cos, self.sin = cos.to(model.dtype), sin.to(model.dtype)
        self.reload(model)

    def reload(self, model: MiniMindForCausalLM) -> None:
        """Copy all weights, so that later optimizer steps leave this decoder as it is."""
        self.layers = [FusedLayer.copy_of(layer, self.num_heads, self.num_kv_heads) for layer in model.model.layers]
        self.embedding = model.model.embed_tokens.weight.detach().clone()
        self.final_norm = model.model.norm.weight.detach().clone()
        is_tied = model.lm_head.weight is model.model.embed_tokens.weight
        self.head = self.embedding if is_tied else model.lm_head.weight.detach().clone()

    def hidden_states(self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """Return the normalised last hidden states [N, d]."""
        x = F.embedding(token_ids_N, self.embedding)
        cos, sin = self.cos[positions_N][:, None], self.sin[positions_N][:, None]
        num_rotated = self.num_heads + self.num_kv_heads
        for index, layer in enumerate(self.layers):
            heads = F.linear(self._norm(x, layer.attention_norm), layer.qkv).view(len(x), -1, self.head_dim)
            rotated = apply_rope(self._norm(heads[:, :num_rotated]) * layer.qk_norm, cos, sin)
            queries, keys = rotated.split((self.num_heads, self.num_kv_heads), dim=1)
            x = torch.addmm(x, attend(index, queries, keys, heads[:, num_rotated:]), layer.out.t())
            gate, up = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())
        return self._norm(x, self.final_norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return next-token logits [N, vocab_size], in the dtype of the weights."""
        return F.linear(hidden, self.head)

    def _norm(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
