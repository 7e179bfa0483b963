"""`env.name: external`: episodes that a person's own agent plays, through the endpoint, for GRPO and evaluation.

    env:
      name: external
      options: {agent: "my_agent:agent"}          # or {command: [python, my_agent.py]}

The agent gets a task's row, an address and a key, and says what the episode was worth. Its turns are recorded where
they are sampled, so ids and log-probs are those of the project's own rollout. The agent runs where this process runs
and is not in the sandbox. Not here: the protocol (`app.py`), how an agent is started (`agents.py`).
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.data.tasks import Task
from agent_rl.endpoint.agents import (
    MAX_TASK_BYTES,
    Agent,
    AgentFailedError,
    AgentLateError,
    CommandAgent,
    FunctionAgent,
    describe,
    parse_output,
)
from agent_rl.endpoint.errors import check_installed
from agent_rl.endpoint.outcome import Reward, to_reward
from agent_rl.endpoint.session import EpisodeSession, SessionSpec
from agent_rl.envs.base import AgentEnv, StepResult
from agent_rl.errors import ConfigError, DataError, ends_program
from agent_rl.failures import OF_ONE_CALL, FailedCall
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import StopReason, Trajectory
from agent_rl.registry import import_object
from agent_rl.rollout.agents import AgentFactory, EpisodePlan
from agent_rl.rollout.turns import EpisodeCancelledError, EpisodeLimits
from agent_rl.seeds import derive_seed

if TYPE_CHECKING:
    from agent_rl.endpoint.endpoint import Endpoint

GIVE_UP_AFTER = 32
"""An agent that failed in each of its first episodes, this many, ends the run."""


class ExternalOptions(BaseModel):
    """`env.options` of `env.name: external`."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    agent: str | None = None
    """Import path of `async def agent(task, base_url, api_key)`, plain functions too; it returns the reward."""
    command: tuple[str, ...] = ()
    """Instead of `agent`: program and arguments, with OPENAI_BASE_URL, OPENAI_API_KEY and AGENT_RL_TASK (JSON) in its
    environment; the reward is what it posts to the endpoint, else the last line of its output, a number or
    `{"reward": 1, "success": true}`."""
    reward: str | None = None
    """Import path of `reward(task, result)`, where `result` is what the agent returned, or printed; it takes the place
    of the agent's own reward."""
    failed_episodes: Literal["zero", "drop"] = "zero"
    """What becomes of an episode whose agent failed after the policy's first reply: reward 0, or no part in training.
    One that failed before is dropped."""
    host: str = "127.0.0.1"
    """Address that the endpoint listens on, for agents in containers."""

    @model_validator(mode="after")
    def _check_one(self) -> "ExternalOptions":
        if (self.agent is None) == (not self.command):
            raise ValueError("give one of agent (an import path) and command (a list), and not both")
        return self


