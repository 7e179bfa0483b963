"""Two rewards of one's own in a weighted sum: `python own_reward.py`, in any folder.

What is written behind it, such as train.steps=5, overrides the configuration.
"""

import json
import sys

from agent_rl import GRPOTrainer, Message, load_config, reward


@reward("near_reward")
def near_reward(prediction: str, answer: str) -> dict[str, float]:
    """1.0 for the right number, less the further off it is. What is no number earns nothing; nor do nan and inf."""
    try:
        distance = abs(float(prediction) - float(answer)) / max(1.0, abs(float(answer)))
    except ValueError:
        return {"reward": 0.0, "is_number": 0.0}
    return {"reward": 1.0 - distance if distance < 1.0 else 0.0, "is_number": 1.0}


@reward("read_off_reward")
def read_off_reward(prediction: str, trajectory: tuple[Message, ...]) -> float:
    """1.0 when the answer is in a tool's reply, so that it was not made up. `trajectory` is the whole conversation."""
    return float(any(message.role == "tool" and message.content == prediction for message in trajectory))


rewards = "[math_reward_string_equal, {name: near_reward, weight: 0.5}, {name: read_off_reward, weight: 0.1}]"
own = ["run.name=own_reward", f"env.options.reward={rewards}", "train.steps=1", "rollout.groups_per_step=4"]
config = load_config("configs/math_grpo.yaml", [*own, "eval.temperatures=[]", *sys.argv[1:]])
with GRPOTrainer.from_config(config) as trainer:
    folder = trainer.train()["run_folder"]
metrics = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
print(*(f"{key} {value:.3f}" for key, value in metrics.items() if key.startswith(("reward", "success"))), sep="\n")
