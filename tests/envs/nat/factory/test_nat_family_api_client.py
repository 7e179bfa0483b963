"""API clients: the oracle by eye, and the reference's coroutine against it on a table of replies, without a network."""

import json
import random
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nat_family_checks import cases_of, tool_of
from pydantic import ValidationError

from agent_rl.envs.nat.factory import oracle
from agent_rl.envs.nat.factory.families.api.client import ApiClient
from agent_rl.envs.nat.factory.families.base import Exchange
from agent_rl.envs.nat.factory.oracle import api_client
from agent_rl.envs.nat.factory.tool_sampler import error_cases
from agent_rl.envs.nat.factory.worlds import Reply, world
from agent_rl.envs.nat.spec import Tool

FAMILY = ApiClient()
NUM_TOOLS = 150
NAT_PYTHON = Path(__file__).resolve().parents[4] / ".venv-nat" / "bin" / "python"


def module(tool: Tool, definitions: str | None = None) -> str:
    """logic.py and the coroutine `run(inputs..., setting)` in one text."""
    made = FAMILY.answer(tool, "setting" if tool.config_field else None)
    names = ", ".join(each.name for each in tool.inputs)
    setting = f", setting={tool.config_field.default}" if tool.config_field else ""
    lines = "".join(f"    {line}\n" for line in made.statements)
    return f"{definitions or FAMILY.definitions(tool)}\n\nasync def run({names}{setting}):\n{lines}"


# ---- httpx as far as the reference uses it


class TransportError(Exception):
    pass


class TimeoutException(TransportError):
    pass


class Client:
    """Answers from `table`, and records the requests."""

    table: dict[str, Exchange] = {}
    requested: list[str] = []

    def __init__(self, *, base_url: str, timeout: float, headers: dict[str, str] | None = None) -> None:
        assert timeout > 0
        self.base_url, self.headers = base_url, headers or {}

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def get(self, path: str) -> SimpleNamespace:
        request = f"GET {self.base_url}{path}"
        self.requested.append(request)
        found = self.table.get(request)
        if found is None or any(self.headers.get(name) != value for name, value in found.headers.items()):
            return SimpleNamespace(status_code=599, text="")
        if found.failure:
            raise TimeoutException if found.failure == "timeout" else TransportError
        return SimpleNamespace(status_code=found.status, text=found.body)


HTTPX = SimpleNamespace(AsyncClient=Client, TransportError=TransportError, TimeoutException=TimeoutException)


def compiled(text: str) -> Callable[..., str | None]:
    """The coroutine as a plain function; it answers None where it raises. Nothing in it ever waits."""
    namespace: dict[str, Any] = {"httpx": HTTPX}
    exec(text, namespace)

    def run(table: dict[str, Exchange], given: dict[str, Any]) -> str | None:
        Client.table, Client.requested = table, []
        try:
            namespace["run"](**given).send(None)
        except StopIteration as stop:
            return stop.value
        except (ValueError, LookupError, TypeError, AttributeError):
            return None
        raise AssertionError("the coroutine waits for something else than the client")

    return run


# ---- by eye

PLAIN: dict[str, Any] = {
    "host": "https://api.libra.example", "path": "/v1/shelf/{shelf}/book", "params": [],
    "fields": [{"path": "title", "kind": "word"}, {"path": "author.born", "kind": "number"}], "between": " - ",
    "items": "data", "joiner": "; ", "missing": "?", "page_size": 2, "next_style": None, "max_pages": None,
    "max_retries": None, "token": None, "not_found": "error: none", "failed": "error: failed",
    "not_json": "error: body", "nothing": "error: empty", "timeout": "error: slow", "connection": "error: off",
}  # fmt: skip
URL = "https://api.libra.example/v1/shelf/a%2Fb%20%C3%AB"
BOOKS = [{"title": "Amber", "author": {"born": 0}}, {"title": None, "author": {}}]


def answered(
    monkeypatch: pytest.MonkeyPatch, replies: list[Reply], config: dict[str, int] | None = None, **rules: Any
) -> str:
    monkeypatch.setattr(api_client, "world", lambda *_: [replies])
    return api_client.answer({**PLAIN, **rules}, {"shelf": "a/b ë"}, config or {})


