"""Task files: what is written comes back equal in both formats, and every mistake is one sentence with its place."""

import datetime
import gzip
import hashlib
import json
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cpu_time import within
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_rl.data.bounds import Allowance, count_outside_texts
from agent_rl.data.parquet import decode_rows, encode_rows
from agent_rl.data.tasks import find_task_file, read_tasks, write_tasks
from agent_rl.errors import DataError


def write(tmp_path, content: bytes):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    return path


def test_rows_come_back_in_file_order_with_all_their_keys(tmp_path):
    path = write(tmp_path, '{"task_id": "b", "request": "größe\u2028x"}\n\n{"task_id": "a", "n": [1]}'.encode())
    assert read_tasks(path) == [{"task_id": "b", "request": "größe\u2028x"}, {"task_id": "a", "n": [1]}]


def test_windows_line_ends_and_a_path_as_text_are_accepted(tmp_path):
    assert read_tasks(str(write(tmp_path, b'{"task_id": "a"}\r\n{"task_id": "b"}\r\n')))[1] == {"task_id": "b"}


GOOD = b'{"task_id": "a"}\n'


@pytest.mark.parametrize(
    ("content", "line", "words"),
    [
        (GOOD + b'{"task_id": "b"\n', 2, "not valid JSON"),
        (GOOD + b"\n[1, 2]\n", 3, "expected a JSON object, got an array"),
        (GOOD + b"null\n", 2, "got null"),
        (GOOD + b'{"id": "b"}\n', 2, "no 'task_id'; add one"),
        (GOOD + b'{"task_id": ""}\n', 2, "task_id is ''; make it a non-empty string"),
        (GOOD + b'{"task_id": true}\n', 2, "task_id is True"),
        (b'{"task_id": "7"}\n{"task_id": 7}\n', 2, "'7' is already taken by line 1"),
        (GOOD + b'{"task_id": "b"}\n' + GOOD, 3, "'a' is already taken by line 1"),
        (GOOD + b'{"task_id": "caf\xe9"}\n', 2, "byte 17 of the line is not UTF-8"),
        (GOOD + b'{"n": ' + b"7" * 5000 + b"}\n", 2, "an integer has too many digits to be read; write it as text"),
        (GOOD + b'{"n": ' + b"[" * 100_000 + b"\n", 2, "nested too deeply to be read; write it with fewer brackets"),
        (GOOD + b'{"task_id": "b", "n": NaN}\n', 2, "NaN is no finite number; write one, or null"),
        (GOOD + b'{"task_id": "b", "n": [-Infinity]}\n', 2, "-Infinity is no finite number"),
        (GOOD + b'{"task_id": "b", "n": 1e999}\n', 2, "1e999 is no finite number"),
        (GOOD + b'{"task_id": "b", "n": {"x": 1, "y": 2, "x": 1}}\n', 2, "the key 'x' stands twice in one object"),
        (GOOD + b'{"task_id": "b\\uD83D"}\n', 2, "a text holds half of a surrogate pair (\\ud800 to \\udfff)"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, content, line, words):
    path = write(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)


def test_a_whole_number_as_an_id_is_its_text(tmp_path):
    assert read_tasks(write(tmp_path, b'{"task_id": 601}\n')) == [{"task_id": "601"}]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_a_byte_order_mark_is_left_out(tmp_path, mark):
    path = write(tmp_path, mark + GOOD)
    assert read_tasks(path) == [{"task_id": "a"}]
    (tmp_path / "tasks.json").write_bytes(mark + b'[{"task_id": "b"}]')
    assert read_tasks(tmp_path / "tasks.json") == [{"task_id": "b"}]


def test_a_whole_surrogate_pair_and_the_name_of_one_are_text(tmp_path):
    path = write(tmp_path, rb'{"task_id": "\ud83d\ude00", "code": "print(\"\\ud83d\")"}')
    assert read_tasks(path) == [{"task_id": "\U0001f600", "code": 'print("\\ud83d")'}]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_tasks_is_refused(tmp_path, content):
    path = write(tmp_path, content)
    with pytest.raises(DataError, match="the file holds no task"):
        read_tasks(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such task file"):
        read_tasks(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(("name", "suffix"), [("tasks.tsv", ".tsv"), ("tasks", ""), ("tasks.parquet.gz", ".gz")])
def test_another_suffix_is_refused_in_reading_and_writing(tmp_path, name, suffix):
    path = tmp_path / name
    path.write_bytes(GOOD)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value) == (
        f"{path}: a task file ends in .jsonl, .jsonl.gz, .json, .csv or .parquet, got {suffix!r}; use one of them"
    )
    with pytest.raises(DataError, match=r"a task file is written as \.jsonl or \.parquet, got"):
        write_tasks(path, [{"task_id": "a"}])
    assert path.read_bytes() == GOOD


CONTENTS = {
    ".jsonl": GOOD + b'{"task_id": "b"}\n',
    ".jsonl.gz": gzip.compress(GOOD),
    ".json": b'[\n  {"task_id": "a"}\n]\n',
    ".csv": b"task_id,n\na,1\n",
    ".parquet": encode_rows([{"task_id": "a"}]),
}


@pytest.mark.parametrize("given", [each for each in CONTENTS if each != ".csv"])  # any text may be one
@pytest.mark.parametrize("named", CONTENTS)
def test_a_file_of_another_format_than_its_name_says_is_told_so(tmp_path, given, named):
    path = tmp_path / f"tasks{named}"
    path.write_bytes(CONTENTS[given])
    if given == named:
        assert read_tasks(path)[0]["task_id"] == "a"
        return
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text
    assert (given if given != ".jsonl.gz" or named == ".jsonl" else "unpack") in text.partition(";")[2]


def test_lines_that_are_arrays_are_no_array_of_rows(tmp_path):
    with pytest.raises(DataError, match=r"tasks\.jsonl:1: .*got an array"):
        read_tasks(write(tmp_path, b'[{"a": 1}]\n[{"a": 2}]\n'))


@pytest.mark.parametrize("name", ["tasks.json", "tasks.jsonl.gz"])
def test_formats_that_are_only_read_are_not_written(tmp_path, name):
    with pytest.raises(DataError, match=r"a task file is written as \.jsonl or \.parquet"):
        write_tasks(tmp_path / name, [{"task_id": "a"}])
    assert not list(tmp_path.iterdir())


# Made ids

ANSWERS = [{"question": "2 + 2", "answer": "4"}, {"question": "größe", "answer": ["5", "five"]}]
CANONICAL = ['{"answer":"4","question":"2 + 2"}', '{"answer":["5","five"],"question":"größe"}']


@pytest.mark.parametrize(
    "name", ["gsm8k_train.jsonl", "gsm8k_train.jsonl.gz", "gsm8k_train.json", "gsm8k_train.parquet"]
)
def test_rows_of_a_file_without_any_task_id_get_its_name_and_their_hash(tmp_path, name):
    path, lines = tmp_path / name, "\n".join(map(json.dumps, ANSWERS)).encode()
    match name.partition(".")[2]:
        case "jsonl":
            path.write_bytes(lines)
        case "jsonl.gz":
            path.write_bytes(gzip.compress(lines))
        case "json":
            path.write_text(json.dumps(ANSWERS))
        case "parquet":
            path.write_bytes(encode_rows(ANSWERS))
    seen = []
    tasks = read_tasks(path, lambda row, where: seen.append((row["task_id"], where)))
    first, second = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in CANONICAL)
    assert tasks == [
        {"task_id": f"gsm8k_train/{first}"} | ANSWERS[0],
        {"task_id": f"gsm8k_train/{second}"} | ANSWERS[1],
    ]
    separator = ":" if "jsonl" in name else ":row "
    assert seen == [(f"gsm8k_train/{first}", f"{path}{separator}1"), (f"gsm8k_train/{second}", f"{path}{separator}2")]


def made_ids(tmp_path, *rows: dict) -> list[str]:
    return [row["task_id"] for row in read_tasks(write(tmp_path, "\n".join(map(json.dumps, rows)).encode()))]


def test_a_made_id_stays_with_its_row_when_others_come_and_go(tmp_path):
    a, b, c = ({"question": word, "n": 1} for word in "abc")
    ids = made_ids(tmp_path, a, b, c)
    assert made_ids(tmp_path, c, dict(reversed(b.items()))) == [ids[2], ids[1]]
    assert len(set(ids)) == 3


def test_equal_rows_are_numbered_behind_their_hash(tmp_path):
    first, second, third, other = made_ids(tmp_path, {"n": 1}, {"n": 1}, {"n": 1}, {"n": 2})
    assert (second, third) == (f"{first}-2", f"{first}-3")
    assert other != first and "-" not in other


def test_rows_that_have_ids_keep_them_in_a_json_array(tmp_path):
    path = tmp_path / "tasks.json"
    path.write_text('[{"task_id": "b", "n": 1},\n {"task_id": "a"}]')
    assert read_tasks(path) == [{"task_id": "b", "n": 1}, {"task_id": "a"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"task_id": "a"},\n {"n": 1}]', ":row 2: the row has no 'task_id'; add one"),
        (b'[{"n": 1}, 7]', ":row 2: expected a JSON object, got a number"),
        (b'[{"task_id": "a"}, {"task_id": "a"}]', ":row 2: task_id 'a' is already taken by row 1"),
        (b'[{"n": 1},\n{"n": 2}', ":2: not valid JSON (Expecting ',' delimiter, column 9); write one array"),
        (b'{"n": 1}\n{"n": 2}\n', ":2: not valid JSON (Extra data, column 1); write one array"),
        (b'{"data": []}', ": expected one JSON array of objects, got an object"),
        (b"[]", ": the file holds no task"),
        (b'[{"n": 1},\n{"n": 1, "n": 2}]', ": the key 'n' stands twice in one object; remove one"),
        (b"[" * 100_000, ": nested too deeply to be read"),
        (b'["caf\xe9"]', ": byte 6 is not UTF-8"),
    ],
)
def test_a_bad_json_array_is_named_by_file_and_row(tmp_path, content, message):
    path = tmp_path / "tasks.json"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("values", [[1.5, math.nan], [[0.5], [1.0, math.inf]], [None, {"low": {"at": -math.inf}}]])
