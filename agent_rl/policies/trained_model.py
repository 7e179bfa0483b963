"""A module that is trained, with its tokenizer, and how the two are saved and loaded.

Sampling is up to the policy: from the module itself, or by an engine that is sent its weights.
Not here: how a kind of model is loaded (`hf_policy.py`, `minimind_policy.py`), training.
"""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TrainedModel(ABC):
    """`module` and `tokenizer`."""

    def __init__(self, module: nn.Module, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.module = module
        self.tokenizer = tokenizer

    @classmethod
    @abstractmethod
    def from_pretrained(cls, source: str | Path, *, max_context: int = 1024, **options: Any) -> "TrainedModel":
        """Read what `save_pretrained` wrote, or another model of this kind; `options` are those of the class."""

    @abstractmethod
    def save_pretrained(self, folder: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write weights, config and tokenizer in Hugging Face format.

        `weights` are the module's whole weights by name, if it holds only shards.
        """

    @abstractmethod
    def load_weights(self, folder: Path) -> None:
        """Load the weights that `save_pretrained` wrote, in place; the module holds whole weights."""


def save_trained(model: TrainedModel, module: nn.Module, backend: Backend, folder: Path) -> None:
    """Write the model as it is now from process 0; collective. `module` is what is trained.

    It is the model's own module, or a copy of it as shards beside the whole one.
    """
    is_split = backend.zero_stage == 3 and module is model.module
    has_adapters = hasattr(module, "peft_config")  # which alone are written
    weights = backend.full_state_dict(module, trained_only=has_adapters) if is_split else None
    if backend.is_main_process:
        model.save_pretrained(folder, weights)


def share_weights(folder: str | Path) -> None:
    """Let those who can read the configuration in `folder` read the weights beside it.

    safetensors makes files that only their owner can read, whatever the process's umask: a server that runs as another
    user could not load them.
    """
    config = next(Path(folder).glob("*config.json"))
    for path in Path(folder).glob("*.safetensors"):
        shutil.copymode(config, path)


def check_window(max_context: int, longest: int | None, source: str | Path) -> None:
    """ConfigError when the model of `source` was made for fewer than `max_context` tokens (None: for any number)."""
    if longest is not None and max_context > longest:
        raise ConfigError(
            f"policy.max_context = {max_context}: the model in {source} was made for {longest} tokens; "
            "lower policy.max_context"
        )
