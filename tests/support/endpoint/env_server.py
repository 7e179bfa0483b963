"""Environments of the library behind HTTP, so that agents in other interpreters can act in them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from endpoint_agents import to_message, to_rows

from agent_rl.envs.base import AgentEnv


class EnvServer:
    """`POST /N` with an assistant's message acts in environment N: `{"rows": [...], "terminated": false}`."""

    def __init__(self, envs: list[AgentEnv]) -> None:
        self.rewards = [0.0] * len(envs)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                number = int(self.path.strip("/"))
                row = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps(outer._step(envs[number], number, row)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: Any) -> None:
                return None

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def _step(self, env: AgentEnv, number: int, row: dict[str, Any]) -> dict[str, Any]:
        message = to_message(row)
        result = env.step(message)
        self.rewards[number] += result.reward or 0.0
        ids = [*["none"] * len(message.tool_errors), *(call["id"] for call in row.get("tool_calls") or ())]
        return {"rows": to_rows(result.messages, ids), "terminated": result.terminated}

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
