"""The interface of a policy: token ids in, sampled token ids and log-probs out, from many threads at once.

A policy owns a model's weights or an engine that has them, and its tokenizer's chat format. It does not know episodes,
rewards, training or when weights are synced.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from agent_rl.agent.chat_format import ChatFormat
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.records import Completion, SamplingParams

if TYPE_CHECKING:
    from agent_rl.inference.base import Cancel, RemoteEngine


class BasePolicy(ABC):
    """A language model that can be sampled from."""

    chat_format: ChatFormat
    max_context: int
    """Window in tokens: conversation and completion together."""
    remote_engine: "RemoteEngine | None" = None
    """The engine that is sent new weights; None if the policy samples from the trained module, or is not trained."""

    @abstractmethod
    def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: "Cancel | None" = None
    ) -> Completion:
        """Generate one completion; blocks, and may be called from many threads. EngineError when the engine fails.

        Once `cancel` (such as a `threading.Event`) is set, the completion ends with the tokens sampled so far, as
        `FinishReason.CANCELLED`.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the engine; running completions get EngineError."""

    def counters(self) -> Mapping[str, float]:
        """Work of this process's engine so far, by name; the metrics `rollout/<name>` are a step's share of it."""
        return {}

    def load(self) -> Mapping[str, int]:
        """What this process's engine does now: requests `in_flight`, those of them `waiting`, `cache_slots` in use.

        Empty where the engine is elsewhere and tells itself.
        """
        return {}

    def generate_action(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        sampling: SamplingParams | None = None,
    ) -> Message:
        """One assistant message, its calls parsed: the convenience for using a policy rather than training it.

        Without `sampling` it is greedy and may fill the window; without stop ids in it, the chat format's are used.
        Raises ValueError when the conversation leaves no room for an answer.
        """
        prompt_ids = self.chat_format.render_prompt(messages, tools)
        room = self.max_context - len(prompt_ids)
        if room < 1:
            raise ValueError(f"the conversation has {len(prompt_ids)} tokens, the window only {self.max_context}")
        wanted = sampling or SamplingParams(max_new_tokens=room, temperature=0.0)
        wanted = replace(
            wanted,
            max_new_tokens=min(wanted.max_new_tokens, room),
            stop_token_ids=wanted.stop_token_ids or self.chat_format.stop_token_ids,
        )
        completion = self.generate(prompt_ids, wanted)
        return self.chat_format.parse_completion(completion.token_ids)
