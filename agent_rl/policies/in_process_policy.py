"""A policy whose module is both trained and sampled from in this process.

The trainer updates the module, and the generation engine reads the same weights. They may change only while no
completion is running; `refresh_weights` marks a change.
Not here: how a model is loaded, training, engines with weights of their own.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from torch import nn

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.config import AgentType
from agent_rl.inference.base import Cancel
from agent_rl.inference.local.engine import GenerationEngine
from agent_rl.policies.policy import BasePolicy
from agent_rl.policies.trained_model import TrainedModel
from agent_rl.records import Completion, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class InProcessPolicy(BasePolicy):
    """A model and the engine that samples from it. Subclasses name the class of the model."""

    model_class: ClassVar[type[TrainedModel]]

    def __init__(
        self,
        trained: TrainedModel,
        *,
        max_batch_size: int = 8,
        max_context: int = 1024,
        max_cached_tokens: int | None = None,
        share_contexts: bool = True,
        agent_type: AgentType = "hf",
    ) -> None:
        """Start the engine; its key/value cache holds `max_cached_tokens`, by default every window of a batch."""
        self.trained = trained
        self.chat_format = make_chat_format(trained.tokenizer, agent_type)
        self.max_context = max_context
        self._engine = GenerationEngine(
            trained.module,
            max_batch_size=max_batch_size,
            max_context=max_context,
            max_cached_tokens=max_cached_tokens,
            share_contexts=share_contexts,
        )

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        max_batch_size: int = 8,
        max_context: int = 1024,
        max_cached_tokens: int | None = None,
        share_contexts: bool = True,
        agent_type: AgentType = "hf",
        **of_model: Any,
    ) -> Self:
        """Read a folder, file or hub name; `of_model` and errors are those of the model class's `from_pretrained`."""
        return cls(
            cls.model_class.from_pretrained(source, max_context=max_context, **of_model),
            max_batch_size=max_batch_size,
            max_context=max_context,
            max_cached_tokens=max_cached_tokens,
            share_contexts=share_contexts,
            agent_type=agent_type,
        )

    @property
    def model(self) -> nn.Module:
        """The module that is trained and sampled from."""
        return self.trained.module

    @property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        return self.trained.tokenizer

    @property
    def weight_version(self) -> int:
        """Version of the weights being sampled from."""
        return self._engine.weight_version

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        return self._engine.generate(prompt_ids, sampling, cancel)

    def counters(self) -> Mapping[str, float]:
        return self._engine.counters()

    def load(self) -> Mapping[str, int]:
        return self._engine.load()

    def refresh_weights(self, version: int) -> None:
        """Sample from the weights as they are now, as `version`; no completion may be running."""
        self._engine.refresh_weights(version)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write what `from_pretrained` reads: weights, config and tokenizer, in Hugging Face format."""
        self.trained.save_pretrained(folder)

    def close(self) -> None:
        self._engine.close()
