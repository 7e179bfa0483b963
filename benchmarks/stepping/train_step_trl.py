"""TRL's GRPOTrainer on a workload: `python benchmarks/stepping/train_step_trl.py WORKLOAD.json READINGS.json [ROWS]`.

Runs in TRL's interpreter, started by `train_step.py`. ROWS is `per_device_train_batch_size`; gradients of smaller
parts are accumulated. All else that would slow TRL down without need is off. Not here: anything of ours but readings.
"""

import os
import sys
import tempfile
import time
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled"}

import torch
from datasets import Dataset
from train_step_parts import Readings, Workload, require_lengths, reset_peak, resident, share_of_vowels
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Ends of steps, and the time from a step's first micro-batch to its optimizer step, rollout included."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._readings.end_step()
        self._readings.update_s.append(self._readings.ends[-1] - self._started - self._readings.rollout_s[-1])


def main() -> None:
    workload, readings = Workload.read(sys.argv[1]), Readings(libraries=resident())
    num_rows = int(sys.argv[3]) if len(sys.argv) > 3 else workload.num_episodes
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(workload.model)
    model = AutoModelForCausalLM.from_pretrained(workload.model, dtype=torch.float32)
    readings.weights = sum(parameter.nbytes for parameter in model.parameters())

    def reward(completions: list, completion_ids: list, **_: Any) -> list[float]:
        require_lengths([len(ids) for ids in completion_ids], workload.num_new)
        return [share_of_vowels(completion[0]["content"]) for completion in completions]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=_settings(workload, folder, num_rows),
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": prompt}]} for prompt in workload.prompts]
            ),
            processing_class=tokenizer,
            callbacks=[Clock(readings)],
        )
        _time_rollouts(trainer, readings)
        reset_peak()
        trainer.train()
    num_tokens = [row["num_tokens"] for row in trainer.state.log_history if "num_tokens" in row]
    readings.num_prompt_tokens = int(num_tokens[-1]) - workload.num_steps * workload.num_drawn
    readings.write(sys.argv[2])


def _settings(workload: Workload, folder: str, num_rows: int) -> GRPOConfig:
    return GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        per_device_train_batch_size=num_rows,
        gradient_accumulation_steps=workload.num_episodes // num_rows,
        num_generations=workload.group_size,
        max_completion_length=workload.num_new,
        generation_kwargs={"min_new_tokens": workload.num_new},  # no completion stops early
        max_steps=workload.num_steps,
        shuffle_dataset=False,
        learning_rate=workload.learning_rate,
        lr_scheduler_type="constant",
        temperature=1.0,
        beta=0.0,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )


def _time_rollouts(trainer: GRPOTrainer, readings: Readings) -> None:
    generate = trainer._generate_and_score_completions

    def timed(*arguments: Any, **named: Any) -> Any:
        started = time.perf_counter()
        generated = generate(*arguments, **named)
        readings.rollout_s.append(time.perf_counter() - started)
        return generated

    trainer._generate_and_score_completions = timed


if __name__ == "__main__":
    main()
