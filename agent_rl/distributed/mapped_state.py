"""An optimizer's state that was read from a mapped file: copied into the optimizer's own memory, tensor by tensor.

PyTorch's and DeepSpeed's optimizers keep the tensors that they are given where format and device are right already.
Those of a mapped file are views of it, which every step would read again. Copied one by one, no two whole states exist
in memory. Not here: reading the file (`modeling/tensor_files.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def copied_state(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Around `load_state_dict`: afterwards the state lies in the tensors of before, or in new ones."""
    before = {parameter: dict(values) for parameter, values in optimizer.state.items()}
    yield
    for parameter, values in optimizer.state.items():
        for name, loaded in values.items():
            if not isinstance(loaded, torch.Tensor) or loaded.device.type != "cpu":
                continue
            own = before.get(parameter, {}).get(name)
            values[name] = own.copy_(loaded) if _is_alike(own, loaded) else loaded.clone()


def _is_alike(own: object, loaded: torch.Tensor) -> bool:
    return isinstance(own, torch.Tensor) and (own.shape, own.dtype, own.device) == (
        loaded.shape,
        loaded.dtype,
        loaded.device,
    )
