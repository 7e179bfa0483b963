"""Any Hugging Face causal LM as a policy: `HuggingFacePolicy.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")`.

Not here: the model (`hf_model.py`), training, generation.
"""

from pathlib import Path
from typing import Any

from agent_rl.config import AgentType
from agent_rl.policies.hf_model import HuggingFaceModel
from agent_rl.policies.in_process_policy import InProcessPolicy


class HuggingFacePolicy(InProcessPolicy):
    """A causal LM of Transformers, maybe with LoRA adapters around it, drawn from in this process."""

    @classmethod
    def from_pretrained(
        cls,
        source: str | Path,
        *,
        max_batch_size: int = 8,
        max_context: int = 1024,
        max_cached_tokens: int | None = None,
        agent_type: AgentType = "hf",
        **of_model: Any,
    ) -> "HuggingFacePolicy":
        """Read a folder or a hub name; `of_model` and errors are those of `HuggingFaceModel.from_pretrained`."""
        return cls(
            HuggingFaceModel.from_pretrained(source, max_context=max_context, **of_model),
            max_batch_size=max_batch_size,
            max_context=max_context,
            max_cached_tokens=max_cached_tokens,
            agent_type=agent_type,
        )
