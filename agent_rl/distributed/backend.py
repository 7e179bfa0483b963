"""Where training runs: a thin face of Hugging Face Accelerate, one process on one device.

Device choice, moving modules, autocast, backward and gradient clipping go through here, so that a launcher with more
processes has one place to change. Not here: the model, the loss, checkpoints.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from accelerate import Accelerator

from agent_rl.errors import ConfigError


class Backend:
    """One process on one device: `Backend("auto")`.

    `device` is `auto` (a GPU when there is one), `cpu`, `cuda` or `cuda:N`. Raises ConfigError for a device that is
    not there, and when a launcher started more than one process.
    """

    def __init__(self, device: str = "auto") -> None:
        wanted = _parse(device)
        if wanted.index is not None:
            torch.cuda.set_device(wanted)
        self._accelerator = Accelerator(cpu=wanted.type == "cpu", mixed_precision="no")
        if self._accelerator.num_processes > 1:
            raise ConfigError(
                f"a launcher started {self._accelerator.num_processes} processes, but training runs in one: "
                "start the script with python"
            )
        if self._accelerator.device.type != wanted.type:
            raise ConfigError(
                f"run.device = {device!r}: this process already trains on {self._accelerator.device}; "
                "use one device per process"
            )

    @property
    def device(self) -> torch.device:
        return self._accelerator.device

    @property
    def is_main_process(self) -> bool:
        return self._accelerator.is_main_process

    def prepare(self, *objects: torch.nn.Module | torch.optim.Optimizer) -> tuple:
        """The objects, on the device and wrapped as the set-up needs."""
        prepared = self._accelerator.prepare(*objects)
        return prepared if len(objects) > 1 else (prepared,)

    def autocast(self, number_format: str) -> AbstractContextManager:
        """Matrix products in `bfloat16`, or as they are for `none`."""
        # Not Accelerate's own: that one patches `forward`, which the generation engine shares with the trainer.
        return torch.autocast(self.device.type, torch.bfloat16, enabled=number_format == "bfloat16")

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def clip_grad_norm(self, parameters: Iterable[torch.nn.Parameter], max_norm: float) -> float:
        """Scale gradients down to a total norm of `max_norm`; returns the norm before."""
        return float(self._accelerator.clip_grad_norm_(parameters, max_norm))


def _parse(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        wanted = torch.device(device)
    except RuntimeError:
        wanted = None
    if wanted is None or wanted.type not in ("cpu", "cuda"):
        raise ConfigError(f"run.device = {device!r}: expected auto, cpu, cuda or cuda:N")
    if wanted.type == "cuda" and (wanted.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"run.device = {device!r}: PyTorch sees {torch.cuda.device_count()} CUDA devices here; use auto or cpu"
        )
    return wanted
