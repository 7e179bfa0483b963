"""A server for an endpoint in threads of this process: bound, started, stopped.

Not here: what it answers (`app.py`).
"""

import socket
import threading
import time

import uvicorn
from starlette.types import ASGIApp

from agent_rl.closing import Closing
from agent_rl.errors import ConfigError, EngineError

START_S = 30.0
STOP_S = 10.0
KEEP_ALIVE_S = 120
"""An idle connection is closed after this time: longer than clients keep theirs, which would else send into the end."""


class ThreadedServer(Closing):
    """Serves `app` from a thread until it is closed; `address` is its root, such as `http://127.0.0.1:8601`."""

    def __init__(self, app: ASGIApp, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Bind and start; port 0 takes a free one. ConfigError where the address cannot be bound."""
        self._socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise ConfigError(
                f"the endpoint cannot listen on {host}:{port} ({error.strerror}); choose another"
            ) from error
        self.port = self._socket.getsockname()[1]
        self.address = f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"
        self.is_everywhere = host in ("", "0.0.0.0", "::")
        """Whether it listens on all addresses of this machine, so that `address` names none to send a request to."""
        config = uvicorn.Config(
            app,
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=2,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=2048,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="endpoint", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise EngineError(f"the endpoint on {self.address} did not start")
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._socket.close()
