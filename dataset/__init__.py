"""Task files, made by `agent_rl/scripts/prepare_dataset.py`; what reads them lives in `agent_rl.data`."""

from agent_rl.data.task_datasets import CodeTaskDataset, CodeTaskSampler, SearchTaskDataset, load_code_task_splits
from agent_rl.data.tasks import read_tasks

__all__ = ["CodeTaskDataset", "CodeTaskSampler", "SearchTaskDataset", "load_code_task_splits", "read_tasks"]
