"""Task files, made by `agent_rl/scripts/prepare_dataset.py`; the reader lives in `agent_rl.data`."""

from agent_rl.data.tasks import read_tasks

__all__ = ["read_tasks"]
