"""The policy interface by its old path; the code is `agent_rl.policies.policy`."""

from agent_rl.policies.policy import BasePolicy

__all__ = ["BasePolicy"]
