"""NAT as an environment of SkyRL's trainer: a `skyrl_gym` environment whose actions and observations are text.

`register()` makes it known as `nat_agent_creation`; a dataset row brings its task in a column `spec` (`dataset_row`).
Tokens, their budgets and training are SkyRL's; tools, hidden cases and rewards are those of `NATAgentEnv`. Nothing else
in this package needs skyrl-gym or imports this module.
"""

import atexit
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agent_rl.agent.messages import Message, ToolSpec
from agent_rl.agent.phrase_bpe import TOOLS_FOOTER, TOOLS_HEADER
from agent_rl.agent.tool_parser import parse_tool_calls
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult
from agent_rl.envs.nat.env import make_nat_factory
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import StopReason

try:
    import skyrl_gym
    from omegaconf import OmegaConf
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput, ConversationType
except ImportError as error:
    raise ImportError(f"agent_rl.envs.nat.skyrl needs SkyRL's gym ({error}); run `pip install skyrl-gym`") from error

ENV_ID = "nat_agent_creation"
DEFAULT_MAX_TURNS = 30
"""Used where `max_turns` is not set; SkyRL's generator always sets it."""

Settings = Mapping[str, Any]
"""`env.options` of the NAT environment, and `seed` of the hidden cases."""

_factories: dict[str, EnvFactory] = {}
_factories_lock = threading.Lock()


def register(settings: Settings | None = None) -> None:
    """Register the environment with skyrl_gym, in the process that runs the episodes; `env_config` overrides keys."""
    entry_point = f"{__name__}:{NATAgentCreationEnv.__name__}"
    skyrl_gym.register(id=ENV_ID, entry_point=entry_point, kwargs={"settings": dict(settings or {})})


def dataset_row(task: Task, settings: Settings | None = None) -> dict[str, Any]:
    """The task as a row of SkyRL's dataset; raises DataError when it is not a task of this environment.

    `spec` is JSON text: tasks differ in shape, and a column of a Parquet file has one type. SkyRL measures `prompt` to
    leave out tasks that are too long; it is what `init` returns under the same settings.
    """
    env = _make_factory(dict(settings or {}))()
    messages = env.reset(task)
    return {"prompt": _prompt(messages, env.tools), "env_class": ENV_ID, "spec": json.dumps(task, ensure_ascii=False)}


class NATAgentCreationEnv(BaseTextEnv):
    """One episode: `init`, then `step` with what the model wrote until `done`, then `close`.

    `extras` is the dataset row: `spec` (the task, a dictionary or its JSON text) and `max_turns`. The checker's
    processes are started by the first `init` in a process, shared by all episodes with equal settings, and end with
    the process.
    """

    def __init__(
        self,
        env_config: Settings | None = None,
        extras: Mapping[str, Any] | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        extras = extras or {}
        self._settings = {**(settings or {}), **_as_dict(env_config)}
        self._task = _read_task(extras)
        self.max_turns = int(extras.get("max_turns", DEFAULT_MAX_TURNS))
        self._env: AgentEnv | None = None
        self._parts: dict[str, float] = {}

    def init(self, prompt: ConversationType) -> tuple[ConversationType, dict[str, Any]]:
        """The first messages, with the tools in the system message. They come from the task, not from `prompt`."""
        self.close()
        self.turns, self._parts = 0, {}
        self._env = _shared_factory(self._settings)()
        messages = self._env.reset(self._task)
        return _prompt(messages, self._env.tools), {"task_id": self._task.get("task_id")}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Run the calls in the model's text. The last step brings the reward; the last allowed one ends the episode."""
        assert self._env is not None, "init comes first"
        self.turns += 1
        reply = parse_tool_calls(action)
        message = Message(role="assistant", content=reply.content, tool_calls=reply.calls, tool_errors=reply.errors)
        result = self._env.step(message)
        if not result.terminated and self.turns >= self.max_turns:
            result = _merged(result, self._env.truncate(StopReason.MAX_TURNS))
        assert result.reward is not None, "the NAT environment scores every episode"
        self._parts = result.reward_parts
        metadata = {**result.info, "reward_parts": result.reward_parts, "flags": [str(flag) for flag in result.flags]}
        if result.terminated:
            metadata["success"] = result.reward_parts["success"]
        return BaseTextEnvStepOutput(
            observations=[] if result.terminated else [_observation(result.messages)],
            reward=result.reward,
            done=result.terminated,
            metadata=metadata,
        )

    def get_metrics(self) -> dict[str, Any]:
        """Averaged by SkyRL over episodes. One that ended in the middle, out of tokens, was not scored: no success."""
        return {"success": 0.0, "num_turns": self.turns, **self._parts}

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None


def _shared_factory(settings: dict[str, Any]) -> EnvFactory:
    """The started factory of these settings."""
    key = json.dumps(settings, sort_keys=True)
    with _factories_lock:
        if key not in _factories:
            factory = _make_factory(settings)
            factory.start()
            atexit.register(factory.close)
            _factories[key] = factory
        return _factories[key]


def _make_factory(settings: dict[str, Any]) -> EnvFactory:
    options = {key: value for key, value in settings.items() if key != "seed"}
    return make_nat_factory(options, int(settings.get("seed", 0)))


def _as_dict(env_config: Any) -> dict[str, Any]:
    """SkyRL gives an empty dictionary, or an OmegaConf one where its configuration has a section for us."""
    if OmegaConf.is_config(env_config):
        env_config = OmegaConf.to_container(env_config, resolve=True)
    if not isinstance(env_config, Mapping | None):
        raise ConfigError(f"env_config is a {type(env_config).__name__}; give a mapping of the options of {ENV_ID}")
    return dict(env_config or {})


def _read_task(extras: Mapping[str, Any]) -> Task:
    if "spec" not in extras:
        found = ", ".join(extras) or "nothing"
        raise DataError(f"extras: no column 'spec' with the task, found {found}; make the rows with dataset_row()")
    task = extras["spec"]
    if isinstance(task, str):
        try:
            task = json.loads(task)
        except json.JSONDecodeError as error:
            raise DataError(f"extras: 'spec' is not valid JSON ({error}); make the rows with dataset_row()") from None
    if not isinstance(task, dict):
        kind = type(task).__name__
        raise DataError(f"extras: 'spec' must be a task as a dictionary or its JSON text, got {kind}")
    return task


def _prompt(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> ConversationType:
    """The first messages, with the tools where templates of Hermes and Qwen list them."""
    system, *others = messages
    lines = [json.dumps(tool.to_openai(), ensure_ascii=False) for tool in tools]
    text = f"{system.content}\n\n" + "\n".join([TOOLS_HEADER, *lines]) + TOOLS_FOOTER
    return [{"role": system.role, "content": text}] + [{"role": each.role, "content": each.content} for each in others]


def _observation(messages: Sequence[Message]) -> dict[str, str]:
    """What the model reads next as one user message: not every template has a role for tools, and those of Hermes and
    Qwen render tool results like this."""
    texts = [
        f"<tool_response>\n{each.content}\n</tool_response>" if each.role == "tool" else each.content
        for each in messages
    ]
    # A file may hold lone surrogates, which no tokenizer takes.
    return {"role": "user", "content": "\n".join(texts).encode(errors="replace").decode()}


def _merged(step: StepResult, end: StepResult) -> StepResult:
    """The last step and the end of a truncated episode as one result."""
    assert step.reward is not None and end.reward is not None, "the NAT environment scores every episode"
    info = {**step.info, **end.info, "stop_reason": str(StopReason.MAX_TURNS)}
    return replace(end, reward=step.reward + end.reward, info=info)
