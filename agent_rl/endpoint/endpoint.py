"""An endpoint inside this process: sessions over a policy, served on an address.

    with Endpoint(policy) as endpoint:
        key, session = endpoint.sessions.open(spec)
        client = OpenAI(base_url=endpoint.base_url(key), api_key=key)

Not here: who plays (`external.py`), training (`serving/`).
"""

from agent_rl.closing import Closing
from agent_rl.endpoint.app import EndpointApp
from agent_rl.endpoint.server import ThreadedServer
from agent_rl.endpoint.sessions import Sessions
from agent_rl.policies.policy import BasePolicy

MAX_THREADS = 1024
"""Requests sampled at the same time; threads are made as they are needed."""
MAX_WAITING = 8192


class Endpoint(Closing):
    """Serves a policy to agents; `close` ends all sessions. The policy is the caller's and stays open."""

    def __init__(self, policy: BasePolicy, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Start; ConfigError where the address cannot be bound. Port 0 takes a free one."""
        self.sessions = Sessions(policy, max_waiting=MAX_WAITING)
        self._app = EndpointApp(self.sessions, num_threads=MAX_THREADS)
        self._server = ThreadedServer(self._app.app, host=host, port=port)
        loopback = "[::1]" if ":" in host else "127.0.0.1"
        self._address = f"http://{loopback}:{self._server.port}" if self._server.is_everywhere else self._server.address

    def base_url(self, key: str) -> str:
        """The address for OpenAI's clients on this machine; it names the session, so that they need send no key."""
        return f"{self._address}/s/{key}/v1"

    def close(self) -> None:
        self.sessions.conclude_all()
        self._server.close()
        self._app.close()
