"""Rollout workers by their old path; the code is `agent_rl.rollout.rollout`."""

from agent_rl.rollout.rollout import RolloutRequest, RolloutWorker

__all__ = ["RolloutRequest", "RolloutWorker"]