def test_a_number_of_a_parquet_file_that_is_not_finite_is_named_by_row_and_column(tmp_path, values):
    path = tmp_path / "tasks.parquet"
    pq.write_table(pa.table({"task_id": ["a", "b"], "answer": values}), path)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}:row 2: 'answer' holds ")


PACKED = gzip.compress(GOOD * 50)


@pytest.mark.parametrize(
    "content",
    [b"a text", PACKED[:-12], PACKED[:10] + b"\xff" * 20, b"\x1f\x8b"],
    ids=["a text", "cut off", "bytes changed", "only its mark"],
)
def test_what_is_not_a_whole_gzip_file_is_refused(tmp_path, content):
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}: not a whole gzip file (")


def test_brackets_and_commas_within_texts_are_no_values(tmp_path):
    row = {"task_id": "a", "text": '[{,"\\' * 200_001}
    line = json.dumps(row).encode() + b"\n"
    (tmp_path / "tasks.jsonl").write_bytes(line)
    (tmp_path / "tasks.jsonl.gz").write_bytes(gzip.compress(line))
    assert read_tasks(tmp_path / "tasks.jsonl") == read_tasks(tmp_path / "tasks.jsonl.gz") == [row]


@pytest.mark.parametrize(
    ("text", "count"),
    [('[1, "a,[{", {}]', 4), ('"\\\\", [', 2), ('"\\", [', 0), ('["', 1), ("", 0), ('"\\"' * 100_000, 0)],
)
def test_what_stands_within_a_text_is_not_counted(text, count):
    with within(1.0):
        assert count_outside_texts(text, ",[{") == count_outside_texts(text.encode(), ",[{") == count


def test_a_packed_row_of_many_texts_is_refused_before_it_fills_memory(tmp_path):
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"task_id": "a", "x": [' + b'"",' * (3 * 2**20) + b'""]}\n'))
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read_tasks(path)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_commas_within_texts_use_up_no_more_than_half_of_what_a_packed_file_may_hold() -> None:
    allowance = Allowance("a.jsonl.gz", 0)
    for _ in range(3):
        allowance.take_json('["' + "," * 300_000 + '"]')
    allowance.take_json("[" + "0," * 900_000 + "0]")
    with pytest.raises(DataError):
        allowance.take_json("[" + "0," * 200_000 + "0]")


