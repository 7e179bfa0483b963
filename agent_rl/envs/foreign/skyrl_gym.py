"""`env.name: skyrl_gym`: environments of SkyRL's gym, text in, messages and rewards out.

A row is one of SkyRL's data sets: `prompt`, `env_class` and what the environment reads besides, such as `reward_spec`.
Its tool groups are called by the environment itself, from tags in the reply. Not here: environments that run what the
model writes; a NAT task in SkyRL's own trainer (`envs/nat/skyrl.py`).
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from agent_rl.agent.messages import Message
from agent_rl.agent.tool_parser import reply_text
from agent_rl.config import validate_section
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.foreign.common import (
    ForeignOptions,
    check_prompt,
    import_package,
    numbers,
    to_messages,
    to_reward,
)
from agent_rl.errors import ConfigError, DataError, nearest_or_all
from agent_rl.records import StopReason

_RUNS_CODE = {
    **dict.fromkeys(("lcb", "searchcode"), "use code_exec instead"),
    "text2sql": "offer a tool of your own that bounds queries, by trl_environment",
}
"""Run what the model writes, Python or SQL, in this process or next to it -> what to do."""


class SkyRLGymOptions(ForeignOptions):
    """`env.options` of `skyrl_gym`."""

    id: str | None = None
    """Registered environment; null: each row names its own in `env_class`."""
    env_config: dict[str, Any] = Field(default_factory=dict)
    """What SkyRL's configuration holds under the environment's name, such as `search_url`."""
    extras: dict[str, Any] = Field(default_factory=dict)
    """Columns that rows do not have themselves, such as `max_turns`, which SkyRL's generator sets."""


class SkyRLGymEnv(AgentEnv):
    """One episode; its environment is made when the task is known."""

    def __init__(self, factory: "SkyRLGymFactory") -> None:
        self._factory = factory
        self._env: Any = None
        self._total = 0.0
        self._conversation: tuple[Message, ...] = ()

    def reset(self, task: Task) -> list[Message]:
        self._env = self._factory.make(task, "the row")
        prompt, _ = self._env.init(task["prompt"])
        self._conversation = to_messages(prompt, "the environment's prompt")
        return list(self._conversation)

    def step(self, message: Message) -> StepResult:
        action = reply_text(message)
        if message.reasoning:  # SkyRL hands on the whole text
            action = f"<think>\n{message.reasoning}\n</think>\n\n{action}"
        output = self._env.step(action)
        shown = output.get("postprocessed_action")
        is_rewritten = shown is not None and shown != action
        messages = to_messages(output["observations"], "an observation")
        self._conversation += (Message.assistant(shown) if is_rewritten else message, *messages)
        reward = to_reward(output["reward"], type(self._env).__name__)
        self._total += reward
        return StepResult(
            messages=messages,
            conversation=self._conversation if is_rewritten else None,
            reward=reward,
            reward_parts=self._parts() if output["done"] else {},
            terminated=bool(output["done"]),
        )

    def truncate(self, reason: StopReason) -> StepResult:
        return StepResult(reward=0.0, reward_parts=self._parts(), terminated=True)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _parts(self) -> dict[str, float]:
        success = self._factory.options.is_success(self._total)
        return {"success": success, **numbers(self._env.get_metrics())}


class SkyRLGymFactory(EnvFactory):
    own_tools = ()

    def __init__(self, options: SkyRLGymOptions) -> None:
        self.options = options
        self._package = import_package("skyrl_gym", "skyrl-gym")
        self._registry = import_package("skyrl_gym.envs.registration", "skyrl-gym").registry
        omega = import_package("omegaconf", "skyrl-gym").OmegaConf
        self._env_config = omega.create(options.env_config)
        omega.set_struct(self._env_config, True)  # a key that is missing is an error and not None
        if options.id is not None:
            self._check_id(options.id, "env.options.id")

    def __call__(self) -> AgentEnv:
        return SkyRLGymEnv(self)

    def check_task(self, task: Task, where: str) -> None:
        check_prompt(task, where)
        try:
            self.make(task, where).close()
        except ConfigError as error:
            raise DataError(str(error)) from None

    def make(self, task: Task, where: str) -> Any:
        """The environment of a row; ConfigError for a row or options that it refuses."""
        name = task.get("env_class", self.options.id)
        if not isinstance(name, str) or self.options.id not in (None, name):
            wanted = self.options.id or "the name of an environment, or set env.options.id"
            raise ConfigError(f"{where}: env_class is {name!r:.80}; make it {wanted}")
        self._check_id(name, f"{where}: env_class")
        extras = {**self.options.extras, **{key: value for key, value in task.items() if key != "task_id"}}
        try:
            return self._package.make(name, env_config=self._env_config, extras=extras)
        except Exception as error:  # each environment checks its row itself, most by an assertion
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ConfigError(f"{where}: {name} refuses the row or env.options.env_config ({reason})") from None

    def _check_id(self, name: str, where: str) -> None:
        if name in _RUNS_CODE:
            raise ConfigError(f"{where}: {name} runs what the model writes outside the sandbox; {_RUNS_CODE[name]}")
        if name not in self._registry:
            raise ConfigError(f"{where}: SkyRL's gym has no environment {name!r}{nearest_or_all(name, self._registry)}")


def make_skyrl_gym_factory(options: Mapping[str, Any], seed: int) -> SkyRLGymFactory:
    """`env.name: skyrl_gym`."""
    return SkyRLGymFactory(validate_section(SkyRLGymOptions, dict(options), source="config", prefix="env.options"))
