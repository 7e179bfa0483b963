"""Tasks as records: fields by name, the same rows back, and reproducible samples."""

import dataclasses
import json

import pytest

from agent_rl.data.tasks import write_tasks
from agent_rl.errors import CheckpointError, DataError
from dataset import CodeTaskDataset, CodeTaskSampler, SearchTaskDataset, load_code_task_splits

QUESTION = {"task_id": "q1", "question": "Who?", "answer": ["Ada", "Lovelace"], "level": 2, "metadata": {"num_hops": 2}}
CODE = {
    "task_id": "c1",
    "prompt": "Add two numbers.",
    "starter_code": "def add(a, b):\n",
    "tests": [{"function": "add", "args": [1, 2], "expected": 3}],
    "reference_solution": "def add(a, b):\n    return a + b\n",
    "level": 1,
    "metadata": {"num_examples": 1},
}


def code_rows(*names: str) -> list[dict]:
    return [CODE | {"task_id": name} for name in names]


def test_questions_have_named_fields_and_give_their_rows_back(tmp_path):
    documents = [{"title": "Ada", "text": "Ada wrote."}]
    rows = [QUESTION, {"task_id": "q2", "question": "1 + 1", "answer": "2", "documents": documents}]
    write_tasks(tmp_path / "train.jsonl", rows)
    ds = SearchTaskDataset.from_path(str(tmp_path / "train.jsonl"))
    assert (ds[0].task_id, ds[0].question, ds[0].answer) == ("q1", "Who?", ["Ada", "Lovelace"])
    assert (ds[0].documents, ds[0].metadata, ds[0].others) == (None, {"num_hops": 2}, {"level": 2})
    assert ds[1].documents == documents
    assert [task.to_env_task() for task in ds] == rows
    assert len(ds) == 2 and ds[:1] == (ds[0],) and ds[-1] in ds


def test_code_tasks_have_named_fields_and_give_their_rows_back(tmp_path):
    write_tasks(tmp_path / "train.parquet", [CODE])
    (task,) = CodeTaskDataset.from_path(tmp_path / "train.parquet")
    assert (task.prompt, task.starter_code, task.tests) == (CODE["prompt"], CODE["starter_code"], CODE["tests"])
    assert (task.reference_solution, task.metadata) == (CODE["reference_solution"], {"num_examples": 1})
    assert task.to_env_task() == CODE
    with pytest.raises(dataclasses.FrozenInstanceError):
        task.prompt = "Subtract"


def test_a_file_without_ids_is_read_as_any_other(tmp_path):
    (tmp_path / "dev.json").write_text(json.dumps([{"question": "1 + 1", "answer": "2"}]))
    row = SearchTaskDataset.from_path(tmp_path / "dev.json")[0].to_env_task()
    assert row == {"task_id": row["task_id"], "question": "1 + 1", "answer": "2"}
    assert row["task_id"].startswith("dev/")


@pytest.mark.parametrize("answer", [{}, {"answer": None}])
def test_a_missing_field_is_named_with_its_place_and_what_is_needed(tmp_path, answer):
    write_tasks(tmp_path / "train.jsonl", [QUESTION, {"task_id": "q2", "question": "Who?"} | answer])
    with pytest.raises(DataError) as caught:
        SearchTaskDataset.from_path(tmp_path / "train.jsonl")
    place = f"{tmp_path}/train.jsonl:2"
    assert str(caught.value) == (
        f"{place}: the row has no 'answer'; a SearchTask needs task_id, question, answer, add it"
    )
    with pytest.raises(DataError, match="no 'prompt'; a CodeTaskRow needs task_id, prompt, tests"):
        CodeTaskDataset.from_path(tmp_path / "train.jsonl")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("question", 7, "a text"),
        ("question", ["Who?"], "a text"),
        ("answer", {}, "a text, a number, or a list of accepted ones"),
        ("answer", True, "a text, a number, or a list of accepted ones"),
        ("documents", "Ada wrote.", "a list"),
        ("metadata", [], "an object"),
    ],
)
def test_a_field_of_another_kind_is_named_with_its_place(tmp_path, field, value, expected):
    write_tasks(tmp_path / "train.jsonl", [QUESTION, QUESTION | {"task_id": "q2", field: value}])
    with pytest.raises(DataError) as caught:
        SearchTaskDataset.from_path(tmp_path / "train.jsonl")
    assert str(caught.value) == f"{tmp_path}/train.jsonl:2: {field!r} is {value!r}; make it {expected}"


