"""Task files. `dataset/nat_tasks/` is made by `agent_rl/scripts/prepare_dataset.py`; readers live in `agent_rl.data`."""

from agent_rl.data.tasks import read_tasks

__all__ = ["read_tasks"]
