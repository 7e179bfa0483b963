"""The seam for episodes that an agent elsewhere plays: such a factory is asked for whole episodes.

Seeds, groups, evaluation, staleness and resume are as for environments. Not here: any agent (`endpoint/external.py`).
"""

import threading
from abc import abstractmethod
from dataclasses import dataclass

from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import Trajectory
from agent_rl.rollout.turns import EpisodeLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlan:
    """One episode to run."""

    task: Task
    group_id: str
    seed: int
    temperature: float
    case_seed: int | None
    """`AgentEnv.case_seed`."""


class AgentFactory(EnvFactory):
    """An environment whose episodes are played by an agent that asks the policy itself."""

    @abstractmethod
    def play_episode(
        self, policy: BasePolicy, plan: EpisodePlan, *, limits: EpisodeLimits, cancelled: threading.Event | None
    ) -> Trajectory:
        """Play one episode; blocks, and is called from many threads.

        Raises what the policy raises, ConfigError for an agent that can never work, and EpisodeCancelledError once
        `cancelled` is set. Other failures of the agent are data.
        """