def test_a_bad_line_in_a_gzip_file_is_named(tmp_path):
    path = tmp_path / "tasks.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD + b"{\n"))
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}:2: not valid JSON")


def test_the_held_out_file_of_a_folder_is_val_or_else_eval_in_any_format(tmp_path):
    assert find_task_file(tmp_path, "eval") == tmp_path / "val.jsonl"
    assert find_task_file(tmp_path, "train") == tmp_path / "train.jsonl"
    for name in ("eval.json", "val.parquet", "val.jsonl"):
        (tmp_path / name).touch()
        assert find_task_file(tmp_path, "eval") == tmp_path / name


# Both formats

MIXED_ROWS = [
    {"task_id": "b", "level": 2, "request": "größe\u2028x", "share": 0.5, "held_out": True, "rules": {"n": [1, None]}},
    {"task_id": "a", "level": 1, "request": "", "share": 2.0, "held_out": False, "rules": None, "only_here": "x"},
]


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_written_rows_come_back_equal_and_as_the_same_bytes(tmp_path, suffix):
    first, again = tmp_path / f"new/first.{suffix}", tmp_path / f"again.{suffix}"
    write_tasks(first, MIXED_ROWS)
    assert read_tasks(str(first)) == MIXED_ROWS
    assert [list(row) for row in read_tasks(first)] == [list(row) for row in MIXED_ROWS]
    write_tasks(again, read_tasks(first))
    assert again.read_bytes() == first.read_bytes()
    assert [path.name for path in first.parent.iterdir()] == [first.name]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["a", "a.b", "", "ü"]) | st.text(max_size=2)
