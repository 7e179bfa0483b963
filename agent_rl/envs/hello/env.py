"""The template: a whole environment that works in every command. Copy this folder, and name your factory in `env.name`.

A question, the calculator of the configuration, a reply that is right or not. Only `HelloEnv` is needed to train; each
method of `HelloFactory` serves a command, named in its docstring.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence

from agent_rl.agent.messages import Message, ToolCall
from agent_rl.data.splits import take
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory, Row, Solution, StepResult, ToolEnv
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.envs.failure_modes import OUT_OF_TURNS, FailureRule
from agent_rl.errors import DataError
from agent_rl.tools.calculator import calculator

PROMPT = "Solve the problem; use the tools to calculate. Then write Answer: and the answer alone."
NUM_TASKS = 1000
"""To train on and held out; demonstrations show the others."""
QUESTION = "Finn buys {} books for {} dollars each. The delivery costs {} dollars. How many dollars does Finn pay?"


class HelloEnv(ToolEnv):
    """One episode: calls until a reply without a call, which is scored. `wrong_reward` is an option: `env.options`."""

    def __init__(self, wrong_reward: float = 0.0) -> None:
        self.wrong_reward = wrong_reward

    def reset(self, task: Task) -> list[Message]:
        self.answer = task["answer"]
        self.registry = self.add_tools(task, [])  # tools of its own would be in the list
        return [Message.system(PROMPT), Message.user(task["question"])]

    def no_call(self, message: Message) -> StepResult:
        success = float(message.content.strip() == f"Answer: {self.answer}")
        return StepResult(reward=success or self.wrong_reward, reward_parts={"success": success}, terminated=True)


class HelloFactory(EnvFactory):
    needed_tools = ("calculator",)
    failure_rules = (OUT_OF_TURNS, FailureRule("wrong answer", "the reply is not the right answer", lambda _: True))

    def __init__(self, wrong_reward: float = 0.0) -> None:
        super().__init__(lambda: HelloEnv(wrong_reward))

    def check_task(self, task: Task, where: str) -> None:
        """Every command that reads task files: what a row must have."""
        for key in ("question", "answer"):
            if not isinstance(task.get(key), str):
                raise DataError(f"{where}: {key} is {task.get(key)!r:.80}; make it a text")

    def solutions(self, task: Task) -> list[Solution]:
        """`check-data`: scripted episodes whose outcome is known."""
        right, wrong = (Message.assistant(f"Answer: {text}") for text in (task["answer"], "?"))
        return [Solution(name="reference", messages=(right,), succeeds=True),
                Solution(name="wrong answer", messages=(wrong,), succeeds=False)]  # fmt: skip

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> Mapping[str, Sequence[Row]]:
        """`prepare-tasks`: rows to train on, and rows held out."""
        rows = iter(_all_tasks(seed)[:NUM_TASKS])
        return {"train": take(rows, num_train or 128, "train"), "eval": take(rows, num_eval or 32, "eval")}

    def demonstrations(self, seed: int, *, faulty_share: float) -> Iterator[Demonstration]:
        """`sft`: conversations for a warm start about other tasks; a faulty one forgets the delivery."""
        rng = random.Random(f"hello-demo-{seed}")
        for task in itertools.cycle(_all_tasks(seed)[NUM_TASKS:]):
            expression = task["expression"].split("+")[0] if rng.random() < faulty_share else task["expression"]
            result = calculator(expression=expression).text
            call = Message.assistant("", (ToolCall(name=calculator.name, arguments={"expression": expression}),))
            turns = [
                (call, (Message.tool(result, name=calculator.name),)),
                (Message.assistant(f"Answer: {result}"), ()),
            ]
            yield Demonstration([Message.system(PROMPT), Message.user(task["question"])], turns, (calculator.spec,))


def _all_tasks(seed: int) -> list[Task]:
    """Every task there is, in the random order of a seed."""
    numbers = list(itertools.product(range(3, 25), range(2, 20), range(2, 16)))
    random.Random(f"hello-{seed}").shuffle(numbers)
    return [
        {
            "task_id": f"hello-{books}-{price}-{delivery}",
            "question": QUESTION.format(books, price, delivery),
            "answer": str(books * price + delivery),
            "expression": f"{books}*{price}+{delivery}",
        }
        for books, price, delivery in numbers
    ]
