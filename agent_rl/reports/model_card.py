"""The model card of an exported checkpoint: what it was trained from, on what, how well it does, by which command.

Everything is read from the folder of its run; what is not there is left out. Not here: the weights
(`policies/export.py`).
"""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_rl.config import flatten
from agent_rl.config.load import read_yaml
from agent_rl.config.yaml_text import dump_settings
from agent_rl.policies.model_files.trained_for import read_trained_for
from agent_rl.reports.run.report import environment_facts


def model_card(model: Path, *, name: str, is_adapter: bool) -> str:
    """Markdown with the front matter of the Hub. `model` is `RUN/checkpoints/step_00080/model`, or a folder alone."""
    checkpoint = model.parent
    run = checkpoint.parents[1] if checkpoint.parent.name == "checkpoints" else None
    config = flatten(read_yaml(run / "config.yaml")) if run and (run / "config.yaml").is_file() else {}
    base = config.get("model.path")
    front = {
        **({"base_model": base} if base else {}),
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["agent_rl", "reinforcement-learning", *([config.get("algorithm.advantage")] if config else [])],
    }
    lines = ["---", dump_settings(front).strip(), "---", "", f"# {name}", ""]
    lines += [f"{'LoRA adapters' if is_adapter else 'A causal language model'}, trained with agent_rl.", ""]
    lines += _trained_for(model)
    if run:
        facts = {
            "base model": base,
            "frozen weights": "in 4 bits (NF4)" if config.get("model.load_in_4bit") else None,
            "step": checkpoint.name.removeprefix("step_").lstrip("0"),
            **{key[0].lower() + key[1:]: value for key, value in environment_facts(config)},
            "tools": ", ".join(config.get("tools.use") or ()),
            "advantage": config.get("algorithm.advantage"),
            "learning rate": config.get("train.learning_rate"),
            "episodes a step": _product(config, "rollout.groups_per_step", "rollout.group_size"),
            "seed": config.get("run.seed"),
        }
        lines += ["| | |", "| --- | --- |", *(f"| {key} | {value} |" for key, value in facts.items() if value), ""]
        lines += [*_results(run, checkpoint.name), *_machine(run)]
    return "\n".join(lines).rstrip() + "\n"


def _trained_for(model: Path) -> list[str]:
    """What `agent_rl.json` says, as one paragraph."""
    about = read_trained_for(model)
    if about is None:
        return []
    known = "; ".join(f"{name} {', '.join(map(str, values))}" for name, values in about.tasks.items())
    what = f"Trained for `{about.environment}`, conversations of up to {about.max_context} tokens"
    return [f"{what}{f': {known}' if known else ''}.", ""]


def _results(run: Path, step: str) -> list[str]:
    """Held-out success before training and at the checkpoint."""
    found = []
    for path in sorted((run / "eval").glob("step_*_t*.json")):
        if path.name.startswith(("step_00000_", f"{step}_")):
            found.append(json.loads(path.read_text(encoding="utf-8"))["result"])
    if not found:
        return ["Held-out tasks were not evaluated at this step.", ""]
    head = [
        "## Held-out tasks",
        "",
        "| step | temperature | solved | 95 % interval | reward |",
        "| --- | --- | --- | --- | --- |",
    ]
    rows = [
        f"| {each['step']} | {each['temperature']:g} | {each['num_successes']} of {each['num_scored']} | "
        f"{100 * each['success_low']:.1f} to {100 * each['success_high']:.1f} % | {each['mean_reward']:.3f} |"
        for each in found
    ]
    return [*head, *rows, ""]


def _machine(run: Path) -> list[str]:
    path = run / "environment.json"
    if not path.is_file():
        return []
    about = json.loads(path.read_text(encoding="utf-8"))
    git = (about.get("git") or {}).get("agent_rl") or {}
    commit = f", commit {git['commit']}{' with changes' if git.get('changed') else ''}" if git else ""
    packages = {name: found for name, found in (about.get("packages") or {}).items() if found != "not installed"}
    gpus = ", ".join(str(gpu.get("name", gpu) if isinstance(gpu, dict) else gpu) for gpu in about.get("gpus") or ())
    return [
        "## How it was made",
        "",
        "```bash",
        shlex.join(map(str, about.get("command") or ())),
        "```",
        "",
        f"{gpus or about.get('cpu')}; {', '.join(f'{name} {found}' for name, found in packages.items())}{commit}.",
    ]


def _product(config: Mapping[str, Any], *names: str) -> Any:
    values = [config.get(name) for name in names]
    return values[0] * values[1] if all(isinstance(value, int) for value in values) else None