rows_of_any_shape = st.lists(st.dictionaries(names, json_values, min_size=1, max_size=4), min_size=1)


@settings(max_examples=50, deadline=None)
@given(rows_of_any_shape)
@example([{"x": 1}, {"x": 1.0}])
@example([{"x": 1}, {"x": 2**63}])
def test_parquet_keeps_any_json_rows_with_their_types(rows):
    read = decode_rows(encode_rows(rows), "f")
    assert read == rows
    assert repr([dict(sorted(row.items())) for row in read]) == repr([dict(sorted(row.items())) for row in rows])


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("value", [math.nan, math.inf, {1: "x"}, (1, 2), {"a"}, "\ud800", datetime.date(2024, 1, 2)])
def test_a_value_that_would_not_come_back_equal_is_refused_with_row_and_field(tmp_path, suffix, value):
    path = tmp_path / f"tasks.{suffix}"
    with pytest.raises(DataError, match=rf"tasks\.{suffix}:row 2: 'rules' is .* JSON"):
        write_tasks(path, [{"task_id": "a"}, {"task_id": "b", "rules": value}])
    assert not path.exists()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "holds no task"),
        ([{"task_id": "a"}, {"id": "b"}], "row 2: the row has no 'task_id'"),
        ([{"id": "b"}], "row 1: the row has no 'task_id'"),
        ([{"task_id": "a"}, {"task_id": "b"}, {"task_id": "a"}], "row 3: task_id 'a' is already taken by row 1"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(tmp_path, rows, words):
    write_tasks(tmp_path / "tasks.parquet", [{"task_id": "old"}])
    with pytest.raises(DataError, match=words):
        write_tasks(tmp_path / "tasks.parquet", rows)
    assert read_tasks(tmp_path / "tasks.parquet") == [{"task_id": "old"}]


# Parquet


def parquet(tmp_path, columns: Mapping[str, Any] | pa.Table, json_columns: str | None = None):
    """A file made without our writer; `json_columns` is the metadata that ours would have."""
    table = columns if isinstance(columns, pa.Table) else pa.table(dict(columns))
    if json_columns is not None:
        table = table.replace_schema_metadata({"agent_rl.json_columns": json_columns})
    path = tmp_path / "tasks.parquet"
    pq.write_table(table, path)
    return path


def test_scalar_fields_are_columns_of_their_type_and_the_rest_is_json_text(tmp_path):
    write_tasks(tmp_path / "tasks.parquet", MIXED_ROWS)
    table = pq.read_table(tmp_path / "tasks.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        "task_id": "string",
        "level": "int64",
        "request": "string",
        "share": "double",
        "held_out": "bool",
        "rules": "string",
        "only_here": "string",
    }
    assert table["rules"].to_pylist() == ['{"n": [1, null]}', "null"]
    assert table["only_here"].to_pylist() == [None, "x"]


def test_a_parquet_file_made_elsewhere_gives_python_values(tmp_path):
    columns = {
        "task_id": ["a", "b"],
        "rules": [{"n": [1, 2]}, None],
        "inputs": [["x"], []],
        "family": pa.array(["f", "f"]).dictionary_encode(),
        "config": pa.array(['{"low": 1}', None], type=pa.json_()),
        "text": ["[1]", "2"],
    }
    assert read_tasks(parquet(tmp_path, columns)) == [
        {"task_id": "a", "rules": {"n": [1, 2]}, "inputs": ["x"], "family": "f", "config": {"low": 1}, "text": "[1]"},
        {"task_id": "b", "rules": None, "inputs": [], "family": "f", "config": None, "text": "2"},
    ]


@pytest.mark.parametrize(
    ("columns", "place", "words"),
    [
        ({"task_id": ["a", None]}, ":row 2: ", "task_id is None"),
        ({"task_id": ["a", "b", "b"]}, ":row 3: ", "task_id 'b' is already taken by row 2"),
        ({"task_id": pa.array([], type=pa.string())}, ": ", "the file holds no task"),
        ({"task_id": ["a"], "day": [datetime.date(2024, 1, 2)]}, ": ", "column 'day' has the type date32[day]"),
        ({"task_id": ["a"], "x": [[{"y": b"z"}]]}, ": ", "column 'x' has the type list"),
        (pa.table([pa.array(["a"]), pa.array(["b"])], names=["task_id"] * 2), ": ", "two columns are called 'task_id'"),
    ],
)
def test_a_bad_parquet_row_or_column_is_named(tmp_path, columns, place, words):
    path = parquet(tmp_path, columns)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}{place}{words}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["{}", '{"a": 1'], "row 2: column 'rules' is not valid JSON (Expecting ',' delimiter, character 8)"),
        (["{}", ""], "row 2: column 'rules' is not valid JSON"),
        (["{}", "7" * 5000], "row 2: column 'rules': an integer has too many digits to be read; write it as text"),
        ([3, 4], "row 1: column 'rules' holds 3 where JSON text is expected"),
    ],
)
def test_a_json_column_that_does_not_parse_is_named_with_its_row(tmp_path, cells, words):
    path = parquet(tmp_path, {"task_id": ["a", "b"], "rules": cells}, json_columns='["rules", "dropped"]')
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}:{words}")


