"""An optimizer's state in the machine's memory while its GPU is needed for something else.

What is moved stays where the optimizer finds it, so that a checkpoint can be saved meanwhile; no step can be made.
DeepSpeed's own offloading between steps is for its compiled Adam alone. Not here: when (`core/policy_sync.py`).
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


class ParkedState:
    """`ParkedState(optimizer, device, masters=shards, buffers=gradients)`; `park` before sampling, `unpark` after."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        masters: Sequence[Tensor] = (),
        buffers: Sequence[Tensor] = (),
    ) -> None:
        """`masters` are weights that only the optimizer uses, `buffers` hold nothing between two updates."""
        self._optimizer = optimizer
        self._device = device
        self._masters = masters
        self._buffers = buffers
        self._sizes = [buffer.untyped_storage().nbytes() for buffer in buffers]
        self._host: list[Tensor] = []
        """Main memory, kept: page-locked memory takes long to get."""
        self.is_parked = False

    def park(self) -> None:
        if self.is_parked:
            return
        for place, (values, name) in enumerate(self._entries()):
            values[name] = self._to_host(place, values[name])
        num_entries = sum(1 for _ in self._entries())
        for place, master in enumerate(self._masters, start=num_entries):
            master.data = self._to_host(place, master.data)
        for buffer in self._buffers:
            buffer.untyped_storage().resize_(0)
        self.is_parked = True

    def unpark(self) -> None:
        if not self.is_parked:
            return
        for buffer, size in zip(self._buffers, self._sizes, strict=True):
            buffer.untyped_storage().resize_(size)
        for values, name in self._entries():
            values[name] = values[name].to(self._device, copy=True)
        for master in self._masters:
            master.data = master.data.to(self._device, copy=True)
        self.is_parked = False

    def _entries(self) -> Iterator[tuple[dict[str, Tensor], str]]:
        """Where the moments are; counters of steps stay, as they are on the CPU already."""
        for values in self._optimizer.state.values():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    yield values, name

    def _to_host(self, place: int, tensor: Tensor) -> Tensor:
        if place == len(self._host):
            is_gpu = self._device.type == "cuda"
            self._host.append(torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=is_gpu))
        elif self._host[place].shape != tensor.shape:
            self._host[place] = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=self._host[place].is_pinned())
        return self._host[place].copy_(tensor)
