"""Keys and values of every active row, allocated once.

Row i of the cache belongs to row i of the active batch; who sits where is the batch's business.
Not here: paging, prefixes kept after a row has ended.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


class KeyValueCache:
    """`data` [layers, 2, rows, kv_heads, max_context, head_dim]; index 0 of the second axis holds keys, 1 values."""

    def __init__(
        self,
        *,
        num_layers: int,
        max_rows: int,
        num_kv_heads: int,
        max_context: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (num_layers, 2, max_rows, num_kv_heads, max_context, head_dim)
        # Zeros and not empty: what is masked in attention is still multiplied by 0, and 0 * NaN is NaN.
        self.data = torch.zeros(shape, dtype=dtype, device=device)

    def write_prompts(self, layer: int, first_row: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [R, kv_heads, P, head_dim] at positions 0..P-1 of rows first_row..first_row+R-1."""
        num_rows, _, num_positions, _ = keys.shape
        target = self.data[layer, :, first_row : first_row + num_rows, :, :num_positions]
        target[0], target[1] = keys, values

    def append(self, layer: int, rows_B: Tensor, positions_B: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [B, kv_heads, head_dim], row b at position positions_B[b] of row rows_B[b]."""
        self.data[layer, 0][rows_B, :, positions_B] = keys
        self.data[layer, 1][rows_B, :, positions_B] = values

    def view(self, layer: int, num_rows: int, num_positions: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [num_rows, kv_heads, num_positions, head_dim] of the first rows, not copied."""
        return self.data[layer, :, :num_rows, :, :num_positions].unbind(0)

    def copy_rows(self, sources: list[int], targets: list[int], num_positions: int) -> None:
        """Copy the first positions of rows `sources` onto rows `targets`; the two do not overlap."""
        prefix = self.data[:, :, :, :, :num_positions]
        prefix[:, :, targets] = prefix[:, :, sources]


def attend_cached(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Softmax attention of few queries over many cached positions.

    queries [B, kv_heads, Q, D]; keys, values [B, kv_heads, L, D]; additive mask [B, 1, 1, L].
    Returns [B, kv_heads, Q, D].
    """
    if queries.dtype != torch.float32:
        # The fused kernel keeps scores in float32; two half-precision products would round them.
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    # For a handful of queries the fused CPU kernel is 1.6 to 3 times slower than two batched products.
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    return scores.add_(mask).softmax(dim=-1) @ values
