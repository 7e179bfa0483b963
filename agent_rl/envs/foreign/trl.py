"""`env.name: trl_environment`: a class as TRL's `environment_factory` takes it, whose public methods are the tools.

One instance plays one episode: `reset` gets the columns of the row, the model calls the methods, and the episode ends
with a reply that calls none. It is scored by `get_reward()` or the attribute `reward` of the instance, or by a reward
function in TRL's style. The package itself is not needed. Not here: several environments in one run.
"""

import copy
import functools
import inspect
import threading
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from agent_rl.agent.message_dicts import read_prompt, to_dict
from agent_rl.agent.messages import Message
from agent_rl.config import validate_section
from agent_rl.data.rows import no_column
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, StepResult, ToolEnv
from agent_rl.envs.foreign.common import ForeignOptions, to_reward
from agent_rl.errors import ConfigError, defined_at
from agent_rl.records import StopReason
from agent_rl.registry import import_object
from agent_rl.rewards.base import RewardFailedError, result_of
from agent_rl.rewards.styles import only_entry
from agent_rl.tools.decorator import FunctionTool, make_tool

_NO_TOOLS = ("reset", "get_reward")


class TRLEnvironmentOptions(ForeignOptions):
    """`env.options` of `trl_environment`."""

    make: str
    """Import path of the class, `my_pkg:MyEnv`."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for it; TRL gives none."""
    reward: str | None = None
    """Import path of a reward function in TRL's style, which is given `environments`, `prompts`, `completions` and the
    columns of the row, each a list of one; null: `get_reward()` of the instance, else its attribute `reward`."""
    system_prompt: str | None = None
    """First message of the conversations whose prompt has no system message; null: none."""


class TRLEnvironment(ToolEnv):
    """One episode of one instance."""

    def __init__(self, factory: "TRLEnvironmentFactory") -> None:
        self._factory = factory
        self._inner = factory.make_instance()
        self._row: Task = {}
        self._prompt: tuple[Message, ...] = ()

    def reset(self, task: Task) -> list[Message]:
        self._row = task
        observation = self._inner.reset(**_taken(self._inner.reset, task))
        if not isinstance(observation, str | None):
            raise ConfigError(f"{self._factory.options.make}: reset gave {observation!r:.80}, expected a text or None")
        messages = list(read_prompt(task["prompt"], "prompt"))
        if observation:
            last = messages[-1]
            messages[-1] = Message(role=last.role, content=f"{last.content}\n{observation}", name=last.name)
        system = self._factory.options.system_prompt
        if system is not None and messages[0].role != "system":
            messages.insert(0, Message.system(system))
        self.registry = self.add_tools(task, self._factory.tools_of(self._inner))
        self.trajectory = self._prompt = tuple(messages)
        return messages

    def no_call(self, message: Message) -> StepResult:
        return self._score()

    def truncate(self, reason: StopReason) -> StepResult:
        if self.unanswered is not None:
            self.trajectory += (self.unanswered,)
        return self._score()

    def _score(self) -> StepResult:
        said = [to_dict(message) for message in self.trajectory[len(self._prompt) :]]
        value = self._factory.reward(self._inner, self._row, [to_dict(each) for each in self._prompt], said)
        if value is None:
            return StepResult(reward=None, terminated=True, info={"error": f"{self._factory.reward_name} gave None"})
        earned = to_reward(value, self._factory.reward_name)
        success = self._factory.options.is_success(earned)
        return StepResult(reward=earned, reward_parts={"success": success}, terminated=True)


class TRLEnvironmentFactory(EnvFactory):
    """Describes the methods of the class once."""

    def __init__(self, options: TRLEnvironmentOptions) -> None:
        self.options = options
        self._class = import_object(options.make)
        if not callable(getattr(self._class, "reset", None)):
            raise ConfigError(f"env.options.make = {options.make!r}: it has no method reset; name a class that has one")
        try:
            inspect.signature(self._class).bind(**options.kwargs)
        except TypeError as error:
            raise ConfigError(f"env.options.kwargs: {options.make} cannot be called with them ({error})") from None
        self._function: Callable[..., Any] | None = options.reward and import_object(options.reward)
        self.reward_name = options.reward or options.make
        self._tools: dict[str, FunctionTool] | None = None
        self._lock = threading.Lock()

    def __call__(self) -> AgentEnv:
        return TRLEnvironment(self)

    def make_instance(self) -> Any:
        return self._class(**self.options.kwargs)

    def check_task(self, task: Task, where: str) -> None:
        if "prompt" not in task:
            raise no_column(task, "prompt", where)
        read_prompt(task["prompt"], f"{where}: prompt")

    def tools_of(self, instance: Any) -> list[FunctionTool]:
        """The public methods of an instance as tools; ConfigError for one that cannot be described to a model."""
        with self._lock:
            if self._tools is None:
                self._tools = {name: self._described(name, method) for name, method in _methods(instance).items()}
        bound = []
        for name, tool in self._tools.items():
            mine = copy.copy(tool)  # describing a method takes longer than an episode of a small model
            mine.function = getattr(instance, name)
            bound.append(mine)
        return bound

    def _described(self, name: str, method: Callable[..., Any]) -> FunctionTool:
        @functools.wraps(method)
        def function(**arguments: Any) -> Any:
            return method(**arguments)

        try:
            return make_tool(function, name=name)
        except ValueError as error:
            raise ConfigError(f"env.options.make = {self.options.make!r}: {error}") from None

    def reward(self, instance: Any, row: Task, prompt: list[Any], completion: list[Any]) -> Any:
        """What an episode earned; None where it cannot be scored."""
        if self._function is not None:
            lists = {name: [value] for name, value in row.items()}
            lists |= {"environments": [instance], "prompts": [prompt], "completions": [completion]}
            given = result_of(self._function(**_taken(self._function, lists)))
            try:
                return only_entry(given)
            except ValueError as error:
                place = defined_at(self._function)
                raise RewardFailedError(f"the reward {self.reward_name!r} {error}{place}") from None
        if hasattr(instance, "get_reward"):
            return instance.get_reward()
        if not hasattr(instance, "reward"):
            raise ConfigError(
                f"{self.options.make} has no get_reward and no attribute reward; give it one, or name a function in "
                "env.options.reward"
            )
        return instance.reward


def _methods(instance: Any) -> dict[str, Callable[..., Any]]:
    found = inspect.getmembers(instance, inspect.ismethod)
    return {name: method for name, method in found if not name.startswith("_") and name not in _NO_TOOLS}


def _taken(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    names = {each.name for each in parameters}
    return {name: value for name, value in arguments.items() if takes_any or name in names}


def make_trl_factory(options: dict[str, Any], seed: int) -> TRLEnvironmentFactory:
    """`env.name: trl_environment`."""
    return TRLEnvironmentFactory(
        validate_section(TRLEnvironmentOptions, options, source="config", prefix="env.options")
    )
