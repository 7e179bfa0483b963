"""Rows of a dataset file, read as the toolkit reads them.

The file of `--dataset` is read by its ending: the toolkit takes any for JSON, and passes a path where it expects text.
"""

from pathlib import Path

from nat.data_models.config import Config
from nat.data_models.dataset_handler import (
    EvalDatasetBaseConfig,
    EvalDatasetCsvConfig,
    EvalDatasetJsonConfig,
    EvalDatasetJsonlConfig,
    EvalDatasetParquetConfig,
)
from nat.data_models.evaluator import EvalInputItem
from nat.plugins.eval.dataset_handler.dataset_handler import DatasetHandler

from nat_agent_rl.errors import FinetuneError, one_line

BY_ENDING: dict[str, type[EvalDatasetBaseConfig]] = {
    ".json": EvalDatasetJsonConfig,
    ".jsonl": EvalDatasetJsonlConfig,
    ".csv": EvalDatasetCsvConfig,
    ".parquet": EvalDatasetParquetConfig,
}


def read_rows(config: Config, path: str | Path | None) -> list[EvalInputItem]:
    """The rows of `eval.general.dataset`, or of another file with the same keys and filters.

    Raises FinetuneError when there is no dataset, it cannot be read, or it is empty.
    """
    dataset = config.eval.general.dataset
    if dataset is None:
        raise FinetuneError("the configuration has no eval.general.dataset; name one, --dataset alone has no keys")
    if path is not None:
        dataset = _like(dataset, Path(path))
    handler = DatasetHandler(dataset_config=dataset, reps=1, concurrency=config.eval.general.max_concurrency)
    try:
        items = handler.get_eval_input_from_dataset(None).eval_input_items
    except Exception as error:
        raise FinetuneError(
            f"the dataset {dataset.file_path} cannot be read ({one_line(error)}); correct eval.general.dataset, its "
            "file or its keys"
        ) from error
    if not items:
        raise FinetuneError(f"the dataset {dataset.file_path} has no rows that pass its filter; give it some")
    return items


def _like(dataset: EvalDatasetBaseConfig, path: Path) -> EvalDatasetBaseConfig:
    kind = BY_ENDING.get(path.suffix)
    if kind is None or isinstance(dataset, kind):
        return dataset.model_copy(update={"file_path": path})
    return kind(file_path=path, id_key=dataset.id_key, structure=dataset.structure, filter=dataset.filter)
