"""Rows given in Python: whatever holds them becomes one list of plain rows, and a wrong one is a sentence."""

import datetime
import decimal
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from cpu_time import cpu_s

from agent_rl.config import DataConfig
from agent_rl.data.parquet import _json_columns
from agent_rl.data.rows import rows_of
from agent_rl.data.tasks import as_tasks, read_split, read_tasks
from agent_rl.errors import ConfigError, DataError

ROWS = [{"prompt": "2 + 2", "answer": "4"}, {"prompt": "größe", "answer": "5"}]


class Columns:
    """What `datasets.Dataset` has of the protocol of a sequence: rows as dictionaries, columns by name."""

    column_names = ["prompt", "answer"]

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, key: int | str) -> Any:
        return [row[key] for row in self.rows] if isinstance(key, str) else self.rows[key]


class Frame:
    """What a polars frame has."""

    columns = ["prompt", "answer"]

    def iter_rows(self, *, named: bool = False) -> Iterator[Any]:
        assert named
        return iter(ROWS)

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)


class LazyFrame:
    """What a lazy polars frame has: `iter` takes it, and the first row fails."""

    def collect(self) -> Frame:
        return Frame()

    def collect_schema(self) -> dict[str, Any]:
        return {}

    def __getitem__(self, index: int) -> None:
        raise TypeError("LazyFrame is not subscriptable")


