import pytest

from agent_rl.data.tasks import read_tasks
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
        (GOOD + b"\n[1, 2]\n", 3, "expected a JSON object with a task_id, got an array"),
        (GOOD + b"null\n", 2, "got null"),
        (GOOD + b'{"id": "b"}\n', 2, "no 'task_id'; add one"),
        (GOOD + b'{"task_id": ""}\n', 2, "task_id is ''; make it a non-empty string"),
        (GOOD + b'{"task_id": 7}\n', 2, "task_id is 7"),
        (GOOD + b'{"task_id": "b"}\n' + GOOD, 3, "'a' is already taken by line 1"),
        (GOOD + b'{"task_id": "caf\xe9"}\n', 2, "byte 17 of the line is not UTF-8"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path, content, line, words):
    path = write(tmp_path, content)
    with pytest.raises(DataError) as caught:
        read_tasks(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_a_file_without_tasks_is_refused(tmp_path, content):
    path = write(tmp_path, content)
    with pytest.raises(DataError, match="the file holds no task"):
        read_tasks(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.jsonl: no such task file"):
        read_tasks(tmp_path / "nowhere.jsonl")
