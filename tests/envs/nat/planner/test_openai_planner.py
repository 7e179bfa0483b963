"""Any OpenAI-compatible endpoint as the planner, against a scripted server; the commands that use it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, chat_server, completion, error
from commands import one_line_error, run_here
from created_agents import KILOMETRES, SHOUT, outline, planned

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.factory.planner.client import CallError, Usage
from agent_rl.envs.nat.factory.planner.openai_client import OpenAIClient
from agent_rl.envs.nat.factory.planner.services import PlannerSettings, open_service
from agent_rl.envs.nat.judge.parse import parse_spec

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "propertyOrdering": ["n"]}
CHOICE = {"reason": "because", "family": "unit_converter"}


def client(server: ChatServer, timeout_s: float = 10.0, **changes: Any) -> OpenAIClient:
    return OpenAIClient(base_url=server.url, model="m", timeout_s=timeout_s, **changes)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_a_call_sends_the_schema_and_returns_text_and_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    with chat_server({"n": 42}) as server:
        assert client(server)("What?", SCHEMA) == ('{"n": 42}', Usage(num_tokens_in=11, num_tokens_out=7))
        ((path, key, body),) = server.requests
        assert (path, key) == ("/v1/chat/completions", None)
        assert body["messages"] == [{"role": "user", "content": "What?"}]
        sent = body["response_format"]["json_schema"]["schema"]
        assert sent == {name: value for name, value in SCHEMA.items() if name != "propertyOrdering"}
        monkeypatch.setenv("OPENAI_API_KEY", "usual")
        client(server)("?", SCHEMA)
        monkeypatch.setenv("MY_KEY", "mine")
        client(server, key_name="MY_KEY")("?", SCHEMA)
        assert [key for _, key, _ in server.requests[1:]] == ["Bearer usual", "Bearer mine"]


def test_a_server_without_schemas_gets_them_in_the_prompt_from_then_on() -> None:
    with chat_server({"n": 1}) as server:
        server.knows_schemas = False
        asked = client(server)
        assert asked("What?", SCHEMA)[0] == '{"n": 1}'
        assert not asked.takes_schemas
        asked("And?", SCHEMA)
        kinds = [body["response_format"]["type"] for _, _, body in server.requests]
        assert kinds == ["json_schema", "json_object", "json_object"]
        assert '"required"' in server.prompts()[1] and server.prompts()[1].startswith("What?")


def test_a_bad_request_that_is_not_about_the_schema_keeps_its_reason() -> None:
    with chat_server(error(400, "the prompt is too long"), error(400, "something else")) as server:
        asked = client(server)
        with pytest.raises(CallError, match="400: the prompt is too long"):
            asked("?", SCHEMA)
        assert asked.takes_schemas


@pytest.mark.parametrize(
    ("status", "is_transient", "word"),
    [
        (401, False, "set the key"),
        (403, False, "set the key"),
        (404, False, "model 'm'"),
        (408, True, ""),
        (429, True, ""),
        (500, True, ""),
        (503, True, ""),
    ],
)
def test_a_status_decides_whether_to_repeat(status: int, is_transient: bool, word: str) -> None:
    with chat_server(error(status, "not today \x1b[31m")) as server:
        with pytest.raises(CallError, match=rf"{status}: not today  \[31m.*{word}") as caught:
            client(server)("?", SCHEMA)
        assert caught.value.is_transient == is_transient
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    "answer",
    [
        (200, "no JSON"), (200, "[]"), (200, "{}"), (200, '{"choices": []}'), (200, '{"choices": [{"message": 5}]}'),
        (200, "[" * 100_000), (301, "moved"), (307, "moved"), (204, ""), (200, "x" * 2_000_000),
    ],
)  # fmt: skip
def test_what_is_no_completion_is_an_error_and_no_redirect_is_followed(answer: tuple[int, str]) -> None:
    with chat_server(answer) as server:
        with pytest.raises(CallError) as caught:
            client(server)("?", SCHEMA)
        assert not caught.value.is_transient
        assert len(server.requests) == 1


def test_an_answer_without_text_is_empty_and_a_fence_is_taken_off() -> None:
    with chat_server((200, completion(None)), '```json\n{"n": 1}\n```') as server:
        asked = client(server)
        assert asked("?", SCHEMA)[0] == ""
        assert asked("?", SCHEMA)[0].strip() == '{"n": 1}'


def test_half_of_a_surrogate_pair_in_an_answer_becomes_a_question_mark() -> None:
    with chat_server((200, completion("a\ud800"))) as server:
        assert client(server)("?", SCHEMA)[0] == "a?"


def test_no_answer_in_time_and_no_server_are_passing_failures() -> None:
    with chat_server({"n": 1}) as server:
        server.delay_s = 2.0
        with pytest.raises(CallError, match="ReadTimeout") as late:
            client(server, timeout_s=0.2)("?", SCHEMA)
        url = server.url
    with pytest.raises(CallError, match="ConnectError") as gone:
        OpenAIClient(base_url=url, model="m", timeout_s=2.0)("?", SCHEMA)
    assert late.value.is_transient and gone.value.is_transient


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"base_url": "http://x/v1"}, "no model"),
        ({"model": "m"}, "no base URL"),
        ({"base_url": "file:///etc/passwd", "model": "m"}, "no address"),
        ({"base_url": "http://x/v1", "model": "m", "key_name": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
    ],
)
def test_a_service_that_cannot_be_opened_is_one_sentence(settings: dict[str, str], word: str) -> None:
    with pytest.raises(PlannerError, match=word):
        open_service(PlannerSettings(source="openai", **settings))


# ---------------------------------------------------------------- agent-rl nat plan


def plan_words(server: ChatServer, *more: str) -> list[str]:
    words = ["nat", "plan", "km to m", *more, "writes.names=planned", "planner.source=openai", "planner.model=m"]
    return [*words, f"planner.base_url={server.url}", "planner.max_attempts=1"]


def test_nat_plan_shows_what_was_understood() -> None:
    with chat_server(outline("direct", "unit_converter"), planned(KILOMETRES)) as server:
        done = run_here(*plan_words(server))
    assert (done.returncode, done.stderr) == (0, "")
    assert "length_tool(value: float, from_unit: str, to_unit: str)" in done.stdout
    assert "simple_tool, family unit_converter, level 1, package nat_length_helper" in done.stdout
    assert "22 tokens in, 14 out" in done.stdout


def test_nat_plan_in_json_says_what_the_model_cannot_write() -> None:
    answers = [outline("router", "unit_converter", "text_pipeline"), planned(KILOMETRES)]
    answers.append(planned(SHOUT, name="shout_tool"))
    with chat_server(*answers) as server:
        done = run_here(*plan_words(server, "--json", "-"))
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert [tool["instance"] for tool in record["plan"]["tools"]] == ["length_tool", "shout_tool"]
    assert "at most 1 tool" in record["beyond_the_model"]
    assert parse_spec(record["plan"], "plan").workflow.kind == "router"


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        (error(401, "who are you"), "401: who are you"),
        (error(429, "slow down"), "429: slow down"),
        ("no JSON", "Invalid JSON"),
        (json.dumps(outline("none")), "no family fits"),
        (json.dumps(outline("direct", "<script>")), "there is no family '<script>'"),
        ((200, completion("")), "gave no text"),
    ],
)
def test_nat_plan_without_a_plan_is_one_sentence(answer: Any, word: str) -> None:
    with chat_server(answer) as server:
        line = one_line_error(run_here(*plan_words(server)))
    assert word in line


# ---------------------------------------------------------------- prepare-dataset


def dataset(server: ChatServer, folder: Path, *more: str) -> Any:
    requests = folder / "requests.txt"
    requests.write_text("".join(f"request {number}\n" for number in range(24)))
    words = ["prepare-dataset", "--source", "openai", "--base-url", server.url, "--planner-model", "m"]
    words += ["--requests-file", str(requests), "--output-dir", str(folder / "out"), "--num-samples", "20"]
    return run_here(*words, "--requests-per-minute", "60000", "--hidden-cases", "sampled", *more)


def converters(count: int) -> list[dict[str, Any]]:
    """Answers for so many different converters."""
    digits = [{**KILOMETRES, "precision": number % 10, "nonnegative": number < 10} for number in range(count)]
    return [each for rules in digits for each in (CHOICE, planned(rules))]


def test_a_tenth_to_the_spec_goes_to_val_where_that_is_asked_for(tmp_path: Path) -> None:
    with chat_server(*converters(20), CHOICE) as server:
        done = dataset(server, tmp_path, "--exact-split")
    assert done.returncode == 0, done.stderr
    train, val = (read_tasks(tmp_path / f"out/{name}.jsonl") for name in ("train", "val"))
    assert (len(train), len(val)) == (18, 2)
    assert not {row["fingerprint"] for row in train} & {row["fingerprint"] for row in val}
    assert train[0]["task_id"].startswith("openai-0-")


def test_agents_of_several_tools_are_written_where_they_are_asked_for(tmp_path: Path) -> None:
    answers: list[dict[str, Any]] = []
    for number in range(10):
        answers += [outline("router", "unit_converter", "text_pipeline"), planned({**KILOMETRES, "precision": number})]
        answers.append(planned(SHOUT, name="shout_tool"))
    with chat_server(*answers, CHOICE) as server:
        done = dataset(server, tmp_path, "--max-tools", "3", "--num-samples", "10", "--exact-split")
    assert done.returncode == 0, done.stderr
    rows = [row for name in ("train", "val") for row in read_tasks(tmp_path / f"out/{name}.jsonl")]
    assert [len(row["tools"]) for row in rows] == [2] * 10


def test_a_failed_start_leaves_no_folder(tmp_path: Path) -> None:
    with chat_server(error(401, "who are you")) as server:
        line = one_line_error_after_output(dataset(server, tmp_path))
    assert "who are you" in line
    assert not (tmp_path / "out").exists()
    words = ["--output-dir", str(tmp_path / "out"), "--requests-file", str(tmp_path / "none.txt")]
    for more in (["--source", "openai"], ["--source", "openai", "--base-url", "http://127.0.0.1:9/v1"]):
        one_line_error(run_here("prepare-dataset", *more, *words))
    one_line_error(run_here("prepare-dataset", "--output-dir", str(tmp_path / "out"), "--base-url", "http://x/v1"))
    assert os.listdir(tmp_path) == ["requests.txt"]


def test_a_run_that_planned_something_keeps_it(tmp_path: Path) -> None:
    with chat_server(*converters(2), error(401, "who are you")) as server:
        one_line_error_after_output(dataset(server, tmp_path))
    assert os.listdir(tmp_path / "out") == ["planner_progress.jsonl"]
    with chat_server(*converters(20)[4:], CHOICE) as server:
        assert dataset(server, tmp_path).returncode == 0
    assert len(server.requests) == 36  # those of the first two are not sent again


def one_line_error_after_output(done: Any) -> str:
    assert done.returncode == 2, done.stdout
    (line,) = done.stderr.strip().splitlines()
    return line
