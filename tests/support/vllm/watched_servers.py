"""Servers of `agent-rl serve-vllm` that are watched beside the test."""

import contextlib
import threading
from collections.abc import Iterator

from agent_rl.errors import UserError
from agent_rl.inference.vllm.server.launch import ServerSupervisor
from agent_rl.inference.vllm.server.launch_plan import ServeOptions, plan_servers, visible_gpus


@contextlib.contextmanager
def watched(supervisor: ServerSupervisor) -> Iterator[list[str]]:
    """Watched in a thread; what ended the watching, if anything did, in a list."""
    stop, failures = threading.Event(), []

    def watch() -> None:
        try:
            supervisor.watch(stop)
        except UserError as error:
            failures.append(str(error))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield failures
    finally:
        stop.set()
        watcher.join()


@contextlib.contextmanager
def one_server(options: ServeOptions) -> Iterator[str]:
    """The address of a server that is started again when it dies."""
    (plan,) = plan_servers(options, gpus=visible_gpus())
    with contextlib.closing(ServerSupervisor([plan])) as supervisor:
        supervisor.start(timeout_s=900.0)
        with watched(supervisor) as failures:
            yield plan.address
        assert not failures
