"""The client of vLLM servers as tests with servers without a model make it, and what they sample."""

from fake_vllm_server import FakeVLLMServer

from agent_rl.inference.vllm.servers import VLLMServers
from agent_rl.records import SamplingParams

PROMPT = (3, 1, 4)
SAMPLING = SamplingParams(max_new_tokens=3, temperature=0.5, seed=41)


def client_of(
    *servers: FakeVLLMServer | str,
    request_timeout_s: float = 20.0,
    start_timeout_s: float = 10.0,
    router: str | None = None,
) -> VLLMServers:
    """Use as a context manager."""
    addresses = [server if isinstance(server, str) else server.address for server in servers]
    return VLLMServers(addresses, request_timeout_s=request_timeout_s, start_timeout_s=start_timeout_s, router=router)
