"""Prompts whose replies are scored by reward functions: the environment of `GRPOTrainer(model, reward_funcs, ...)`.

A row has a `prompt`, a text or a list of chat messages; its other columns belong to the reward functions. Tools come
from the configuration: an episode ends with a reply that calls none, without tools with the first reply.
Not here: the functions (`rewards/`), the tools (`tools/`), questions with a reference answer (`qa_env.py`).
"""

from typing import Any

from pydantic import BaseModel, ConfigDict

from agent_rl.agent.message_dicts import read_prompt
from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.data.rows import no_column
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, Task, ToolEnv, as_text
from agent_rl.envs.qa_env import final_answer
from agent_rl.records import StopReason
from agent_rl.rewards import RewardSpecs, RewardSum, make_reward


class PromptEnvOptions(BaseModel):
    """`env.options` of `prompts`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reward: RewardSpecs
    """Rewards whose weighted sum scores an episode, by name or import path: a name, `{name, weight}`, or a list of
    them."""
    system_prompt: str | None = None
    """First message of the conversations whose prompt has no system message; null: none."""


class PromptEnv(ToolEnv):
    """One prompt."""

    def __init__(self, options: PromptEnvOptions, reward: RewardSum) -> None:
        self.options = options
        self._reward = reward
        self._task: Task = {}
        self._num_opening = 0

    def reset(self, task: Task) -> list[Message]:
        self._task = task
        self.registry = self.add_tools(task, [])
        messages = read_prompt(task["prompt"], "prompt")
        if self.options.system_prompt is not None and messages[0].role != "system":
            messages = (Message.system(self.options.system_prompt), *messages)
        self.trajectory, self._num_opening = messages, len(messages)
        return list(messages)

    def on_terminal(self, tool_name: str) -> StepResult:
        return self._score(self.submitted)

    def no_call(self, message: Message) -> StepResult:
        return self._score(message.content)

    def truncate(self, reason: StopReason) -> StepResult:
        if self.unanswered is not None:
            self.trajectory += (self.unanswered if self.tools else as_text(self.unanswered),)
        earned, parts = self._reward.without_answer(
            trajectory=self.trajectory, task=self._task, num_opening=self._num_opening
        )
        info = {} if earned is not None else {"error": self._reward.unscored(parts)}
        return StepResult(reward=earned, reward_parts=parts, terminated=True, info=info)

    def _score(self, text: str) -> StepResult:
        prediction = final_answer(text)
        total, parts = self._reward(
            prediction=prediction, trajectory=self.trajectory, task=self._task, num_opening=self._num_opening
        )
        info: dict[str, Any] = {"prediction": prediction}
        if total is None:
            info["error"] = self._reward.unscored(parts)
        return StepResult(reward=total, reward_parts=parts, terminated=True, info=info)


class PromptEnvFactory(EnvFactory):
    """Checks the rows; every episode shares the rewards, which hold no state."""

    own_tools = ()

    def __init__(self, options: PromptEnvOptions, reward: RewardSum) -> None:
        self.options = options
        self.reward = reward

    def __call__(self) -> AgentEnv:
        return PromptEnv(self.options, self.reward)

    def check_task(self, task: Task, where: str) -> None:
        if "prompt" not in task:
            raise no_column(task, "prompt", where)
        read_prompt(task["prompt"], f"{where}: prompt")
        self.reward.check_task(task, where)


def make_prompt_factory(options: dict[str, Any], seed: int) -> PromptEnvFactory:
    """The factory of the environment `prompts`; ConfigError for wrong options."""
    checked = validate_section(PromptEnvOptions, options, source="config", prefix="env.options")
    return PromptEnvFactory(checked, make_reward(checked.reward, lends=()))
