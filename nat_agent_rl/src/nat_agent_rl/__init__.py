"""A plug-in for the NVIDIA NeMo Agent Toolkit: `nat finetune` plays a workflow, agent_rl's trainer learns from it.

`episode_headers` and `policy_client` are for workflows that call the policy by themselves; everything else is named in
the workflow's YAML file. Nothing here holds weights, tokenizers or an algorithm: they are in `agent-rl serve-trainer`.
"""

from nat_agent_rl.episodes import episode_headers
from nat_agent_rl.transport import policy_client

__all__ = ["episode_headers", "policy_client"]
