"""One episode: a policy acts in an environment; messages on one side, token ids on the other.

An episode is plain blocking code. Sampled ids go into the trajectory untouched and the environment's answer is
appended as ids, so that a trajectory is exactly what the model read and generated. Where the environment rewrites the
conversation so that it no longer continues what was sampled, a new training sample starts, and is counted.
An environment's failure is data (`ENV_ERROR`); a policy's failure is a crash.
Not here: sampling one turn and budgets (`turns.py`), rewards (the environment's), many episodes (`rollout.py`).
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.envs.base import AgentEnv, StepResult, Task
from agent_rl.envs.step_result import read_opening, read_step, read_tools, refuse_async
from agent_rl.errors import ClusterError, ConfigError, EnvLostError, UserError, defined_at, ends_program
from agent_rl.failures import OF_ONE_CALL, FailedCall, note, noting
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import StopReason, Trajectory, Turn
from agent_rl.rollout.turns import EpisodeBudget, EpisodeCancel, EpisodeLimits, EpisodeSampling, sample_turn
from agent_rl.seeds import derive_seed

T = TypeVar("T")


ENVIRONMENT = "environment"
"""Whose code a failure is of (`FailedCall.source`)."""


class EnvFailureError(Exception):
    """The environment failed; the text is the reason."""

    def __init__(self, failed: FailedCall | str) -> None:
        self.failed = FailedCall(source=ENVIRONMENT, error=failed) if isinstance(failed, str) else failed
        super().__init__(self.failed.sentence)


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
    with noting() as failures:
        episode = _run_episode(
            policy,
            env,
            task,
            group_id=group_id,
            seed=seed,
            limits=limits,
            temperature=temperature,
            cancelled=cancelled,
        )
    return replace(episode, failures=tuple(failures)) if failures else episode


def _run_episode(
    policy: BasePolicy,
    env: AgentEnv,
    task: Task,
    *,
    group_id: str,
    seed: int,
    limits: EpisodeLimits,
    temperature: float,
    cancelled: threading.Event | None,
) -> Trajectory:
    started = time.monotonic()
    cancel = EpisodeCancel(cancelled, started + limits.timeout_s)
    sampling = EpisodeSampling(seed=seed, group=derive_seed(group_id), temperature=temperature, cancel=cancel)
    episode = _Episode(policy, env, limits=limits, sampling=sampling)
    error: str | None = None
    try:
        stop_reason = episode.run(task)
    except EnvFailureError as failure:
        error = str(failure)
        note(failure.failed)
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

    def __init__(self, policy: BasePolicy, env: AgentEnv, *, limits: EpisodeLimits, sampling: EpisodeSampling) -> None:
        self.turns: list[Turn] = []
        self.initial_messages: tuple[Message, ...] = ()
        self.reward = 0.0
        self.reward_parts: dict[str, float] = {}
        self.flags: set[str] = set()
        self._policy = policy
        self._env = env
        self._limits = limits
        self._sampling = sampling
        self._budget = EpisodeBudget(limits)
        self._context_ids: list[int] = []

    def run(self, task: Task) -> StopReason:
        """Run to the end and return why it ended."""
        messages = in_env(lambda: read_opening(self._env.reset(task), self._env), env=self._env)
        self.initial_messages = tuple(messages)
        new_ids, new_context = render_opening(self._policy, messages, self._env.tools), False
        while True:
            room = self._policy.max_context - len(self._context_ids) - len(new_ids)
            if room < 1:
                return self._truncate(StopReason.CONTEXT_FULL)
            sampled = sample_turn(
                self._policy,
                [*self._context_ids, *new_ids],
                self._sampling,
                number=len(self.turns),
                max_new_tokens=min(self._limits.max_new_tokens, room),
            )
            if sampled is None:
                return self._truncate(StopReason.TIMEOUT)
            completion, message = sampled.completion, sampled.message
            stop_reason = self._budget.refusal(message, completion, has_tools=bool(self._env.tools))
            is_answered = stop_reason is None
            result, stop_reason = self._answer(message) if is_answered else (StepResult(), stop_reason)
            is_over = result.terminated or stop_reason is not None
            turn = Turn(
                prompt_token_ids=tuple(new_ids),
                completion=completion,
                message=message,
                env_messages=() if is_over else _read_next(result),
                new_context=new_context,
                info=result.info,
                reward=result.reward or 0.0,
            )
            self.turns.append(turn)
            self._context_ids += [*new_ids, *completion.token_ids]
            if result.terminated:
                return StopReason.FINISHED
            if stop_reason is not None:
                return self._truncate(stop_reason, unanswered=None if is_answered else message)
            new_ids, new_context = self._next_prompt(result, is_cut=sampled.is_cut)

    def _next_prompt(self, result: StepResult, *, is_cut: bool) -> tuple[list[int], bool]:
        """What the model reads next, and whether that is no continuation of its context so far.

        Behind a completion that was cut it reads the end of its own turn first.
        """
        if result.conversation is None:
            end_of_turn = self._policy.chat_format.stop_token_ids[:1] if is_cut else ()
            return [*end_of_turn, *in_env(self._policy.chat_format.render_env_messages, result.messages)], False
        prompt = in_env(self._policy.chat_format.render_prompt, result.conversation, self._env.tools)
        num_known = len(self._context_ids)
        if prompt[:num_known] == self._context_ids and len(prompt) > num_known:
            return prompt[num_known:], False
        self._context_ids = []
        return prompt, True

    def _answer(self, message: Message) -> tuple[StepResult, StopReason | None]:
        """What the environment answers, and which budget is used up now."""

        def step() -> StepResult:
            result = read_step(self._env.step(message), self._env)
            if not result.terminated:
                read_tools(self._env, "step")
            return result

        result = in_env(step, env=self._env)
        self._take_reward(result)
        return result, self._budget.end()

    def _truncate(self, reason: StopReason, unanswered: Message | None = None) -> StopReason:
        """Tell the environment; what it notes of the end joins what it noted on the last turn, if there is one."""
        self._env.unanswered = unanswered
        result = in_env(lambda: read_step(self._env.truncate(reason), self._env, "truncate"), env=self._env)
        self._take_reward(result)
        if self.turns:
            last = self.turns[-1]
            self.turns[-1] = replace(
                last, info={**last.info, **result.info}, reward=last.reward + (result.reward or 0.0)
            )
        return reason

    def _take_reward(self, result: StepResult) -> None:
        if result.reward is None:
            why = f"the environment could not score this episode{defined_at(type(self._env))}"
            raise EnvFailureError(str(result.info.get("error", why)))
        if not math.isfinite(result.reward):
            where = defined_at(type(self._env))
            raise EnvFailureError(f"the environment gave a reward of {result.reward}, expected a finite number{where}")
        for name, value in result.reward_parts.items():
            if not math.isfinite(value):
                where = defined_at(type(self._env))
                raise EnvFailureError(
                    f"the environment gave {value} as the reward part {name!r:.60}, expected a finite number{where}"
                )
        self.reward += result.reward
        self.reward_parts.update(result.reward_parts)
        self.flags.update(result.flags)


def _read_next(result: StepResult) -> tuple[Message, ...]:
    """What the model reads after a step that does not end the episode."""
    return result.messages if result.conversation is None else result.conversation


def render_opening(policy: BasePolicy, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
    """Ids of an episode's first prompt; EnvFailureError for messages that cannot be shown.

    The UserError of a template, or of a kind of agent, that refuses any messages is raised: every episode would end by
    it.
    """
    render = policy.chat_format.render_prompt
    try:
        return in_env(render, messages, tools)
    except EnvFailureError as failure:
        if isinstance(failure.__cause__, UserError):
            render([Message.user("")], tools)
        raise


def in_env(function: Callable[..., T], *arguments: Any, env: AgentEnv | None = None) -> T:
    """What the function returns. EnvFailureError for what `env`, or what makes one, raised."""
    try:
        return function(*arguments)
    except (ConfigError, ClusterError):  # every episode would end by it, so the run does, with its sentence
        raise
    except EnvLostError:  # the episode runs again
        raise
    except OF_ONE_CALL as error:  # the environment boundary: one failing environment must not end the run
        if ends_program(error):
            raise
        raise EnvFailureError(FailedCall.of(error, ENVIRONMENT, env)) from error


def _close(env: AgentEnv) -> str | None:
    """Close the environment and return what went wrong, so that it cannot hide another exception."""
    try:
        in_env(lambda: refuse_async(env.close(), env, "close"), env=env)
    except EnvFailureError as failure:
        note(failure.failed)
        return str(failure)
    return None
