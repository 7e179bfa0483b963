"""Held-out success of a model's folder, whoever wrote it, by `agent-rl eval`, apart from any training.

Not here: which folders, and what becomes of them.
"""

import json
from pathlib import Path

import yaml
from racing.commands import agent_rl_command
from racing.models import RaceModel
from racing.tasks import RaceTask

from agent_rl.reports.episodes import Episode, read_episode_lines

BATCH = 64


def write_config(task: RaceTask, model: RaceModel, data: Path, path: Path, *, num_eval: int, device: str) -> Path:
    """The configuration that every model of one task and size is evaluated with."""
    sections = {
        "run": {"name": "race", "device": device},
        "data": {
            "train_path": str(data / "train.jsonl"),
            "eval_path": str(data / "eval.jsonl"),
            "max_eval_tasks": num_eval,
        },
        "env": {"name": "prompts", "options": {"reward": task.reward}},
        "model": {"path": str(path.parent / "sft/model")},
        "policy": {
            "type": model.policy,
            "max_new_tokens": task.max_new_tokens,
            "max_context": task.max_context,
            "max_batch_size": BATCH,
        },
        "rollout": {"async_workers": BATCH, "max_turns": 1},
        "train": {"steps": 1, "learning_rate": model.learning_rate},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(sections, sort_keys=False), encoding="utf-8")
    return path


def evaluate(config: Path, checkpoint: Path, output: Path, temperature: float) -> float:
    """Success of a model's folder; an evaluation in `output` that has ended is read, one that was stopped goes on."""
    report = output / "report.json"
    if not report.is_file():
        words = ["eval", "--config", str(config), "--checkpoint", str(checkpoint), "--output-dir", str(output)]
        words += ["--temperature", str(temperature)]
        agent_rl_command(*words, log=output.with_suffix(".log"))
    return json.loads(report.read_text(encoding="utf-8"))["summary"]["success"]["rate"]


def episodes_in(output: Path) -> tuple[Episode, ...]:
    """Of an evaluation that has ended."""
    path = output / "episodes.jsonl"
    return tuple(Episode.from_record(record, str(path)) for record in read_episode_lines(path))
