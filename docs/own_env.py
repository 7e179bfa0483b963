"""An environment, a reward and tasks of one's own: run `python docs/own_env.py` from the project's root."""

from agent_rl import AgentEnv, GRPOTrainer, Message, StepResult, load_config


class ManyCalls(AgentEnv):
    def reset(self, task: dict) -> list[Message]:
        return [Message.user(task["prompt"])]

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=float(len(message.tool_calls)), terminated=True)


config = load_config("configs/nat_grpo.yaml", ["run.name=own_env", "train.steps=1", "rollout.groups_per_step=4"])
tasks = [{"task_id": f"task-{n}", "prompt": f"Write {n} files."} for n in range(16)]
with GRPOTrainer.from_config(config, env_factory=ManyCalls, train_tasks=tasks) as trainer:
    trainer.train()
