"""The public names of the package and their homes; `__init__.py` imports each on first use."""

from agent_rl.agent.chat_format import make_chat_format as make_chat_format
from agent_rl.agent.messages import Message as Message
from agent_rl.agent.messages import ToolCall as ToolCall
from agent_rl.agent.messages import ToolSpec as ToolSpec
from agent_rl.agent.tool_parser import parse_tool_calls as parse_tool_calls
from agent_rl.algorithms.estimators import advantage_estimator as advantage_estimator
from agent_rl.algorithms.estimators import group_advantages as group_advantages
from agent_rl.algorithms.policy_losses import policy_loss_function as policy_loss_function
from agent_rl.config import Config as Config
from agent_rl.config import load_config as load_config
from agent_rl.core.evaluation import evaluate_policy as evaluate_policy
from agent_rl.core.run.eval_result import EvalResult as EvalResult
from agent_rl.core.trainer_grpo import GRPOTrainer as GRPOTrainer
from agent_rl.endpoint.outcome import Reward as Reward
from agent_rl.envs.base import AgentEnv as AgentEnv
from agent_rl.envs.base import EnvFactory as EnvFactory
from agent_rl.envs.base import StepResult as StepResult
from agent_rl.envs.base import ToolEnv as ToolEnv
from agent_rl.envs.registry import register_env as register_env
from agent_rl.policies.hf_policy import HuggingFacePolicy as HuggingFacePolicy
from agent_rl.policies.make_policy import load_policy_tokenizer as load_policy_tokenizer
from agent_rl.policies.minimind_policy import MiniMindPolicy as MiniMindPolicy
from agent_rl.policies.policy import BasePolicy as BasePolicy
from agent_rl.records import Completion as Completion
from agent_rl.records import FinishReason as FinishReason
from agent_rl.records import SamplingParams as SamplingParams
from agent_rl.records import Trajectory as Trajectory
from agent_rl.records import TrajectoryGroup as TrajectoryGroup
from agent_rl.rewards.base import reward as reward
from agent_rl.rollout.collect import collect as collect
from agent_rl.tools.base import BaseTool as BaseTool
from agent_rl.tools.base import ToolRegistry as ToolRegistry
from agent_rl.tools.base import ToolResult as ToolResult
from agent_rl.tools.decorator import tool as tool
from agent_rl.tools.toolset import register_tool as register_tool

__version__: str
