"""The control of an evaluation in which tools answer nothing: each reply is replaced by a constant.

What tools do is done, files are written and episodes scored as ever; only what the model reads of it is gone. An agent
whose success stays the same does not use the answers. Not here: training, which has no such switch.
"""

from dataclasses import replace

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.envs.base import OF_INNER, AgentEnv, EnvFactory, StepResult
from agent_rl.envs.step_result import read_step
from agent_rl.records import StopReason

BLANK = "(no answer)"
"""What the model reads in place of every reply of a tool."""


class BlankAnswersFactory(EnvFactory):
    """Makes `inner`'s environments with blank answers; closing it closes `inner`."""

    control = "blank tool answers"

    def __init__(self, inner: EnvFactory) -> None:
        super().__init__(inner)
        self.inner = inner
        for name in (*OF_INNER, "counters", "worker_counters", "describe", "start"):
            setattr(self, name, getattr(inner, name))

    def __call__(self) -> AgentEnv:
        return BlankAnswersEnv(self.inner())

    def close(self) -> None:
        self.inner.close()


class BlankAnswersEnv(AgentEnv):
    """One episode of an environment, without the words of its tools."""

    def __init__(self, inner: AgentEnv) -> None:
        self._inner = inner

    def reset(self, task: Task) -> list[Message]:
        self._inner.case_seed = self.case_seed
        messages = self._inner.reset(task)
        self.tools = self._inner.tools
        return messages

    def step(self, message: Message) -> StepResult:
        result = read_step(self._inner.step(message), self._inner)
        self.tools = self._inner.tools
        conversation = result.conversation
        return replace(
            result,
            messages=_blank(result.messages),
            conversation=None if conversation is None else _blank(conversation),
        )

    def truncate(self, reason: StopReason) -> StepResult:
        self._inner.unanswered = self.unanswered
        return read_step(self._inner.truncate(reason), self._inner, "truncate")

    def close(self) -> None:
        self._inner.close()


def _blank(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    return tuple(replace(each, content=BLANK) if each.role == "tool" else each for each in messages)
