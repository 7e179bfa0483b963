"""The servers that take part in one weight sync; each call goes to all at the same time.

A server that is lost meanwhile, or hangs, leaves: it gets the weights when it comes back. Not here: the calls
(`server_engine.py`, `transports.py`), coming back (`server_pool.py`).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ALL_COMPLETED, FIRST_EXCEPTION, Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import TYPE_CHECKING, Any, TypeVar

from agent_rl.distributed.weight_verification import WeightSyncError
from agent_rl.errors import EngineError

if TYPE_CHECKING:
    from agent_rl.inference.vllm.servers import VLLMServers

T = TypeVar("T")

_HEALTH_S = 5.0
"""Timeout of a health check, and the interval of checks during a long call."""
_MOST_MISSES = 2
"""Failed health checks in a row that are tolerated: a machine may be busy."""


class MemberLostError(WeightSyncError):
    """A server that answers, but was started again since the sync began."""


class _HangsError(EngineError):
    """A server that does not answer its health check."""


class Members:
    """`Members(servers, servers.addresses)`; `addresses` are those that were not lost so far."""

    def __init__(self, servers: "VLLMServers", addresses: Sequence[str]) -> None:
        self.servers = servers
        self.addresses = tuple(addresses)

    def call(self, call: Callable[[str], T], *, may_leave: bool = True) -> dict[str, T]:
        """`call(address)` for every member; the answers by address.

        A member whose health check fails during the call has failed, however long the call may take. EngineError when a
        member fails that still answers, when none is left, and for any failure unless it `may_leave`; a MemberLostError
        only when none is left.
        """
        answers: dict[str, T] = {}
        lost: EngineError | MemberLostError | None = None
        threads = ThreadPoolExecutor(2 * len(self.addresses))
        waiting = {address: threads.submit(call, address) for address in self.addresses}
        watched = {address: threads.submit(self._outcome, address, future) for address, future in waiting.items()}
        threads.shutdown(wait=False)  # a call to a server that hangs ends by its own limit
        ended, _ = wait_for(watched.values(), return_when=ALL_COMPLETED if may_leave else FIRST_EXCEPTION)
        for address, future in watched.items():
            if future not in ended:
                continue
            try:
                answers[address] = future.result()
            except (EngineError, MemberLostError) as error:
                is_known_lost = isinstance(error, _HangsError | MemberLostError)
                if not may_leave or (not is_known_lost and self._answers(address)):
                    raise
                lost = error
        if isinstance(lost, MemberLostError) and not answers:
            raise lost
        if lost is not None and not answers:
            raise EngineError(
                f"all vLLM servers were lost while their weights were changed; the last: {lost}"
            ) from lost
        self.addresses = tuple(answers)
        return answers

    def post(self, path: str, json: Any = None, *, may_leave: bool = True, **options: Any) -> dict[str, Any]:
        """Send the same post to every member; `options` as `VLLMServers.post` has them."""
        return self.call(lambda address: self.servers.post(address, path, json, **options), may_leave=may_leave)

    def _outcome(self, address: str, call: Future[T]) -> T:
        """The result of the call; EngineError if the server hangs first."""
        misses = 0
        while not wait_for([call], _HEALTH_S).done:
            misses = 0 if self._answers(address) else misses + 1
            if misses == _MOST_MISSES and not call.done():
                raise _HangsError(f"{address} hangs: it did not answer its health check within {_HEALTH_S:g} s")
        return call.result()

    def _answers(self, address: str) -> bool:
        try:
            self.servers.get(address, "/health", timeout_s=_HEALTH_S)
        except EngineError:
            return False
        return True
