"""Ray actors that environments run in: started, watched, replaced, the least loaded one first.

A lost actor is never revived: its episodes learn of it by `EnvLostError`, and Ray places a new one on any node with
free CPUs. Imported only with `rollout.workers: ray`. Not here: what an actor does (`host.py`), running an episode again
(`rollout/rollout.py`).
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from agent_rl.closing import Closing
from agent_rl.config.sections import RayConfig
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.remote.cluster import connect, first_line, import_ray
from agent_rl.envs.remote.host import EnvReply
from agent_rl.errors import ClusterError, ConfigError, EnvLostError, SandboxError

_WANTED = "rollout.workers is ray"
_LOOK_S = 0.5
_AGAIN_S = 1.0
"""Pause before the next attempt to start an actor whose predecessor failed as it started."""
_CLOSE_S = 10.0


class EnvActor:
    """One actor as its owner sees it."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.news = handle.open.remote()
        """Ends when the actor is ready; once it is up, when it is lost."""
        self.is_up = False
        self.num_episodes = 0
        self.last_used = 0


class EnvActors(Closing):
    """`start`; per episode `take` an actor, `call` its environment, `give_back`; `close`. For many threads."""

    def __init__(self, config: RayConfig, open_factory: Callable[[], EnvFactory]) -> None:
        """Starts nothing. `open_factory` is called in every actor; ConfigError when it cannot be sent there."""
        self._ray = import_ray(_WANTED)
        self._config = config
        try:
            self._payload = self._ray.cloudpickle.dumps(open_factory)
        except Exception as error:  # whatever the parts of somebody's environment raise
            raise ConfigError(
                f"rollout.workers is ray, but the environment cannot be sent to other machines ({error}); give an "
                "import path in env.name, or a class or function that can be pickled"
            ) from error
        self.description: dict[str, Any] = {}
        """What the environments' factory says of itself in the actor that was ready last."""
        self.num_lost = 0
        """Actors that were up and are gone."""
        self._actors: list[EnvActor] = []
        self._uses = itertools.count(1)
        self._problem = "none has started yet"
        self._failure: Exception | None = None
        """What an actor raised as it opened or started its environments."""
        self._changed = threading.Condition()
        """Guards everything above."""
        self._is_closed = False
        self._watcher = threading.Thread(target=self._watch, name="ray-actors", daemon=True)

    def start(self) -> None:
        """Connect to the cluster and start the actors; returns as soon as one is up, others may join later.

        Raises ConfigError without a cluster, what an actor raises as it starts, and ClusterError when none is up in
        time.
        """
        connect(self._ray, self._config.address, wanted=_WANTED, key="rollout.ray.address")
        self._actors = [self._launch() for _ in range(self._config.actors)]
        self._watcher.start()
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._up(), self._config.timeout_s)
            if self._failure is not None:
                raise self._failure
            if not self._up():
                raise self._nobody()

    def take(self) -> EnvActor:
        """The actor with the fewest episodes, which now has one more; ClusterError when none is up for too long."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._up(), self._config.timeout_s)
            if self._is_closed or not self._up():
                raise self._nobody()
            actor = min(self._up(), key=lambda each: (each.num_episodes, each.last_used))
            actor.num_episodes += 1
            actor.last_used = next(self._uses)
            return actor

    def give_back(self, actor: EnvActor) -> None:
        with self._changed:
            actor.num_episodes -= 1

    def call(self, actor: EnvActor, episode: int, method: str, *arguments: Any) -> EnvReply:
        """What `EnvHost.call` answers. EnvLostError when the actor is gone, SandboxError when no answer can be sent."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(actor.handle.call.remote(episode, method, *arguments))
        except errors.RayTaskError as error:
            raise SandboxError(f"a Ray actor could not answer {method} of an environment: {error.cause}") from None
        except errors.RayError as error:
            self._mark_down(actor, f"the last one was lost: {first_line(error)}")
            self._ray.kill(actor.handle)  # one that is only out of reach is replaced as well
            raise EnvLostError(f"a Ray actor was lost in {method} of an environment: {first_line(error)}") from None

    def close(self) -> None:
        """End the actors and what they started."""
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        if self._watcher.ident is not None:
            self._watcher.join()
        ending = [actor.handle.close.remote() for actor in self._up()]
        if ending:
            self._ray.wait(ending, num_returns=len(ending), timeout=_CLOSE_S)
        for actor in self._actors:
            self._ray.kill(actor.handle)

    def _launch(self) -> EnvActor:
        options = {"num_cpus": self._config.cpus_per_actor, "max_restarts": 0, "scheduling_strategy": "SPREAD"}
        remote = self._ray.remote(**options)(_actor_class())
        return EnvActor(remote.remote(os.getcwd(), [path for path in sys.path if path], self._payload))

    def _up(self) -> list[EnvActor]:
        return [actor for actor in self._actors if actor.is_up]

    def _nobody(self) -> ClusterError:
        if self._is_closed:
            return ClusterError("the Ray actors of this run were closed")
        return ClusterError(
            f"no Ray actor was there for environments for {self._config.timeout_s:g} s (rollout.ray.timeout_s): "
            f"{self._problem}; see ray status, and set rollout.ray.cpus_per_actor ({self._config.cpus_per_actor}) to "
            "what a node has free"
        )

    def _mark_down(self, actor: EnvActor, problem: str) -> None:
        with self._changed:
            self.num_lost += actor.is_up
            actor.is_up, self._problem = False, problem
            self._changed.notify_all()

    def _watch(self) -> None:
        try:
            while not self._is_closed:
                news = {actor.news: actor for actor in self._actors}
                ended, _ = self._ray.wait(list(news), timeout=_LOOK_S)
                for each in ended:
                    self._read(news[each])
        except Exception as error:  # of a cluster that is gone: `take` reports it
            for actor in self._actors:
                self._mark_down(actor, f"the cluster does not answer: {first_line(error)}")

    def _read(self, actor: EnvActor) -> None:
        """The actor is ready, or failed to start, or is lost."""
        try:
            reply: EnvReply = self._ray.get(actor.news)
        except self._ray.exceptions.RayTaskError as error:  # before the library could be imported there
            failure: Exception = ConfigError(
                f"a Ray actor could not load this run ({type(error.cause).__name__}: {error.cause}); every node needs "
                "the project, its interpreter and its files under the same paths"
            )
        except self._ray.exceptions.RayError as error:
            self._mark_down(actor, f"the last one was lost: {first_line(error)}")
            self._replace(actor)
            return
        else:
            if reply.failure is None:
                with self._changed:
                    actor.is_up, actor.news = True, actor.handle.live.remote()
                    self.description = reply.value
                    self._changed.notify_all()
                return
            failure = reply.failure.to_error()
        with self._changed:
            self._failure = failure
        self._mark_down(actor, f"the last one failed to start: {failure}")
        time.sleep(_AGAIN_S)
        self._replace(actor)

    def _replace(self, actor: EnvActor) -> None:
        self._ray.kill(actor.handle)
        with self._changed:
            if not self._is_closed:
                self._actors[self._actors.index(actor)] = self._launch()


