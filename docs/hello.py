"""A task, a reward and any Hugging Face model: run `python docs/hello.py` from the project's root.

What is written behind it, such as model.path=FOLDER or train.steps=5, overrides the configuration.
"""

import sys

from agent_rl import GRPOTrainer, load_config, reward


@reward("brief_reward")
def brief_reward(prediction: str, answer: str) -> float:
    return float(answer in prediction) - 0.01 * len(prediction)


tasks = [{"task_id": f"sum-{n}", "question": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(50)]
own = ["run.name=hello", "policy.type=huggingface", "model.path=Qwen/Qwen2.5-0.5B-Instruct", "tools.use=[]"]
config = load_config("configs/math_grpo.yaml", [*own, "env.options.reward=brief_reward", *sys.argv[1:]])
with GRPOTrainer.from_config(config, train_tasks=tasks) as trainer:
    trainer.train()
