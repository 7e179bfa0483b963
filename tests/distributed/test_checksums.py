"""A checksum changes with every change of a tensor that is made by mistake, and with nothing else."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.distributed.checksums import checksum


def test_format_shape_and_two_sums_can_be_computed_by_hand() -> None:
    # 1.0 is 3f800000 and 2.0 is 40000000: one row whose sum counts once, two columns that count once and twice.
    assert checksum(torch.tensor([1.0, 2.0])) == "float32 [2] 000000007f800000 00000000bf800000"
    assert checksum(torch.tensor(1.0)) == "float32 [] 000000003f800000 000000003f800000"
    assert checksum(torch.zeros(0, 3)) == "float32 [0, 3] 0000000000000000 0000000000000000"
    assert checksum(torch.tensor([True, False, True])) == "bool [3] 0000000000010001 0000000000010001"


def test_format_and_shape_count() -> None:
    zeros = torch.zeros(2, 3)
    same_bytes = [zeros, zeros.T.contiguous(), zeros.view(6), zeros.view(torch.int32)]
    assert len({checksum(tensor) for tensor in same_bytes}) == len(same_bytes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_place_in_memory_and_strides_do_not_count(dtype: torch.dtype) -> None:
    table = torch.arange(35).view(5, 7).to(dtype)
    expected = checksum(table)
    buffer = torch.zeros(40, dtype=dtype)
    for offset in range(1, 5):
        part = buffer[offset : offset + 35].view(5, 7)
        assert checksum(part.copy_(table)) == expected
    assert checksum(table.T.contiguous().T) == expected
    assert checksum(table.clone().requires_grad_(dtype.is_floating_point)) == expected


@given(
    size=st.integers(2, 30_000),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    data=st.data(),
)
def test_one_changed_bit_and_two_swapped_values_are_found(size: int, dtype: torch.dtype, data: st.DataObject) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    before = checksum(tensor)
    first, second = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    bits = tensor.clone().view(torch.uint8)
    place = first * dtype.itemsize + data.draw(st.integers(0, dtype.itemsize - 1))
    bits[place] ^= 1 << data.draw(st.integers(0, 7))
    assert checksum(bits.view(dtype)) != before
    swapped = tensor.clone()
    swapped[first], swapped[second] = tensor[second], tensor[first]
    assert (checksum(swapped) != before) == (not torch.equal(swapped, tensor))


def test_a_changed_sign_at_an_even_place_of_an_even_row_is_found() -> None:
    tensor = torch.ones(4 * 4096)
    changed = tensor.clone()
    changed[4096 + 1] = -1.0
    assert checksum(changed) != checksum(tensor)
    swapped = changed.clone()
    swapped[4096 + 1], swapped[4096 + 3] = 1.0, -1.0
    assert checksum(swapped) != checksum(changed)


def test_rows_and_blocks_that_change_places_are_found() -> None:
    tensor = torch.randn(6, 5000, generator=torch.Generator().manual_seed(0))
    assert checksum(tensor[[1, 0, 2, 3, 4, 5]]) != checksum(tensor)
    flat = tensor.view(-1)[: 4 * 4096]
    assert checksum(flat.view(4, 4096)[[1, 0, 2, 3]].view(-1)) != checksum(flat)
