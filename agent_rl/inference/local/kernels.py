"""Products and attention for few rows at a time: linear layers, and new tokens over cached ones. No gradients.

PyTorch sends float32 products on a CPU to MKL, which on CPUs other than Intel's does not use AVX-512: oneDNN, which
PyTorch carries along, is up to twice as fast there at 16 to 64 rows. Same formula, other rounding. In attention, keys
are never repeated for grouped heads.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_rl.modeling.onednn import MIN_ROWS, has_onednn, product


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias; x is [N, in]."""
    if not _suits_onednn(x):
        return F.linear(x, weight, bias)
    return product(x, weight, bias)


def add_linear(x: Tensor, layer: nn.Linear, *, residual: Tensor) -> Tensor:
    """Return residual + layer(x)."""
    if not _suits_onednn(x):
        return residual + F.linear(x, layer.weight, layer.bias)
    return torch.ops.mkldnn._linear_pointwise.binary(x, residual, layer.weight, layer.bias, "add")


def gated(x: Tensor, gate: nn.Linear, up: nn.Linear) -> Tensor:
    """Return silu(gate(x)) * up(x)."""
    if not _suits_onednn(x):
        return F.silu(F.linear(x, gate.weight, gate.bias)) * F.linear(x, up.weight, up.bias)
    opened = torch.ops.mkldnn._linear_pointwise(x, gate.weight, gate.bias, "swish", [], "")
    return torch.ops.mkldnn._linear_pointwise.binary(x, opened, up.weight, up.bias, "mul")


def _suits_onednn(x: Tensor) -> bool:
    return len(x) >= MIN_ROWS and has_onednn(x.device, x.dtype)


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float, softcap: float | None = None
) -> Tensor:
    """Softmax attention with an additive mask.

    queries [R, heads, T, D]; keys, values [R, kv_heads, L, D]; mask [R, 1, T, L]. Query head h reads key head
    h // (heads / kv_heads). `softcap` caps scores to `softcap * tanh(scores / softcap)`. Returns [R, heads, T, D].
    """
    is_decode_on_cpu = queries.shape[2] == 1 and queries.dtype == torch.float32 and queries.device.type == "cpu"
    if softcap is not None or is_decode_on_cpu:
        return _by_products(queries, keys, values, mask, scale, softcap)
    grouped = queries.shape[1] != keys.shape[1]
    if queries.shape[2] == 1 and grouped:
        # The query heads of one key head become its query positions.
        folded = queries.reshape(*keys.shape[:2], -1, queries.shape[3])
        out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scale)
        return out.reshape(*queries.shape[:3], -1)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale, enable_gqa=grouped)


def _by_products(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """Two batched products: for one query a row the fused CPU kernel is slower."""
    (num_rows, num_heads, num_new, _), (num_kv_heads, length) = queries.shape, keys.shape[1:3]
    folded = queries.reshape(num_rows * num_kv_heads, -1, queries.shape[3])
    keys, values = keys.flatten(0, 1), values.flatten(0, 1)
    if softcap is None and num_new == 1:
        # Scale and mask ride along with the product.
        hidden = mask.expand(-1, num_kv_heads, -1, -1).reshape(-1, 1, length)
        scores = torch.baddbmm(hidden, folded, keys.transpose(1, 2), alpha=scale)
    else:
        scores = torch.bmm(folded, keys.transpose(1, 2)).mul_(scale)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        scores.view(num_rows, num_kv_heads, -1, num_new, length).add_(mask[:, :, None])
    return torch.bmm(scores.softmax(dim=-1), values).view(num_rows, num_heads, num_new, -1)
