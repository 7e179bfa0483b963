"""Datasets of the Hugging Face Hub, `hf://owner/name[/config][:split]`, and folders that `save_to_disk` wrote.

Both are read through the package `datasets`, which is imported here alone and only for these. Not here: what a row may
hold (`rows.py`).
"""

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_rl.data.rows import Row, rows_of
from agent_rl.errors import DataError

SCHEME = "hf://"
_ADDRESS = re.compile(r"hf://(?P<name>[\w.-]+/[\w.-]+)(?:/(?P<config>[\w.-]+))?(?::(?P<split>[\w.-]+(?:\[[^\]]*\])?))?")


def hub_rows(address: str) -> Iterator[tuple[int, Row]]:
    """The rows of a split, each with its number from 1. `train[:1000]` is a split too.

    DataError, opened by the address, where it is none, where the package is missing or cannot read it, and where it
    leaves open which of several splits is meant.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise DataError(f"{address}: expected hf://owner/name, hf://owner/name/config or either with :split behind it")
    package = _package(address)
    return _rows(
        address,
        lambda: package.load_dataset(match["name"], match["config"], split=match["split"]),
        lambda split: f"{address}:{split}",
    )


def is_saved(folder: Path) -> bool:
    """Whether the folder has the mark of a dataset, or of several splits."""
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def saved_rows(folder: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a folder that `Dataset.save_to_disk` wrote; errors as `hub_rows`, opened by the folder."""
    package = _package(str(folder))
    return _rows(str(folder), lambda: package.load_from_disk(str(folder)), lambda split: f"{folder}/{split}")


def _package(where: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise DataError(f"{where}: reading it needs the package datasets; pip install datasets") from None


def _rows(where: str, load: Callable[[], Any], one: Callable[[str], str]) -> Iterator[tuple[int, Row]]:
    """The rows of what `load` gives; `one` is the address of a split."""
    try:
        dataset = load()
    except Exception as error:  # of any kind: the Hub, the connection, the files, scripts of a dataset
        first = (str(error).strip().splitlines() or [""])[0][:200]
        raise DataError(
            f"{where}: the package datasets cannot read it ({type(error).__name__}: {first}); check the name, the "
            "split and the connection"
        ) from error
    if isinstance(dataset, Mapping):
        if not dataset:
            raise DataError(f"{where}: holds no split, and so no rows; save or name a dataset that has one")
        if len(dataset) != 1:
            splits = ", ".join(map(repr, dataset))
            raise DataError(f"{where}: holds the splits {splits}; name one, such as {one(next(iter(dataset)))}")
        (dataset,) = dataset.values()
    return rows_of(dataset, where)