class ByIndex:
    """A PyTorch dataset: numbers from 0 and no `__iter__`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return ROWS[index]


# Wrong input

IMAGE = object()
WRONG_VALUES = {
    "nan": float("nan"),
    "infinite": [1.0, float("-inf")],
    "bytes": b"x",
    "set": {"a"},
    "date": datetime.date(2026, 1, 1),
    "decimal": decimal.Decimal("1.5"),
    "object": IMAGE,
    "key": {1: "x"},
    "nat": np.datetime64("2026-01-01"),
    "numpy nan": np.float32("nan"),
    "deep": {"x": [{"y": np.array([1.0, np.inf])}]},
    "surrogate": "a\ud83d",
}


@pytest.mark.parametrize("name", WRONG_VALUES)
def test_a_value_that_no_row_can_hold_is_named_by_row_and_column(name: str) -> None:
    rows = [ROWS[0], {"prompt": "x", "extra": WRONG_VALUES[name]}]
    with pytest.raises(DataError, match=r"^train_dataset:row 2: 'extra' .*; ") as caught:
        as_tasks(rows, "train_dataset")
    assert "\n" not in str(caught.value)


def test_rows_that_hold_themselves_are_refused() -> None:
    row: dict[str, Any] = {"prompt": "x"}
    row["again"] = row
    with pytest.raises(DataError, match=r"^train_dataset:row 1: 'again' "):
        as_tasks([row], "train_dataset")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([], "^rows: holds no row"),
        (iter(()), "^rows: holds no row"),
        (7, "^rows: got 7, a int"),
        (None, "^rows: got None"),
        ("tasks.jsonl", "^rows: got 'tasks.jsonl', a str"),
        (b"x", "^rows: got b'x', a bytes"),
        (["a question"], "^rows:row 1: got 'a question', a str, expected a row"),
        ([ROWS[0], ["x"]], "^rows:row 2: got "),
        ([{"prompt": "x"}, {7: "x"}], "^rows:row 2: the column 7 "),
        (
            {"train": Columns(ROWS), "test": Columns(ROWS)},
            r"^rows: holds the splits 'train', 'test'; .*rows\['train'\]",
        ),
        ({"prompt": ["a", "b"], "answer": ["1", "2"]}, "^rows: is a dictionary of columns"),
        ([{"task_id": "a"}, {"task_id": "a"}], "^rows:row 2: task_id 'a' is already taken by row 1"),
        ([{"task_id": "a"}, {"prompt": "b"}], "^rows:row 2: the row has no 'task_id'"),
        ([{"task_id": 3.5}], "^rows:row 1: task_id is 3.5"),
        (LazyFrame(), r"^rows: is a LazyFrame, which holds no rows yet; give its \.collect\(\)"),
        (pd.DataFrame({"prompt": ["a", None]}), "^rows:row 2: 'prompt' "),
        (pd.DataFrame([["a", "b"]], columns=["prompt", "prompt"]), "^rows: two columns are called 'prompt'"),
    ],
)
def test_what_holds_no_rows_is_refused_in_one_sentence(given: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        as_tasks(given, "rows")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"prompt": "questoin"}, r"row 1: data.columns.prompt names the column 'questoin'; did you mean 'question'"),
        ({"prompt": "x"}, r"row 1: data.columns.prompt names the column 'x'; known: question, answer"),
        ({"answer": "question"}, r"row 1: data.columns calls 'question' 'answer', and there is an 'answer' already"),
    ],
)
def test_a_column_that_cannot_be_renamed_is_named(columns: dict[str, str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        as_tasks([{"question": "2 + 2", "answer": "4"}], "rows", columns=columns)


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_split_without_a_path_is_refused(split: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.{split}_path is missing"):
        read_split(DataConfig(), split)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "the file holds no task"),
        (b"prompt,answer\n", "the file holds no task"),
        (b"prompt,prompt\na,b\n", "tasks.csv:1: two columns are called 'prompt'"),
        (b"prompt,\na,b\n", "tasks.csv:1: a column has no name"),
        (b"prompt,answer\na\n", "tasks.csv:2: 1 values, expected 2"),
        (b"prompt,answer\na,b,c\n", "tasks.csv:2: 3 values, expected 2"),
        (b"prompt,answer\n\xff,b\n", "tasks.csv: .*UTF-8"),
        (b'prompt,answer\n"a,b\n', "tasks.csv:.*quot"),
        (b"prompt,answer\na\0,b\n", "tasks.csv:"),
    ],
)
def test_a_wrong_csv_file_is_refused_with_its_line(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "tasks.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=complaint) as caught:
        read_tasks(path)
    assert "\n" not in str(caught.value)


def test_many_columns_cost_no_more_than_their_number(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(30_000)]
    (tmp_path / "tasks.csv").write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    assert cpu_s(lambda: read_tasks(tmp_path / "tasks.csv"), 2.0) < 2.0
    schema = pa.schema([(name, pa.string()) for name in names])
    assert cpu_s(lambda: _json_columns(schema, "tasks.parquet"), 2.0) < 2.0


# Right input


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_dataset_whose_length_is_unknown_ends_by_its_rows(error: type[Exception]) -> None:
    class Dataset:
        def __len__(self) -> int:
            raise error

        def __getitem__(self, number: int) -> dict[str, Any]:
            return [{"prompt": "a"}, {"prompt": "b"}][number]

    assert [row for _, row in rows_of(Dataset(), "rows")] == [{"prompt": "a"}, {"prompt": "b"}]


def test_a_dataset_with_a_length_ends_there_though_it_knows_no_other_end() -> None:
    class Endless:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"prompt": f"{index} + {index}"}

    assert [row["prompt"] for _, row in islice(rows_of(Endless(), "rows"), 10)] == ["0 + 0", "1 + 1", "2 + 2"]


@pytest.mark.parametrize(
    "given",
    [ROWS, tuple(ROWS), iter(ROWS), Columns(ROWS), Frame(), ByIndex(), pd.DataFrame(ROWS), pa.Table.from_pylist(ROWS)],
    ids=lambda given: type(given).__name__,
)
def test_all_that_holds_rows_gives_the_same_tasks(given: Any) -> None:
    assert [{key: task[key] for key in ("prompt", "answer")} for task in as_tasks(given, "rows")] == ROWS
    assert [task["task_id"] for task in as_tasks(ROWS, "rows")] == [task["task_id"] for task in as_tasks(ROWS, "other")]


def test_made_ids_stay_with_their_row_and_equal_rows_get_a_number() -> None:
    first, second = (task["task_id"] for task in as_tasks(ROWS, "rows"))
    assert first != second
    assert [task["task_id"] for task in as_tasks([ROWS[1], ROWS[0], ROWS[1]], "rows")] == [
        second,
        first,
        f"{second}-2",
    ]


def test_values_become_those_of_json_and_the_rows_given_stay_as_they_are() -> None:
    row = {
        "prompt": np.str_("x"),
        "pair": (1, 2.5),
        "flags": np.array([True, False]),
        "half": np.float32(0.5),
        "count": torch.tensor(3),
        "none": None,
        "info": {"n": np.int64(7)},
    }
    (task,) = as_tasks([row], "rows")
    task_id = task.pop("task_id")
    assert task_id.startswith("row/")
    assert task == {
        "prompt": "x",
        "pair": [1, 2.5],
        "flags": [True, False],
        "half": 0.5,
        "count": 3,
        "none": None,
        "info": {"n": 7},
    }
    kinds = [type(value) for value in (task["prompt"], task["half"], task["count"], task["info"]["n"])]
    assert kinds == [str, float, int, int]
    assert isinstance(row["pair"], tuple) and "task_id" not in row


def test_columns_are_renamed_before_rows_are_checked_and_named_alike_from_a_file(tmp_path: Path) -> None:
    rows = [{"question": "2 + 2", "target": "4", "id": "a"}]
    columns = {"prompt": "question", "answer": "target", "task_id": "id"}
    expected = [{"prompt": "2 + 2", "answer": "4", "task_id": "a"}]
    seen: list[str] = []
    assert as_tasks(rows, "rows", lambda task, where: seen.append(where), columns=columns) == expected
    assert seen == ["rows:row 1"]
    path = tmp_path / "tasks.csv"
    path.write_text('question,target,id\n"2 + 2",4,a\n')
    assert read_split(DataConfig(train_path=path, columns=columns), "train") == expected
    assert as_tasks([{**rows[0], "id": 5}], "rows", columns=columns) == [{**expected[0], "task_id": "5"}]


def test_names_may_be_exchanged() -> None:
    (task,) = as_tasks([{"task_id": "t", "a": 1, "b": 2}], "rows", columns={"a": "b", "b": "a"})
    assert task == {"task_id": "t", "a": 2, "b": 1}


def test_csv_values_are_texts_and_may_hold_commas_and_line_breaks(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    path.write_bytes(b'\xef\xbb\xbfprompt,answer\r\n"two, or\nthree",4\r\n\r\nfour,\r\n')
    tasks = read_tasks(path)
    assert [(task["prompt"], task["answer"]) for task in tasks] == [("two, or\nthree", "4"), ("four", "")]
    assert all(task["task_id"].startswith("tasks/") for task in tasks)
