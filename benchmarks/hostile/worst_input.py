"""The longest hold-up of the training process by one input: `python benchmarks/hostile/worst_input.py`.

Every reader of foreign bytes gets its worst known inputs. Prints time and memory beyond the input's size, the worst of
each reader first, as the median of rounds; memory is traced in a run of its own, because tracing slows down. Measures
readers in this process alone; what runs inside a sandbox holds up nobody. Readers that run once, before a run trains or
goes on (packed task files, checkpoints, model folders, tokenizers), have no row: tests hold their bounds.
"""

import argparse
import asyncio
import gc
import json
import platform
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agent_rl.agent.messages import ToolCall
from agent_rl.agent.template_child import MAX_CHARS
from agent_rl.agent.template_process import TemplateLimitError, render
from agent_rl.config.yaml_text import read_settings
from agent_rl.data.tasks import read_tasks
from agent_rl.errors import AgentRLError
from agent_rl.redacted import Secrets
from agent_rl.sandbox.chance import may_vary
from agent_rl.sandbox.freeze import screen
from agent_rl.sandbox.guest.bounded_json import read_json, read_json_lines
from agent_rl.sandbox.guest.codec import decode
from agent_rl.sandbox.limits import Limits
from agent_rl.tools.base import BaseTool, ToolRegistry, ToolResult
from agent_rl.tools.web_providers import CUSTOM, read_answer
from agent_rl.tools.web_search_tool import _MAX_ANSWER_BYTES, _MAX_ANSWER_VALUES

MAX_S, MAX_MB = 0.1, 50.0
RESULT_BYTES = Limits().result_kb * 1024
Reader = Callable[[bytes], object]


