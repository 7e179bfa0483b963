"""Client of vLLM servers that `agent-rl serve-vllm` started, for hundreds of waiting threads.

A request whose server is lost is sent again, with its seed, to the next one; every call gets exactly one completion.
Not here: which server is next (`routing.py`) and which is down (`server_pool.py`), a router in front of them
(`router.py`), requests and answers (`server_answers.py`), what happens when weights change (`server_engine.py`),
starting servers (`launch.py`).
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any, TypeVar

from agent_rl.closing import Closing
from agent_rl.errors import EngineError
from agent_rl.inference.base import Cancel, Probe
from agent_rl.inference.vllm.router import RouterState, session_header, wait_after
from agent_rl.inference.vllm.server.settings import ServerSettings
from agent_rl.inference.vllm.server_answers import (
    GENERATE_PATH,
    make_body,
    make_completion,
    make_probe,
    read_answer,
)
from agent_rl.inference.vllm.server_checks import check_router, check_server
from agent_rl.inference.vllm.server_pool import ServerLostError, ServerPool, ServerState, UnknownAdapterError
from agent_rl.loop_thread import LoopThread, cancel_others
from agent_rl.records import Completion, FinishReason, SamplingParams

MAX_ATTEMPTS = 5
"""A request that lost this many servers fails: it may be the cause."""
_CANCEL_POLL_S = 0.2
_CLOSE_S = 10.0
_CLOSED = "the client of the vLLM servers was closed"
_Result = TypeVar("_Result")


class VLLMServers(Closing):
    """A client of one or more servers. All methods block and may be called from any thread. `close` it."""

    adapter: str | None = None
    """The servers' name of the LoRA adapter to sample with; None: the plain weights."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        request_timeout_s: float,
        start_timeout_s: float,
        first: int = 0,
        router: str | None = None,
    ) -> None:
        """Start the thread; sends nothing yet. `addresses` as in `vllm.servers`: `("http://127.0.0.1:8000",)`.

        With `router`, an address too, completions go there and everything else to the servers.
        `request_timeout_s` bounds one completion with all waits and retries, `start_timeout_s` the wait for a server.
        Every process begins with another server, the one at place `first`.
        """
        self.addresses = tuple(addresses)
        self._request_timeout_s = request_timeout_s
        self._start_timeout_s = start_timeout_s
        self._is_closed = False
        self._guard = threading.Lock()
        """Of the one above."""
        self._is_released = asyncio.Event()
        """Not set while held."""
        self._is_released.set()
        self.pool = ServerPool(self.addresses, start_timeout_s=start_timeout_s, first=first)
        """Its owner sets `weight_version`, `weight_label` and `rejoin` there."""
        self._num_read = self._num_cached = 0
        """Tokens of prompts that were answered, and those of them from a server's cache."""
        self._router = None if router is None else RouterState(router, self.pool, start_timeout_s=start_timeout_s)
        self._loop = LoopThread("vllm-servers")
        self._loop.result(self.pool.start())
        if self._router is not None:
            self._loop.start(self._router.watch())

    def hold(self) -> None:
        """From now on `complete` waits before it sends a request, until `release`; no other method waits.

        Earlier requests are answered, but with tokens of newer weights only after `release`.
        """

        async def clear() -> None:
            self._is_released.clear()

        self._run(clear())

    def release(self) -> None:
        """End `hold`; does nothing if nothing is held, or closed."""
        with self._guard:
            if not self._is_closed:
                self._loop.call(self._is_released.set)

    def complete(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """Generate one completion.

        Ends as `INTERRUPTED`, with the tokens sampled so far, when the owner pauses the servers; as `CANCELLED`,
        without tokens, once `cancel` is set. Raises EngineError without a server or an answer in time, for a bad
        answer, or if closed; its child RequestRefusedError for a prompt or parameters that a server refuses.
        """
        completion = self._run(self._complete(tuple(prompt_ids), sampling), cancel)
        return completion or Completion(
            token_ids=(),
            logprobs=(),
            finish_reason=FinishReason.CANCELLED,
            weight_version=self.pool.weight_version or 0,
        )

    def counters(self) -> dict[str, float]:
        """So far: tokens of the prompts that servers answered, and how many of them came from their caches."""
        return {"prompt_tokens_read": self._num_read, "prompt_tokens_cached": self._num_cached}

    def probe(
        self, address: str, prompt_ids: Sequence[int], *, num_tokens: int, temperature: float, seed: int
    ) -> Probe:
        """Sample `num_tokens` on this one server, no stop ids. EngineError when it does not, or is paused meanwhile."""
        sampling = SamplingParams(max_new_tokens=num_tokens, temperature=temperature, seed=seed)
        body = make_body(prompt_ids, sampling, adapter=self.adapter)
        answer = self.post(address, GENERATE_PATH, body)
        return make_probe(address, read_answer(address, answer, sampling), num_tokens=num_tokens)

    def wait_until_up(
        self, *, max_context: int, dtype: str, lora_rank: int, weight_transfer: str, head_dtype: str | None = None
    ) -> None:
        """Wait until all servers answer, and check that they can serve this run; a server left paused is resumed.

        ConfigError, naming what to do, for a server that does not answer within `start_timeout_s`, was not started by
        `agent-rl serve-vllm`, has a window below `max_context`, computes in another number format than `dtype`
        ("float32"), or its output layer in another than `head_dtype` (None: as the rest), serves no adapters of
        `lora_rank` (0: none needed), or cannot be sent weights by `weight_transfer` ("files" or "nccl"); and for a
        router that does not pass completions on to them.
        """
        needed = ServerSettings(
            dtype=dtype, head_dtype=head_dtype or dtype, lora_rank=lora_rank, weight_transfer=weight_transfer
        )

        async def check_all() -> None:
            run = {"start_timeout_s": self._start_timeout_s, "max_context": max_context, "needed": needed}
            await asyncio.gather(*(check_server(self.pool, address, **run) for address in self.addresses))
            if self._router is not None:
                await check_router(self.pool, self._router, start_timeout_s=self._start_timeout_s)

        self._run(check_all())

    def get(self, address: str, path: str, *, timeout_s: float | None = None) -> Any:
        """The JSON (or text) that one server answers, up or down. EngineError naming it when it fails.

        `timeout_s` is `request_timeout_s` unless given.
        """
        return self._run(self._call("GET", address, path, timeout_s=timeout_s))

    def post(self, address: str, path: str, json: Any = None, **options: Any) -> Any:
        """As `get`; `options` are `timeout_s`, and `params` for those of the address."""
        return self._run(self._call("POST", address, path, json=json, **options))

    def post_all(self, path: str, json: Any = None, **options: Any) -> dict[str, Any]:
        """Post to all servers that are up, at the same time; the answers by address.

        Waits for all, then raises the first EngineError. With no server up it waits for one as `complete` does.
        """

        async def post_to_each() -> dict[str, Any]:
            await self.pool.wait_for_one()
            up = [server.address for server in self.pool.servers.values() if server.is_up]
            posts = [self._call("POST", address, path, json=json, **options) for address in up]
            answers = await asyncio.gather(*posts, return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            return dict(zip(up, answers, strict=True))

        return self._run(post_to_each())

    def close(self) -> None:
        """End everything; waiting callers get EngineError. Calling it again does nothing."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
        self._loop.start(self._end()).result(_CLOSE_S)
        self._loop.close()

    def _run(self, work: "Coroutine[Any, Any, _Result]", cancel: Cancel | None = None) -> _Result | None:
        """Wait for work on the loop; None when `cancel` was set first. The work ends with the wait."""
        with self._guard:
            if self._is_closed:
                work.close()
                raise EngineError(_CLOSED)
            future: Future[_Result] = self._loop.start(work)
        try:
            while not future.done():
                wait([future], timeout=None if cancel is None else _CANCEL_POLL_S)
                if cancel is not None and cancel.is_set():
                    return None
            return future.result()
        except CancelledError:
            raise EngineError(_CLOSED) from None
        finally:
            future.cancel()

    async def _call(self, method: str, address: str, path: str, *, timeout_s: float | None = None, **what: Any) -> Any:
        timeout_s = self._request_timeout_s if timeout_s is None else timeout_s
        return await self.pool.call(address, method, path, timeout_s=timeout_s, **what)

    async def _complete(self, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        losses: list[str] = []
        try:
            async with asyncio.timeout(self._request_timeout_s):
                while len(losses) < MAX_ATTEMPTS:
                    try:
                        return await self._attempt(prompt_ids, sampling)
                    except ServerLostError as error:
                        losses.append(str(error))
                        if self._router is not None and len(losses) < MAX_ATTEMPTS:
                            await asyncio.sleep(wait_after(len(losses)))
        except TimeoutError:
            lost = f"; lost meanwhile: {'; '.join(losses)}" if losses else ""
            raise EngineError(
                f"no completion within {self._request_timeout_s:g} s (vllm.request_timeout_s){lost}"
            ) from None
        raise EngineError(f"{MAX_ATTEMPTS} servers in a row were lost with the same request: {'; '.join(losses)}")

    async def _attempt(self, prompt_ids: tuple[int, ...], sampling: SamplingParams) -> Completion:
        server = await self._pick(sampling)
        expected, adapter = self.pool.weight_label, self.adapter
        try:
            headers = None if self._router is None else session_header(sampling)
            body = make_body(prompt_ids, sampling, adapter=adapter)
            answer = await self.pool.request(server, GENERATE_PATH, body, headers=headers)
        except UnknownAdapterError as error:
            if adapter == self.adapter:  # otherwise the next adapter came in between
                self._doubt(server, str(error))
            raise
        read = read_answer(server.address, answer, sampling)
        if not read.labels <= {expected}:  # it arrived after the pause: its weights may not be verified yet
            await self._is_released.wait()
        others = read.labels - {expected, self.pool.weight_label}
        if others and expected is not None and self.pool.rejoin is not None:
            # A new process took the place of the server between two looks at its health.
            problem = f"samples with the weights {min(others)!r}, sent were {expected!r}"
            self._doubt(server, problem)
            raise ServerLostError(f"{server.address} {problem}")
        self._num_read += len(prompt_ids)
        self._num_cached += read.num_cached or 0
        return make_completion(read, version_if_none=self.pool.weight_version or 0)

    async def _pick(self, sampling: SamplingParams) -> ServerState:
        while True:
            await self._is_released.wait()
            if self._router is not None:
                server = await self._router.pick()
            else:
                server = await self.pool.pick(session=sampling.session, group=sampling.group)
            if self._is_released.is_set():  # otherwise they were held while no server was up
                return server

    def _doubt(self, server: ServerState, problem: str) -> None:
        """A server does not have the weights that were sent; behind a router it may be any, so all are looked at."""
        for each in [server] if self._router is None else self.pool.servers.values():
            self.pool.mark_down(each, problem)

    async def _end(self) -> None:
        await self.pool.close()
        await cancel_others()