def test_the_environments_check_gets_every_parquet_row_and_its_place(tmp_path):
    path = parquet(tmp_path, {"task_id": ["a", "b"], "level": ["1", "two"]})

    def check(task, where):
        if not task["level"].isdigit():
            raise DataError(f"{where}: level is {task['level']!r}")

    with pytest.raises(DataError) as caught:
        read_tasks(path, check)
    assert str(caught.value) == f"{path}:row 2: level is 'two'"


def damaged_files() -> list[bytes]:
    whole = encode_rows([{"task_id": "a", "request": "sphinx of black quartz"}])
    assert b"quartz" in whole  # too short to be compressed
    return [b"", b"a text", whole[:-20], whole.replace(b"quartz", b"quarts")]


@pytest.mark.parametrize("content", damaged_files(), ids=["empty", "a text", "cut off", "one byte changed"])
def test_what_is_not_a_whole_parquet_file_is_refused(tmp_path, content):
    path = tmp_path / "tasks.parquet"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}: not a whole Parquet file (")
    assert "\n" not in str(caught.value)


def test_a_jsonl_file_is_read_without_pyarrow(tmp_path):
    path = write(tmp_path, GOOD)
    code = f"import sys; from dataset import read_tasks; print(read_tasks({str(path)!r}), 'pyarrow' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[{'task_id': 'a'}] False\n"
