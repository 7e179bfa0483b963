"""A task, a reward and any Hugging Face model: run `python docs/hello.py` from the project's root.

What is written behind it, such as model.path=FOLDER or train.steps=5, overrides the configuration.
"""

import sys

from agent_rl import GRPOTrainer, load_config, reward


@reward("brief_reward")
def brief_reward(prediction: str, answer: str) -> float:
    return len(answer) / len(prediction) if answer in prediction else 0.0


tasks = [{"task_id": f"{n}", "question": f"What is {n} plus {n}?", "answer": str(n + n)} for n in range(1, 100)]
own = ["run.name=hello", "policy.type=huggingface", "model.path=Qwen/Qwen2.5-0.5B-Instruct", "tools.use=[]"]
own += ["env.options.reward=brief_reward", "train.steps=20", "train.learning_rate=1e-5", "train.final_learning_rate=0"]
config = load_config("configs/math_grpo.yaml", [*own, "rollout.groups_per_step=4", *sys.argv[1:]])
with GRPOTrainer.from_config(config, train_tasks=tasks) as trainer:
    trainer.train()
