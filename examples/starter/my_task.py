"""My task: word problems about stamps, with a calculator. Four parts to replace: tasks, score, environment, checks.

`config.yaml` names `my_task.py:MyTask`, so that every command of `agent-rl` knows it.
"""

import random

from agent_rl import EnvFactory, Message, StepResult, ToolEnv
from agent_rl.envs.base import Solution
from agent_rl.errors import DataError

PROMPT = "Solve the problem; use the tools to calculate. Then write Answer: and the answer alone."


def make_tasks(seed: int) -> list[dict]:
    """Every combination of two numbers once, in an order of the seed."""
    pairs = [(count, price) for count in range(11, 31) for price in range(3, 20)]
    random.Random(seed).shuffle(pairs)
    question = "Ida buys {} stamps at {} dollars apiece. What does Ida pay in all, in dollars?"
    return [{"task_id": f"{n}-{p}", "question": question.format(n, p), "answer": str(n * p)} for n, p in pairs]


def score(reply: str, answer: str) -> float:
    """1.0 for the right answer in the form that was asked for."""
    return float(reply.strip() == f"Answer: {answer}")


class MyEnv(ToolEnv):
    """One episode: calls of tools are answered, and the first reply without a call is scored."""

    def reset(self, task: dict) -> list[Message]:
        self.answer = task["answer"]
        self.registry = self.add_tools(task, [])  # the list has tools of the environment's own
        return [Message.system(PROMPT), Message.user(task["question"])]

    def no_call(self, message: Message) -> StepResult:
        reward = score(message.content, self.answer)
        return StepResult(reward=reward, reward_parts={"success": reward}, terminated=True)


class MyTask(EnvFactory):
    needed_tools = ("calculator",)

    def __init__(self) -> None:
        super().__init__(MyEnv)

    def task_files(self, seed: int, num_train: int | None, num_eval: int | None) -> dict[str, list[dict]]:
        """For `agent-rl prepare-tasks`; a task file may as well come from anywhere else."""
        tasks = make_tasks(seed)
        held_out = num_eval or 60
        return {"eval": tasks[:held_out], "train": tasks[held_out:][:num_train]}

    def check_task(self, task: dict, where: str) -> None:
        """Refuse a row that is no task; called for every row of a task file."""
        for key in ("question", "answer"):
            if not isinstance(task.get(key), str):
                raise DataError(f"{where}: {key} is {task.get(key)!r:.80}; make it a text")

    def solutions(self, task: dict) -> list[Solution]:
        """For `agent-rl check-data`: what has to succeed, and what must not."""
        right, wrong = (Message.assistant(f"Answer: {text}") for text in (task["answer"], f"{task['answer']}0"))
        return [
            Solution(name="reference", messages=(right,), succeeds=True),
            Solution(name="another number", messages=(wrong,), succeeds=False),
        ]
