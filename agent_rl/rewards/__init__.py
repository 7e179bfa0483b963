"""Rewards: functions by name (`base.py`). Importing the package registers those for answers."""

from agent_rl.rewards import answers
from agent_rl.rewards.base import RewardSum, make_reward, reward, reward_of
from agent_rl.rewards.entries import RewardSpec, RewardSpecs

__all__ = ["RewardSpec", "RewardSpecs", "RewardSum", "answers", "make_reward", "reward", "reward_of"]
