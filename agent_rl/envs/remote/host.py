"""What runs in an actor: the environments of many episodes, each in a thread of its own. Imports no Ray.

An environment is made, used and closed by one thread, as in the trainer's process. What it raises travels as a
`Failure`. Not here: which actor an episode goes to (`actors.py`), what the rollout sees of it (`factory.py`).
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from agent_rl import errors
from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.step_result import read_opening, read_step, read_tools, refuse_async
from agent_rl.failures import OF_ONE_CALL, FailedCall, noting
from agent_rl.records import StopReason


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception on its way to another machine, where its class may not exist: `Failure("KeyError", "", "'x'")`."""

    name: str
    """Of its class."""
    base: str
    """The class of `agent_rl.errors` that it is or derives from; empty for others."""
    text: str
    call: FailedCall | None = field(default=None, compare=False)
    """Its place and traceback."""

    @classmethod
    def of(cls, error: BaseException, env: AgentEnv | None = None) -> "Failure":
        known = [each.__name__ for each in type(error).__mro__ if vars(errors).get(each.__name__) is each]
        call = FailedCall.of(error, "environment", env)
        return cls(type(error).__name__, known[0] if known else "", str(error), call)

    def to_error(self) -> Exception:
        """An exception with this class name and text, which `except` recognises by its base."""
        base = getattr(errors, self.base) if self.base else Exception
        made = base if self.base == self.name else type(self.name, (base,), {})
        error = made(self.text)
        error.failed_call = self.call  # `FailedCall.of` finds it
        return error


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvReply:
    """What a call of `EnvHost` gave."""

    value: Any = None
    tools: tuple[ToolSpec, ...] = ()
    """`AgentEnv.tools` after `reset` and after a step that does not end the episode; empty after other calls."""
    counters: Mapping[str, float] = field(default_factory=dict)
    """`EnvFactory.counters`: what was added since the last reply that had some."""
    failure: Failure | None = None
    """What was raised instead."""
    noted: tuple[FailedCall, ...] = ()
    """What tools raised meanwhile."""


class EnvHost:
    """The environments of one actor, by the number of their episode."""

    def __init__(self, open_factory: Callable[[], EnvFactory]) -> None:
        """Open what makes environments; raises what that raises."""
        self._factory = open_factory()
        self._seats: dict[int, _Seat] = {}
        self._reported: Mapping[str, float] = {}
        self._lock = threading.Lock()

    def start(self) -> dict[str, Any]:
        """Start what environments share, and describe it."""
        self._factory.start()
        return dict(self._factory.describe())

    async def call(self, episode: int, method: str, *arguments: Any) -> EnvReply:
        """Run `reset`, `step`, `truncate` or `close` of an episode's environment, which `reset` makes first."""
        if episode not in self._seats:
            self._seats[episode] = _Seat(self._factory)
        seat = self._seats[episode]
        try:
            return await asyncio.get_running_loop().run_in_executor(seat.thread, self._run, seat, method, arguments)
        finally:
            if method == "close":
                del self._seats[episode]
                seat.thread.shutdown(wait=False)

    def _run(self, seat: "_Seat", method: str, arguments: tuple[Any, ...]) -> EnvReply:
        value, tools, failure = None, (), None
        with noting() as noted:
            try:
                value = getattr(seat, method)(*arguments)
                if method == "reset" or (method == "step" and not value.terminated):  # nobody reads later ones
                    tools = read_tools(seat.env, method)
            except OF_ONE_CALL as error:  # raised again where the episode runs; out of here it would end the actor
                failure = Failure.of(error, seat.env)
        counters = self._new_work() if method == "close" else {}
        return EnvReply(value=value, tools=tools, counters=counters, failure=failure, noted=tuple(noted))

    def _new_work(self) -> dict[str, float]:
        with self._lock:
            counted = dict(self._factory.counters())
            new = Counter(counted)
            new.subtract(self._reported)
            self._reported = counted
        return dict(new)

    def close(self) -> None:
        """Free what environments share; running ones are left."""
        self._factory.close()


class _Seat:
    """The environment of one episode and its thread."""

    def __init__(self, factory: EnvFactory) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="environment")
        self.env: AgentEnv | None = None
        self._factory = factory

    def reset(self, task: Task, case_seed: int | None) -> list[Message]:
        self.env = self._factory()
        self.env.case_seed = case_seed
        return read_opening(self.env.reset(task), self.env)

    def step(self, message: Message) -> StepResult:
        env = self._made()
        return read_step(env.step(message), env)

    def truncate(self, reason: StopReason, unanswered: Message | None = None) -> StepResult:
        env = self._made()
        env.unanswered = unanswered
        return read_step(env.truncate(reason), env, "truncate")

    def close(self) -> None:
        if self.env is not None:
            refuse_async(self.env.close(), self.env, "close")

    def _made(self) -> AgentEnv:
        if self.env is None:
            raise RuntimeError("an environment was used before its reset")
        return self.env
