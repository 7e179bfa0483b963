"""Several servers as one: which are down, which may come back, how they are asked. Runs on one event loop.

A server that does not answer is down at once. It is up again when it answers and has the present weights; one with
other weights, usually a new process with those it was started with, must first be brought up to date by the owner's
`rejoin`. Not here: which is next (`routing.py`), threads that wait (`servers.py`), requests and answers
(`server_answers.py`).
"""

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import httpx

from agent_rl.errors import EngineError
from agent_rl.inference.vllm.routing import Routes
from agent_rl.inference.vllm.server.key_guard import key_header
from agent_rl.inference.vllm.server_answers import RequestRefusedError, sentence_of

_CONNECT_S = 10.0
_KEEP_ALIVE_S = 2.0
"""Shorter than a server's 5 s, so that no request goes out on a connection that is being closed."""
_HEALTH_S = 5.0
_UP_CHECK_S = 5.0
_DOWN_CHECK_S = 0.25
_REJOIN_AGAIN_S = 2.0
_REFUSED = (400, 413, 422)
_NOT_FOUND = 404


class ServerLostError(EngineError):
    """A server did not answer, or not as it should: another may, or the same one later."""


class UnknownAdapterError(ServerLostError):
    """The server answers, but does not have the requested adapter."""


class ServerState:
    """The state of one server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.is_up = True
        self.problem = "no request yet"
        """Why it was last found down."""
        self.running: set[asyncio.Task[httpx.Response]] = set()
        self.was_lost = asyncio.Event()


class ServerPool:
    """Servers behind one HTTP client. All methods run on the loop that `start` was called on."""

    def __init__(self, addresses: Sequence[str], *, start_timeout_s: float, first: int = 0) -> None:
        """`first` is the place of the server that comes first among equals."""
        self.servers = {address: ServerState(address) for address in addresses}
        self.weight_version: int | None = None
        """Version of the weights that the owner last sent; None before."""
        self.weight_label: str | None = None
        """An up-to-date server's label for them; None before, when any is accepted.

        Set it when servers may sample again: a server that comes back with others is brought up to date by `rejoin`.
        """
        self.rejoin: Callable[[str], bool] | None = None
        """Loads the present weights into the server of an address, on a thread of its own; None: not needed.

        True on success. False or an error: the server stays out and is tried again.
        """
        self._start_timeout_s = start_timeout_s
        self._routes = Routes(first=first)
        self._came_up = asyncio.Event()
        self._client: httpx.AsyncClient
        self._watchers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=_KEEP_ALIVE_S)
        # Without the environment's proxies: servers are near, and requests are long.
        self._client = httpx.AsyncClient(
            limits=limits,
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            trust_env=False,
            headers=key_header(),
        )
        self._watchers = [asyncio.create_task(self._watch(server)) for server in self.servers.values()]

    async def close(self) -> None:
        for watcher in self._watchers:
            watcher.cancel()
        await self._client.aclose()

    async def wait_for_one(self) -> None:
        """Until a server is up. EngineError when none is for `start_timeout_s`."""
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not any(server.is_up for server in self.servers.values()):
                    self._came_up.clear()
                    await self._came_up.wait()
        except TimeoutError:
            problems = "; ".join(f"{server.address}: {server.problem}" for server in self.servers.values())
            raise EngineError(
                f"no vLLM server was there for {self._start_timeout_s:g} s (vllm.start_timeout_s): {problems}"
            ) from None

    async def pick(self, *, session: int | None, group: int | None) -> ServerState:
        """The server for the next request of this session, of those that are up; waits for one."""
        await self.wait_for_one()
        loads = {server.address: len(server.running) for server in self.servers.values() if server.is_up}
        return self.servers[self._routes.pick(loads, session=session, group=group)]

    async def request(
        self, server: ServerState, path: str, body: Mapping[str, Any], *, headers: Mapping[str, str] | None = None
    ) -> Any:
        """The JSON that answers a request which counts as load.

        ServerLostError when the server fails, it is down then; UnknownAdapterError or RequestRefusedError when it
        refuses.
        """
        task = asyncio.create_task(self._client.post(server.address + path, json=body, headers=headers))
        server.running.add(task)
        try:
            await asyncio.wait([task])
        finally:
            server.running.discard(task)
            task.cancel()
        if task.cancelled():
            raise ServerLostError(f"{server.address} was lost: {server.problem}")
        return self._read(server, path, task)

    async def call(self, address: str, method: str, path: str, *, timeout_s: float, **options: Any) -> Any:
        """An answer to one of the owner's own requests, to a server that may be down: its JSON, or else its text."""
        server = self.servers[address]
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
        try:
            response = await self._client.request(method, address + path, timeout=timeout, **options)
        except httpx.HTTPError as error:
            self.mark_down(server, _describe(error))
            raise EngineError(f"{method} {address}{path} failed: {_describe(error)}") from error
        answer = _answer_of(response)
        if response.status_code != httpx.codes.OK:
            sentence = sentence_of(answer, response.text)
            raise EngineError(f"{method} {address}{path} was answered {response.status_code}: {sentence}")
        return answer

    async def health_problem(self, address: str) -> str | None:
        """Why nothing usable answers at an address; None for any answer but a server error."""
        try:
            response = await self._client.get(f"{address}/health", timeout=_HEALTH_S)
        except httpx.HTTPError as error:
            return _describe(error)
        failed = response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
        return f"{address}/health answered {response.status_code}" if failed else None

    def mark_down(self, server: ServerState, problem: str) -> None:
        """Send it no requests until its watcher finds it healthy. Running requests may still be answered."""
        server.problem = problem
        server.is_up = False
        server.was_lost.set()

    def _read(self, server: ServerState, path: str, task: "asyncio.Task[httpx.Response]") -> Any:
        try:
            response = task.result()
        except httpx.HTTPError as error:
            self.mark_down(server, _describe(error))
            raise ServerLostError(f"{server.address} was lost: {_describe(error)}") from error
        answer = _answer_of(response)
        if response.status_code == httpx.codes.OK:
            return answer
        failure = f"{server.address}{path} answered {response.status_code}: {sentence_of(answer, response.text)}"
        if response.status_code in _REFUSED:
            raise RequestRefusedError(failure)
        if response.status_code == _NOT_FOUND:
            raise UnknownAdapterError(failure)
        if response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
            self.mark_down(server, failure)
            raise ServerLostError(failure)
        raise EngineError(failure)

    async def _watch(self, server: ServerState) -> None:
        while True:
            wait_s = _UP_CHECK_S if server.is_up else _DOWN_CHECK_S
            server.was_lost.clear()
            try:
                await asyncio.wait_for(server.was_lost.wait(), wait_s)
                await asyncio.sleep(_DOWN_CHECK_S / 2)
            except TimeoutError:
                pass
            try:
                await self.call(server.address, "GET", "/health", timeout_s=_HEALTH_S)
                if not server.is_up and await self._may_serve(server):
                    server.is_up = True
                    self._came_up.set()
            except EngineError as error:
                self.mark_down(server, str(error))
                for task in list(server.running):
                    task.cancel()

    async def _may_serve(self, server: ServerState) -> bool:
        """Whether a server that answers again has the present weights, after `rejoin` if needed."""
        if self.weight_label is None or self.rejoin is None:
            return True
        info = await self.call(server.address, "GET", "/weight_info", timeout_s=_HEALTH_S)
        pause = await self.call(server.address, "GET", "/is_paused", timeout_s=_HEALTH_S)
        if info == {"weight_version": self.weight_label} and pause == {"is_paused": False}:
            return True
        problem = await _call_in_thread(self.rejoin, server.address)
        if problem is not None:
            server.problem = f"it answers, but could not load the present weights: {problem}"
            await asyncio.sleep(_REJOIN_AGAIN_S)
        return problem is None


async def _call_in_thread(rejoin: Callable[[str], bool], address: str) -> str | None:
    """None when `rejoin` succeeded, else what went wrong. A daemon thread: it must not hold up the end of a run."""
    ended: Future[bool] = Future()
    ended.set_running_or_notify_cancel()  # the thread sets the result, also if nobody waits for it any more

    def run() -> None:
        try:
            ended.set_result(rejoin(address))
        except Exception as error:
            ended.set_exception(error)

    threading.Thread(target=run, name=f"rejoin-{address}", daemon=True).start()
    try:
        return None if await asyncio.wrap_future(ended) else "rejoin refused"
    except Exception as error:  # the owner's boundary: a failure there excludes this one server
        return f"{type(error).__name__}: {error}"


def _answer_of(response: httpx.Response) -> Any:
    """Its JSON, or else its text."""
    try:
        return response.json()
    except ValueError:
        return response.text


def _describe(error: httpx.HTTPError) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