def test_a_number_is_an_answer_and_an_optional_field_may_be_null(tmp_path):
    write_tasks(tmp_path / "train.jsonl", [{"task_id": "q", "question": "1 + 1", "answer": 2, "documents": None}])
    assert SearchTaskDataset.from_path(tmp_path / "train.jsonl")[0].answer == 2


@pytest.mark.parametrize("second", ["eval.jsonl", "val.parquet"])
def test_a_folder_has_two_splits(tmp_path, second):
    write_tasks(tmp_path / "train.jsonl", code_rows("a", "b"))
    write_tasks(tmp_path / second, code_rows("c"))
    train, evaluation = load_code_task_splits(tmp_path)
    assert [task.task_id for task in train] == ["a", "b"]
    assert [task.task_id for task in evaluation] == ["c"]


def test_of_a_folder_with_val_and_eval_val_is_the_second_split(tmp_path):
    for name in ("train", "eval", "val"):
        write_tasks(tmp_path / f"{name}.jsonl", code_rows(name))
    assert [task.task_id for task in load_code_task_splits(tmp_path)[1]] == ["val"]


def test_a_folder_without_the_second_split_is_refused(tmp_path):
    write_tasks(tmp_path / "train.jsonl", code_rows("a"))
    with pytest.raises(DataError, match=r"val\.jsonl: no such task file"):
        load_code_task_splits(tmp_path)


def dataset_of(tmp_path, *names: str) -> CodeTaskDataset:
    write_tasks(tmp_path / "tasks.jsonl", code_rows(*names))
    return CodeTaskDataset.from_path(tmp_path / "tasks.jsonl")


def sample(sampler: CodeTaskSampler, n: int) -> str:
    return "".join(task.task_id for task in sampler.next(n))


def test_a_sampler_samples_in_file_order_unless_it_shuffles(tmp_path):
    dataset = dataset_of(tmp_path, *"abcdefgh")
    assert sample(CodeTaskSampler(dataset), 3) == "abc"
    assert sample(CodeTaskSampler(dataset), 10) == "abcdefghab"
    shuffled = sample(CodeTaskSampler(dataset, shuffle=True, seed=1), 8)
    assert sorted(shuffled) == list("abcdefgh") and shuffled != "abcdefgh"
    assert sample(CodeTaskSampler(dataset, shuffle=True, seed=1), 8) == shuffled
    assert sample(CodeTaskSampler(dataset, shuffle=True, seed=2), 8) != shuffled


def test_a_sampler_goes_on_where_its_state_was_taken(tmp_path):
    dataset = dataset_of(tmp_path, *"abcdefgh")
    first, second = (CodeTaskSampler(dataset, shuffle=True, seed=3) for _ in range(2))
    first.next(5)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert sample(second, 6) == sample(first, 6)
    with pytest.raises(CheckpointError, match="seed 3, this run has 4"):
        CodeTaskSampler(dataset, shuffle=True, seed=4).load_state_dict(first.state_dict())


@pytest.mark.parametrize("lacking", ["seed", "remaining"])
def test_what_is_no_state_of_a_sampler_is_refused_and_changes_nothing(tmp_path, lacking):
    sampler = CodeTaskSampler(dataset_of(tmp_path, *"ab"))
    state = sampler.state_dict() | {"num_epochs_started": 5}
    del state[lacking]
    with pytest.raises(CheckpointError, match=f"the state of the task order has no '{lacking}'; give what state_dict"):
        sampler.load_state_dict(state)
    assert sampler.state_dict()["num_epochs_started"] == 0
