"""The servers that take part in one change of weights, asked all at the same time.

Whoever is lost meanwhile leaves: it is given the weights when it comes back. Not here: what is asked
(`server_sampler.py`, `transports.py`), coming back (`server_pool.py`).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from agent_rl.errors import EngineError

if TYPE_CHECKING:
    from agent_rl.vllm_backend.servers import VLLMServers

T = TypeVar("T")


class Members:
    """`Members(servers, servers.addresses)`; `addresses` are those that were not lost so far."""

    def __init__(self, servers: "VLLMServers", addresses: Sequence[str]) -> None:
        self.servers = servers
        self.addresses = tuple(addresses)

    def ask(self, call: Callable[[str], T], *, may_leave: bool = True) -> dict[str, T]:
        """`call(address)` for every member; what each answered, by address.

        EngineError when a member fails that still answers, when none is left, and for any failure unless it
        `may_leave`.
        """
        answers: dict[str, T] = {}
        lost: EngineError | None = None
        with ThreadPoolExecutor(len(self.addresses)) as threads:
            waiting = {address: threads.submit(call, address) for address in self.addresses}
        for address, future in waiting.items():
            try:
                answers[address] = future.result()
            except EngineError as error:
                if not may_leave or self._answers(address):
                    raise
                lost = error
        if lost is not None and not answers:
            raise EngineError(
                f"all vLLM servers were lost while their weights were changed; the last: {lost}"
            ) from lost
        self.addresses = tuple(answers)
        return answers

    def post(self, path: str, json: Any = None, **options: Any) -> dict[str, Any]:
        """The same post to every member; `options` as `VLLMServers.post` has them."""
        return self.ask(lambda address: self.servers.post(address, path, json, **options))

    def _answers(self, address: str) -> bool:
        try:
            self.servers.get(address, "/health")
        except EngineError:
            return False
        return True
