"""An advantage estimator and a policy loss of one's own: `python own_algorithm.py`, in any folder."""

import torch
from torch import Tensor

from agent_rl import (
    AgentEnv,
    GRPOTrainer,
    Message,
    StepResult,
    group_advantages,
    load_config,
    policy_loss_function,
)


@group_advantages("over_median")
def over_median(rewards_G: Tensor, *, scale_by_std: bool) -> Tensor:
    """Distance from the group's median, which one lucky episode does not move; in mean distances if it is scaled."""
    distance_G = rewards_G - rewards_G.median()
    return distance_G / distance_G.abs().mean() if scale_by_std else distance_G


@policy_loss_function("soft_gate")
def soft_gate(logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """A sigmoid of the ratio in place of a clip, steeper for negative advantages (Gao et al. 2025, SAPO)."""
    ratio_BT = (logprobs_BT - old_logprobs_BT).exp()
    slope_BT = torch.where(advantages_BT > 0, 1.0, 1.05)
    return -4.0 / slope_BT * torch.sigmoid(slope_BT * (ratio_BT - 1.0)) * advantages_BT


class ManyCalls(AgentEnv):
    def reset(self, task: dict) -> list[Message]:
        return [Message.user(task["prompt"])]

    def step(self, message: Message) -> StepResult:
        return StepResult(reward=float(len(message.tool_calls)), terminated=True)


settings = [
    "run.name=own_algorithm",
    "algorithm.advantage=over_median",
    "algorithm.loss=soft_gate",
    "train.steps=1",
    "train.minibatches=2",
    "rollout.groups_per_step=4",
]
config = load_config("configs/nat_grpo.yaml", settings)
tasks = [{"task_id": f"task-{n}", "prompt": f"Write {n} files."} for n in range(16)]
with GRPOTrainer.from_config(config, env_factory=ManyCalls, train_tasks=tasks) as trainer:
    trainer.train()
