"""A stand-in for `agent-rl serve-trainer`: the same contract, kept strictly, over a policy with one weight.

The policy multiplies: it calls the calculator where it is offered one, else it answers; its answer is right with
probability `p_right`, drawn from the episode's seed and the number of the turn. Tokens are bytes. What it does wrong on
purpose is in KNOBS, set through the command line or `POST /fake`; `GET /fake` tells what it was asked.
    python fake_trainer.py PORT KEY '{"steps": 3}'
"""

import json
import os
import random
import re
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

KNOBS: dict[str, Any] = {
    "steps": None,  # updates after which it takes no groups
    "busy": 0,  # further completions that are answered with 429
    "busy_groups": 0,  # further groups that are refused because completions run
    "error_after": None,  # completions after which one stream ends with an error of the server's
    "break_after": None,  # completions after which one ends in the middle
    "die_after": None,  # completions after which the process ends in the middle of one
    "status": None,  # instead of a completion
    "wrong_ids": False,  # sends other token ids than it records
    "fail_update": None,  # its error
    "slow_update": 0,  # polls that find it running
    "p_right": 0.3,
}
EPISODE_ID = re.compile(r"[A-Za-z0-9._:/-]{1,200}")
LOCK = threading.RLock()


class Refusal(Exception):
    def __init__(self, status: int, message: str, code: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers


class Trainer:
    """Everything but HTTP."""

    def __init__(self, knobs: dict[str, Any]) -> None:
        self.knobs = KNOBS | knobs
        self.episodes: dict[str, dict[str, Any]] = {}
        self.updates: list[dict[str, Any]] = []
        self.seen: dict[str, Any] = {"chats": [], "groups": [], "deleted": []}
        self.concluded: set[str] = set()
        self.num_chats = 0

    def complete(self, body: dict[str, Any], headers: Any) -> dict[str, Any]:
        """One completion: text or calls, and its ids."""
        name = headers.get("X-Agent-RL-Episode", "")
        if not EPISODE_ID.fullmatch(name):
            raise Refusal(400, f"X-Agent-RL-Episode is {name!r}; name the episode")
        self.num_chats += 1
        if self.knobs["busy"]:
            self.knobs["busy"] -= 1
            raise Refusal(429, "weights change", Retry_After="0.05")
        if self.knobs["status"]:
            raise Refusal(self.knobs["status"], "as the test wants it")
        if name in self.concluded:
            raise Refusal(409, f"episode {name} is concluded", "episode_concluded")
        if body.get("model") != "policy" or body.get("n", 1) != 1 or "seed" in body:
            raise Refusal(400, "model is policy, n is 1, and the seed is the header's")
        seed, temperature = headers.get("X-Agent-RL-Seed"), headers.get("X-Agent-RL-Temperature")
        opened = {"seed": seed, "temperature": float(temperature or 1), "turns": [], "stop": None}
        episode = self.episodes.setdefault(name, opened)
        if episode["stop"]:
            raise Refusal(400, f"rollout stopped: {episode['stop']}", "rollout_stopped")
        message = self._draw(body, episode)
        text = json.dumps(message["tool_calls"]) if "tool_calls" in message else message["content"]
        ids = [*text.encode(), 256]
        asked = "".join(f"{each['role']}:{each.get('content')}" for each in body["messages"])
        turn = {
            "prompt_token_ids": list(asked.encode()),
            "token_ids": ids,
            "logprobs": [-0.5] * len(ids),
            "weight_version": len(self.updates),
            "parent": len(episode["turns"]) - 1 if episode["turns"] else None,
            "function": headers.get("X-Agent-RL-Function"),
        }
        episode["turns"].append(turn)
        self.seen["chats"].append(
            {"episode": name, "seed": seed, "function": turn["function"], "stream": body.get("stream")}
        )
        sent = [(each + 1) % 256 for each in ids] if self.knobs["wrong_ids"] else ids
        return {"message": message, "ids": sent}

    def _draw(self, body: dict[str, Any], episode: dict[str, Any]) -> dict[str, Any]:
        asked = next(each["content"] for each in body["messages"] if each["role"] == "user")
        if "stop early" in asked and episode["turns"]:
            episode["stop"] = "max_turns"
            raise Refusal(400, "rollout stopped: max_turns", "rollout_stopped")
        one, other = (int(number) for number in re.findall(r"\d+", asked)[:2])
        if body.get("tools") and body["messages"][-1]["role"] != "tool":
            call = {
                "name": body["tools"][0]["function"]["name"],
                "arguments": json.dumps({"expression": f"{one}*{other}"}),
            }
            return {
                "content": None,
                "tool_calls": [{"id": f"call_{len(episode['turns'])}", "type": "function", "function": call}],
            }
        is_right = random.Random(f"{episode['seed']}/{len(episode['turns'])}").random() < self.knobs["p_right"]
        if episode["temperature"] == 0:
            is_right = self.knobs["p_right"] > one / 10  # greedy: what is small is known first
        return {"content": f"Answer: {one * other + (not is_right)}"}

    def learn(self, body: dict[str, Any]) -> dict[str, int]:
        """One update with the groups: the weight rises where rewards of a group differ."""
        if self.knobs["busy_groups"]:
            self.knobs["busy_groups"] -= 1
            raise Refusal(409, "completions are in flight", "completions_in_flight", Retry_After="0.05")
        if self.knobs["steps"] is not None and len(self.updates) >= self.knobs["steps"]:
            raise Refusal(409, "all updates are made", "training_finished")
        counts: Counter[str] = Counter()
        for group in body["groups"]:
            assert set(group) == {"task_id", "episodes"} and isinstance(group["task_id"], str), group
            rewards = [r for each in group["episodes"] if (r := self._reward(each, counts)) is not None]
            if rewards and max(rewards) > min(rewards):
                self.knobs["p_right"] = min(0.95, self.knobs["p_right"] + 0.1)
        for each in (each for group in body["groups"] for each in group["episodes"]):
            self.episodes.pop(each["id"], None)
            self.concluded.add(each["id"])
        self.seen["groups"].append(body)
        number = len(self.updates) + 1
        metrics = {f"rollout/{name}": float(count) for name, count in counts.items()}
        state = "failed" if self.knobs["fail_update"] else "completed"
        self.updates.append(
            {
                "update": number,
                "state": state,
                "weight_version": number,
                "metrics": metrics,
                "error": self.knobs["fail_update"],
            }
        )
        return {"update": number}

    def _reward(self, told: dict[str, Any], counts: Counter[str]) -> float | None:
        assert set(told) == {"id", "reward", "parts", "success", "error", "token_ids"}, told
        if told["reward"] is None or told["error"]:
            counts["dropped"] += 1
            return None
        if told["id"] not in self.episodes:
            raise Refusal(404, f"episode {told['id']} was never opened", "unknown_episode")
        recorded = Counter(tuple(turn["token_ids"]) for turn in self.episodes[told["id"]]["turns"])
        given = Counter(map(tuple, told["token_ids"] or ()))
        if given - recorded:
            counts["id_mismatches"] += 1
            return None
        counts["checked_turns"] += given.total()
        return told["reward"]

    def update(self, number: int) -> dict[str, Any]:
        if not 0 < number <= len(self.updates):
            raise Refusal(404, f"there is no update {number}")
        if self.knobs["slow_update"]:
            self.knobs["slow_update"] -= 1
            return self.updates[number - 1] | {"state": "running", "metrics": {}}
        return self.updates[number - 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    trainer: Trainer
    key = ""

    def log_message(self, *_: Any) -> None:
        pass

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        try:
            if self.path not in ("/fake", "/health") and self.headers.get("Authorization") != f"Bearer {self.key}":
                raise Refusal(401, "the key is wrong")
            if self.path == "/v1/chat/completions":
                self._chat(body)
                return
            with LOCK:
                answer = self._route(body)
            self._send(202 if self.path == "/v1/groups" else 200, answer)
        except Refusal as refusal:
            error = {"message": str(refusal), "type": "invalid_request_error", "param": None, "code": refusal.code}
            self._send(refusal.status, {"error": error}, refusal.headers)

    do_GET = do_POST = do_DELETE = handle_any

    def _route(self, body: dict[str, Any]) -> Any:
        trainer, path = self.trainer, unquote(self.path)
        if path == "/fake":
            trainer.knobs.update(body)
            return {**trainer.seen, "open": sorted(trainer.episodes), "knobs": trainer.knobs}
        if path == "/health":
            if self.headers.get("Authorization") != f"Bearer {self.key}":
                return {"status": "ok"}
            done = len(trainer.updates)
            return {"status": "ok", "model": "fake", "weight_version": done, "updates": done, "in_flight": 0}
        if path == "/v1/models":
            return {"object": "list", "data": [{"id": "policy", "object": "model"}]}
        if path == "/v1/groups":
            return trainer.learn(body)
        if path.startswith("/v1/updates/"):
            return trainer.update(int(path.rpartition("/")[2]))
        name = path.removeprefix("/v1/episodes/")
        if name == path or name not in trainer.episodes:
            raise Refusal(404, f"{path} is unknown")
        if self.command == "DELETE":
            trainer.seen["deleted"].append(name)
            trainer.concluded.add(name)
            del trainer.episodes[name]
            return {}
        return {"id": name, "concluded": False, "stop_reason": None, "turns": trainer.episodes[name]["turns"]}

    def _send(self, status: int, answer: Any, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chat(self, body: dict[str, Any]) -> None:
        with LOCK:
            drawn = self.trainer.complete(body, self.headers)
            version = len(self.trainer.updates)
        message, ids = drawn["message"], drawn["ids"]
        finish = "tool_calls" if "tool_calls" in message else "stop"
        content = [{"token": str(i), "bytes": None, "logprob": -0.5, "top_logprobs": [], "token_id": i} for i in ids]
        logprobs = {"content": content, "refusal": None} if body.get("logprobs") else None
        head = {"id": "chatcmpl-1", "created": 0, "model": "policy", "system_fingerprint": f"weights-{version}"}
        usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)}
        if not body.get("stream"):
            self._break_off()
            choice = {
                "index": 0,
                "finish_reason": finish,
                "logprobs": logprobs,
                "message": {"role": "assistant", **message},
            }
            self._send(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def event(delta: dict[str, Any], **rest: Any) -> None:
            choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None, **rest}
            self._event({**head, "object": "chat.completion.chunk", "choices": [choice]})

        event({"role": "assistant", "content": ""})
        self._break_off()
        if self._is_due("error_after"):
            self._event(
                {"error": {"message": "the engine stopped", "type": "server_error", "param": None, "code": None}}
            )
            self.wfile.write(b"0\r\n\r\n")
            return
        calls = [{"index": k, **call} for k, call in enumerate(message.get("tool_calls", ()))]
        half = len(ids) // 2
        parts = (content[:half], content[half:])
        deltas = (
            ({"tool_calls": calls}, {})
            if calls
            else ({"content": message["content"][:3]}, {"content": message["content"][3:]})
        )
        for delta, part in zip(deltas, parts, strict=True):
            event(delta, logprobs=logprobs and {"content": part, "refusal": None})
        event({}, finish_reason=finish)
        if (body.get("stream_options") or {}).get("include_usage"):
            self._event({**head, "object": "chat.completion.chunk", "choices": [], "usage": usage})
        self._write("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, chunk: dict[str, Any]) -> None:
        self._write(f"data: {json.dumps(chunk)}\n\n")

    def _write(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _break_off(self) -> None:
        if self._is_due("die_after"):
            os._exit(9)
        if self._is_due("break_after"):
            raise ConnectionAbortedError

    def _is_due(self, knob: str) -> bool:
        """Whether something that happens once happens now."""
        with LOCK:
            after = self.trainer.knobs[knob]
            if after is None or self.trainer.num_chats <= after:
                return False
            self.trainer.knobs[knob] = None
            return True


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(port: int, key: str, knobs: dict[str, Any]) -> Server:
    handler = type("OneHandler", (Handler,), {"trainer": Trainer(knobs), "key": key})
    return Server(("127.0.0.1", port), handler)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])).serve_forever()
