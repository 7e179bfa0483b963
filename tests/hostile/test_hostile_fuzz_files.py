"""Fuzz targets of bodies and files of strangers: any bytes are a value or one sentence of the library, in bounded time.

Bytes are those of an honest file with changes, or any. Readers that run while a model is trained have 0.1 s of
computing for one input; those that run at the start have their own bounds. The long ones are marked slow.
"""

import gzip
import io
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from cpu_time import within
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_models import save_tiny_causal_lm

from agent_rl.agent.template_process import TemplateLimitError, TemplateProcess, TemplateRefusalError
from agent_rl.config.tools import SearchToolConfig
from agent_rl.config.yaml_text import parse_settings
from agent_rl.data.tasks import read_tasks
from agent_rl.distributed.checkpoint import best_checkpoint, verify_checkpoint
from agent_rl.errors import CheckpointError, ConfigError, DataError, ServiceError
from agent_rl.modeling.tensor_files import load_tensors
from agent_rl.policies.model_files import tokenizer_child
from agent_rl.policies.model_files.model_folder import check_model_folder
from agent_rl.policies.model_files.tokenizer_file import check_tokenizer_file
from agent_rl.tools.mcp.budget import Budget, FloodError
from agent_rl.tools.mcp.over_http import _BoundBody, _BoundEvents
from agent_rl.tools.web_search_tool import WebSearch

pytestmark = pytest.mark.timeout(600)
IN_TRAINING_S, AT_THE_START_S = 0.1, 2.0


def examples(number: int) -> settings:
    return settings(max_examples=number, deadline=None, suppress_health_check=list(HealthCheck))


FEW, MANY = 150, 2000
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def as_json(values: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return values.map(lambda value: json.dumps(value).encode())


def is_one_sentence(error: Exception) -> bool:
    return 10 <= len(str(error)) <= 1500 and "\n" not in str(error)


@st.composite
def changed(draw: Callable[[Any], Any], honest: bytes) -> bytes:
    """`honest` with some bytes set, cut out or put in; at times its end is missing."""
    data = bytearray(honest)
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.sampled_from([0, 1, 1, 4, 30]))
        instead = st.binary(max_size=6) | st.sampled_from([b"\xff" * 4, bytes(4), b'"', b"["])
        data[start : start + length] = draw(instead)
    end = draw(st.integers(0, len(data))) if draw(st.integers(0, 9)) == 0 else len(data)
    return bytes(data[:end])


# ---------------------------------------------------------------- while a model is trained

BODY = json.dumps({"results": [{"title": "a", "url": "http://h/", "content": "c \u00e9"}], "more": [1, 2.5, None]})
BODIES = changed(BODY.encode()) | st.binary(max_size=200) | as_json(VALUES)


@cache
def finder() -> WebSearch:
    config = SearchToolConfig(provider="own", endpoint="http://127.0.0.1:9/", max_retries=0, rate_limit_per_min=0)
    return WebSearch(config)


@pytest.mark.long
@examples(MANY)
@given(BODIES)
def test_bodies_of_search_providers(body: bytes) -> None:
    async def answer(_query: str, _within_s: float) -> bytes:
        return body

    finder()._body = answer
    with within(IN_TRAINING_S):
        try:
            passages = finder()("q")
        except ServiceError as error:
            assert is_one_sentence(error)
        else:
            assert all(isinstance(passage.text, str) for passage in passages)


ANSWER = b'event: message\r\nid: 7\r\ndata: {"jsonrpc":"2.0","id":1,"result":{}}\r\n\r\nretry: 5\ndata: \n\n'


class Parts(httpx2.AsyncByteStream):
    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part

    async def aclose(self) -> None: ...


async def read_all(body: Any) -> bytes:
    return b"".join([part async for part in body])


@pytest.mark.long
@examples(MANY)
@given(
    data=changed(ANSWER * 3) | BODIES | st.binary(max_size=300),
    size=st.integers(1, 90),
    kind=st.sampled_from([_BoundBody, _BoundEvents]),
)
def test_bodies_of_mcp_servers_over_http(data: bytes, size: int, kind: type[_BoundBody]) -> None:
    parts = [data[start : start + size] for start in range(0, len(data), size)]
    with within(IN_TRAINING_S):
        try:
            came = anyio.run(read_all, kind(Parts(parts), Budget(), is_packed=False))
        except (httpx2.StreamError, FloodError) as error:
            assert is_one_sentence(error)
        else:
            assert came == data


