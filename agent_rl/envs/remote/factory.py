"""Environments that run in Ray actors, behind the contract of those that run here.

Tasks are checked, and scripted solutions made, in this process. Not here: the actors (`actors.py`), the environments in
them (`host.py`).
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from agent_rl.agent.messages import Message
from agent_rl.config.sections import RayConfig
from agent_rl.data.tasks import Task
from agent_rl.envs.base import OF_INNER, AgentEnv, EnvFactory, StepResult
from agent_rl.envs.remote.actors import EnvActor, EnvActors
from agent_rl.errors import EnvLostError
from agent_rl.failures import note
from agent_rl.records import StopReason


class RayEnvFactory(EnvFactory):
    """Makes environments that run in Ray actors; before `start`, to show a task for example, `inner`'s own.

    `inner` is never started: `open_factory` gives each actor a factory like it.
    """

    def __init__(self, inner: EnvFactory, config: RayConfig, open_factory: Callable[[], EnvFactory]) -> None:
        """ConfigError without Ray, and for an `open_factory` that cannot be sent to other machines."""
        super().__init__(inner)
        self.inner = inner
        for name in OF_INNER:
            setattr(self, name, getattr(inner, name))
        self._actors = EnvActors(config, open_factory)
        self._is_started = False
        self._episodes = itertools.count()
        self._work: Counter[str] = Counter()
        self._num_lost_episodes = 0
        self._lock = threading.Lock()

    def __call__(self) -> AgentEnv:
        return RemoteEnv(self, self._actors, next(self._episodes)) if self._is_started else self.inner()

    def start(self) -> None:
        self._actors.start()
        self._is_started = True

    def describe(self) -> dict[str, Any]:
        return {**self._actors.description, "workers": "ray"}

    def counters(self) -> dict[str, float]:
        """Of all actors, as of the episodes that ended."""
        with self._lock:
            return dict(self._work)

    def worker_counters(self) -> dict[str, float]:
        with self._lock:
            return {"lost_episodes": float(self._num_lost_episodes), "lost_actors": float(self._actors.num_lost)}

    def add_work(self, counters: dict[str, float]) -> None:
        with self._lock:
            self._work.update(counters)

    def add_lost_episode(self) -> None:
        with self._lock:
            self._num_lost_episodes += 1

    def close(self) -> None:
        try:
            self._actors.close()
        finally:
            self.inner.close()


class RemoteEnv(AgentEnv):
    """One episode in an actor. Every method raises what the environment raises there, or EnvLostError."""

    def __init__(self, factory: RayEnvFactory, actors: EnvActors, episode: int) -> None:
        """`episode` is a number that no other one has."""
        self._factory = factory
        self._actors = actors
        self._episode = episode
        self._actor: EnvActor | None = None

    def reset(self, task: Task) -> list[Message]:
        self._actor = self._actors.take()
        return self._call("reset", task, self.case_seed)

    def step(self, message: Message) -> StepResult:
        return self._call("step", message)

    def truncate(self, reason: StopReason) -> StepResult:
        return self._call("truncate", reason, self.unanswered)

    def close(self) -> None:
        """Without an error where the actor is lost: it holds nothing any more, and the outcome is known."""
        if self._actor is None:
            return
        try:
            reply = self._actors.call(self._actor, self._episode, "close")
        except EnvLostError:
            return
        finally:
            self._actors.give_back(self._actor)
            self._actor = None
        self._factory.add_work(dict(reply.counters))
        if reply.failure is not None:
            raise reply.failure.to_error()

    def _call(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            raise RuntimeError("an environment was used before its reset")
        try:
            reply = self._actors.call(self._actor, self._episode, method, *arguments)
        except EnvLostError:
            self._factory.add_lost_episode()
            raise
        for failed in reply.noted:
            note(failed)
        if reply.failure is not None:
            raise reply.failure.to_error()
        self.tools = reply.tools
        return reply.value
