"""The template: a whole environment that works in every command. Copy it, and give its import path as `env.name`."""

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.envs.base import EnvFactory, Solution, StepResult, ToolEnv
from agent_rl.errors import DataError

PROMPT = "Solve the problem; use the tools to calculate. Then write Answer: and the answer alone."


class HelloEnv(ToolEnv):
    """One episode: a question, tool calls, and a reply without a call, which is scored."""

    def reset(self, task: Task) -> list[Message]:
        self.answer = task["answer"]
        self.registry = self.add_tools(task, [])  # the list holds tools of the environment's own
        return [Message.system(PROMPT), Message.user(task["question"])]

    def no_call(self, message: Message) -> StepResult:
        success = float(message.content.strip() == f"Answer: {self.answer}")
        return StepResult(reward=success, reward_parts={"success": success}, terminated=True)


class HelloFactory(EnvFactory):
    needed_tools = ("calculator",)

    def __init__(self) -> None:
        super().__init__(HelloEnv)

    def check_task(self, task: Task, where: str) -> None:
        for key in ("question", "answer"):
            if not isinstance(task.get(key), str):
                raise DataError(f"{where}: {key} is {task.get(key)!r:.80}; make it a text")

    def solutions(self, task: Task) -> list[Solution]:
        right, wrong = (Message.assistant(f"Answer: {text}") for text in (task["answer"], "?"))
        return [
            Solution(name="reference", messages=(right,), succeeds=True),
            Solution(name="wrong answer", messages=(wrong,), succeeds=False),
        ]