class ExternalFactory(AgentFactory):
    """Plays episodes with one agent; the endpoint starts with the first and ends with `close`."""

    may_be_remote = False

    def __init__(self, options: ExternalOptions, *, agent: Agent | None = None) -> None:
        """ConfigError where the agent or the reward cannot be imported; `agent` replaces the options'."""
        self._options = options
        self._agent = agent or _make_agent(options)
        self._score = import_object(options.reward) if options.reward else None
        self._endpoint: Endpoint | None = None
        self._counts: Counter[str] = Counter()
        self._places: Counter[str] = Counter()
        """How often the agent failed, by what it said."""
        self._num_played = 0
        self._lock = threading.Lock()

    def __call__(self) -> AgentEnv:
        return _ShownTask()

    def check_task(self, task: Task, where: str) -> None:
        size = len(json.dumps(task).encode())
        if self._options.command and size > MAX_TASK_BYTES:
            raise DataError(
                f"{where}: the row has {size} bytes, a command's environment holds {MAX_TASK_BYTES}; shorten it, or "
                "use env.options.agent"
            )

    def describe(self) -> dict[str, Any]:
        return {"agent": self._agent.name, "summary": f"agent {self._agent.name}, outside the sandbox"}

    def worker_counters(self) -> Mapping[str, float]:
        """`agents_failed` and `agents_late` of this process."""
        with self._lock:
            return {f"agents_{name}": float(self._counts[name]) for name in ("failed", "late")}

    def play_episode(
        self, policy: BasePolicy, plan: EpisodePlan, *, limits: EpisodeLimits, cancelled: threading.Event | None
    ) -> Trajectory:
        endpoint = self._endpoint_of(policy)
        spec = SessionSpec(
            seed=plan.seed,
            group=derive_seed(plan.group_id),
            temperature=plan.temperature,
            limits=limits,
            cancelled=cancelled,
        )
        key, session = endpoint.sessions.open(spec)
        reward, error, failures = None, None, ()

        def is_over() -> bool:
            is_cancelled = cancelled is not None and cancelled.is_set()
            return is_cancelled or session.failure is not None or time.monotonic() > session.started + limits.timeout_s

        try:
            result = self._agent.run(plan.task, endpoint.base_url(key), key, is_over=is_over)
            reward = self._reward(plan.task, result, session)
        except AgentFailedError as failure:
            error, failures = str(failure), (_failed_call(failure, self._agent.name),)
        except AgentLateError:
            session.stop_reason = session.stop_reason or StopReason.TIMEOUT
        finally:
            endpoint.sessions.conclude(key)
        if cancelled is not None and cancelled.is_set():
            raise EpisodeCancelledError
        if session.failure is not None:
            raise session.failure
        # After a budget has ended the session, its requests are refused, and agents fail by that.
        failures = () if session.stop_reason else failures
        try:
            return replace(self._trajectory(plan, session, reward, error), failures=failures)
        except ConfigError as hopeless:
            hopeless.failed_calls = failures
            raise

    def close(self) -> None:
        with self._lock:
            endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.close()

    def _endpoint_of(self, policy: BasePolicy) -> "Endpoint":
        from agent_rl.endpoint.endpoint import Endpoint

        with self._lock:
            if self._endpoint is None:
                self._endpoint = Endpoint(policy, host=self._options.host)
            return self._endpoint

    def _reward(self, task: Task, result: Any, session: EpisodeSession) -> Reward | None:
        """The reward that was returned, computed or posted; None without one. AgentFailedError when it is none."""
        try:
            if self._score is not None:
                return to_reward(self._score(dict(task), result))
            is_program = isinstance(self._agent, CommandAgent)
            if session.posted is not None and (is_program or result is None):
                return session.posted  # the last line of a program may be the policy's words
            value = parse_output(result) if is_program else result
            return None if value is None else to_reward(value)
        except OF_ONE_CALL as error:  # the user's reward, or a value that is none
            if ends_program(error):
                raise
            raise AgentFailedError(f"no reward: {describe(error)}") from error

    def _trajectory(
        self, plan: EpisodePlan, session: EpisodeSession, reward: Reward | None, error: str | None
    ) -> Trajectory:
        turns, stop_reason = session.turns, session.stop_reason
        self._count(error if stop_reason is None else None, is_late=stop_reason is StopReason.TIMEOUT)
        if (
            reward is None
            and turns
            and (stop_reason is not None or (error and self._options.failed_episodes == "zero"))
        ):
            reward = Reward(value=0.0, success=False)  # cut off or failed by what the policy wrote
        if reward is None:
            error = error or f"{self._agent.name} gave no reward; return one, or post it to the endpoint"
        return Trajectory(
            task_id=plan.task["task_id"],
            group_id=plan.group_id,
            turns=turns,
            stop_reason=StopReason.ENV_ERROR if reward is None else stop_reason or StopReason.FINISHED,
            reward=None if reward is None else reward.value,
            reward_parts={} if reward is None else reward.reward_parts(),
            initial_messages=session.initial_messages,
            duration_s=time.monotonic() - session.started,
            error=error,
        )

    def _count(self, error: str | None, *, is_late: bool) -> None:
        """ConfigError once the agent has failed alike in every one of its first episodes."""
        with self._lock:
            self._num_played += 1
            self._counts["late"] += is_late
            if error is not None:
                self._counts["failed"] += 1
                self._places[error] += 1
            is_hopeless = self._counts["failed"] == self._num_played == GIVE_UP_AFTER
            often = self._places.most_common(1)
        if is_hopeless:
            raise ConfigError(
                f"env.options: {self._agent.name} failed in each of its first {GIVE_UP_AFTER} episodes, most often "
                f"with: {often[0][0]}; run it once by hand against the endpoint"
            )


def _failed_call(failure: AgentFailedError, agent: str) -> FailedCall:
    """What the agent raised, or what a command said before it ended."""
    if failure.__cause__ is not None:
        return FailedCall.of(failure.__cause__, f"agent {agent}")
    return FailedCall(source=f"agent {agent}", error=str(failure), traceback=failure.said)


class _ShownTask(AgentEnv):
    """What can be shown of a task before its agent writes a prompt."""

    def reset(self, task: Task) -> list[Message]:
        return [Message.user(json.dumps(task, ensure_ascii=False, indent=1))]

    def step(self, message: Message) -> StepResult:
        raise ConfigError(
            "env.name 'external': the agent plays its episodes itself; train, or evaluate, through a rollout"
        )


def _make_agent(options: ExternalOptions) -> Agent:
    if options.command:
        return CommandAgent(options.command)
    assert options.agent is not None
    function = import_object(options.agent)
    if not callable(function):
        raise ConfigError(
            f"env.options.agent = {options.agent!r} is {function!r:.80}, expected a function (task, base_url, api_key)"
        )
    return FunctionAgent(function, options.agent)


def make_external_factory(options: dict[str, Any], seed: int) -> ExternalFactory:
    """`env.name: external`."""
    check_installed()
    return ExternalFactory(validate_section(ExternalOptions, options, source="config", prefix="env.options"))
