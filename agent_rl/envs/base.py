"""The environment contract: messages in, messages and rewards out, one instance per episode.

An environment never sees token ids, budgets or the policy; parsing, budgets and deadlines are the rollout's.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

from agent_rl.agent.messages import Message, ToolCall, ToolSpec
from agent_rl.agent.tool_parser import reply_text
from agent_rl.closing import Closing
from agent_rl.config import DataConfig
from agent_rl.data.tasks import Check, Task, read_split
from agent_rl.envs.demonstrations import Choice, Demonstration
from agent_rl.envs.failure_modes import OUT_OF_TURNS, FailureRule
from agent_rl.envs.step_result import StepResult, read_step
from agent_rl.errors import ConfigError, defined_at
from agent_rl.records import StopReason
from agent_rl.tools.base import BaseTool, ToolRegistry, ToolResult
from agent_rl.tools.toolset import Toolset

Row = Mapping[str, Any]
"""One line of a file that `EnvFactory.task_files` fills: a task, or for example a passage of a corpus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """A scripted episode whose outcome is known: `Solution(name="reference", messages=(...,), succeeds=True)`."""

    name: str
    messages: tuple[Message, ...]
    """The assistant's messages, turn by turn."""
    succeeds: bool
    evidence: tuple[str, ...] = ()
    """Answers, one of which must occur in a reply of the environment, or the episode is no success; empty: no check."""


class AgentEnv(ABC):
    """One episode. `reset` gives the first messages, `step` answers an assistant message, `close` frees resources.

    Other forms that `reset`, `step` and `truncate` may return are in `step_result.py`.
    """

    tools: tuple[ToolSpec, ...] = ()
    """Tools offered to the model in this episode; read after `reset` and after every step that does not end it."""
    case_seed: int | None = None
    """Set before `reset` in training: the same for all episodes of a group, another one at every step. Hidden cases
    that are seeded with it cannot be passed on from step to step. None, as in evaluations: always the same cases."""
    unanswered: Message | None = None
    """Set before `truncate`: the last reply where `step` did not get it, because it was cut off or went over a budget;
    its calls were not run."""

    @abstractmethod
    def reset(self, task: Task) -> list[Message]:
        """Start the episode and return its first messages (system, user)."""

    @abstractmethod
    def step(self, message: Message) -> StepResult:
        """Answer one assistant message, its calls already parsed."""

    def truncate(self, reason: StopReason) -> StepResult:
        """Score an episode that the rollout ends early (a budget, a deadline). By default it earns nothing more."""
        return StepResult(reward=0.0, terminated=True)

    def close(self) -> None:
        """Free what the episode holds. Called exactly once, also after an error."""
        return None


