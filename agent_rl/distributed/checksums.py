"""A checksum of a tensor's bytes that both sides of a weight transfer can compute quickly, on any device.

It finds what is lost, swapped or altered by mistake; it is no protection against intent. Not here: what is compared.
"""

import torch
from torch import Tensor

_ROW = 4096
"""Words of 4 bytes in a row of the table that is summed by rows and by columns."""


def checksum(tensor: Tensor) -> str:
    """Number format, shape, and the bytes as a table: sums of its rows and of its columns, weighted by their place.

    `checksum(torch.tensor([1.0, 2.0]))` is `float32 [2] 000000007f800000 00000000bf800000`. All sums are modulo 2^64.
    """
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    missing = -raw.numel() % 4
    if missing or raw.storage_offset() % 4:
        raw = torch.nn.functional.pad(raw, (0, missing)) if missing else raw.clone()
    # Words are half as wide as their sums: in sums of whole ones, a changed highest bit times an even place is lost.
    words = raw.view(torch.int32)
    num_whole = len(words) // _ROW * _ROW
    table, rest = words[:num_whole].view(-1, _ROW), words[num_whole:].long()
    by_row = _weighted(torch.cat([table.sum(1), rest.sum()[None]]))
    columns = table.sum(0)
    columns[: len(rest)] += rest
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} {list(tensor.shape)} {by_row:016x} {_weighted(columns):016x}"


def _weighted(sums: Tensor) -> int:
    places = torch.arange(1, len(sums) + 1, device=sums.device)
    return int((sums * places).sum()) % 2**64
