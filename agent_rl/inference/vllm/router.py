"""An external router: one address for completions, in front of the servers that weights are sent to one by one.

Whoever runs it (vllm-router, llm-d, production-stack) decides which server samples; `X-Session-ID` names the
conversation, for routers that keep one at a server. Runs on the pool's event loop. Not here: the servers' own health
(`server_pool.py`), requests and answers (`server_answers.py`).
"""

import asyncio

from agent_rl.errors import EngineError
from agent_rl.inference.vllm.server_pool import ServerPool, ServerState
from agent_rl.records import SamplingParams

SESSION_HEADER = "X-Session-ID"
_FIRST_WAIT_S = 1.0
_WAIT_FACTOR = 4.0
_UP_CHECK_S = 5.0
_DOWN_CHECK_S = 0.25


def session_header(sampling: SamplingParams) -> dict[str, str]:
    """The header that names the conversation; none for a completion without one."""
    return {} if sampling.session is None else {SESSION_HEADER: str(sampling.session)}


def wait_after(num_losses: int) -> float:
    """Seconds before a request that was lost behind the router is sent again: 1, 4, 16, 64.

    The router needs them to notice which server is gone; this client cannot tell.
    """
    return _FIRST_WAIT_S * _WAIT_FACTOR ** (num_losses - 1)


class RouterState(ServerState):
    """The router's state; down while it does not answer or answers with a server error."""

    def __init__(self, address: str, pool: ServerPool, *, start_timeout_s: float) -> None:
        super().__init__(address)
        self._pool = pool
        self._start_timeout_s = start_timeout_s
        self._came_up = asyncio.Event()

    async def pick(self) -> "RouterState":
        """Itself, once it is up and any server behind it is.

        EngineError when there is no such moment for `start_timeout_s`.
        """
        await self._pool.wait_for_one()
        try:
            async with asyncio.timeout(self._start_timeout_s):
                while not self.is_up:
                    self._came_up.clear()
                    await self._came_up.wait()
        except TimeoutError:
            raise EngineError(
                f"the router {self.address} (vllm.router) was not there for {self._start_timeout_s:g} s "
                f"(vllm.start_timeout_s): {self.problem}"
            ) from None
        return self

    async def watch(self) -> None:
        """Look at its health for ever; one that is down loses its running requests, which are sent again."""
        while True:
            self.was_lost.clear()
            try:
                await asyncio.wait_for(self.was_lost.wait(), _UP_CHECK_S if self.is_up else _DOWN_CHECK_S)
                await asyncio.sleep(_DOWN_CHECK_S / 2)
            except TimeoutError:
                pass
            problem = await self._pool.health_problem(self.address)
            if problem is None:
                self.is_up = True
                self._came_up.set()
            else:
                self._pool.mark_down(self, problem)
                for task in list(self.running):
                    task.cancel()
