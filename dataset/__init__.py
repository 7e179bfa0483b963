"""Task files, and how earlier projects read them; training reads them with `agent_rl.data`."""

from agent_rl.data.tasks import read_tasks
from dataset.task_datasets import CodeTaskDataset, CodeTaskSampler, SearchTaskDataset, load_code_task_splits

__all__ = ["CodeTaskDataset", "CodeTaskSampler", "SearchTaskDataset", "load_code_task_splits", "read_tasks"]
