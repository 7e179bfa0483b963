"""The MiniMind policy by its old path; the code is `agent_rl.policies.minimind_policy`."""

from agent_rl.policies.minimind_policy import MiniMindPolicy

__all__ = ["MiniMindPolicy"]