def test_things_are_written_field_by_field(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(monkeypatch, [Reply(url=f"{URL}/book", payload={"data": BOOKS})]) == "Amber - 0; ? - ?"
    one = Reply(url=URL, payload=BOOKS[0])
    assert answered(monkeypatch, [one], items=None, path="/v1/shelf/{shelf}") == "Amber - 0"


def test_parameters_follow_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    params = [
        {"name": "limit", "kind": "page_size", "value": ""},
        {"name": "view", "kind": "fixed", "value": "short"},
        {"name": "near", "kind": "input", "value": "shelf"},
    ]
    replies = [Reply(url=f"{URL}/book?limit=7&view=short&near=a%2Fb%20%C3%AB", payload={"data": BOOKS[:1]})]
    assert answered(monkeypatch, replies, {"page_size": 7}, params=params) == "Amber - 0"


def test_every_failure_has_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{URL}/book"
    replies = {
        "error: none": Reply(url=url, status=404),
        "error: failed": Reply(url=url, status=500),
        "error: body": Reply(url=url, body="<p>"),
        "error: empty": Reply(url=url, payload={"data": []}),
        "error: slow": Reply(url=url, failure="timeout"),
        "error: off": Reply(url=url, failure="connection"),
    }
    assert {text: answered(monkeypatch, [reply]) for text, reply in replies.items()} == {text: text for text in replies}


def test_pages_are_followed_until_the_last_or_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    titles = [{"title": name, "author": {"born": 1}} for name in "ABC"]
    params = [{"name": "view", "kind": "fixed", "value": "x"}]
    first = f"{URL}/book?view=x"
    by_cursor = [
        Reply(url=first, payload={"data": titles[:1], "next": "c="}),
        Reply(url=f"{first}&cursor=c%3D", payload={"data": titles[1:2], "next": "d"}),
        Reply(url=f"{first}&cursor=d", payload={"data": titles[2:], "next": None}),
    ]
    rules = {"params": params, "next_style": "cursor", "max_pages": 5}
    assert answered(monkeypatch, by_cursor, **rules) == "A - 1; B - 1; C - 1"
    assert answered(monkeypatch, by_cursor, {"max_pages": 2}, **rules) == "A - 1; B - 1"
    by_path = [Reply(url=first, payload={"data": titles[:1], "next": "/p2"}), Reply(url="https://api.libra.example/p2")]
    assert answered(monkeypatch, by_path, **{**rules, "next_style": "path"}) == "error: body"


def test_a_busy_service_gets_retries_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    first = f"{URL}/book?view=x"
    replies = [
        Reply(url=first, status=503),
        Reply(url=f"{first}&attempt=2", status=503),
        Reply(url=f"{first}&attempt=3", payload={"data": BOOKS[:1]}),
    ]
    rules = {"params": [{"name": "view", "kind": "fixed", "value": "x"}], "max_retries": 2}
    assert answered(monkeypatch, replies, **rules) == "Amber - 0"
    assert answered(monkeypatch, replies, {"max_retries": 1}, **rules) == "error: failed"


# ---- sampled


@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_the_reference_agrees_with_the_oracle(level: int) -> None:
    caught, answers = [], []
    for seed in range(NUM_TOOLS):
        tool, rng = tool_of(FAMILY, level, seed), random.Random(seed)
        reference = compiled(module(tool))
        field = tool.config_field
        expected = []
        for case in cases_of(FAMILY, tool, rng, tool.defaults):
            table = FAMILY.exchanges(tool, case, tool.defaults)
            expected.append((case, table, oracle.answer(tool, case, tool.defaults)))
            assert reference(table, case) == expected[-1][2], (tool, case)
            assert Client.requested == list(table), (tool, case)
        for setting in (field.low, field.high) if field else ():
            for case, *_ in expected:
                config = {field.name: setting}
                table = FAMILY.exchanges(tool, case, config)
                assert reference(table, {**case, "setting": setting}) == oracle.answer(tool, case, config), (tool, case)
        assert {text for *_, text in expected} >= set(tool.errors)
        answers.append(len({text for *_, text in expected if not text.startswith("error")}))
        for wrong in FAMILY.subtle_mutants(tool):
            answer_of = compiled(module(tool, wrong))
            caught.append(any(answer_of(table, case) != text for case, table, text in expected))
    assert sum(caught) >= 0.99 * len(caught) >= 0.99 * NUM_TOOLS
    assert sum(count >= 6 for count in answers) >= 0.9 * NUM_TOOLS


def test_there_are_mutants_of_the_request_as_well_as_of_the_answer() -> None:
    assert all(len(FAMILY.mutants(tool_of(FAMILY, level, seed))) >= 5 for level in (1, 2, 3, 5) for seed in range(40))


def test_a_setting_changes_answers_in_both_directions() -> None:
    tools = [tool for seed in range(16) if (tool := tool_of(FAMILY, 2 + (seed > 2), seed)).config_field]
    assert {tool.config_field.name for tool in tools if tool.config_field} == {"page_size", "max_pages", "max_retries"}
    for tool in tools:
        assert tool.config_field
        name, default = tool.config_field.name, tool.config_field.default
        rng = random.Random(0)
        inputs = [FAMILY.valid_inputs(tool, rng) for _ in range(50)]
        # One more attempt helps only where too few were made.
        inputs += [FAMILY.error_inputs(tool, rng)[tool.rules["failed"]] for _ in range(25)]
        for setting in (default - 1, default + 1):
            changed = [oracle.answer(tool, each, {name: setting}) != oracle.answer(tool, each, {}) for each in inputs]
            assert any(changed), (tool, setting)


def test_a_header_is_required_when_the_rules_have_a_token() -> None:
    tools = [tool for seed in range(30) if (tool := tool_of(FAMILY, 3, seed)).rules["token"]]
    for tool in tools:
        table = FAMILY.exchanges(tool, tool.example.inputs, {})
        assert {each.headers["X-Api-Key"] for each in table.values()} == {tool.rules["token"]}
        without = module(tool).replace("X-Api-Key", "X-Key")
        assert compiled(without)(table, tool.example.inputs) != tool.example.output
    assert len(tools) > 5


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.integers(1, 5))
def test_a_sample_is_repeatable_and_its_request_is_complete(seed: int, level: int) -> None:
    tool = tool_of(FAMILY, level, seed)
    assert tool == tool_of(FAMILY, level, seed)
    assert json.loads(json.dumps(tool.rules)) == ApiClient.Rules.model_validate(tool.rules).model_dump() == tool.rules
    text = " ".join(FAMILY.sentences(tool, random.Random(seed)))
    wanted = [*tool.errors, *FAMILY.exports(tool), tool.rules["host"], *(each.name for each in tool.inputs)]
    wanted += [f"`{each['path']}`" for each in tool.rules["fields"]]
    wanted += [tool.rules[name] or "" for name in ("token", "missing", "items")]
    wanted += [each["name"] for each in tool.rules["params"]]
    assert [each for each in wanted if each not in text] == []
    assert '"' not in text and "\\" not in text
    if level <= 2:
        assert (tool.config_field is not None) == (level == 2)


