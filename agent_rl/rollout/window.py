"""Whether prompts fit into the model's window: those of every environment of a mixture, before anything is trained, and
those of the first step or of an evaluation.

Not here: an episode that fills the window (`episode.py`).
"""

from collections.abc import Sequence
from contextlib import closing

from agent_rl.data.tasks import ENV_COLUMN, Task
from agent_rl.envs.base import EnvFactory
from agent_rl.envs.step_result import read_opening
from agent_rl.errors import ConfigError
from agent_rl.policies.policy import BasePolicy
from agent_rl.records import StopReason, TrajectoryGroup
from agent_rl.rollout.agents import AgentFactory
from agent_rl.rollout.episode import EnvFailureError, in_env, render_opening

NUM_TRIED = 4
"""Prompts of an environment that are rendered."""


def check_windows(factory: EnvFactory, tasks: Sequence[Task], policy: BasePolicy) -> None:
    """ConfigError where none of the first tasks of an environment leaves room for a reply; `factory` is started.

    For mixtures, whose environments share the window. One environment that does not fit is noticed soon.
    """
    for name in factory.environments:
        first = [task for task in tasks if task[ENV_COLUMN] == name][:NUM_TRIED]
        lengths = [length for task in first if (length := _prompt_length(factory, task, policy)) is not None]
        if lengths and min(lengths) >= policy.max_context:
            raise ConfigError(
                f"environment {name!r}: its first prompts have {min(lengths)} tokens and more, and policy.max_context, "
                f"the same for all environments, is {policy.max_context}; raise it, or shorten the prompts"
            )


def check_room(groups: Sequence[TrajectoryGroup], policy: BasePolicy, where: str) -> None:
    """ConfigError where no prompt of these groups left room for a reply: nothing would be learned, or measured."""
    episodes = [episode for group in groups for episode in group.trajectories]
    if any(episode.turns or episode.stop_reason is not StopReason.CONTEXT_FULL for episode in episodes):
        return
    render = policy.chat_format.render_prompt
    lengths = [len(render(each.initial_messages)) for each in episodes if each.initial_messages]
    if lengths:
        raise ConfigError(
            f"no prompt of {where} leaves room for a reply: the shortest has {min(lengths)} tokens and its "
            f"tools, and policy.max_context is {policy.max_context}; raise it, or shorten the prompts"
        )


def _prompt_length(factory: EnvFactory, task: Task, policy: BasePolicy) -> int | None:
    """None where an agent elsewhere makes the prompt, and where the environment fails, which its episodes tell."""
    own_factory, own = factory.factory_of(task)
    if isinstance(own_factory, AgentFactory):
        return None
    try:
        with closing(in_env(own_factory)) as env:
            messages = in_env(lambda: read_opening(env.reset(own), env))
            return len(render_opening(policy, messages, env.tools))
    except EnvFailureError:
        return None
