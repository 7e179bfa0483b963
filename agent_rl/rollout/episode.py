"""One episode: a policy acts in an environment; messages on one side, token ids on the other.

An episode is plain blocking code. Sampled ids go into the trajectory untouched and the environment's answer is
appended as ids, so that a trajectory is exactly what the model read and generated; tokens after the end of a reply
(`ChatFormat.reply_end`) are neither read again nor trained on. Where the environment rewrites the conversation
so that it no longer continues what was sampled, a new training sample starts, and is counted.
Budgets, deadlines and parsing are here and nowhere else. An environment's failure is data (`ENV_ERROR`); a policy's
failure is a crash.
Not here: rewards (the environment's), many episodes (`rollout.py`).
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from agent_rl.agent.messages import Message
from agent_rl.config import Config
from agent_rl.envs.base import AgentEnv, StepResult, Task
from agent_rl.errors import ClusterError, ConfigError, EnvLostError
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams, StopReason, Trajectory, Turn
from agent_rl.seeds import derive_seed

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Budgets of one episode."""

    max_new_tokens: int
    """Tokens of one turn."""
    max_turns: int = 30
    max_tool_calls: int = 64
    """Most calls of an episode; a message that would exceed it is not run."""
    max_invalid_turns: int = 3
    """Turns in a row with only unreadable calls before the episode ends."""
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


class EnvFailureError(Exception):
    """The environment failed; the text is the reason."""


class EpisodeCancelledError(Exception):
    """The rollout was cancelled while this episode was running."""


@dataclass(frozen=True, slots=True)
class _Cancel:
    """Ends a completion early: the whole rollout was cancelled, or the episode's deadline has passed."""

    rollout: threading.Event | None
    deadline: float
    """On the monotonic clock."""

    def is_set(self) -> bool:
        return time.monotonic() > self.deadline or self.is_rollout_over()

    def is_rollout_over(self) -> bool:
        return self.rollout is not None and self.rollout.is_set()


def run_episode(
    policy: BasePolicy,
    env: AgentEnv,
    task: Task,
    *,
    group_id: str,
    seed: int,
    limits: EpisodeLimits,
    temperature: float,
    cancelled: threading.Event | None = None,
) -> Trajectory:
    """Run one episode and close `env`. Errors of the environment end it as `ENV_ERROR`; its ConfigErrors, an
    EnvLostError and a ClusterError are raised, and so is what the policy raises.

    The seed of turn i is `derive_seed(seed, i)`. `cancelled`, when set, ends the episode at its next token or turn by
    an exception.
    """
    started = time.monotonic()
    cancel = _Cancel(cancelled, started + limits.timeout_s)
    group = derive_seed(group_id)
    episode = _Episode(policy, env, seed=seed, group=group, limits=limits, temperature=temperature, cancel=cancel)
    error: str | None = None
    try:
        stop_reason = episode.run(task)
    except EnvFailureError as failure:
        error = str(failure)
    finally:
        close_error = _close(env)
    error = error or close_error
    return Trajectory(
        task_id=task["task_id"],
        group_id=group_id,
        turns=tuple(episode.turns),
        stop_reason=StopReason.ENV_ERROR if error else stop_reason,
        reward=None if error else episode.reward,
        reward_parts={} if error else episode.reward_parts,
        flags=tuple(sorted(episode.flags)),
        initial_messages=episode.initial_messages,
        duration_s=time.monotonic() - started,
        error=error,
    )


