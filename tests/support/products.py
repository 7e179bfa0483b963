"""Which number formats matrix products are computed in."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

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
