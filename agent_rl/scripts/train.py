"""The command behind every `train_*_agent.py`: parse, build, run. Heavy imports come after parsing."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.config import Config
from agent_rl.errors import ConfigError
from agent_rl.scripts.common import as_override, read_config


def train_command(
    config: Annotated[Path, typer.Option(help="YAML file with the whole configuration.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")] = None,
    dataset_dir: Annotated[
        Path | None,
        typer.Option(help="Folder with train and val (or eval), .jsonl, .jsonl.gz, .json, .csv or .parquet."),
    ] = None,
    model_path: Annotated[str | None, typer.Option(help="Model to start from (model.path).")] = None,
    policy_type: Annotated[str | None, typer.Option(help="minimind, huggingface or vllm (policy.type).")] = None,
    hf_model_name: Annotated[
        str | None, typer.Option(help="Hugging Face model, a folder or a hub name; the same as --model-path.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 (run.device).")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed (run.seed).")] = None,
    async_rollout_workers: Annotated[
        int | None, typer.Option(help="Episodes run at the same time; 0 is one by one (rollout.async_workers).")
    ] = None,
    preview_tasks: Annotated[
        int, typer.Option(min=0, help="Print this many tasks as the policy will see them, and stop.")
    ] = 0,
) -> None:
    if hf_model_name and model_path:
        raise ConfigError("--hf-model-name and --model-path both name the model; give one of them")
    flags = {
        "model.path": model_path or hf_model_name,
        "policy.type": policy_type,
        "run.device": device,
        "run.seed": seed,
        "rollout.async_workers": async_rollout_workers,
    }
    settings = [as_override(key, value) for key, value in flags.items() if value is not None]
    if dataset_dir is not None:
        from agent_rl.data.tasks import find_task_file

        settings += [
            as_override(f"data.{split}_path", find_task_file(dataset_dir, split)) for split in ("train", "eval")
        ]
    resolved = read_config(config, [*settings, *(overrides or [])])
    if preview_tasks:
        preview(resolved, preview_tasks)
        return
    from agent_rl.core.trainer_grpo import GRPOTrainer

    with GRPOTrainer.from_config(resolved) as trainer:
        trainer.train()


def preview(config: Config, count: int) -> None:
    """Print the first training tasks as the policy will read them, token counts included; loads no model."""
    from rich.console import Console
    from rich.markup import escape
    from rich.panel import Panel

    from agent_rl.agent.chat_format import make_chat_format
    from agent_rl.data.curriculum import make_curriculum
    from agent_rl.envs.opening import open_environment
    from agent_rl.envs.step_result import read_opening
    from agent_rl.policies.make_policy import load_policy_tokenizer

    console = Console()
    with open_environment(config) as factory:
        tasks = factory.read_tasks(config.data, "train")
        source = factory.task_source(config.data, "train")
        tokenizer = load_policy_tokenizer(config)
        chat = make_chat_format(tokenizer, config.agent.type)
        evenly = dict.fromkeys(factory.environments, 1.0)  # so that few tasks are of all environments
        curriculum = make_curriculum(tasks, config.data.curriculum, seed=config.run.seed, weights=evenly)
        for index in curriculum.next(min(count, len(tasks)), step=1):
            with closing(factory()) as env:
                messages = read_opening(env.reset(tasks[index]), env)
            prompt_ids = chat.render_prompt(messages, env.tools)
            if config.agent.type == "hf":
                lines = [f"[bold]{message.role}[/bold]\n{escape(message.content)}\n" for message in messages]
            else:  # the rules of how to act are in no message
                read = tokenizer.decode(prompt_ids, clean_up_tokenization_spaces=False)
                lines = [escape(read.rstrip()) + "\n"]
            lines.append(f"tools: {', '.join(tool.name for tool in env.tools)}")
            lines.append(f"prompt: {len(prompt_ids)} tokens of {config.policy.max_context}")
            console.print(Panel("\n".join(lines), title=escape(tasks[index]["task_id"]), title_align="left"))
    console.print(f"{len(tasks)} training tasks in {source}; nothing was trained.")
