"""Weights that DeepSpeed split as they were loaded: their whole shape, and their whole content for a forward pass.

A split parameter reports no elements; DeepSpeed keeps what it needs on the parameter itself (`ds_*`). Whole parameters
pass through. Not here: splitting, gathering for anything else than one forward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


def full_shape(parameter: torch.Tensor) -> torch.Size:
    """The shape of the whole parameter; of one in 4 bits, that of the weights in it."""
    if (rounded := getattr(parameter, "quant_state", None)) is not None:  # bitsandbytes packs two into a byte
        return torch.Size(rounded.shape)
    return getattr(parameter, "ds_shape", parameter.shape)


def is_split(module: nn.Module) -> bool:
    """Whether any weight was split."""
    return any(hasattr(parameter, "ds_shape") for parameter in module.parameters())


@contextmanager
def whole_in_forward(module: nn.Module) -> Iterator[None]:
    """Inside, every part of `module` has its own weights whole while it computes; collective where they are split.

    For modules that are not in a DeepSpeed engine yet.
    """
    handles = []
    for part in module.modules():
        split = [parameter for parameter in part.parameters(recurse=False) if hasattr(parameter, "ds_shape")]
        if split:
            handles += _gather_around(part, split)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gather_around(part: nn.Module, split: list[nn.Parameter]) -> list[torch.utils.hooks.RemovableHandle]:
    def gather(*_: object) -> None:
        split[0].all_gather(param_list=split)

    def release(*_: object) -> None:
        split[0].partition(param_list=split)

    return [part.register_forward_pre_hook(gather), part.register_forward_hook(release)]
