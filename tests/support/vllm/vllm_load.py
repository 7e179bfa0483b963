"""How busy a real vLLM server is, for tests that act while it samples."""

from collections.abc import Callable

from waiting import wait_for

from agent_rl.inference.vllm.servers import VLLMServers


def load_of(client: VLLMServers) -> list[int]:
    """Requests that the first server samples for, and that wait there."""
    metrics = client.get(client.addresses[0], "/metrics").splitlines()
    counts = [line for line in metrics if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))]
    return [round(float(line.split()[-1])) for line in sorted(counts)]


def wait_for_load(client: VLLMServers, num: int) -> None:
    """Wait until the first server has so many requests, `num`, which it samples for or which wait there, or more.

    Completions have to last much longer than an answer takes here, or they end before they are seen together.
    """
    _wait_until(client, lambda load: sum(load) >= num)


def wait_until_idle(client: VLLMServers) -> None:
    """Wait until the first server has no request."""
    _wait_until(client, lambda load: sum(load) == 0)


def _wait_until(client: VLLMServers, is_so: Callable[[list[int]], bool]) -> None:
    loads: list[list[int]] = []

    def is_there() -> bool:
        load = load_of(client)
        if load not in loads[-1:]:
            loads.append(load)
        return is_so(load)

    wait_for(is_there, timeout_s=120.0, seen=loads)
