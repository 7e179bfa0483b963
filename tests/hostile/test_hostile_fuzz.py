"""Fuzz targets of the parsers of foreign bytes that live in the training process: a value, or the parser's own error.

For a bounded number of examples; what is found becomes a case of its own. Not here: files.
"""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_rl.envs.nat.judge.agent_client import AgentConversation
from agent_rl.envs.nat.judge.evidence import agent_evidence
from agent_rl.envs.nat.judge.evidence import tests_evidence as evidence_of_tests
from agent_rl.sandbox.guest import codec
from agent_rl.sandbox.guest.bounded_json import UnreadableJSON, read_json, read_json_lines
from agent_rl.sandbox.guest.codec import CodecError, decode
from agent_rl.sandbox.limits import JobResult, Status
from agent_rl.tools.mcp.transport import message_of
from agent_rl.tools.web_providers import CUSTOM, PROVIDERS, BadAnswerError, read_answer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
many = settings(max_examples=4000, deadline=None, suppress_health_check=list(HealthCheck))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
TAGS = st.sampled_from(sorted(codec.TAGS))
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(TAGS, inner).map(list)
        | st.tuples(TAGS, st.lists(inner, max_size=4)).map(list)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=16,
)
MARKS = st.lists(st.sampled_from(list('[]{}",:\\ 0123456789eE+-.truefalsn\n\x00é')), max_size=60).map("".join)
TEXTS = st.binary(max_size=80) | MARKS.map(str.encode) | VALUES.map(lambda value: json.dumps(value).encode())


@many
@given(VALUES)
def test_answers(value: Any) -> None:
    value = json.loads(json.dumps(value))
    try:
        decode(value)
    except CodecError:
        return


@many
@given(TEXTS)
def test_reports_of_runs(data: bytes) -> None:
    with suppress(UnreadableJSON):
        read_json(data)
    values, is_whole = read_json_lines(data)
    assert isinstance(values, list) and is_whole


@many
@given(VALUES)
def test_reports_of_projects_and_tests(report: Any) -> None:
    report = json.loads(json.dumps(report))
    job = JobResult(status=Status.OK, result=report, exit_code=0)
    assert evidence_of_tests(job).seconds == 0.0
    conversation = AgentConversation()
    if isinstance(report, dict):
        conversation.report |= report
    assert agent_evidence(conversation, job).seconds == 0.0


MESSAGES = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | LEAVES},
    optional={"id": LEAVES, "method": LEAVES, "params": VALUES, "result": VALUES, "error": VALUES},
)


@many
@given(TEXTS | MESSAGES.map(lambda message: json.dumps(message).encode()))
def test_lines_of_mcp_servers(line: bytes) -> None:
    assert message_of(line) is not None


BODIES = VALUES | st.fixed_dictionaries(
    {},
    optional={
        name: VALUES
        | st.lists(st.dictionaries(st.sampled_from(["title", "url", "content", "link"]), VALUES), max_size=3)
        for name in ("results", "organic", "webPages", "searchParameters", "_type")
    },
)


@many
@given(BODIES, st.sampled_from([CUSTOM, *PROVIDERS.values()]))
def test_bodies_of_search_providers(body: Any, provider: Any) -> None:
    try:
        passages = read_answer(provider, json.loads(json.dumps(body)))
    except BadAnswerError:
        return
    assert all(isinstance(passage.title, str) and isinstance(passage.text, str) for passage in passages)
