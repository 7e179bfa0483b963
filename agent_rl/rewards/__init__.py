"""Rewards: functions by name (`base.py`). Importing the package registers the built-in ones."""

from agent_rl.rewards import answers, code
from agent_rl.rewards.base import RewardSpec, RewardSpecs, RewardSum, make_reward, reward

__all__ = ["RewardSpec", "RewardSpecs", "RewardSum", "answers", "code", "make_reward", "reward"]
