"""A server that speaks OpenEnv's protocol, written by hand from what version 0.3.0 sends, in a thread of the test."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

from agent_rl.closing import Closing

GUESS = {"properties": {"metadata": {"type": "object"}, "guess": {"type": "string"}}, "required": ["guess"]}
CALL = {
    "properties": {"type": {"type": "string"}, "tool_name": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["tool_name"],
}
ADD = {"name": "add", "description": "Add.", "input_schema": {"properties": {"amount": {"type": "integer"}}}}


class Guessing:
    """Guess the last digit of the seed, in three steps; letters "a" earn a little."""

    def __init__(self) -> None:
        self.number = self.num_steps = 0

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.number = data.get("seed", data.get("number", 0)) % 10
        return observation({"hint": "Guess from 0 to 9."}, reward=0.0)

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        if set(data) != {"guess"}:
            error = {"loc": ["guess"], "msg": "Field required"}
            return failed("Invalid message", "VALIDATION_ERROR", errors=[error])
        self.num_steps += 1
        is_right = data["guess"].strip() == str(self.number)
        share = 0.1 * data["guess"].count("a") / max(1, len(data["guess"]))
        hint = {"hint": "right" if is_right else "wrong"}
        return observation(hint, reward=1.0 if is_right else share, done=is_right or self.num_steps == 3)

    def state(self) -> dict[str, Any]:
        return {"type": "state", "data": {"episode_id": "x", "step_count": self.num_steps}}


class Counting(Guessing):
    """A tool adds to a count, as a server of MCP tools has it; 3 earns 1, beyond 9 it is over."""

    count = 0

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.count = 0
        return observation({})

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        if data == {"type": "list_tools"}:
            return observation({"tools": [ADD]})
        self.num_steps += 1
        if data["tool_name"] != "add":
            message = {"error_type": "tool_not_found", "message": f"Unknown tool: {data['tool_name']}"}
            return observation({"tool_name": data["tool_name"], "result": None, "error": message}, reward=0.0)
        self.count += data["arguments"]["amount"]
        content = {"content": [{"type": "text", "text": f"the count is {self.count}"}], "is_error": False}
        given = {"tool_name": "add", "result": content, "error": None}
        return observation(given, reward=float(self.count == 3), done=self.count > 9)


def observation(seen: Any, *, reward: Any = None, done: Any = False) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": seen, "reward": reward, "done": done}}


def failed(message: str, code: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}


class FakeServer(Closing):
    """`make` gives an environment for each session; `schema` is the JSON, or the text, of `/schema`; `answer` takes the
    place of the environment's answers: a value, or a text sent as it is, or None to break off."""

    def __init__(
        self,
        make: Callable[[], Guessing] = Guessing,
        *,
        schema: Any = None,
        has_socket: bool = True,
        max_sessions: int = 100,
        answer: Callable[[dict[str, Any]], Any] = lambda _: ...,
    ) -> None:
        from websockets.sync.server import serve

        self._make, self._answer, self._has_socket = make, answer, has_socket
        fields = CALL if make is Counting else GUESS
        self._schema = schema if isinstance(schema, str) else json.dumps(schema or {"action": fields})
        self._places = threading.Semaphore(max_sessions)
        self.max_sessions, self.num_open = max_sessions, 0
        self.received: list[dict[str, Any]] = []
        self.sessions: list[list[str]] = []
        self._server = serve(self._session, "127.0.0.1", 0, process_request=self._request)
        self.url = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()

    def _request(self, connection: Any, request: Any) -> Any:
        if request.path == "/schema":
            return connection.respond(HTTPStatus.OK, self._schema)
        if request.path != "/ws" or not self._has_socket:
            return connection.respond(HTTPStatus.NOT_FOUND, "Not Found")
        return None

    def _session(self, socket: Any) -> None:
        if not self._places.acquire(blocking=False):
            full = failed("at capacity", "CAPACITY_REACHED", max_sessions=self.max_sessions)
            return socket.send(json.dumps(full))
        self.num_open += 1
        with self._freeing():
            self._talk(socket, self._make())

    @contextmanager
    def _freeing(self) -> Iterator[None]:
        try:
            yield
        finally:
            self.num_open -= 1
            self._places.release()

    def _talk(self, socket: Any, env: Guessing) -> None:
        asked: list[str] = []
        self.sessions.append(asked)
        for text in socket:
            message = json.loads(text)
            self.received.append(message)
            asked.append(message["type"])
            if message["type"] == "close":
                return
            said = self._answer(message)
            if said is None:
                return
            if said is ...:
                said = env.state() if message["type"] == "state" else getattr(env, message["type"])(message["data"])
            socket.send(said if isinstance(said, str | bytes) else json.dumps(said))
