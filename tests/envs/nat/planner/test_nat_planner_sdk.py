"""The Gemini client on the real SDK, against a fake server that speaks `generateContent`."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory.generate import split_of
from agent_rl.envs.nat.factory.planner.client import CallError, GeminiClient, Usage
from agent_rl.envs.nat.factory.planner.planner import PlannerSettings, plan_specs
from agent_rl.envs.nat.judge.parse import parse_spec

pytest.importorskip("google.genai", reason="needs google-genai: pip install -r requirements-gemini.txt")

ROOT = Path(__file__).resolve().parents[4]
SCHEMA = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
ANSWER = {
    "candidates": [{"content": {"role": "model", "parts": [{"text": '{"answer": 42}'}]}, "finishReason": "STOP"}],
    "usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7, "thoughtsTokenCount": 5},
}
BLOCKED = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 11}}


def reply_with(text: str) -> str:
    """The body of a good answer with this text."""
    return json.dumps({**ANSWER, "candidates": [{"content": {"role": "model", "parts": [{"text": text}]}}]})


class FakeService(ThreadingHTTPServer):
    """Answers every POST with the next of `replies`, or `status` and `body`, and records the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status, self.body, self.delay_s = 200, json.dumps(ANSWER), 0.0
        self.silent_from: int | None = None
        """The call from which on there is no answer."""
        self.replies: list[tuple[int, str]] = []
        self.requests: list[tuple[str, str | None, dict[str, Any]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: FakeService

    def do_POST(self) -> None:
        requests = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, self.headers["x-goog-api-key"], requests))
        time.sleep(self.server.delay_s)
        if self.server.silent_from is not None and len(self.server.requests) >= self.server.silent_from:
            return
        status, body = self.server.replies.pop(0) if self.server.replies else (self.server.status, self.server.body)
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_args: object) -> None:
        """The test's output stays clean."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeService]:
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    monkeypatch.delenv("GOOGLE_API_KEY", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")  # must not change where the key goes
    with FakeService() as service:
        threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
        yield service
        service.shutdown()


def client(server: FakeService, timeout_s: float = 10.0) -> GeminiClient:
    return GeminiClient(model="gemini-x", timeout_s=timeout_s, base_url=server.url)


def test_a_call_sends_the_schema_and_returns_text_and_tokens(server: FakeService) -> None:
    text, usage = client(server)("What is the answer?", SCHEMA)
    assert (text, usage) == ('{"answer": 42}', Usage(num_tokens_in=11, num_tokens_out=12))
    ((path, key, body),) = server.requests
    assert path.endswith("/models/gemini-x:generateContent")
    assert key == "secret"
    assert body["contents"][0]["parts"][0]["text"] == "What is the answer?"
    assert body["generationConfig"] == {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}


def test_an_answer_without_text_is_an_empty_text(server: FakeService) -> None:
    server.body = json.dumps(BLOCKED)
    assert client(server)("?", SCHEMA) == ("", Usage(num_tokens_in=11, num_tokens_out=0))


@pytest.mark.parametrize(
    ("status", "is_transient"),
    [(429, True), (500, True), (503, True), (408, True), (400, False), (403, False), (404, False)],
)
def test_a_status_decides_whether_to_retry(server: FakeService, status: int, is_transient: bool) -> None:
    server.status = status
    server.body = json.dumps({"error": {"code": status, "message": "not today", "status": "SOME"}})
    with pytest.raises(CallError, match=f"{status}: not today") as caught:
        client(server)("?", SCHEMA)
    assert caught.value.is_transient == is_transient
    assert len(server.requests) == 1  # the SDK's own retries are off


def test_an_error_page_that_is_no_json_is_transient_with_its_status(server: FakeService) -> None:
    server.status, server.body = 502, "<html>bad gateway</html>"
    with pytest.raises(CallError, match="502") as caught:
        client(server)("?", SCHEMA)
    assert caught.value.is_transient


def test_an_answer_that_is_no_json_is_transient(server: FakeService) -> None:
    server.body = '{"candidates": ['
    with pytest.raises(CallError) as caught:
        client(server)("?", SCHEMA)
    assert caught.value.is_transient


def test_a_slow_answer_times_out_as_transient(server: FakeService) -> None:
    server.delay_s = 2.0
    with pytest.raises(CallError, match="Timeout") as caught:
        client(server, timeout_s=0.2)("?", SCHEMA)
    assert caught.value.is_transient


def test_a_refused_connection_is_transient(monkeypatch: pytest.MonkeyPatch, server: FakeService) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(CallError, match="no answer from Gemini") as caught:
        GeminiClient(model="gemini-x", timeout_s=5.0, base_url=f"http://127.0.0.1:{port}")("?", SCHEMA)
    assert caught.value.is_transient


def test_the_other_name_of_the_key_is_known_too(monkeypatch: pytest.MonkeyPatch, server: FakeService) -> None:
    monkeypatch.delenv("GEMINI_API_KEY")
    monkeypatch.setenv("GOOGLE_API_KEY", "other")
    client(server)("?", SCHEMA)
    assert server.requests[0][1] == "other"


def test_without_a_key_one_sentence_names_the_variable(monkeypatch: pytest.MonkeyPatch, server: FakeService) -> None:
    monkeypatch.delenv("GEMINI_API_KEY")
    with pytest.raises(PlannerError, match="set GEMINI_API_KEY or GOOGLE_API_KEY"):
        client(server)


def plan(precision: int = 2) -> str:
    """The body of a good plan."""
    plan = {
        "rules": {
            "dimension": "length",
            "units": {"m": "1.0", "km": "1000.0", "cm": "0.01"},
            "precision": precision,
            "nonnegative": False,
        },
        "config_default": None,
        "left_out": [],
        "package": "nat_length_helper",
        "plan": {
            "scaffold_type": "simple_tool",
            "mcp_servers": [],
            "custom_tools": [{"name": "length_tool", "description": "Converts.", "inputs": {"value": "float"}}],
            "test_cases": [],
        },
    }
    return reply_with(json.dumps(plan))


CHOICE = reply_with(json.dumps({"reason": "units", "family": "unit_converter"}))
FORBIDDEN = json.dumps({"error": {"code": 403, "message": "not today"}})


def test_a_request_goes_over_the_wire_and_becomes_a_spec(server: FakeService, tmp_path: Path) -> None:
    busy = (503, json.dumps({"error": {"code": 503, "message": "busy"}}))
    server.replies = [(200, CHOICE), busy, (200, plan())]
    report: list[str] = []
    (spec,) = plan_specs(
        ["a converter for lengths"],
        count=1,
        seed=0,
        settings=PlannerSettings(model="gemini-x", base_url=server.url, requests_per_minute=6000, timeout_s=10),
        progress_path=tmp_path / "progress.jsonl",
        report=report.append,
    )
    assert (spec.package, spec.tools[0].rules["precision"]) == ("nat_length_helper", 2)
    assert "1 requests, 1 specs" in report[-1]
    assert "22 tokens in, 24 out" in report[-1]
    assert len(server.requests) == 3


# ---------------------------------------------------------------- the whole command


def started(server: FakeService, folder: Path, *options: str) -> subprocess.Popen[str]:
    """`prepare_dataset.py --source gemini`, its requests `request 0` to `request 11`."""
    requests = folder / "requests.txt"
    requests.write_text("".join(f"request {number}\n\n" for number in range(12)))
    command = [sys.executable, str(ROOT / "agent_rl/scripts/prepare_dataset.py"), "--source", "gemini"]
    command += ["--num-samples", "10", "--requests-file", str(requests), "--output-dir", str(folder / "out")]
    command += ["--requests-per-minute", "60000", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GOOGLE_GEMINI_BASE_URL": server.url}
    return subprocess.Popen(
        command, env=environment, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=400)
    return process.returncode, out, err


def requests_sent(server: FakeService) -> list[str]:
    """The request of every call."""
    prompts = [body["contents"][0]["parts"][0]["text"] for _, _, body in server.requests]
    return [prompt.split("<<<\n")[1].split("\n>>>")[0] for prompt in prompts]


def good(*precisions: int) -> list[tuple[int, str]]:
    return [(200, body) for precision in precisions for body in (CHOICE, plan(precision))]


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    out = read_tasks(folder / "out" / f"{name}.jsonl")
    assert read_tasks(folder / "out" / f"{name}.parquet") == out
    return out


def test_the_command_writes_the_sets_and_reports_refusals_and_cost(server: FakeService, tmp_path: Path) -> None:
    none = (200, reply_with(json.dumps({"reason": "it is a poem", "family": "none"})))
    server.replies = [*good(0), none, *good(0, *range(1, 10))]  # the second converter is the first once more
    code, out, err = outcome(started(server, tmp_path, "--price-in", "1", "--price-out", "10"))
    assert (code, err) == (0, "")
    train, val = rows(tmp_path, "train"), rows(tmp_path, "val")
    assert sorted(row["tools"][0]["rules"]["precision"] for row in train + val) == list(range(10))
    assert [row["tools"][0]["rules"]["precision"] for row in val] == [1]
    assert all((split_of(row["fingerprint"]) == "val") == (row in val) for row in train + val)
    assert all(parse_spec(row, "row") for row in train + val)
    assert "planner: gemini-0-000001 refused, 'request 1': no family fits: it is a poem" in out
    assert "12 requests, 10 specs, 1 duplicates, 1 refused, 0 failed; 253 tokens in, 276 out" in out
    assert "cost 0.0030 at the given prices" in out


def test_a_run_that_the_service_ended_resumes_without_new_calls(server: FakeService, tmp_path: Path) -> None:
    server.replies = good(0, 1, 2)
    server.status, server.body = 403, FORBIDDEN
    code, _, err = outcome(started(server, tmp_path))
    assert code == 2
    assert err.startswith("error: the last 3 planner requests failed, finally with 'Gemini answered 403: not today")
    assert "keeps the 3 specs made so far" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "out/train.jsonl").exists()

    server.requests.clear()
    server.replies = good(*range(3, 10))
    assert outcome(started(server, tmp_path))[0] == 0
    assert requests_sent(server) == [f"request {number}" for number in range(3, 10) for _ in "12"]
    assert len(rows(tmp_path, "train") + rows(tmp_path, "val")) == 10


def test_a_run_that_was_killed_resumes_without_new_calls(server: FakeService, tmp_path: Path) -> None:
    server.replies = good(0, 1, 2, 3)
    server.silent_from = 6  # the third request never gets its plan
    process = started(server, tmp_path)
    deadline = time.monotonic() + 30
    while len(server.requests) < 6 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate(timeout=10)

    server.requests.clear()
    server.silent_from = None
    server.replies = good(*range(2, 10))
    assert outcome(started(server, tmp_path))[0] == 0
    assert requests_sent(server)[:2] == ["request 2", "request 2"]
    precisions = [row["tools"][0]["rules"]["precision"] for row in rows(tmp_path, "train") + rows(tmp_path, "val")]
    assert sorted(precisions) == list(range(10))


def test_the_command_without_a_key_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, server: FakeService, tmp_path: Path
) -> None:
    monkeypatch.delenv("GEMINI_API_KEY")
    error = "error: the Gemini planner needs an API key; set GEMINI_API_KEY or GOOGLE_API_KEY\n"
    assert outcome(started(server, tmp_path)) == (2, "", error)
    assert server.requests == []
