"""Attention of new tokens over cached ones; keys are never repeated for grouped heads. Not here: the cache."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
