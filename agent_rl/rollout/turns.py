"""One turn of an episode and the budgets of all of them, the same whoever keeps the conversation.

`sample_turn` is a prompt's ids in, a completion and its message out; `EpisodeBudget` says after each turn whether the
episode goes on. The loop over an environment (`episode.py`) and the endpoint that foreign agents call
(`endpoint/session.py`) share them, so that both play by the same rules. Not here: what a prompt is made of, rewards.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent_rl.agent.messages import Message
from agent_rl.config import Config
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams, StopReason
from agent_rl.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Budgets of one episode."""

    max_new_tokens: int
    """Tokens of one turn."""
    max_turns: int = 30
    max_tool_calls: int = 64
    """Most calls of an episode whose environment offers tools; a message that would exceed it is not run."""
    max_invalid_turns: int = 3
    """Turns in a row with only unreadable calls before the episode ends, where the environment offers tools."""
    timeout_s: float = 300.0
    """Deadline, checked between turns and while tokens are generated."""

    @classmethod
    def from_config(cls, config: Config) -> "EpisodeLimits":
        return cls(
            max_new_tokens=config.policy.max_new_tokens,
            max_turns=config.rollout.max_turns,
            max_tool_calls=config.rollout.max_tool_calls,
            max_invalid_turns=config.rollout.max_invalid_turns,
            timeout_s=config.rollout.episode_timeout_s,
        )


class EpisodeCancelledError(Exception):
    """The rollout was cancelled while this episode was running."""


@dataclass(frozen=True, slots=True)
class EpisodeCancel:
    """Ends a completion early: the whole rollout was cancelled, or the episode's deadline has passed."""

    rollout: threading.Event | None
    deadline: float
    """On the monotonic clock."""

    def is_set(self) -> bool:
        return time.monotonic() > self.deadline or self.is_rollout_over()

    def is_rollout_over(self) -> bool:
        return self.rollout is not None and self.rollout.is_set()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeSampling:
    """How the turns of one episode are sampled."""

    seed: int
    """Of the episode; that of turn i is `derive_seed(seed, i)`."""
    group: int
    """The same for episodes that begin alike."""
    temperature: float
    cancel: EpisodeCancel


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTurn:
    """What the policy answered."""

    completion: Completion
    message: Message
    is_cut: bool
    """Whether the reply ended before the model ended its turn: the model reads the end of turn next."""


def sample_turn(
    policy: BasePolicy, prompt_ids: Sequence[int], episode: EpisodeSampling, *, number: int, max_new_tokens: int
) -> SampledTurn | None:
    """Sample turn `number` (from 0) after the whole prompt; None when the deadline has passed before any token.

    EpisodeCancelledError when the rollout was cancelled meanwhile. Tokens after the end of a reply
    (`ChatFormat.reply_end`) are left out.
    """
    chat = policy.chat_format
    sampling = SamplingParams(
        max_new_tokens=max_new_tokens,
        temperature=episode.temperature,
        stop_token_ids=chat.stop_token_ids,
        seed=derive_seed(episode.seed, number),
        session=episode.seed,
        group=episode.group,
    )
    completion = policy.generate(prompt_ids, sampling, episode.cancel)
    if episode.cancel.is_rollout_over():
        raise EpisodeCancelledError
    if not completion.token_ids:
        return None
    reply_end = chat.reply_end(completion.token_ids)
    if reply_end is not None and completion.finish_reason is not FinishReason.CANCELLED:
        completion = _cut(completion, reply_end)
    message = chat.parse_completion(completion.token_ids)
    return SampledTurn(completion=completion, message=message, is_cut=reply_end is not None)


def _cut(completion: Completion, end: int) -> Completion:
    """The first `end` ids of a completion, as a stop sequence would have left it."""
    versions = completion.token_versions[:end]
    return replace(
        completion,
        token_ids=completion.token_ids[:end],
        logprobs=completion.logprobs[:end],
        token_versions=versions if len(set(versions)) > 1 else (),
        finish_reason=FinishReason.STOP,
    )


class EpisodeBudget:
    """Counts what an episode used up: `refusal` before a message is acted on, `end` after it was."""

    def __init__(self, limits: EpisodeLimits) -> None:
        self._limits = limits
        self._num_turns = 0
        self._num_calls = 0
        self._num_invalid_in_a_row = 0

    def refusal(self, message: Message, completion: Completion, *, has_tools: bool = True) -> StopReason | None:
        """Why the episode ends without acting on this message, the next turn's; None when it may be acted on.

        Without tools nothing counts as a call: what reads as one is text.
        """
        self._num_turns += 1
        if completion.finish_reason is FinishReason.LENGTH:
            return StopReason.MAX_TOKENS
        if completion.finish_reason is FinishReason.CANCELLED:
            return StopReason.TIMEOUT
        num_calls = len(message.tool_calls) if has_tools else 0
        if self._num_calls + num_calls > self._limits.max_tool_calls:
            return StopReason.TOOL_BUDGET
        self._num_calls += num_calls
        is_invalid = has_tools and bool(message.tool_errors) and not message.tool_calls
        self._num_invalid_in_a_row = self._num_invalid_in_a_row + 1 if is_invalid else 0
        return None

    def end(self) -> StopReason | None:
        """Why no other turn follows the last one, which was acted on; None when one may."""
        if self._num_invalid_in_a_row >= self._limits.max_invalid_turns:
            return StopReason.INVALID_CALLS
        if self._num_turns >= self._limits.max_turns:
            return StopReason.MAX_TURNS
        return None
