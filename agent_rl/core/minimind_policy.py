"""MiniMind as a policy: one module that the trainer updates and the in-process engine draws from.

The engine copies the weights when told (`refresh_weights`), so a completion is drawn by one version of them.
Not here: training, other back ends.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.core.policy import BasePolicy
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.generation.engine import GenerationEngine
from agent_rl.records import Completion, SamplingParams
from model.model_minimind import MiniMindForCausalLM

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class MiniMindPolicy(BasePolicy):
    """Module, tokenizer and engine: `MiniMindPolicy.from_pretrained("model/nat_minimind", max_context=768)`."""

    def __init__(
        self,
        model: MiniMindForCausalLM,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_batch_size: int = 8,
        max_context: int = 1024,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.chat_format = ChatFormat(tokenizer)
        self.max_context = max_context
        self.pad_id: int = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
        self._engine = GenerationEngine(model, max_batch_size=max_batch_size, max_context=max_context)

    @classmethod
    def from_pretrained(
        cls,
        folder: str | Path,
        *,
        dtype: str | None = None,
        device: str | torch.device = "cpu",
        max_batch_size: int = 8,
        max_context: int = 1024,
    ) -> "MiniMindPolicy":
        """Read a folder in Hugging Face format. `dtype` is `float32`, `bfloat16`, or None for the file's own.

        Raises CheckpointError for a missing or broken folder, ConfigError for a window that the model does not have.
        """
        folder = Path(folder)
        model = MiniMindForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype) if dtype else None)
        longest = model.config.max_position_embeddings
        if max_context > longest:
            raise ConfigError(
                f"policy.max_context = {max_context}: the model in {folder} was made for {longest} tokens; "
                "lower policy.max_context"
            )
        tokenizer = load_tokenizer(folder)
        if len(tokenizer) > model.config.vocab_size:
            raise CheckpointError(
                f"{folder}: the tokenizer has {len(tokenizer)} ids, the model only {model.config.vocab_size}: "
                "they do not belong together"
            )
        return cls(model.to(device), tokenizer, max_batch_size=max_batch_size, max_context=max_context)

    @property
    def weight_version(self) -> int:
        """Version of the weights being drawn from."""
        return self._engine.weight_version

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams) -> Completion:
        return self._engine.generate(prompt_ids, sampling)

    def refresh_weights(self, version: int) -> None:
        self._engine.refresh_weights(version)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights, config and tokenizer into `folder`."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def close(self) -> None:
        self._engine.close()


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """The tokenizer of a model folder; CheckpointError when there is none."""
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"{folder}/tokenizer.json does not exist: the model folder must hold its tokenizer")
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)
