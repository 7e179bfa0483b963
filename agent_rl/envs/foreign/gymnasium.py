"""`env.name: gymnasium`: an environment with Gymnasium's `reset` and `step` whose actions are the model's replies.

The package itself is needed for ids such as `FrozenLake-v1` only; an import path names any class or function of one's
own. Not here: environments without text, unless `describe` and `act` translate.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import Field

from agent_rl.agent.messages import Message
from agent_rl.agent.tool_parser import reply_text
from agent_rl.config import validate_section
from agent_rl.data.tasks import Task
from agent_rl.envs.base import AgentEnv, EnvFactory, Row, StepResult
from agent_rl.envs.foreign.common import ForeignOptions, import_package, numbers, seed_rows, to_reward
from agent_rl.envs.step_result import gym_end
from agent_rl.errors import ConfigError, DataError
from agent_rl.registry import import_object

_IMPORT_PATH = re.compile(r"[^:]+:[A-Za-z_][\w.]*")
"""`my_pkg:make_env`; what has a dash behind the colon is an id, `my_pkg:MyEnv-v0`."""


class GymnasiumOptions(ForeignOptions):
    """`env.options` of `gymnasium`."""

    make: str
    """What makes an environment: an import path, `my_pkg:make_env`, or an id of Gymnasium's."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments for it."""
    describe: str | None = None
    """Import path of a function from an observation to text; null: observations are text."""
    act: str | None = None
    """Import path of a function from the model's reply to an action, whose ValueError the model reads; null: the reply
    is the action."""
    system_prompt: str | None = None
    """The first message; null: the conversation begins with the first observation."""


class GymnasiumEnv(AgentEnv):
    """One episode of one environment."""

    def __init__(self, options: GymnasiumOptions, make: Callable[[], Any], describe: Any, act: Any) -> None:
        self._options, self._describe, self._act = options, describe, act
        self._env = make()
        self._total = 0.0

    def reset(self, task: Task) -> list[Message]:
        given = _accepted(self._env.reset, {"seed": task.get("seed"), "options": task.get("options")})
        if "seed" not in given and task.get("seed") is not None and hasattr(self._env, "seed"):
            self._env.seed(task["seed"])  # as before Gymnasium 0.26
        first = self._env.reset(**given)
        is_pair = isinstance(first, tuple) and len(first) == 2 and isinstance(first[1], Mapping)
        system = self._options.system_prompt
        start = Message.user(self._text(first[0] if is_pair else first))
        return [*([] if system is None else [Message.system(system)]), start]

    def step(self, message: Message) -> StepResult:
        action: Any = reply_text(message)
        if self._act is not None:
            try:
                action = self._act(action)
            except ValueError as error:
                return StepResult(messages=(Message.user(f"error: {error}"),), info={"tool_errors": 1})
        result = self._env.step(action)
        is_tuple = isinstance(result, tuple) and len(result) in (4, 5)
        observation, reward, *ends, info = result if is_tuple else (None,) * 4
        is_over = gym_end(ends, info)
        if is_over is None:
            raise ConfigError(
                f"{self._options.make}: step gave {result!r:.80}, expected 5 values, (observation, reward, "
                "terminated, truncated, info), or 4, (observation, reward, done, info), with true or false and a "
                "dictionary at their places"
            )
        reward = to_reward(reward, self._options.make)
        self._total += reward
        success = self._options.is_success(self._total)
        return StepResult(
            messages=() if is_over else (Message.user(self._text(observation)),),
            reward=reward,
            reward_parts={**numbers(info or {}), "success": success},
            terminated=is_over,
        )

    def close(self) -> None:
        if hasattr(self._env, "close"):
            self._env.close()

    def _text(self, observation: Any) -> str:
        text = observation if self._describe is None else self._describe(observation)
        if not isinstance(text, str):
            by = "an observation" if self._describe is None else f"what {self._options.describe} made of one"
            raise ConfigError(
                f"{self._options.make}: {by} is {text!r:.80} and no text; name a function that makes text of "
                "observations in env.options.describe"
            )
        return str(text)


class GymnasiumFactory(EnvFactory):
    own_tools = ()

    def __init__(self, options: GymnasiumOptions) -> None:
        self.options = options
        self._make = _maker(options)
        self._describe, self._act = (path and import_object(path) for path in (options.describe, options.act))

    def __call__(self) -> AgentEnv:
        return GymnasiumEnv(self.options, self._make, self._describe, self._act)

    def check_task(self, task: Task, where: str) -> None:
        seed, options = task.get("seed"), task.get("options")
        if not isinstance(seed, int | None) or isinstance(seed, bool):
            raise DataError(f"{where}: seed is {seed!r:.80}; make it a whole number, or leave it out")
        if not isinstance(options, dict | None):
            raise DataError(f"{where}: options is {options!r:.80}; make it an object, or leave it out")

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        """Rows of a seed each; no seed is in both files."""
        return seed_rows("gymnasium", seed, num_train, num_eval)


def _maker(options: GymnasiumOptions) -> Callable[[], Any]:
    """Makes one environment; ConfigError for an unknown id and for arguments that a function does not take."""
    if _IMPORT_PATH.fullmatch(options.make):
        made_by = import_object(options.make)
        try:
            inspect.signature(made_by).bind(**options.kwargs)
        except TypeError as error:
            raise ConfigError(f"env.options.kwargs: {options.make} cannot be called with them ({error})") from None
        return lambda: made_by(**options.kwargs)
    package = import_package("gymnasium", "gymnasium")
    try:
        package.spec(options.make)
    except Exception as error:  # Gymnasium has a class of its own for each mistake in an id
        raise ConfigError(f"env.options.make = {options.make!r}: {error}") from None
    # Its checker compares actions with a space of fixed alphabets, and a model may write anything.
    return lambda: package.make(options.make, disable_env_checker=True, **options.kwargs)


def _accepted(function: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that the function takes and that are not None."""
    parameters = inspect.signature(function).parameters
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    return {key: value for key, value in arguments.items() if value is not None and (takes_any or key in parameters)}


def make_gymnasium_factory(options: dict[str, Any], seed: int) -> GymnasiumFactory:
    """`env.name: gymnasium`."""
    return GymnasiumFactory(validate_section(GymnasiumOptions, options, source="config", prefix="env.options"))