def test_a_world_is_the_same_for_every_request() -> None:
    tool = tool_of(FAMILY, 3, 4)
    assert world(tool.rules, tool.example.inputs, 2) == world(tool.rules, dict(tool.example.inputs), 2)


def test_a_tenth_of_the_drafts_is_held_out() -> None:
    rng = random.Random(1)
    held = [FAMILY.is_held_out(FAMILY.draft(rng, 1 + number % 5).rules) for number in range(1000)]
    assert 80 <= sum(held) <= 140


def test_tools_that_differ_in_names_alone_have_one_canonical_form() -> None:
    tool = tool_of(FAMILY, 3, 0)
    renamed = {**tool.rules, "host": "https://api.other.example", "not_found": "error: gone"}
    assert FAMILY.canonical(renamed, tool.inputs) == FAMILY.canonical(tool.rules, tool.inputs)
    other = {**tool.rules, "joiner": " & "}
    assert FAMILY.canonical(other, tool.inputs) != FAMILY.canonical(tool.rules, tool.inputs)


def test_a_wrong_row_is_refused_with_its_field() -> None:
    rules = tool_of(FAMILY, 1, 0).rules
    with pytest.raises(ValidationError, match="host"):
        ApiClient.Rules.model_validate({**rules, "host": "https://real.com"})
    with pytest.raises(ValidationError, match="not_found"):
        ApiClient.Rules.model_validate({**rules, "not_found": "oops"})


# ---- with the real httpx

DRIVER = """
import asyncio, json, sys
import httpx

async def handle(self, request):
    found = TABLE.get(f"{request.method} {request.url}")
    if found is None or any(request.headers.get(name) != value for name, value in found["headers"].items()):
        return httpx.Response(599)
    if found["failure"]:
        raise (httpx.ReadTimeout if found["failure"] == "timeout" else httpx.ConnectError)("no reply")
    return httpx.Response(found["status"], text=found["body"])

httpx.AsyncHTTPTransport.handle_async_request = handle
for line in sys.stdin:
    job = json.loads(line)
    namespace = {"httpx": httpx}
    exec(job["module"], namespace)
    answers = []
    for given, TABLE in job["calls"]:
        answers.append(asyncio.run(namespace["run"](**given)))
    print(json.dumps(answers))
"""


@pytest.mark.skipif(not NAT_PYTHON.exists(), reason="httpx is in .venv-nat, which `make setup` makes")
def test_the_coroutine_runs_on_the_real_httpx() -> None:
    jobs, expected = [], []
    for level, seed in [(1, 0), (1, 2), (2, 0), *((3, seed) for seed in range(8)), (5, 20)]:
        tool, rng = tool_of(FAMILY, level, seed), random.Random(seed)
        inputs = [*(FAMILY.valid_inputs(tool, rng) for _ in range(4)), *error_cases(FAMILY, tool, rng)]
        tables = [FAMILY.exchanges(tool, case, {}) for case in inputs]
        calls = [
            [case, {key: asdict(each) for key, each in table.items()}]
            for case, table in zip(inputs, tables, strict=True)
        ]
        jobs.append(json.dumps({"module": module(tool), "calls": calls}))
        expected.append([oracle.answer(tool, case, {}) for case in inputs])
    done = subprocess.run(
        [NAT_PYTHON, "-c", DRIVER], input="\n".join(jobs), capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
