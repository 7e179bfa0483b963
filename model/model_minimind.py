"""MiniMind by its old path: `from model.model_minimind import MiniMindForCausalLM`. The code is `agent_rl.modeling`."""

from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM
from agent_rl.modeling.minimind import TransformerStack as MiniMindModel

__all__ = ["MiniMindConfig", "MiniMindForCausalLM", "MiniMindModel"]
