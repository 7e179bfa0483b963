"""Rollout workers by their old path; the code is `agent_rl.rollout.workers`."""

from agent_rl.rollout.workers import RolloutWorker

__all__ = ["RolloutWorker"]