def filled(head: bytes, part: bytes, tail: bytes, size: int) -> bytes:
    """A text of `size` bytes at most: `head`, as many `part`s as fit, `tail`."""
    return head + part * ((size - len(head) - len(tail)) // len(part)) + tail


def json_texts(size: int) -> dict[str, bytes]:
    """JSON, and what is nearly JSON, that costs most for its size."""
    return {
        "empty lists": filled(b"[", b"[],", b"[]]", size),
        "nested lists": b"[" * (size // 2) + b"]" * (size // 2),
        "small objects": filled(b"[", b'{"a":1},', b"1]", size),
        "one object": filled(b"{", b'"a":1,', b'"a":1}', size),
        "numbers": filled(b"[", b"1,", b"1]", size),
        "one long number": b"9" * size,
        "fractions": filled(b"[", b"1e9,", b"1]", size),
        "a text": b'"' + b"x" * (size - 2) + b'"',
        "escapes": filled(b'"', b"\\u00e9", b'"', size),
        "escaped quotes": filled(b'"', b'\\"', b'"', size),
        "an open text": filled(b'"', b"\\\\", b"", size),
        "colons in texts": filled(b"[", b'":,:,:,:",', b'""]', size),
        "lines": b"1\n" * (size // 2),
        "empty lines": b"\n" * size,
        "no text": b"\xff" * size,
    } | {
        # an escaped quote, of which the bytes of other encodings show no escape
        name: ('["\\"",' + "[]," * (size // width // 3 - 9) + "0]").encode(name)
        for name, width in {"UTF-16-LE": 2, "UTF-16-BE": 2, "UTF-16": 2, "UTF-32-LE": 4, "UTF-32": 4}.items()
    }


def collisions(size: int) -> dict[str, bytes]:
    """Encoded sets and dictionaries whose members have one hash, or whose hashes take long."""
    number = (1 << 61) - 1
    members = [number * n for n in range(1, size // 24)]
    return {
        "a set of deep tuples": json.dumps(["s", [["t", [["t", [["t", [n, n]]]]]] for n in range(3990)]]).encode(),
        "small dictionaries": json.dumps(["l", [["d", [[["f", "1"], ["f", "1"]]]]] * 11_990]).encode(),
        "coded texts": json.dumps(["l", [["u", ""]] * 49_990]).encode(),
        "a set of one hash": json.dumps(["s", [["i", str(each)] for each in members]]).encode()[:size],
        "a set of plain numbers": json.dumps(["s", members]).encode()[:size],
        "a dictionary of one hash": json.dumps(["d", [[each, 1] for each in members]]).encode()[:size],
    }


class _Echo(BaseTool):
    name, description = "echo", ""

    def __init__(self, text: str) -> None:
        self.text, self.parameters = text, {"type": "object", "properties": {}}

    def __call__(self, **arguments: Any) -> ToolResult:
        return ToolResult(text=self.text)


def _tool(data: bytes) -> object:
    return ToolRegistry([_Echo(data.decode("latin-1"))]).run(ToolCall(name="echo", arguments={}))


def _through_file(read: Callable[[Path], object], suffix: str) -> Reader:
    folder = tempfile.mkdtemp(prefix="worst_input_")

    def run(data: bytes) -> object:
        path = Path(folder, f"input{suffix}")
        if not path.exists() or path.stat().st_size != len(data) or path.read_bytes() != data:
            path.write_bytes(data)
        return read(path)

    return run


def _search(data: bytes) -> object:
    """What is done with a body once it came."""
    return read_answer(CUSTOM, read_json(data, max_values=_MAX_ANSWER_VALUES))


def _rendered(data: bytes) -> object:
    """A template that writes as much as it may."""
    return render("{{ messages[0].content * 4 }}", {"messages": [{"role": "user", "content": data.decode("latin-1")}]})


def _text_readers() -> dict[str, tuple[Reader, Mapping[str, bytes]]]:
    """Those of search providers' bodies and of what templates write."""
    bodies = {name: b'{"results": ' + text + b"}" for name, text in json_texts(_MAX_ANSWER_BYTES - 20).items()}
    bodies["results"] = filled(b'{"results": [', b'{"title":"a","url":"b","content":"c"},', b"{}]}", 450_000)
    written = {"a text": b"x" * (MAX_CHARS // 4), "controls": bytes(MAX_CHARS // 4), "too long": b"x" * MAX_CHARS}
    return {"body of a search provider": (_search, bodies), "text of a chat template": (_rendered, written)}


def _mcp_readers() -> dict[str, tuple[Reader, Mapping[str, bytes]]]:
    """Those of lines, bodies and events. ImportError without the protocol's SDK."""
    import httpx2

    from agent_rl.tools.mcp import budget
    from agent_rl.tools.mcp.over_http import _BoundBody, _BoundEvents
    from agent_rl.tools.mcp.transport import MAX_LINE_BYTES, message_of

    budget._PAUSE_S = 0.0  # pauses hold up nobody

    async def in_parts(data: bytes) -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1 << 16):
            yield data[start : start + (1 << 16)]

    async def read_all(kind: Any, data: bytes) -> None:
        with suppress(httpx2.StreamError, budget.FloodError):
            async for _ in kind(in_parts(data), budget.Budget(), is_packed=False):
                pass

    head, tail, texts = b'{"jsonrpc":"2.0","id":1,"result":', b"}", json_texts(MAX_LINE_BYTES - 100)
    events = {name: b"data: " + text + b"\n\n" for name, text in texts.items()}
    events |= {"blank events": b"\n" * (1 << 20), "many lines": b"data: \n" * (1 << 20)}
    return {
        "line of an MCP server": (message_of, {name: head + text + tail for name, text in texts.items()}),
        "body of an MCP server": (lambda data: asyncio.run(read_all(_BoundBody, data)), texts),
        "events of an MCP server": (lambda data: asyncio.run(read_all(_BoundEvents, data)), events),
    }


def readers() -> dict[str, tuple[Reader, Mapping[str, bytes]]]:
    """Reader -> (how it is called, its inputs)."""
    texts = json_texts(RESULT_BYTES)
    words = {
        "escapes": b"\x1b[31m" * (RESULT_BYTES // 5),
        "controls": b"\x00" * RESULT_BYTES,
        "open escapes": b"\x1b]" * (RESULT_BYTES // 2),
        "lines": b"a\r\n" * (RESULT_BYTES // 3),
    }
    source = 1 << 20
    sources = {
        "names": b"x " * (source // 2),
        "brackets": b"(" * source,
        "blanks": b" " * source,
        "quotes": b"'\"" * (source // 2),
        "underscores": b"_" * source,
        "defs": filled(b"", b"def __eq__(self, o):\n\n\n    return 1\n", b"", source),
    }
    longest = 19_990  # of the texts that `may_vary` reads at all
    suites = {
        "imports": b"import json\n" * (longest // 12),
        "one import": b"import " + b"json," * (longest // 5 - 3) + b"json\n",
        "brackets": b"{1:" * (longest // 4) + b"1" + b"}" * (longest // 4),
        "remainders": b"x%2;" * (longest // 4),
    }
    secret = Secrets(["sk-0123456789abcdef", "hunter2hunter2"])
    found: dict[str, tuple[Reader, Mapping[str, bytes]]] = {
        "report of a run (JSON)": (read_json, texts),
        "report of a run (lines)": (read_json_lines, texts),
        "answer of a candidate": (lambda data: decode(read_json(data)), texts | collisions(RESULT_BYTES)),
        "text of a tool": (_tool, words | {"a text": b"x" * RESULT_BYTES}),
        "text with a key": (lambda data: secret.hide(data.decode("latin-1")), {"near misses": b"sk-01234567" * 6000}),
        "screening of a source": (screen, sources | {"defs of 4 MB": sources["defs"] * 4}),
        "chance in a suite": (lambda data: may_vary(data.decode("latin-1"), ["solution"]), sources | suites),
        "settings": (
            _through_file(read_settings, ".yaml"),
            {
                "lists": b"[" * 200_000,
                "aliases": b"a: &a [x]\n" + b"".join(b"b%d: *a\n" % n for n in range(15_000)),
                "values": filled(b"train: [", b"1,", b"1]", 240_000),
                "base 60": b"a: 1" + b":59" * 70_000,
            },
        ),
        "task rows": (
            _through_file(read_tasks, ".jsonl"),
            {
                "one row": b'{"a": ' + texts["empty lists"][:1_000_000] + b"}",
                "digits": b'{"a": ' + b"9" * 900_000 + b"}",
            },
        ),
    }
    found |= _text_readers()
    with suppress(ImportError, AgentRLError):
        found |= _mcp_readers()
    return found


def measure(read: Reader, data: bytes, rounds: int) -> tuple[float, float]:
    """(median seconds, megabytes beyond the input's size)."""
    times = []
    for _ in range(rounds):
        gc.collect()
        started = time.perf_counter()
        with suppress(AgentRLError, ValueError, TemplateLimitError):
            read(data)
        times.append(time.perf_counter() - started)
    tracemalloc.start()
    with suppress(AgentRLError, ValueError, TemplateLimitError):
        read(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return statistics.median(times), max(0.0, peak - len(data)) / 2**20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    rows = [
        (reader, name, len(data), *measure(read, data, rounds))
        for reader, (read, inputs) in readers().items()
        for name, data in inputs.items()
    ]
    table = Table(title=f"Python {platform.python_version()}, {platform.machine()}", title_justify="left")
    for column in ("reader", "worst input", "bytes", "ms", "MB beyond"):
        table.add_column(column, justify="left" if column in ("reader", "worst input") else "right")
    for reader in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == reader]
        for row in {max(own, key=lambda row: row[3]), max(own, key=lambda row: row[4])}:
            table.add_row(reader, row[1], f"{row[2]:,}", f"{row[3] * 1000:.1f}", f"{row[4]:.1f}")
    Console(width=110).print(table)
    bad = [row for row in rows if row[3] > MAX_S or row[4] > MAX_MB]
    for reader, name, _, seconds, megabytes in bad:
        print(f"too much: {reader}, {name}: {seconds * 1000:.0f} ms, {megabytes:.0f} MB", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