@pytest.mark.long
@examples(MANY)
@given(data=changed(ANSWER * 3) | st.binary(max_size=300))
def test_events_of_mcp_servers_as_the_sdk_reads_them(data: bytes) -> None:
    async def read() -> list[Any]:
        stream = _BoundEvents(Parts([data]), Budget(), is_packed=False)
        request = httpx2.Request("GET", "http://h/")
        headers = {"content-type": "text/event-stream"}
        response = httpx2.Response(200, headers=headers, stream=stream, request=request)
        return [event async for event in httpx2.EventSource(response, max_event_size=1000)]

    with within(IN_TRAINING_S), suppress(httpx2.StreamError, httpx2.SSEError, FloodError):
        anyio.run(read)


# ---------------------------------------------------------------- at the start: tasks, settings


def parquet_of(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, compression="zstd")
    return sink.getvalue()


ROWS = [{"task_id": f"t{n}", "prompt": "p\u00e9" * n, "cases": [{"a": n}], "x": 0.5} for n in range(5)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
FILES = {
    ".jsonl": LINES,
    ".jsonl.gz": gzip.compress(LINES[:99]) + gzip.compress(LINES[99:]),
    ".json": json.dumps(ROWS).encode(),
    ".parquet": parquet_of(ROWS),
}


def check_task_file(data: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"tasks{suffix}")
        path.write_bytes(data)
        with within(AT_THE_START_S):
            try:
                assert all(isinstance(row["task_id"], str) for row in read_tasks(path))
            except DataError as error:
                assert is_one_sentence(error)


@pytest.mark.parametrize("suffix", [name for name in FILES if name != ".parquet"])
@examples(FEW)
@given(data=st.data())
def test_task_files(suffix: str, data: Any) -> None:
    check_task_file(data.draw(changed(FILES[suffix]) | st.binary(max_size=200)), suffix)


@pytest.mark.long
@pytest.mark.parametrize("suffix", FILES)
@examples(MANY)
@given(data=st.data())
def test_task_files_for_long(suffix: str, data: Any) -> None:
    check_task_file(data.draw(changed(FILES[suffix])), suffix)


@pytest.mark.long
@examples(300)
@given(data=st.data())
def test_what_a_parquet_file_says_of_itself(data: Any) -> None:
    """Without a change of the length and the mark at its end, so that it is read."""
    honest = FILES[".parquet"]
    start = len(honest) - 8 - int.from_bytes(honest[-8:-4], "little")
    footer = bytearray(honest[start:-8])
    for place in data.draw(st.lists(st.integers(0, len(footer) - 1), max_size=3)):
        footer[place] = data.draw(st.integers(0, 255))
    check_task_file(honest[:start] + bytes(footer) + honest[-8:], ".parquet")


SETTINGS = b"""train: {steps: 20, lr: 1e-5}
env: &a
  name: nat
  options: {<<: {b: 1}, list: [1, 0x10, 1_000, 12:30:45, 2020-01-01, ~, yes, .nan]}
other: *a
text: |
  some text
"""
MARKS = [*"[]{}:,-?&*!|>'\"%@`#\n\t 0a<~", "<<: ", "!!", "&a ", "*a", "\u2028", "\x00"]
YAML = (
    changed(SETTINGS).map(lambda data: data.decode("utf-8", "replace"))
    | st.lists(st.sampled_from(MARKS), max_size=60).map("".join)
    | st.text(max_size=80)
)


def check_settings(text: str) -> None:
    with within(AT_THE_START_S):
        try:
            parse_settings(text, "a.yaml")
        except ConfigError as error:
            assert is_one_sentence(error)


@examples(FEW)
@given(YAML)
def test_settings(text: str) -> None:
    check_settings(text)


@pytest.mark.long
@examples(MANY)
@given(YAML)
def test_settings_for_long(text: str) -> None:
    check_settings(text)


# ---------------------------------------------------------------- at the start: models and checkpoints

TEMPLATE = (
    b"{%- for message in messages %}{{ '<|' + message['role'] + '|>' }}{{ message.content | trim }}"
    b"{% if loop.last and add_generation_prompt %}{{ raise_exception('x') }}{% endif %}{% endfor %}"
    b"{% set ns = namespace(a=1) %}{% generation %}{{ ns.a * 2 }}{% endgeneration %}{{ tools | tojson(indent=2) }}"
)
WORDS = ["{{", "}}", "{%", "%}", "for x in ", "range(9)", "messages", "|", "[0]", "*", "9**9", "if ", "endif", "'a'"]


@pytest.fixture(scope="module")
def renderer() -> Iterator[TemplateProcess]:
    with TemplateProcess() as opened:
        yield opened


@pytest.mark.long
@examples(600)
@given(
    changed(TEMPLATE).map(lambda data: data.decode("utf-8", "replace"))
    | st.lists(st.sampled_from(WORDS), max_size=20).map(" ".join)
)
def test_chat_templates(renderer: TemplateProcess, source: str) -> None:
    conversation = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x"}]
    arguments = {"messages": conversation, "tools": None, "add_generation_prompt": True}
    with within(IN_TRAINING_S):
        try:
            assert isinstance(renderer.render(source, arguments), str)
        except (TemplateRefusalError, TemplateLimitError) as error:
            assert "\n" not in str(error) and len(str(error)) <= 600


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_causal_lm(tmp_path_factory.mktemp("fuzz") / "model")


@pytest.mark.long
@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json"])
@examples(400)
@given(data=st.data())
def test_model_folders(model: Path, name: str, data: Any) -> None:
    honest = b'{"weight_map": {"a": "model.safetensors"}}' if "index" in name else (model / name).read_bytes()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        shutil.copytree(model, folder, dirs_exist_ok=True)
        (folder / name).write_bytes(data.draw(changed(honest) | as_json(VALUES)))
        with within(AT_THE_START_S):
            try:
                check_model_folder(folder)
            except CheckpointError as error:
                assert is_one_sentence(error)


@pytest.mark.long
@examples(40)
@given(data=st.data())
def test_tokenizers(model: Path, data: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        path.write_bytes(data.draw(changed((model / "tokenizer.json").read_bytes())))
        with within(AT_THE_START_S):
            try:
                check_tokenizer_file(path)
            except CheckpointError as error:
                assert is_one_sentence(error)


PART_NAMES = st.sampled_from(["type", "content", "pattern", "String", "Regex", "prepend", "precompiled_charsmap", "x"])
SECTIONS = st.recursive(
    LEAVES | st.sampled_from(["Replace", "Sequence", "Precompiled", "Prepend", "AAAA"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(PART_NAMES, inner, max_size=4),
    max_leaves=12,
)


@examples(FEW)
@given(SECTIONS)
def test_parts_of_tokenizers(section: Any) -> None:
    for check in (lambda: tokenizer_child._check_section("x", section), lambda: tokenizer_child._check_model(section)):
        with suppress(tokenizer_child._RefusalError):
            check()


@cache
def state_file() -> bytes:
    sink = io.BytesIO()
    torch.save({"step": 3, "updater": {"a": torch.ones(3)}, "source": [1, "x", None, 2.5], "big": 2**70}, sink)
    return sink.getvalue()


def check_state(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trainer.pt")
        path.write_bytes(data)
        with within(AT_THE_START_S):
            try:
                load_tensors(path)
            except CheckpointError as error:
                assert is_one_sentence(error)


@examples(FEW)
@given(changed(state_file()))
def test_states_of_checkpoints(data: bytes) -> None:
    check_state(data)


@pytest.mark.long
@examples(MANY)
@given(changed(state_file()) | st.binary(max_size=200))
def test_states_of_checkpoints_for_long(data: bytes) -> None:
    check_state(data)


MANIFEST = json.dumps({"format_version": 3, "step": 1, "score": 0.5, "files": {"trainer.pt": "0" * 64}}).encode()
MANIFESTS = st.fixed_dictionaries(
    {},
    optional={
        "format_version": st.just(3) | VALUES,
        "files": VALUES | st.dictionaries(st.text(), LEAVES),
        "score": LEAVES,
    },
)


@examples(FEW)
@given(changed(MANIFEST) | as_json(VALUES | MANIFESTS))
def test_manifests(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder, "step_00001")
        checkpoint.mkdir()
        (checkpoint / "trainer.pt").write_bytes(b"x")
        (checkpoint / "manifest.json").write_bytes(data)
        with within(AT_THE_START_S):
            best_checkpoint(Path(folder))
            try:
                verify_checkpoint(checkpoint)
            except CheckpointError as error:
                assert is_one_sentence(error)
