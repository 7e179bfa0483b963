"""Checksums of a model's files: in whose number format, of which files, and what changed after a time."""

import json
import os
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from agent_rl.distributed.checksums import checksum
from agent_rl.distributed.model_checksums import (
    UnreadableWeightsError,
    changed_since,
    checksums_of_model,
    weight_files,
)

ONE, TWO = torch.tensor([1.0, 0.1]), torch.tensor([2])


def write(folder: Path, name: str = "model.safetensors", **tensors: torch.Tensor) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors or {"one": ONE, "two": TWO}, folder / name)
    return folder


def test_numbers_are_cast_as_an_engine_casts_them_and_ids_are_not(tmp_path: Path) -> None:
    found = checksums_of_model(write(tmp_path), torch.bfloat16)
    assert found == {"one": checksum(ONE.bfloat16()), "two": checksum(TWO)}
    rounded = write(tmp_path / "rounded", one=ONE.bfloat16(), two=TWO)
    assert checksums_of_model(rounded, torch.bfloat16) == found
    assert checksums_of_model(rounded, torch.float32) != checksums_of_model(tmp_path, torch.float32)


def test_an_index_says_which_files_are_the_model(tmp_path: Path) -> None:
    write(tmp_path, "a.safetensors", one=ONE)
    write(tmp_path, "b.safetensors", two=TWO)
    write(tmp_path, "consolidated.safetensors", other=ONE)
    index = {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert [path.name for path in weight_files(tmp_path)] == ["a.safetensors", "b.safetensors"]
    assert set(checksums_of_model(tmp_path, torch.float32)) == {"one", "two"}


def test_what_has_no_checksums_says_why(tmp_path: Path) -> None:
    for name, clause in (
        (str(tmp_path), "holds no weights as safetensors files"),
        ("nobody/has-this-model", "neither a folder nor in the Hub's cache"),
        (str(tmp_path / "a/b/c"), "neither a folder nor in the Hub's cache"),
    ):
        with pytest.raises(UnreadableWeightsError, match=clause):
            checksums_of_model(name, torch.float32)
    torn = write(tmp_path / "torn") / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    with pytest.raises(UnreadableWeightsError, match="torn cannot be read"):
        checksums_of_model(tmp_path / "torn", torch.float32)
    (tmp_path / "torn/model.safetensors.index.json").write_text("[]", encoding="utf-8")
    with pytest.raises(UnreadableWeightsError, match=r"index.json cannot be read"):
        weight_files(tmp_path / "torn")


def test_files_written_moved_or_linked_to_after_a_time_are_told(tmp_path: Path) -> None:
    folder, other = write(tmp_path / "one"), write(tmp_path / "two")
    link = tmp_path / "link"
    link.symlink_to(folder)
    time.sleep(0.05)  # a file system's clock has a coarse tick
    now = time.time()
    time.sleep(0.05)
    assert changed_since(folder, now) is changed_since(link, now) is None
    link.unlink()
    link.symlink_to(other)
    assert changed_since(link, now) == str(link)
    assert changed_since(other, now) is None
    moved = other.rename(tmp_path / "three")
    assert changed_since(moved, now) == str(moved)
    save_file({"one": TWO}, folder / "model.safetensors")
    os.utime(folder / "model.safetensors", (1, 1))  # a copy that keeps the time of its original
    assert changed_since(folder, now) == str(folder / "model.safetensors")
