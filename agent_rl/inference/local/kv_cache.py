"""Keys and values of every slot, and one forward pass over a stretch of neighbouring slots.

A slot is a row of `width` positions in every layer's tensors. Layers are allocated when a pass first reaches them,
so that any head layout fits. Not here: which tokens a slot holds and who gets which slot (`slots.py`).
"""

import math

import torch
from torch import Tensor


class KeyValueCache:
    """Per layer two tensors [num_slots, kv_heads, width, head_dim]."""

    def __init__(self, num_slots: int, width: int, device: torch.device) -> None:
        self.num_slots, self.width = num_slots, width
        self.columns = torch.arange(width, device=device)
        self.rows = torch.arange(num_slots, device=device)
        self._layers: list[tuple[Tensor, Tensor]] = []

    def layer(self, index: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tensors of a layer, made to fit `keys` and `values` [R, kv_heads, T, head_dim] when it is new."""
        if index == len(self._layers):
            # Zeros and not empty: what is masked in attention is still multiplied by 0, and 0 * NaN is NaN.
            shapes = ((self.num_slots, x.shape[1], self.width, x.shape[3]) for x in (keys, values))
            new_keys, new_values = (keys.new_zeros(shape) for shape in shapes)
            if keys.device.type == "cpu":
                # Positions side by side in memory: products of one query with them are faster.
                new_keys = new_keys.view(*new_keys.shape[:2], -1, self.width).transpose(2, 3)
            self._layers.append((new_keys, new_values))
        return self._layers[index]

    def copy(self, source: int, target: int, num_positions: int) -> None:
        """Copy the first positions of one slot onto another."""
        for layer in self._layers:
            for data in layer:
                data[target, :, :num_positions] = data[source, :, :num_positions]

    def swap(self, first: int, second: int, num_positions: int) -> None:
        """Exchange the first positions of two slots."""
        for layer in self._layers:
            for data in layer:
                first_data = data[first, :, :num_positions].clone()
                data[first, :, :num_positions] = data[second, :, :num_positions]
                data[second, :, :num_positions] = first_data


class CachePass:
    """One forward pass over slots first .. first + R - 1, T new tokens each, right-padded.

    `positions_RT` is where every token stands in its slot; a row's padding is directed to the slot's last position,
    which no token ever needs (the last sampled token is not run through the model).
    """

    def __init__(
        self, cache: KeyValueCache, first: int, starts_R: Tensor, num_new_R: Tensor, *, num_new: int, length: int
    ) -> None:
        """`starts_R` tokens are cached already; `num_new` is the largest of `num_new_R`, `length` that of the sums."""
        self._cache, self._first, self.length = cache, first, length
        offsets = cache.columns[:num_new]
        self.positions_RT = (starts_R[:, None] + offsets).masked_fill_(offsets >= num_new_R[:, None], cache.width - 1)
        self._rows_R1 = cache.rows[: len(starts_R), None]
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}

    @property
    def num_rows(self) -> int:
        return len(self.positions_RT)

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [R, kv_heads, T, head_dim]; return all of these slots, [R, kv_heads, length, ...]."""
        seen = []
        for data, new in zip(self._cache.layer(layer, keys, values), (keys, values), strict=True):
            slots = data[self._first : self._first + self.num_rows]
            slots[self._rows_R1, :, self.positions_RT] = new.transpose(1, 2)
            seen.append(slots[:, :, : self.length])
        return seen[0], seen[1]

    def mask(self, dtype: torch.dtype, window: int | None = None) -> Tensor:
        """Additive mask [R, 1, T, length]: 0 on what a token may see, minus infinity on what comes after it.

        With `window`, also on what lies `window` or more positions before it.
        """
        if (window, dtype) not in self._masks:
            columns = self._cache.columns[: self.length]
            hidden = columns > self.positions_RT[..., None]
            if window is not None:
                hidden |= columns <= self.positions_RT[..., None] - window
            zeros = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
            self._masks[window, dtype] = zeros.masked_fill_(hidden, -math.inf)[:, None]
        return self._masks[window, dtype]