class _Episode:
    """The state of one running episode."""

    def __init__(
        self,
        policy: BasePolicy,
        env: AgentEnv,
        *,
        seed: int,
        group: int,
        limits: EpisodeLimits,
        temperature: float,
        cancel: _Cancel,
    ) -> None:
        self.turns: list[Turn] = []
        self.initial_messages: tuple[Message, ...] = ()
        self.reward = 0.0
        self.reward_parts: dict[str, float] = {}
        self.flags: set[str] = set()
        self._policy = policy
        self._env = env
        self._seed = seed
        self._group = group
        self._limits = limits
        self._temperature = temperature
        self._cancel = cancel
        self._context_ids: list[int] = []
        self._num_calls = 0
        self._num_invalid_in_a_row = 0

    def run(self, task: Task) -> StopReason:
        """Run to the end and return why it ended."""
        messages = in_env(self._env.reset, task)
        self.initial_messages = tuple(messages)
        new_ids, new_context = self._policy.chat_format.render_prompt(messages, self._env.tools), False
        while True:
            room = self._policy.max_context - len(self._context_ids) - len(new_ids)
            if room < 1:
                return self._truncate(StopReason.CONTEXT_FULL)
            completion = self._generate(new_ids, min(self._limits.max_new_tokens, room))
            if not completion.token_ids:
                return self._truncate(StopReason.TIMEOUT)
            reply_end = self._policy.chat_format.reply_end(completion.token_ids)
            if reply_end is not None and completion.finish_reason is not FinishReason.CANCELLED:
                completion = _cut(completion, reply_end)
            message = self._policy.chat_format.parse_completion(completion.token_ids)
            result, stop_reason = self._answer(message, completion)
            is_over = result.terminated or stop_reason is not None
            turn = Turn(
                prompt_token_ids=tuple(new_ids),
                completion=completion,
                message=message,
                env_messages=() if is_over else _read_next(result),
                new_context=new_context,
                info=result.info,
            )
            self.turns.append(turn)
            self._context_ids += [*new_ids, *completion.token_ids]
            if result.terminated:
                return StopReason.FINISHED
            if stop_reason is not None:
                return self._truncate(stop_reason)
            new_ids, new_context = self._next_prompt(result, is_cut=reply_end is not None)

    def _next_prompt(self, result: StepResult, *, is_cut: bool) -> tuple[list[int], bool]:
        """What the model reads next, and whether that is no continuation of its context so far.

        Behind a completion that was cut it reads the end of its own turn first.
        """
        if result.conversation is None:
            end_of_turn = self._policy.chat_format.stop_token_ids[:1] if is_cut else ()
            return [*end_of_turn, *self._policy.chat_format.render_env_messages(result.messages)], False
        prompt = in_env(self._policy.chat_format.render_prompt, result.conversation, self._env.tools)
        num_known = len(self._context_ids)
        if prompt[:num_known] == self._context_ids and len(prompt) > num_known:
            return prompt[num_known:], False
        self._context_ids = []
        return prompt, True

    def _generate(self, new_ids: list[int], max_new_tokens: int) -> Completion:
        """Generate one turn; without any token when the deadline has passed already."""
        sampling = SamplingParams(
            max_new_tokens=max_new_tokens,
            temperature=self._temperature,
            stop_token_ids=self._policy.chat_format.stop_token_ids,
            seed=derive_seed(self._seed, len(self.turns)),
            session=self._seed,
            group=self._group,
        )
        completion = self._policy.generate([*self._context_ids, *new_ids], sampling, self._cancel)
        if self._cancel.is_rollout_over():
            raise EpisodeCancelledError
        return completion

    def _answer(self, message: Message, completion: Completion) -> tuple[StepResult, StopReason | None]:
        """What the environment answers, and which budget is used up now; a message over a budget is not run."""
        if completion.finish_reason is FinishReason.LENGTH:
            return StepResult(), StopReason.MAX_TOKENS
        if completion.finish_reason is FinishReason.CANCELLED:
            return StepResult(), StopReason.TIMEOUT
        if self._num_calls + len(message.tool_calls) > self._limits.max_tool_calls:
            return StepResult(), StopReason.TOOL_BUDGET
        self._num_calls += len(message.tool_calls)
        is_invalid = bool(message.tool_errors) and not message.tool_calls
        self._num_invalid_in_a_row = self._num_invalid_in_a_row + 1 if is_invalid else 0
        result = in_env(self._env.step, message)
        self._take_reward(result)
        if self._num_invalid_in_a_row >= self._limits.max_invalid_turns:
            return result, StopReason.INVALID_CALLS
        if len(self.turns) + 1 >= self._limits.max_turns:
            return result, StopReason.MAX_TURNS
        return result, None

    def _truncate(self, reason: StopReason) -> StopReason:
        """Tell the environment; what it notes of the end joins what it noted on the last turn, if there is one."""
        result = in_env(self._env.truncate, reason)
        self._take_reward(result)
        if self.turns and result.info:
            self.turns[-1] = replace(self.turns[-1], info={**self.turns[-1].info, **result.info})
        return reason

    def _take_reward(self, result: StepResult) -> None:
        if result.reward is None:
            raise EnvFailureError(str(result.info.get("error", "the environment could not score this episode")))
        if not math.isfinite(result.reward):
            raise EnvFailureError(f"the environment gave a reward of {result.reward}, expected a finite number")
        self.reward += result.reward
        self.reward_parts.update(result.reward_parts)
        self.flags.update(result.flags)


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


def _read_next(result: StepResult) -> tuple[Message, ...]:
    """What the model reads after a step that does not end the episode."""
    return result.messages if result.conversation is None else result.conversation


def in_env(function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except (ConfigError, ClusterError):  # every episode would end by it, so the run does, with its sentence
        raise
    except EnvLostError:  # the episode runs again
        raise
    except Exception as error:  # the environment boundary: one failing environment must not end the run
        raise EnvFailureError(f"{type(error).__name__}: {error}") from error


def _close(env: AgentEnv) -> str | None:
    """Close the environment and return what went wrong, so that it cannot hide another exception."""
    try:
        in_env(env.close)
    except EnvFailureError as failure:
        return str(failure)
    return None
