"""agent_rl: train tool-using language-model agents with GRPO.

The names below are what outside code may rely on. They are imported on first use, so that `import agent_rl` and
`--help` stay instant.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Read by GNU OpenMP when PyTorch is imported: how long its threads stay awake for the next operation. Its own default,
# 300,000, keeps the cores from the sandbox; a much smaller number makes small decode steps slow.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")

if TYPE_CHECKING:
    from agent_rl.agent.agent_types import make_chat_format
    from agent_rl.agent.messages import Message, ToolCall, ToolSpec
    from agent_rl.agent.tool_parser import parse_tool_calls
    from agent_rl.algorithms.estimators import advantage_estimator, group_advantages
    from agent_rl.algorithms.policy_losses import policy_loss_function
    from agent_rl.config import Config, load_config
    from agent_rl.core.evaluation import EvalResult, evaluate_policy
    from agent_rl.core.trainer_grpo import GRPOTrainer
    from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, ToolEnv
    from agent_rl.envs.registry import register_env
    from agent_rl.policies.hf_policy import HuggingFacePolicy
    from agent_rl.policies.make_policy import load_policy_tokenizer
    from agent_rl.policies.minimind_policy import MiniMindPolicy
    from agent_rl.policies.policy import BasePolicy
    from agent_rl.records import Completion, FinishReason, SamplingParams, Trajectory, TrajectoryGroup
    from agent_rl.rewards.base import reward
    from agent_rl.tools.base import BaseTool, ToolRegistry, ToolResult
    from agent_rl.tools.decorator import tool
    from agent_rl.tools.toolset import register_tool

_HOMES = {
    "AgentEnv": "agent_rl.envs.base",
    "BasePolicy": "agent_rl.policies.policy",
    "BaseTool": "agent_rl.tools.base",
    "Completion": "agent_rl.records",
    "Config": "agent_rl.config",
    "EnvFactory": "agent_rl.envs.base",
    "EvalResult": "agent_rl.core.evaluation",
    "FinishReason": "agent_rl.records",
    "GRPOTrainer": "agent_rl.core.trainer_grpo",
    "HuggingFacePolicy": "agent_rl.policies.hf_policy",
    "Message": "agent_rl.agent.messages",
    "MiniMindPolicy": "agent_rl.policies.minimind_policy",
    "SamplingParams": "agent_rl.records",
    "StepResult": "agent_rl.envs.base",
    "ToolCall": "agent_rl.agent.messages",
    "ToolEnv": "agent_rl.envs.base",
    "ToolRegistry": "agent_rl.tools.base",
    "ToolResult": "agent_rl.tools.base",
    "ToolSpec": "agent_rl.agent.messages",
    "Trajectory": "agent_rl.records",
    "TrajectoryGroup": "agent_rl.records",
    "advantage_estimator": "agent_rl.algorithms.estimators",
    "evaluate_policy": "agent_rl.core.evaluation",
    "group_advantages": "agent_rl.algorithms.estimators",
    "load_config": "agent_rl.config",
    "load_policy_tokenizer": "agent_rl.policies.make_policy",
    "make_chat_format": "agent_rl.agent.agent_types",
    "parse_tool_calls": "agent_rl.agent.tool_parser",
    "policy_loss_function": "agent_rl.algorithms.policy_losses",
    "register_env": "agent_rl.envs.registry",
    "register_tool": "agent_rl.tools.toolset",
    "reward": "agent_rl.rewards.base",
    "tool": "agent_rl.tools.decorator",
}

__all__ = [
    "AgentEnv",
    "BasePolicy",
    "BaseTool",
    "Completion",
    "Config",
    "EnvFactory",
    "EvalResult",
    "FinishReason",
    "GRPOTrainer",
    "HuggingFacePolicy",
    "Message",
    "MiniMindPolicy",
    "SamplingParams",
    "StepResult",
    "ToolCall",
    "ToolEnv",
    "ToolRegistry",
    "ToolResult",
    "ToolSpec",
    "Trajectory",
    "TrajectoryGroup",
    "advantage_estimator",
    "evaluate_policy",
    "group_advantages",
    "load_config",
    "load_policy_tokenizer",
    "make_chat_format",
    "parse_tool_calls",
    "policy_loss_function",
    "register_env",
    "register_tool",
    "reward",
    "tool",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'agent_rl' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
