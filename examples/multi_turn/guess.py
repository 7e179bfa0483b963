"""A conversation of several turns: the model guesses a number, the environment answers higher or lower.

    python guess.py                                                   # Qwen2.5-0.5B-Instruct, from the Hub
    python guess.py model.path=model/math_minimind train.steps=1      # no download; learns nothing

What is written behind it overrides the configuration.
"""

import re
import sys

from agent_rl import AgentEnv, GRPOTrainer, Message, StepResult, load_config


class Guess(AgentEnv):
    """Full reward for the number, less the more guesses it took; `max_guesses` is `env.options.max_guesses`."""

    def __init__(self, max_guesses: int = 7) -> None:
        self.max_guesses, self.num_guesses = max_guesses, 0

    def reset(self, task: dict) -> list[Message]:
        self.number = task["number"]
        return [Message.user("I think of a whole number from 1 to 100. Guess it. Reply with one number alone.")]

    def step(self, message: Message) -> StepResult:
        self.num_guesses += 1
        found = re.findall(r"\d+", message.content)
        if found and int(found[-1]) == self.number:
            reward = 1.0 - 0.5 * (self.num_guesses - 1) / self.max_guesses
            return StepResult(reward=reward, reward_parts={"success": 1.0}, terminated=True)
        if self.num_guesses == self.max_guesses:
            return StepResult(reward=0.0, reward_parts={"success": 0.0}, terminated=True)
        answer = "Reply with one number alone."
        if found:
            answer = "Higher." if int(found[-1]) < self.number else "Lower."
        return StepResult(messages=(Message.user(answer),))


if __name__ == "__main__":
    own = ["run.name=guess", f"env.name={__file__}:Guess", "tools.use=[]", "policy.type=huggingface"]
    own += ["model.path=Qwen/Qwen2.5-0.5B-Instruct", "policy.max_new_tokens=16", "rollout.max_turns=7"]
    own += ["train.learning_rate=1e-6", "train.final_learning_rate=0", "rollout.groups_per_step=4"]
    tasks = [{"task_id": f"{number}", "number": number} for number in range(1, 101)]
    with GRPOTrainer.from_config(
        load_config("configs/math_grpo.yaml", [*own, *sys.argv[1:]]), train_tasks=tasks[::2], eval_tasks=tasks[1::10]
    ) as trainer:
        trainer.train()