def _actor_class() -> type:
    """The class of the actors. Ray sends its code, because it is found under no name: the path comes with it."""

    class EnvironmentActor:
        def __init__(self, folder: str, path: list[str], payload: bytes) -> None:
            self.folder, self.path, self.payload = folder, path, payload

        async def open(self) -> Any:
            import asyncio

            return await asyncio.get_running_loop().run_in_executor(None, self.start)

        def start(self) -> Any:
            import os
            import sys

            os.chdir(self.folder)
            sys.path += [each for each in self.path if each not in sys.path]
            from ray import cloudpickle

            from agent_rl.envs.remote.host import EnvHost, EnvReply, Failure
            from agent_rl.failures import OF_ONE_CALL

            try:
                self.host = EnvHost(cloudpickle.loads(self.payload))
                return EnvReply(value=self.host.start())
            except OF_ONE_CALL as error:
                return EnvReply(failure=Failure.of(error))

        async def call(self, episode: int, method: str, *arguments: Any) -> Any:
            return await self.host.call(episode, method, *arguments)

        async def live(self) -> None:
            import asyncio

            await asyncio.Event().wait()

        async def close(self) -> None:
            import asyncio

            await asyncio.get_running_loop().run_in_executor(None, self.host.close)

    return EnvironmentActor
