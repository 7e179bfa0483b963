"""Task files made to fill memory or to hold up their reader: one sentence, and large honest files pass."""

import gzip
import io
import json
import os
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cpu_time import cpu_s
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.data.bounds import read_lines
from agent_rl.data.tasks import read_tasks, write_tasks
from agent_rl.errors import DataError

READ = """
import resource, sys, time
import pyarrow.parquet
from agent_rl.data.tasks import read_tasks
from agent_rl.errors import DataError
megabytes = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before, started = megabytes(), time.perf_counter()
try:
    read_tasks(sys.argv[1])
    said = "read"
except DataError as error:
    said = str(error)
print(megabytes() - before, round(time.perf_counter() - started, 3), said)
"""


def read_apart(path: Path) -> tuple[int, float, str]:
    """Megabytes that reading took, seconds, and the sentence, of a process of its own."""
    untraced = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}  # it is timed
    command = [sys.executable, "-c", READ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=untraced)
    megabytes, seconds, said = done.stdout.split(" ", 2)
    return int(megabytes), float(seconds), said


def packed(unit: bytes, times: int) -> bytes:
    """A gzip file of `times` units, made without the memory."""
    packer, parts = zlib.compressobj(9, zlib.DEFLATED, 31), []
    block = unit * (2**20 // len(unit) + 1)
    for _ in range(times * len(unit) // len(block)):
        parts.append(packer.compress(block))
    return b"".join([*parts, packer.flush()])


def named(name: bytes, content: bytes) -> bytes:
    """A gzip file that says what it was called."""
    packed = gzip.compress(content)
    return packed[:3] + b"\x08" + packed[4:10] + name + b"\0" + packed[10:]


def described(by: str | dict[str, str]) -> bytes:
    return parquet(pa.table({"a": [1]}).replace_schema_metadata({"x": by} if isinstance(by, str) else by))


def parquet(table: pa.Table, **options: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue()


def repeated(text: str, times: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0] * times, pa.int32()), pa.array([text]))


BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zeros": (".jsonl.gz", lambda: packed(bytes(1000), 2_000_000)),
    "one endless line": (".jsonl.gz", lambda: packed(b"x", 500_000_000)),
    "blank lines": (".jsonl.gz", lambda: packed(b"\n", 100_000_000)),
    "many small rows": (".jsonl.gz", lambda: packed(b"{}\n", 100_000_000)),
    "many equal rows": (".jsonl.gz", lambda: packed(b'{"a": "' + b"x" * 1000 + b'"}\n', 500_000)),
    "many empty lists": (".jsonl.gz", lambda: packed(b'{"a": [' + b"[]," * 10_000 + b"[]]}\n", 2_000)),
    "many members": (".jsonl.gz", lambda: gzip.compress(b"{}\n" * 300_000) * 20),
    "many empty members": (".jsonl.gz", lambda: gzip.compress(b"") * 500_000),
    "a name without end": (".jsonl.gz", lambda: b"\x1f\x8b\x08\x08" + bytes(6) + b"x" * 50_000_000),
    "a comment without end": (".jsonl.gz", lambda: b"\x1f\x8b\x08\x10" + bytes(6) + b"x" * 50_000_000),
    "names without end": (".jsonl.gz", lambda: named(b"x" * 1_000_000, b"[]\n" * 200) * 50),
    "empty lists in a row": (".jsonl", lambda: b'{"a": [' + b"[]," * 3_000_000 + b"[]]}"),
    "empty objects in a row": (".jsonl", lambda: b'{"a": [' + b"{}," * 3_000_000 + b"{}]}"),
    "empty lists in an array": (".json", lambda: b"[" + b"[]," * 9_000_000 + b"[]]"),
    "text": (".parquet", lambda: parquet(pa.table({"a": ["x" * 200_000_000] * 4}), use_dictionary=False)),
    "one text in many rows": (".parquet", lambda: parquet(pa.table({"a": repeated("x" * 1_000_000, 100_000)}))),
    "one text in lists": (
        ".parquet",
        lambda: parquet(
            pa.table(
                {"a": pa.ListArray.from_arrays([0, 50_000, 100_000], repeated("x" * 10_000, 100_000).cast(pa.string()))}
            )
        ),
    ),
    "one text in structs": (
        ".parquet",
        lambda: parquet(pa.table({"a": pa.StructArray.from_arrays([repeated("x" * 10**6, 2_000)], ["b"])})),
    ),
    "one number in many rows": (".parquet", lambda: parquet(pa.table({"a": pa.array([1]).take([0] * 50_000_000)}))),
    "many nulls": (".parquet", lambda: parquet(pa.table({"a": pa.nulls(100_000_000)}))),
    "many columns": (".parquet", lambda: parquet(pa.table({f"c{n}": pa.nulls(5_000) for n in range(2_000)}))),
    "one long list": (
        ".parquet",
        lambda: parquet(
            pa.table({"a": pa.ListArray.from_arrays([0, 30_000_000], pa.array([1]).take([0] * 30_000_000))})
        ),
    ),
    "a long description of itself": (".parquet", lambda: described("y" * 50_000_000)),
    "a description of many words": (".parquet", lambda: described({f"k{n}": "y" for n in range(300_000)})),
    "JSON in many rows": (
        ".parquet",
        lambda: parquet(
            pa.table({"a": repeated("[" + "[]," * 10_000 + "[]]", 1_500)}).replace_schema_metadata(
                {"agent_rl.json_columns": '["a"]'}
            )
        ),
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_made_to_fill_memory_is_refused_at_once(tmp_path: Path, name: str) -> None:
    suffix, make = BOMBS[name]
    path = tmp_path / f"bomb{suffix}"
    path.write_bytes(make())
    size = path.stat().st_size // 2**20
    megabytes, seconds, said = read_apart(path)
    assert "bomb" in said and said.count("\n") == 1, said[:500]
    assert megabytes < 3 * size + 220, (megabytes, size)
    assert seconds < 5.0


def test_a_name_in_a_gzip_file_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(named(b"x" * 50_000_000, b'{"a": 1}\n'))

    def read() -> None:
        assert [row["a"] for row in read_tasks(path)] == [1]

    assert cpu_s(read, 2.0) < 2.0


PARTS = st.lists(st.binary(max_size=300) | st.just(b'{"a": 1}\n' * 5000), max_size=4)


@settings(max_examples=200, deadline=None)
@given(
    parts=PARTS, num_zeros=st.integers(0, 20), cut=st.integers(0, 12), junk=st.sampled_from([b"", b"x", b"\x1f\x8b"])
)
def test_a_gzip_file_is_read_as_by_pythons_own_reader(
    parts: list[bytes], num_zeros: int, cut: int, junk: bytes
) -> None:
    packed = b"".join(gzip.compress(part) for part in parts)
    packed = packed[: len(packed) - cut] if cut else packed + bytes(num_zeros) + junk
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl.gz")
        path.write_bytes(packed)
        try:
            expected = gzip.decompress(packed)
        except (OSError, EOFError, zlib.error):
            with pytest.raises(DataError, match="not a whole gzip file"):
                list(read_lines(path, is_packed=True))
        else:
            assert b"".join(read_lines(path, is_packed=True)) == expected


ROWS: dict[str, bytes] = {
    "an endless line": b"x" * 20_000_000,
    "a deep row": b'{"a":' * 900 + b"1" + b"}" * 900,
    "a row that can be read and not written": b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
    "a very deep row": b"[" * 5_000_000,
    "many digits": b'{"a": ' + b"9" * 5_000 + b"}",
    "a long fraction": b'{"a": NaN}',
    "an infinite number": b'{"a": 1e999}',
    "minus infinity": b'{"a": -Infinity}',
    "half of a surrogate pair": b'{"a": "\\ud800"}',
    "the other half": b'{"a": "\\uDFFF"}',
    "a key twice": b'{"a": 1, "\\u0061": 2}',
    "a key twice among many": b"{" + b",".join(b'"%d": 1' % n for n in range(150_000)) + b', "149999": 2}',
    "a list": b"[]",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "latin 1": '{"a": "é"}'.encode("latin-1"),
    "NUL": b'{"a": "\0"}',
    "zeros": bytes(1000),
    "an id of a list": b'{"task_id": []}',
    "an id of blanks": b'{"task_id": " \\n "}',
    "a long id twice": b'{"task_id": "' + b"x" * 10**6 + b'"}\n{"task_id": "' + b"x" * 10**6 + b'"}',
    "an id with a newline twice": b'{"task_id": "a\\nb"}\n{"task_id": "a\\nb"}',
    "nothing": b"",
    "blank lines": b"\n" * 10_000,
    "a byte order mark alone": b"\xef\xbb\xbf",
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json"])
@pytest.mark.parametrize("name", ROWS)
def test_a_hostile_row_is_one_sentence(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / f"tasks{suffix}"
    content = ROWS[name]
    if suffix == ".json":
        content = b"[" + content.replace(b"\n", b",") + b"]"
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    if suffix == ".json" and name == "nothing":
        path.write_bytes(b"")

    def read() -> None:
        with pytest.raises(DataError, match=r"\A[^\n]{10,600}\Z"):
            read_tasks(path)

    assert cpu_s(read, 2.0) < 2.0


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".parquet"])
@pytest.mark.timeout(10)
def test_what_is_no_file_is_one_sentence(tmp_path: Path, suffix: str) -> None:
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"device{suffix}").symlink_to("/dev/zero")
    (tmp_path / f"loop{suffix}").symlink_to(f"loop{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    for name in ("pipe", "device", "loop", "folder", "missing"):
        with pytest.raises(DataError, match="no such task file"):
            read_tasks(tmp_path / f"{name}{suffix}")


def test_a_file_with_holes_is_not_read_whole(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".json", ".parquet"):
        path = tmp_path / f"bomb{suffix}"
        with path.open("wb") as file:
            file.truncate(2**40)
        megabytes, seconds, said = read_apart(path)
        assert "bomb" in said and megabytes < 100 and seconds < 1.0


@pytest.mark.parametrize("listed", ["{}", "7", '[["a"]]', "[" * 50_000, "nothing", "null", '"a"'])
def test_hostile_metadata_of_a_parquet_file_is_one_sentence(tmp_path: Path, listed: str) -> None:
    table = pa.table({"a": ["1"]}).replace_schema_metadata({"agent_rl.json_columns": listed})
    (tmp_path / "a.parquet").write_bytes(parquet(table))
    with pytest.raises(DataError, match=r"\A[^\n]{10,400}\Z"):
        read_tasks(tmp_path / "a.parquet")


def test_a_parquet_file_that_contradicts_itself_ends_no_process(tmp_path: Path) -> None:
    """pyarrow ends its process where the numbers of a column do not fit its type."""
    path, honest = tmp_path / "bomb.parquet", parquet(pa.table({"a": [0.5, 1.5]}))
    start = len(honest) - 8 - int.from_bytes(honest[-8:-4], "little")
    place = honest.index(b"\x15\x0a", start)  # the type of the column in the schema: a double
    path.write_bytes(honest[: place + 1] + b"\x00" + honest[place + 2 :])
    assert "not a whole Parquet file" in read_apart(path)[2]
    for place in range(start + 15, start + 24):
        path.write_bytes(honest[:place] + b"\x00" + honest[place + 1 :])
        read_apart(path)  # raises where the process was ended


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".parquet"])
def test_a_large_honest_file_is_read(tmp_path: Path, suffix: str) -> None:
    words = [f"word{n * 7919 % 9973}" for n in range(9973)]
    rows = [
        {
            "task_id": f"t{n}",
            "prompt": "The same preface of every task. " * 8 + " ".join(words[n % 9000 : n % 9000 + 60]),
        }
        | {"cases": [{"a": n, "b": [n, n + 1]}]}
        for n in range(40_000)
    ]
    path = tmp_path / f"tasks{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps(rows))
    elif suffix == ".jsonl.gz":
        path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    else:
        write_tasks(path, rows)
    assert read_tasks(path) == rows
