"""A server that speaks OpenAI's chat completions as far as a planner needs them, with scripted answers."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answer = tuple[int, str] | str
"""Status and body, or the text of a good answer."""


class ChatServer(ThreadingHTTPServer):
    """Gives one of `answers` after the other, the last one for ever; records what it was sent."""

    daemon_threads = True

    def __init__(self, *answers: Answer) -> None:
        super().__init__(("127.0.0.1", 0), ChatHandler)
        self.answers = list(answers)
        self.delay_s = 0.0
        self.knows_schemas = True
        """Else `response_format: json_schema` is answered with 400."""
        self.requests: list[tuple[str, str | None, dict[str, Any]]] = []
        """Path, authorization, body."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *_args: object) -> None:
        """A client that gave up is what some tests are about."""

    def prompts(self) -> list[str]:
        return [body["messages"][0]["content"] for _, _, body in self.requests]


class ChatHandler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["Authorization"], body))
        time.sleep(self.server.delay_s)
        if not self.server.knows_schemas and body["response_format"]["type"] == "json_schema":
            self._send(400, json.dumps({"error": {"message": "response_format json_schema is not supported"}}))
            return
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self._send(*(answer if isinstance(answer, tuple) else (200, completion(answer))))

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if status in (301, 307):
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: object) -> None:
        """The test's output stays clean."""


def completion(text: str | None) -> str:
    """The body of a good answer."""
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 11, "completion_tokens": 7}
    return json.dumps({"choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


def error(status: int, message: str) -> tuple[int, str]:
    """An answer that refuses."""
    return status, json.dumps({"error": {"message": message}})


@contextmanager
def chat_server(*answers: Answer | Mapping[str, Any]) -> Iterator[ChatServer]:
    """A running server; mappings are answers in JSON."""
    texts = [json.dumps(each) if isinstance(each, Mapping) else each for each in answers]
    with ChatServer(*texts) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