class EnvFactory(Closing):
    """Makes one fresh environment per episode, from many threads.

    It may own shared resources (checker processes, an index): `start` acquires them and fails early with a sentence,
    `close` frees them; as a context manager it closes at the end. This base class wraps a plain callable (such as an
    `AgentEnv` class) that needs none. Everything after `solutions` is optional and serves a command of its own.
    """

    own_tools: tuple[str, ...] | None = None
    """Names of the tools its environments bring themselves; the configuration may not offer others of these names.
    None: unknown."""
    needed_tools: tuple[str, ...] = ()
    """Names of the tools that the configuration has to offer."""
    failure_rules: tuple[FailureRule, ...] = (OUT_OF_TURNS,)
    """Rules that name why an episode failed, for reports; tried in order, after `failure_modes.ENDS`."""
    may_be_remote = True
    """Whether its environments may run in other processes (`rollout.workers: ray`)."""
    control: str = ""
    """What its environments keep from the model on purpose, as a control; evaluations name it."""
    speed_options: tuple[str, ...] = ()
    """Keys of `env.options` that change the speed alone: evaluations that differ in them are comparable."""
    environments: Mapping[str, float] = MappingProxyType({})
    """Of a mixture: the names of its environments, as in the column `env` of its tasks, with their weights in training.
    """

    def __init__(self, make: Callable[[], AgentEnv] | None = None) -> None:
        """`make` is left out where a subclass defines `__call__`. ConfigError for one that cannot make environments."""
        if make is not None:
            _check_maker(make)
        self.make = make
        """What makes an environment; None in subclasses that do it themselves."""

    def __call__(self) -> AgentEnv:
        if self.make is None:
            raise NotImplementedError(f"{type(self).__name__} defines no __call__ and was given nothing to make")
        made = self.make()
        if not isinstance(made, AgentEnv):
            raise ConfigError(
                f"env_factory made {made!r:.80}, of the class {type(made).__name__}; expected an AgentEnv: derive the "
                "class from it"
            )
        return made

    def check_task(self, task: Task, where: str) -> None:
        """Raise DataError when a dataset row is not a task of this environment; `where` opens the sentence."""

    def read_tasks(self, data: DataConfig, split: Literal["train", "eval"], check: Check | None = None) -> list[Task]:
        """The training or held-out tasks of a configuration, each passed to `check`, by default `check_task`."""
        return read_split(data, split, check or self.check_task)

    def task_source(self, data: DataConfig, split: Literal["train", "eval"]) -> str:
        """Where `read_tasks` reads them, in words."""
        return str(data.train_path if split == "train" else data.eval_path)

    def factory_of(self, task: Task) -> "tuple[EnvFactory, Task]":
        """Of a mixture the factory of a task's environment, and the row as that knows it; else this one."""
        return self, task

    def compared_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """What of `env.options` decides how episodes run and are scored, for evaluations that are compared."""
        return {key: value for key, value in options.items() if key not in self.speed_options}

    def solutions(self, task: Task) -> list[Solution]:
        """Scripted episodes of a task, right and wrong, that show whether its data can be trusted; none by default."""
        return []

    def start(self) -> None:
        """Acquire shared resources; called once, before the first episode."""

    def describe(self) -> dict[str, Any]:
        """What is stored with the run: versions, isolation. Called after `start`; `summary` is shown."""
        return {}

    def counters(self) -> Mapping[str, float]:
        """Work of this process so far, by name; the metrics `judge/<name>` are a step's share of it. None by default.

        The built-in environments count verdicts that were `asked` for and `run`, and the `seconds` these took.
        """
        return {}

    def worker_counters(self) -> Mapping[str, float]:
        """What happened to the workers that environments run in, so far; the metrics `workers/<name>` are a step's
        share. None where they run in this process."""
        return {}

    def part_weights(self) -> Mapping[str, float]:
        """Weights of the reward parts that are weighted shares, for reports; none by default."""
        return {}

    def close(self) -> None:
        """Free shared resources; called once, also where `start` failed or was never called."""

    def demonstrations(self, seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
        """Conversations for a supervised warm start (`agent-rl sft`), without end; none by default.

        A share of them is faulty on purpose, which leaves reinforcement learning something to fix.
        """
        return iter(())

    def chosen_demonstrations(self, seed: int, *, faulty_share: float, choice: Choice) -> Iterator[Demonstration]:
        """Those of a choice (`agent-rl sft --wordings`, `--free-share`, `--levels`, `--families`); none by default."""
        return iter(())

    def covers(self, task: Task) -> Mapping[str, tuple[str | int, ...]]:
        """What a task is of, such as `{"families": ("calculator",)}`; nothing by default.

        Training adds it to the `agent_rl.json` of a model that has one.
        """
        return {}

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        """Rows by file name without suffix (`agent-rl prepare-tasks`): `train`, `eval`, and any others such as a
        corpus; the same rows for the same seed. None: the environment's default number. Empty by default.
        """
        return {}

    def preflight_tasks(self, tasks: Sequence[Task]) -> Mapping[str, Task]:
        """Training tasks whose reference solution `agent-rl preflight` runs, by the name of the check."""
        return {}


OF_INNER = (
    *("own_tools", "needed_tools", "failure_rules", "may_be_remote", "speed_options", "environments", "check_task"),
    *("read_tasks", "task_source", "compared_options", "solutions", "part_weights", "demonstrations"),
    *("chosen_demonstrations", "covers", "task_files", "preflight_tasks"),
)
"""What a factory around another has of that one, whatever it does with environments and resources."""


def _check_maker(make: Callable[[], AgentEnv]) -> None:
    """ConfigError for what no episode could call."""
    made = make.func if isinstance(make, partial) else make
    name = getattr(made, "__qualname__", type(made).__name__) + defined_at(made)
    if missing := sorted(getattr(made, "__abstractmethods__", ())):
        raise ConfigError(f"the environment {name} has no {' and no '.join(missing)}; define it")
    try:
        inspect.signature(make).bind()
    except TypeError:
        raise ConfigError(
            f"the environment {name} takes {inspect.signature(make)!s:.120} and is made without arguments; "
            "give them defaults, or a function that passes them"
        ) from None
    except ValueError:  # nothing says what it takes
        pass


def as_text(message: Message) -> Message:
    """The reply without calls: what reads as one is text where no tools are offered."""
    is_thought_written = bool(message.reasoning) and message.reasoning in message.written  # as rules of text have it
    return replace(
        message,
        content=reply_text(message),
        reasoning="" if is_thought_written else message.reasoning,
        tool_calls=(),
        tool_errors=(),
        written="",
    )


class ToolEnv(AgentEnv):
    """An environment whose actions are tool calls: runs them in order and answers with one message per call. Without
    tools nothing is a call: what reads as one is part of a plain text.

    Subclasses set `self.registry = self.add_tools(task, [their tools])` in `reset` and override `on_terminal` to score,
    `no_call` to answer plain text. Those that score conversations set `self.trajectory` to their first messages too.
    """

    registry: ToolRegistry
    toolset: Toolset | None = None
    """What the configuration offers beside the environment's own tools."""
    trajectory: tuple[Message, ...] = ()
    """The conversation so far, grown by `step`: at the end it holds the last reply and what its calls gave."""
    submitted: str = ""
    """The answer of the tool that ended the episode, set before `on_terminal`: `answer` of its facts, else its text."""

    def add_tools(self, task: Task, own: Sequence[BaseTool]) -> ToolRegistry:
        """The tools of this episode, now in `self.tools` too: `own` first, then those of the configuration."""
        offered = self.toolset.make(task, beside=own) if self.toolset else []
        registry = ToolRegistry([*own, *offered])
        self.tools = registry.specs
        return registry

    def step(self, message: Message) -> StepResult:
        message = message if self.registry.specs else as_text(message)
        self.trajectory += (message,)
        num_before, num_errors, num_calls = len(self.trajectory), len(message.tool_errors), 0
        self.trajectory += tuple(Message.tool(f"error: {error.message}") for error in message.tool_errors)
        for call in message.tool_calls:
            result = self.registry.run(call)
            self.trajectory += (Message.tool(result.text, name=call.name),)
            self.on_result(call, result)
            num_calls += 1
            num_errors += not result.ok
            if result.terminal:
                self.submitted = str(result.facts.get("answer", result.text))
                scored = read_step(self.on_terminal(call.name), self, "on_terminal")
                return self._with_counts(scored, num_calls, num_errors)
        if replies := self.trajectory[num_before:]:
            return self._with_counts(StepResult(messages=replies), num_calls, num_errors)
        answered = read_step(self.no_call(message), self, "no_call")
        self.trajectory += answered.messages
        return answered

    def on_result(self, call: ToolCall, result: ToolResult) -> None:
        """Note what a call gave, right after it ran and before `on_terminal`; by default nothing is recorded."""
        return None

    def on_terminal(self, tool_name: str) -> StepResult:
        """Score the episode after a terminal tool, with `terminated=True`; by default as the reply it submitted."""
        return self.no_call(Message.assistant(self.submitted))

    @abstractmethod
    def no_call(self, message: Message) -> StepResult:
        """Answer an assistant message that holds no call at all."""

    @staticmethod
    def _with_counts(result: StepResult, num_calls: int, num_errors: int) -> StepResult:
        return replace(result, info={**result.info, "tool_calls": num_calls, "tool_errors": num_errors})
