"""TRL's GRPOTrainer in a race: `PYTHONPATH=benchmarks .venv-trl/bin/python benchmarks/racing/run_trl.py WORKLOAD.json`.

Started by `race.py`. All that would slow TRL down without need is off. Not here: anything of agent_rl.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled"}

import torch
from datasets import Dataset
from racing.rewards import check_packages
from racing.workload import Clock, Workload
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

NO_END = 1_000_000
"""Steps of a training that its time ends."""


class UntilTimeIsUp(TrainerCallback):
    """Tells the clock of every step, and stops when the time is up."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._clock.end_step(state.global_step):
            control.should_training_stop = True


def main() -> None:
    workload = Workload.read(sys.argv[1])
    check_packages(workload.reward)
    torch.manual_seed(workload.seed)
    tokenizer = AutoTokenizer.from_pretrained(workload.model)
    model = AutoModelForCausalLM.from_pretrained(workload.model, dtype=torch.float32)

    def save(folder: Path) -> None:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)

    clock = Clock(Path(workload.folder), seconds=workload.seconds, points=workload.points, save=save)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=workload.reward_function(),
            args=settings(workload, scratch),
            train_dataset=Dataset.from_list(workload.read_rows()),
            processing_class=tokenizer,
            callbacks=[UntilTimeIsUp(clock)],
        )
        clock.start()
        trainer.train()


def settings(workload: Workload, folder: str) -> GRPOConfig:
    """agent_rl's defaults where the two differ: betas, upper clip; the loss is the mean over all tokens in both."""
    is_cpu = workload.device == "cpu"
    return GRPOConfig(
        output_dir=folder,
        use_cpu=is_cpu,
        bf16=False,
        per_device_train_batch_size=workload.trl_rows,
        gradient_accumulation_steps=workload.num_episodes // workload.trl_rows,
        num_generations=workload.group_size,
        max_completion_length=workload.max_new_tokens,
        max_steps=NO_END,
        learning_rate=workload.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=0.9,
        adam_beta2=0.99,
        weight_decay=0.0,
        max_grad_norm=1.0,
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        scale_rewards="group",
        gradient_checkpointing=False,
        dataloader_pin_memory=not is_cpu,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=workload.seed,
    )


if __name__ == "__main__":
    main()
