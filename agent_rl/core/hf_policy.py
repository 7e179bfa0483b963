"""The Hugging Face policy by its old path; the code is `agent_rl.policies.hf_policy`."""

from agent_rl.policies.hf_policy import HuggingFacePolicy

__all__ = ["HuggingFacePolicy"]
