"""An environment with options and tasks of one's own: `python own_tool_env.py`, in any folder.

What is written behind it, such as train.steps=5, overrides the configuration.
"""

import sys

from agent_rl import AgentEnv, EnvFactory, GRPOTrainer, Message, StepResult, ToolEnv, load_config


class LastNumber(ToolEnv):
    """Scores what the last call of a tool gave, whatever the reply is; each call before it costs something."""

    def __init__(self, call_cost: float) -> None:
        self.call_cost, self.results = call_cost, []

    def reset(self, task: dict) -> list[Message]:
        self.wanted, self.registry = task["answer"], self.add_tools(task, [])
        prompt = "Solve the problem; use the tools to calculate. Then write Answer: and the answer alone."
        return [Message.system(prompt), Message.user(task["question"])]

    def on_result(self, call, result) -> None:
        self.results.append(result.text)

    def no_call(self, message: Message) -> StepResult:
        success = float(self.results[-1:] == [self.wanted])
        cost = self.call_cost * max(0, len(self.results) - 1)
        return StepResult(reward=success - cost, reward_parts={"success": success, "cost": -cost}, terminated=True)

    def on_terminal(self, tool_name: str) -> StepResult:
        return self.no_call(Message.assistant(""))


class LastNumberFactory(EnvFactory):
    """Makes an environment for each episode. Arguments of the constructor are options: `env.options.call_cost=0.2`."""

    needed_tools = ("calculator",)

    def __init__(self, call_cost: float = 0.1) -> None:
        self.call_cost = call_cost

    def __call__(self) -> AgentEnv:
        return LastNumber(self.call_cost)


question = "Finn buys {} books for {} dollars each. The delivery costs 9 dollars. How many dollars does Finn pay?"
tasks = [
    {"task_id": f"books-{count}-{price}", "question": question.format(count, price), "answer": str(count * price + 9)}
    for count in range(3, 9)
    for price in range(11, 15)
]
if __name__ == "__main__":
    own = ["run.name=own_tool_env", f"env.name={__file__}:LastNumberFactory", "env.options.call_cost=0.2"]
    small = ["train.steps=1", "rollout.groups_per_step=4"]
    config = load_config("configs/math_grpo.yaml", [*own, *small, *sys.argv[1:]])
    with GRPOTrainer.from_config(config, train_tasks=tasks) as trainer:
        trainer.train()
