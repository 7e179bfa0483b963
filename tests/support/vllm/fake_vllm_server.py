"""A vLLM server without a model, for tests: the routes that `VLLMServers` uses, in a thread, and the requests it got.

Token i of a request with seed s is `(s + i) % 100`, its log-prob `-1 - i / 100`. As a program it serves until killed:

    python tests/support/vllm/fake_vllm_server.py --port 8000 [--child] [--die-after-s 0.5]
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Behaviour = str | tuple[int, Any]
"""`serve`; `drop` the connection; `hang` until released, paused or the client is gone; `later`: hang, then serve; or a
status and a body."""
NUM_BEFORE_PAUSE = 2


class FakeVLLMServer:
    """Use as a context manager, or `start` and `stop`; `stop` breaks all connections, as a killed process does."""

    def __init__(self, *, port: int = 0, label: str = "default") -> None:
        self.port = port
        self.label = label
        self.is_paused = False
        self.window = 4096
        self.names = ["policy", "settings/dtype=float32/head_dtype=float32/lora_rank=16/weight_transfer=files"]
        self.vocab_size = 1000
        self.num_cached: int | None = 0
        self.weights: list[dict[str, Any]] | None = None
        """What its workers answer to `agent_rl_weights`; None: they have no such method."""
        self.without: dict[str, int] = {}
        """Routes that answer with a status and nothing else."""
        self.behave: Callable[[dict[str, Any]], Behaviour] = lambda _body: "serve"
        self.bodies: list[dict[str, Any]] = []
        """Of all requests for a completion, in the order in which they came."""
        self.calls: list[tuple[str, dict[str, Any]]] = []
        """Path and parameters of all other posts."""
        self.counts: Counter[str] = Counter()
        """`served`, `dropped`, `gone` (the client went away), `aborted`."""
        self.release = threading.Event()
        self.is_silent = False
        """Accepts connections and answers nothing."""
        self.pauses = 0
        self.lock = threading.Lock()
        self.connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "FakeVLLMServer":
        fake = self

        class Handler(_Handler):
            server_state = fake

        self._server = _Quiet(("127.0.0.1", self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._server = None
        with self.lock:
            connections = list(self.connections)
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue

    def __enter__(self) -> "FakeVLLMServer":
        return self.start()

    def __exit__(self, *_error: object) -> None:
        self.release.set()
        self.stop()

    def count(self, what: str) -> None:
        with self.lock:
            self.counts[what] += 1

    def sample(self, body: dict[str, Any], limit: int | None = None) -> dict[str, Any]:
        """The answer to a request, ended after `limit` tokens by a pause."""
        params = body["sampling_params"]
        ids = []
        for index in range(params["max_tokens"] if limit is None else limit):
            ids.append((params["seed"] + index) % 100)
            if ids[-1] in params["stop_token_ids"]:
                break
        is_stop = bool(ids) and ids[-1] in params["stop_token_ids"]
        reason = "abort" if limit is not None else "stop" if is_stop else "length"
        logprobs = [-1 - index / 100 for index in range(len(ids))]
        if allowed := params.get("allowed_token_ids"):
            ids, logprobs = allowed * len(ids), [0.0] * len(ids)
        content = [{"token_id": pair[0], "logprob": pair[1]} for pair in zip(ids, logprobs, strict=True)]
        spans = [{"version": self.label, "start": 0, "end": len(ids)}] if ids else []
        details = None if self.num_cached is None else {"cached_tokens": self.num_cached}
        choice = {
            "finish_reason": reason,
            "token_ids": ids,
            "logprobs": {"content": content},
            "weight_versions": spans,
        }
        return {"choices": [choice], "usage": {"prompt_tokens_details": details}}


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Broken connections are what these tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server_state: FakeVLLMServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        with self.server_state.lock:
            self.server_state.connections.add(self.connection)

    def finish(self) -> None:
        with self.server_state.lock:
            self.server_state.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing to the terminal."""

    def do_GET(self) -> None:
        state = self.server_state
        if state.is_silent:
            state.release.wait()
            return
        answers: dict[str, Any] = {
            "/health": {},
            "/weight_info": {"weight_version": state.label},
            "/is_paused": {"is_paused": state.is_paused},
            "/v1/models": {"data": [{"id": name, "max_model_len": state.window} for name in state.names]},
        }
        status = state.without.get(self.path, 200 if self.path in answers else 404)
        self.answer(status, answers.get(self.path, {}) if status == 200 else {"detail": "Not Found"})

    def do_POST(self) -> None:
        state = self.server_state
        parts = urlsplit(self.path)
        text = self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.loads(text) if text else {}
        if parts.path in state.without:
            self.answer(state.without[parts.path], {"detail": "not here"})
        elif parts.path == "/inference/v1/generate":
            self.generate(body)
        else:
            state.calls.append((parts.path, {key: values[0] for key, values in parse_qs(parts.query).items()} | body))
            if parts.path == "/pause":
                state.is_paused, state.pauses = True, state.pauses + 1
            if parts.path == "/resume":
                state.is_paused = False
            if parts.path == "/update_weight_version":
                state.label = body["new_version"]
            if body.get("method") == "agent_rl_weights":
                known = {"results": state.weights}
                self.answer(*((200, known) if state.weights else (500, {"error": {"message": "no such method"}})))
                return
            self.answer(200, {"ok": True})

    def generate(self, body: dict[str, Any]) -> None:
        state = self.server_state
        with state.lock:
            state.bodies.append(body)
        if too_large := [token_id for token_id in body["token_ids"] if token_id >= state.vocab_size]:
            self.answer(400, {"error": {"message": f"Token id {too_large[0]} is out of vocabulary"}})
            return
        behaviour = state.behave(body)
        if behaviour == "drop":
            state.count("dropped")
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        elif isinstance(behaviour, tuple):
            self.answer(*behaviour)
        elif behaviour == "serve" or self.hangs_until_released():
            state.count("served")
            self.answer(200, state.sample(body))
        elif self.close_connection:
            state.count("gone")
        else:
            state.count("aborted")
            self.answer(200, state.sample(body, limit=NUM_BEFORE_PAUSE))

    def hangs_until_released(self) -> bool:
        """True when released, False when paused or (`close_connection` is set) the client went away."""
        state = self.server_state
        pauses = state.pauses
        self.connection.setblocking(False)
        try:
            while not state.release.is_set():
                if state.pauses > pauses:
                    return False
                try:
                    if self.connection.recv(1, socket.MSG_PEEK) == b"":
                        self.close_connection = True
                        return False
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:
                    self.close_connection = True
                    return False
        finally:
            self.connection.setblocking(True)
        return True

    def answer(self, status: int, body: Any) -> None:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--child", action="store_true", help="start a process that would outlive this one")
    parser.add_argument("--die-after-s", type=float)
    options = parser.parse_args()
    if options.child:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print(f"child {child.pid}", flush=True)
    print(f"fake server {os.getpid()} on {options.port}", flush=True)
    with FakeVLLMServer(port=options.port):
        time.sleep(600 if options.die_after_s is None else options.die_after_s)
    print("the last words", flush=True)
    os._exit(3)


if __name__ == "__main__":
    main()
