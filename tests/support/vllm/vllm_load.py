"""How busy a real vLLM server is, for tests that act while it samples."""

from waiting import wait_for

from agent_rl.inference.vllm.servers import VLLMServers


def load_of(client: VLLMServers) -> list[int]:
    """Requests that the first server samples for, and that wait there."""
    metrics = client.get(client.addresses[0], "/metrics").splitlines()
    counts = [line for line in metrics if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))]
    return [round(float(line.split()[-1])) for line in sorted(counts)]


def wait_for_load(client: VLLMServers, *, running: int, waiting: int = 0) -> None:
    """Wait until the first server has this load.

    Completions have to last much longer than an answer takes here, or they end before they are seen together.
    """
    wait_for(lambda: load_of(client) == [running, waiting], timeout_s=60.0)
