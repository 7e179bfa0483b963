"""Datasets of the Hub and saved folders: through the package `datasets`, which most runs do without."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_rl.config import DataConfig
from agent_rl.config.load import parse_config
from agent_rl.data.tasks import read_split, read_tasks
from agent_rl.errors import DataError

ROWS = [{"prompt": "2 + 2", "answer": "4"}, {"prompt": "2 + 3", "answer": "5"}]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A stand-in for the package, which knows one dataset of two splits and one of a single split."""
    made = ModuleType("datasets")
    made.calls = []

    def load_dataset(name: str, config: str | None = None, *, split: str | None = None) -> Any:
        made.calls.append((name, config, split))
        known = {"own/two": {"train": ROWS, "test": ROWS[:1]}, "own/one": {"train": ROWS}, "own/empty": {}}
        if name not in known:
            raise FileNotFoundError(f"Dataset {name!r} doesn't exist on the Hub\nor cannot be accessed.")
        if split is not None and split not in known[name]:
            raise ValueError(f"Unknown split {split!r}.")
        return known[name] if split is None else known[name][split]

    def load_from_disk(folder: str) -> Any:
        made.calls.append((folder,))
        if Path(folder).name == "both":
            return {"train": ROWS, "test": ROWS[:1]}
        if Path(folder).name == "torn":
            raise FileNotFoundError("no state.json")
        return ROWS

    made.load_dataset, made.load_from_disk = load_dataset, load_from_disk
    monkeypatch.setitem(sys.modules, "datasets", made)
    return made.calls


# Wrong input


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("hf://gsm8k", "expected hf://owner/name"),
        ("hf://", "expected hf://owner/name"),
        ("hf://a/b/c/d", "expected hf://owner/name"),
        ("hf://a/b:", "expected hf://owner/name"),
        ("hf://own/none:train", "FileNotFoundError: Dataset 'own/none' doesn't exist on the Hub"),
        ("hf://own/one:tset", "ValueError: Unknown split 'tset'"),
        ("hf://own/empty", "holds no split"),
        ("hf://own/two", "holds the splits 'train', 'test'; .*hf://own/two:train"),
    ],
)
def test_a_wrong_address_is_one_sentence(calls: list[Any], address: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        read_tasks(address)
    assert str(caught.value).startswith(address)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "complaint"), [("both", r"both/train"), ("torn", "FileNotFoundError: no state.json")])
def test_a_folder_that_holds_no_single_split_is_one_sentence(
    calls: list[Any], tmp_path: Path, name: str, complaint: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "state.json").touch()
    with pytest.raises(DataError, match=complaint):
        read_tasks(tmp_path / name)


def test_any_other_folder_is_refused_whether_the_package_is_there_or_not(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such task file; it is a folder"):
        read_tasks(tmp_path)


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "state.json").touch()
    monkeypatch.setitem(sys.modules, "datasets", None)
    for path in ("hf://own/one", tmp_path):
        with pytest.raises(DataError, match="needs the package datasets; pip install datasets"):
            read_tasks(path)


# Right input


@pytest.mark.parametrize(
    ("address", "call"),
    [
        ("hf://own/one", ("own/one", None, None)),
        ("hf://own/one:train", ("own/one", None, "train")),
        ("hf://own/two/main:test", ("own/two", "main", "test")),
    ],
)
def test_an_address_names_dataset_configuration_and_split(calls: list[Any], address: str, call: tuple) -> None:
    tasks = read_tasks(address)
    assert calls == [call]
    assert {key: tasks[0][key] for key in ("prompt", "answer")} == ROWS[0]


def test_an_address_stays_as_it_is_in_a_configuration(calls: list[Any]) -> None:
    raw = {
        "data": {"train_path": "hf://own/two:train", "eval_path": "a.jsonl"},
        "model": {"path": "m"},
        "env": {"name": "prompts"},
        "train": {"steps": 1, "learning_rate": 1.0e-3},
    }
    config = parse_config(raw, source="test")
    assert (config.data.train_path, config.data.eval_path) == ("hf://own/two:train", Path("a.jsonl"))
    assert config.model_dump(mode="json")["data"]["train_path"] == "hf://own/two:train"
    assert len(read_split(config.data, "train")) == 2


def test_a_saved_folder_is_read(calls: list[Any], tmp_path: Path) -> None:
    (tmp_path / "state.json").touch()
    assert [task["answer"] for task in read_split(DataConfig(eval_path=tmp_path), "eval")] == ["4", "5"]


def test_the_package_itself_reads_what_it_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own/two").mkdir(parents=True)
    for split, row in zip(("train", "test"), ROWS, strict=True):  # a folder of this name is taken for the dataset
        (tmp_path / f"own/two/{split}.jsonl").write_text(json.dumps(row))
    assert [task["answer"] for task in read_tasks("hf://own/two:test")] == ["5"]
    with pytest.raises(DataError, match="holds the splits 'train', 'test'"):
        read_tasks("hf://own/two")
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(tmp_path / "saved")
    datasets.DatasetDict({"train": whole, "test": whole}).save_to_disk(tmp_path / "both")
    for path in (tmp_path / "saved", tmp_path / "both" / "train"):
        assert [task["answer"] for task in read_tasks(path)] == ["4", "5"]
    with pytest.raises(DataError, match="both/train"):
        read_tasks(tmp_path / "both")
