"""Rollout workers by their old path; the code is `agent_rl.rollout.workers`."""

from agent_rl.rollout.workers import RolloutRequest, RolloutWorker

__all__ = ["RolloutRequest", "RolloutWorker"]
