"""A policy over an engine with weights of its own; completions continue when the weights change in between.

Not here: the engine (`inference/vllm`), sending weights (`distributed/weight_sync.py`), when they are sent
(`core/policy_sync.py`), training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.config import AgentType
from agent_rl.inference.base import Cancel, RemoteEngine
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams
from agent_rl.seeds import derive_seed

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class RemotePolicy(BasePolicy):
    """`RemotePolicy(engine, tokenizer, max_context=2048)`."""

    remote_engine: RemoteEngine

    def __init__(
        self,
        engine: RemoteEngine,
        tokenizer: "PreTrainedTokenizerBase",
        *,
        max_context: int,
        agent_type: AgentType = "hf",
    ) -> None:
        self.remote_engine = engine
        self.chat_format = make_chat_format(tokenizer, agent_type)
        self.max_context = max_context

    @property
    def weight_version(self) -> int:
        """Version of the weights being sampled from."""
        return self.remote_engine.weight_version

    def generate(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """As `BasePolicy.generate`; may span several versions of the weights (`token_versions`)."""
        room = min(sampling.max_new_tokens, self.max_context - len(prompt_ids))
        parts: list[Completion] = []
        while True:
            sampled = [token for part in parts for token in part.token_ids]
            part = self.remote_engine.complete(
                [*prompt_ids, *sampled],
                replace(
                    sampling,
                    max_new_tokens=room - len(sampled),
                    seed=derive_seed(sampling.seed, len(sampled)) if sampled else sampling.seed,
                ),
                cancel,
            )
            parts.append(part)
            if part.finish_reason is not FinishReason.INTERRUPTED:
                return join_completions(parts)
            if len(sampled) + len(part.token_ids) == room:
                return join_completions([*parts[:-1], replace(part, finish_reason=FinishReason.LENGTH)])
            if cancel is not None and cancel.is_set():
                return join_completions([*parts[:-1], replace(part, finish_reason=FinishReason.CANCELLED)])

    def counters(self) -> Mapping[str, float]:
        return self.remote_engine.counters()

    def close(self) -> None:
        self.remote_engine.close()


def join_completions(parts: Sequence[Completion]) -> Completion:
    """One completion made of several, each of which continues the interrupted one before it."""
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
