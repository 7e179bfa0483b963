"""An environment of one's own; a class is all that a run needs.

    agent-rl train --config configs/math_grpo.yaml env.name=own_env.py:ManyCalls tools.use=[] run.name=own_env

From Python, with tasks of its own too: `python own_env.py`, in any folder.
"""

from agent_rl import AgentEnv, GRPOTrainer, Message, StepResult, load_config


class ManyCalls(AgentEnv):
    """Rewards every call. Arguments of the constructor are options: `env.options.reward_per_call=0.5`."""

    def __init__(self, reward_per_call: float = 1.0) -> None:
        self.reward_per_call = reward_per_call

    def reset(self, task: dict) -> list[Message]:
        return [Message.user(task["question"])]

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=self.reward_per_call * len(message.tool_calls), terminated=True)


if __name__ == "__main__":
    config = load_config("configs/nat_grpo.yaml", ["run.name=own_env", "train.steps=1", "rollout.groups_per_step=4"])
    tasks = [{"task_id": f"task-{n}", "question": f"Write {n} files."} for n in range(16)]
    with GRPOTrainer.from_config(config, env_factory=ManyCalls, train_tasks=tasks) as trainer:
        trainer.train()
