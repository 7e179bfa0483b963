"""MiniMind as a model that is trained and as a policy: our own module, for weights of MiniMind's shape.

Not here: training, generation, how weights are read (`agent_rl/modeling/minimind_weights.py`), other models.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent_rl.errors import CheckpointError
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.modeling.minimind_weights import tokenizer_folder
from agent_rl.policies.in_process_policy import InProcessPolicy
from agent_rl.policies.model_files.model_folder import check_model_folder
from agent_rl.policies.template_values import TemplateValue
from agent_rl.policies.trained_model import TrainedModel, check_window, share_weights

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MiniMindModel(TrainedModel):
    """A MiniMind with whole weights."""

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        dtype: str | None = None,
        device: str | torch.device = "cpu",
        max_context: int = 1024,
        chat_template_kwargs: Mapping[str, TemplateValue] | None = None,
        chat_template: Path | None = None,
    ) -> "MiniMindModel":
        """Read a folder in Hugging Face format, or a `.pth` file with the tokenizer beside it.

        `dtype` is `float32`, `bfloat16`, or None for the file's own. Raises CheckpointError for what is missing,
        broken or of another shape, ConfigError for a window that the model does not have.
        """
        path = Path(source)
        if not path.exists():
            raise CheckpointError(
                f"model.path = {str(path)!r}: no such folder or file; a name on the Hugging Face Hub needs "
                "policy.type=huggingface"
            )
        if path.is_dir():
            check_model_folder(path)
        model = MiniMindForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype) if dtype else None)
        check_window(max_context, model.config.max_position_embeddings, path)
        tokenizer = load_tokenizer(path, chat_template_kwargs, chat_template)
        if len(tokenizer) > model.config.vocab_size:
            raise CheckpointError(
                f"{path}: the tokenizer has {len(tokenizer)} ids, the model only {model.config.vocab_size}: "
                "they do not belong together"
            )
        return cls(model.to(device), tokenizer)

    def save_pretrained(self, folder: str | Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        if weights is not None:
            raise ValueError("MiniMind is never sharded: `weights` must be None")
        self.module.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        share_weights(folder)

    def load_weights(self, folder: Path) -> None:
        self.module.load_state_dict(MiniMindForCausalLM.from_pretrained(folder).state_dict())


class MiniMindPolicy(InProcessPolicy):
    """MiniMind, sampled from in this process.

    `MiniMindPolicy.from_pretrained("model/nat_minimind", max_context=768)`.
    """

    model_class = MiniMindModel


def load_tokenizer(
    path: Path,
    chat_template_kwargs: Mapping[str, TemplateValue] | None = None,
    chat_template: Path | None = None,
) -> "PreTrainedTokenizerBase":
    """The tokenizer that belongs to a model folder or `.pth` file; errors are those of `load_hf_tokenizer`."""
    from agent_rl.policies.hf_loading import load_hf_tokenizer

    return load_hf_tokenizer(tokenizer_folder(path), chat_template_kwargs, chat_template)
