"""`collect`: episodes of a policy in an environment, from Python, for data, for looking, for a loop of one's own.

The same episodes as in training. Not here: counting them (`core/evaluation.py`), training on them
(`GRPOTrainer.update` takes these groups).
"""

from collections.abc import Callable
from typing import Any

from agent_rl.config import Config
from agent_rl.data.tasks import as_tasks
from agent_rl.envs.base import AgentEnv, EnvFactory
from agent_rl.envs.opening import open_environment
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import TrajectoryGroup
from agent_rl.rollout.rollout import RolloutRequest, make_worker


def collect(
    config: Config,
    policy: BasePolicy,
    tasks: Any = None,
    *,
    env_factory: EnvFactory | Callable[[], AgentEnv] | None = None,
    group_size: int = 1,
    temperature: float | None = None,
    step: int = 1,
) -> list[TrajectoryGroup]:
    """Roll out `policy` on tasks: a group of `group_size` trajectories for each, in the order of the tasks.

    Args:
        config: Of which `env`, `tools`, `data`, `rollout`, `policy` and `run.seed` are read.
        policy: Any policy, one of your own too; it stays open.
        tasks: Rows in anything that `GRPOTrainer` takes as `train_dataset` but a path; None: the training tasks of the
            configuration.
        env_factory: An environment of your own, instead of the configuration's.
        group_size: Episodes of every task.
        temperature: 0 is greedy; None: `policy.temperature`.
        step: What the seeds depend on besides `run.seed`: another step gives other episodes.

    Nothing is written. Raises UserError for anything the user can fix, and the errors of the environment when all
    episodes failed in it; single failed ones have no reward (`trajectory.error` says why).
    """
    with open_environment(config, env_factory) as factory:
        if tasks is None:
            chosen = factory.read_tasks(config.data, "train")
        else:
            chosen = as_tasks(tasks, "tasks", factory.check_task, columns=config.data.columns)
        factory.start()
        request = RolloutRequest(
            tasks=chosen,
            group_size=group_size,
            step=step,
            temperature=config.policy.temperature if temperature is None else temperature,
        )
        return make_worker(config, policy, factory).collect(request)
