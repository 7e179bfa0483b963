"""vLLM as a policy: weights of its own, which it is sent; completions go on when they change in between.

One interface over an engine inside this process and over servers. Not here: vLLM itself (`vllm_backend/`), sending
weights (`distributed/weight_sync.py`), when they are sent (`sampler_sync.py`), training.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_rl.agent.agent_types import make_chat_format
from agent_rl.config import AgentType
from agent_rl.distributed.weight_receiver import WeightReceiver
from agent_rl.inference.base import Cancel, InferenceEngine
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams
from agent_rl.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RemotePolicy(BasePolicy):
    """`engine` draws; `sampler` is the same or what directs it, and takes new weights."""

    def __init__(
        self,
        engine: InferenceEngine,
        sampler: WeightReceiver,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_context: int,
        agent_type: AgentType = "hf",
    ) -> None:
        self.sampler = sampler
        self.chat_format = make_chat_format(tokenizer, agent_type)
        self.max_context = max_context
        self._engine = engine

    @property
    def weight_version(self) -> int:
        """Version of the weights being drawn from."""
        return self.sampler.weight_version

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """As `BasePolicy.generate`; may be drawn by several versions of the weights (`token_versions`)."""
        room = min(sampling.max_new_tokens, self.max_context - len(prompt_ids))
        parts: list[Completion] = []
        num_drawn = 0
        while True:
            drawn = [token for part in parts for token in part.token_ids]
            part = self._engine.complete(
                [*prompt_ids, *drawn],
                replace(
                    sampling,
                    max_new_tokens=room - num_drawn,
                    seed=derive_seed(sampling.seed, num_drawn) if num_drawn else sampling.seed,
                ),
                cancel,
            )
            parts.append(part)
            num_drawn += len(part.token_ids)
            if part.finish_reason is not FinishReason.INTERRUPTED:
                return joined(parts)
            if num_drawn == room:
                return joined([*parts[:-1], replace(part, finish_reason=FinishReason.LENGTH)])
            if cancel is not None and cancel.is_set():
                return joined([*parts[:-1], replace(part, finish_reason=FinishReason.CANCELLED)])

    def close(self) -> None:
        self._engine.close()


def joined(parts: Sequence[Completion]) -> Completion:
    """One completion of several, each of which went on where the one before was interrupted."""
    versions = tuple(
        version for part in parts for version in part.token_versions or (part.weight_version,) * len(part.token_ids)
    )
    return Completion(
        token_ids=tuple(token for part in parts for token in part.token_ids),
        logprobs=tuple(logprob for part in parts for logprob in part.logprobs),
        finish_reason=parts[-1].finish_reason,
        weight_version=versions[0] if versions else parts[-1].weight_version,
        token_versions=versions if len(set(versions)) > 1 else (),
    )
