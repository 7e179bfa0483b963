"""Questions with a short answer: the tools come from the configuration, the verdict from rewards by name.

The environment asks; the agent calls tools as often as it likes and ends with a reply that holds no call, or with the
tool `answer` where that is offered. What the rewards compare is the final answer in that reply.
Not here: the rewards (`rewards/`), the tools (`tools/`), search and its history (`search_env.py`).
"""

import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.data.rows import no_column
from agent_rl.envs.base import AgentEnv, EnvFactory, Solution, StepResult, Task, ToolEnv
from agent_rl.envs.failure_modes import QUESTION_RULES
from agent_rl.errors import DataError
from agent_rl.records import StopReason
from agent_rl.rewards import RewardSpec, RewardSpecs, RewardSum, make_reward
from agent_rl.rewards.answers import accepted_answers, boxed, math_answer
from agent_rl.tools.answer_tool import AnswerTool
from agent_rl.tools.calculator import CalculationError, calculate, calculator

NO_ANSWER = "no such answer"
"""A final answer that is wrong whatever the question."""
_MARKER = re.compile(r"\banswer\**\s*:", re.IGNORECASE)
"""Final Answer: and Answer:, and **Answer**: too."""
_USE_TOOLS = "; use the tools to calculate"
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,100}")


_BY_TEXT, _BY_TOOL = "Then write Answer: and the answer alone.", "Then call answer with the answer alone."


def prompt_that_ends(start: str) -> Any:
    """A default for `system_prompt`: `start`, and how to hand in the answer."""
    return Field(default_factory=lambda options: f"{start} {_BY_TOOL if options['answer_tool'] else _BY_TEXT}")


