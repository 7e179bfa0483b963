"""Counts the bytes of tensors that are alive, phase by phase, and matrix products by number format.

Works on fake tensors, which have sizes and no data, and on real ones alike: it sees what PyTorch's operators put out,
and when its last reference goes. Does not see: memory that a kernel takes and returns inside one operator, blocks that
an allocator keeps, anything that is not a tensor.
"""

import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_INNER_OF = {"mm": 0, "addmm": 1, "bmm": 0, "baddbmm": 1}
"""Products, and which of their arguments has the inner dimension last."""


@dataclass(slots=True)
class LivePhase:
    """Bytes alive at its start, at its end, and at most."""

    name: str
    start: int
    end: int
    peak: int


class LiveBytes(TorchDispatchMode):
    """`with LiveBytes() as live: ...; live.now`; tensors made before are counted when handed to `count`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.phases: list[LivePhase] = []
        """In order; a name may come several times."""
        self.products: Counter[str] = Counter()
        """Multiplications and additions of matrix products by the number format of their factors."""
        self.attentions: Counter[str] = Counter()
        """Calls of fused attention, forward and backward, by number format."""
        self._alive: dict[int, weakref.ref] = {}
        self.enter("before")

    def enter(self, name: str) -> None:
        """End the phase and begin another."""
        self.phases.append(LivePhase(name, self.now, self.now, self.now))

    def restart(self, name: str) -> None:
        """Forget phases and products so far, not what is alive, and begin a phase."""
        self.phases.clear()
        self.products.clear()
        self.attentions.clear()
        self.enter(name)

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count the tensors, views of one storage once, until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key, num_bytes = storage._cdata, storage.nbytes()
            if key not in self._alive:
                # The reference lives as long as the storage: its Python object is kept with it.
                self._alive[key] = weakref.ref(storage, lambda _, key=key, num=num_bytes: self._free(key, num))
                self.now += num_bytes
        phase = self.phases[-1]
        phase.end, phase.peak = self.now, max(phase.peak, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.count(made)
        self._count_product(func.overloadpacket.__name__, args, made)
        return out

    def _free(self, key: int, num_bytes: int) -> None:
        del self._alive[key]
        self.now -= num_bytes
        self.phases[-1].end = self.now

    def _count_product(self, name: str, args: Any, made: list[Tensor]) -> None:
        if name in _INNER_OF:
            factor = args[_INNER_OF[name]]
            self.products[_format(factor)] += 2 * made[0].numel() * factor.shape[-1]
        elif "attention" in name or "attn" in name:
            self.attentions[_format(args[0])] += 1


def _format(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