class QAEnvOptions(BaseModel):
    """`env.options` of `math_qa`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    answer_tool: bool = False
    """Whether the tool `answer` is offered, which ends the episode. A reply without a call does so too."""
    system_prompt: str | None = prompt_that_ends(f"Solve the problem{_USE_TOOLS}.")
    """The first message; null: the conversation begins with the question."""
    reward: RewardSpecs = (RewardSpec(name="math_reward_string_equal"),)
    """Registered rewards whose weighted sum scores the final answer: a name, `{name, weight}`, or a list of them."""
    truncation_penalty: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """What an episode loses that ends without an answer, because a budget is used up. It is scored as a wrong answer
    besides."""

    def prompt(self, tools: Collection[str]) -> str | None:
        """The first message of an episode with these tools: the default one mentions them, and `answer`, only if there
        are any."""
        if self.system_prompt is None or "system_prompt" in self.model_fields_set:
            return self.system_prompt
        start = self.system_prompt if set(tools) - {AnswerTool.name} else self.system_prompt.replace(_USE_TOOLS, "")
        return start.replace(_BY_TEXT, _BY_TOOL) if AnswerTool.name in tools else start


def final_answer(text: str) -> str:
    """The answer in a last reply: what follows the last "Answer:" or "Final Answer:", and of it what stands in the last
    \\boxed{}; the whole text where there is neither. "So 40 + 2.\\nAnswer: 42" -> "42".
    """
    markers = list(_MARKER.finditer(text))
    marked = text[markers[-1].end() :].strip().strip("*") if markers else text
    return (boxed(marked) or marked).strip()


class QAEnv(ToolEnv):
    """One question."""

    def __init__(self, options: QAEnvOptions, reward: RewardSum) -> None:
        self.options = options
        self._reward = reward
        self._task: Task = {}

    def reset(self, task: Task) -> list[Message]:
        self._task = task
        self.registry = self.add_tools(task, [AnswerTool()] if self.options.answer_tool else [])
        prompt = self.options.prompt({tool.name for tool in self.tools})
        self.trajectory = (*([] if prompt is None else [Message.system(prompt)]), Message.user(task["question"]))
        return list(self.trajectory)

    def on_terminal(self, tool_name: str) -> StepResult:
        return self._score(self.submitted.strip())

    def no_call(self, message: Message) -> StepResult:
        return self._score(final_answer(message.content))

    def truncate(self, reason: StopReason) -> StepResult:
        lost = 0.0 - self.options.truncation_penalty
        earned, parts = self._reward.without_answer(trajectory=self.trajectory, task=self._task)
        if earned is None:
            return StepResult(reward=None, terminated=True, info={"error": self._reward.unscored(parts)})
        return StepResult(reward=earned + lost, reward_parts={**parts, "truncation_penalty": lost}, terminated=True)

    def _score(self, prediction: str) -> StepResult:
        total, parts = self._reward(prediction=prediction, trajectory=self.trajectory, task=self._task)
        info: dict[str, Any] = {"prediction": prediction}
        if total is None:
            return StepResult(reward=None, terminated=True, info={**info, "error": self._reward.unscored(parts)})
        return StepResult(reward=total, reward_parts=parts, terminated=True, info=info)


class QAEnvFactory(EnvFactory):
    """Checks the options and the rows; every episode shares the rewards, which hold no state."""

    failure_rules = QUESTION_RULES

    def __init__(self, options: QAEnvOptions) -> None:
        self.options = options
        self.reward = make_reward(options.reward, lends=())
        self.own_tools = (AnswerTool.name,) if options.answer_tool else ()

    def __call__(self) -> AgentEnv:
        return QAEnv(self.options, self.reward)

    def check_task(self, task: Task, where: str) -> None:
        if "question" not in task:
            raise no_column(task, "question", where)
        if not _is_text(task["question"]):
            raise DataError(f"{where}: question is {task['question']!r:.80}; make it a text that is not empty")
        if "answer" in task:
            _check_answer(task["answer"], where)
        self.reward.check_task(task, where)

    def solutions(self, task: Task) -> list[Solution]:
        """The reference, and a wrong answer; none for a row without `answer`."""
        if "answer" not in task:
            return []
        lookups = self.lookups(task)
        right, wrong = (Message.assistant(f"Answer: {text}") for text in self.right_and_wrong(task))
        return [
            Solution(name="reference", messages=(*lookups, right), succeeds=True, evidence=self.evidence(task)),
            Solution(name="wrong answer", messages=(*lookups, wrong), succeeds=False),
        ]

    def lookups(self, task: Task) -> tuple[Message, ...]:
        """A scripted solution's messages before the answer: it calculates `metadata.expression`, where there is one."""
        expression = _expression(task)
        call = ToolCall(name=calculator.name, arguments={"expression": expression})
        return (Message.assistant("", (call,)),) if expression else ()

    def evidence(self, task: Task) -> tuple[str, ...]:
        """What the lookups of the reference have to bring up: `Solution.evidence`."""
        return ()

    def right_and_wrong(self, task: Task) -> tuple[str, str]:
        """What the row's expression comes to, or an accepted answer where it has none; and an answer that is not
        accepted: one more than the largest accepted whole number, or `NO_ANSWER`."""
        accepted = [math_answer(each) for each in accepted_answers(task["answer"])]
        numbers = [int(each) for each in accepted if _WHOLE_NUMBER.fullmatch(each)]
        right = _calculated(task) if _expression(task) else accepted[0]
        return right, str(max(numbers) + 1) if numbers else NO_ANSWER


def _expression(task: Task) -> str:
    """`metadata.expression`; empty where there is none."""
    metadata = task.get("metadata")
    return str(metadata.get("expression") or "") if isinstance(metadata, dict) else ""


def _calculated(task: Task) -> str:
    expression = _expression(task)
    try:
        return calculate(expression)
    except CalculationError as error:
        raise DataError(
            f"task {task.get('task_id')!r}: metadata.expression is {expression!r:.80}, which has no value ({error}); "
            "correct it, or leave it out"
        ) from None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _check_answer(answer: Any, where: str) -> None:
    """DataError unless it is a text that is not empty or a number, or a list of these."""
    listed = answer if isinstance(answer, list) else [answer]
    if not listed or not all(_is_text(e) or (isinstance(e, int | float) and not isinstance(e, bool)) for e in listed):
        raise DataError(f"{where}: answer is {answer!r:.80}; make it a text, a number, or a list of accepted ones")
