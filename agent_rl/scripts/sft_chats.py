"""Fine-tune a model on conversations of one's own: OpenAI's messages, tool calls included, or prompts and completions.

    agent-rl sft --data chats.jsonl --model-path model/smollm2-135m --output-dir runs/sft model.lora.rank=16

Rows are `{"messages": [...], "tools": [...]}` or `{"prompt": ..., "completion": ...}`, in any file that
`data.train_path` takes. Trained are the assistant's messages. The model is in OUTPUT_DIR/model afterwards; the same
command continues a training that was stopped. Keys of the sections run (seed, device), model, policy (max_context),
agent and train of a run's configuration are `section.key=value`.
"""

import math
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_rl.config import Config
from agent_rl.config.load import apply_override, find_files, parse_config
from agent_rl.errors import ConfigError, DataError
from agent_rl.scripts.common import make_app, reads
from agent_rl.telemetry.files import make_folder

if TYPE_CHECKING:
    from agent_rl.distributed.backend import Backend
    from agent_rl.learning.chat_sft import ChatSftSettings

SHOW_EVERY = 10
"""Steps between lines on the terminal."""
_SECTIONS = ("run", "model", "policy", "agent", "train", "plugins")
_OWN = {
    "train.steps": "--epochs and --batch-size decide that",
    "train.epochs": "give --epochs",
    "train.minibatches": "give --batch-size",
}
_DEFAULT_RATE, _DEFAULT_ADAPTER_RATE = 2e-5, 2e-4


@reads(*_SECTIONS, but=_OWN)
def main(
    data: Annotated[
        str, typer.Option(help="Conversations to train on: a file, a folder of datasets, hf://owner/name.")
    ],
    output_dir: Annotated[Path, typer.Option(help="Folder for model, checkpoints and metrics.")],
    model_path: Annotated[str, typer.Option(help="Folder of the model, or its name on the Hub.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="section.key=value, applied in order.")] = None,
    eval_data: Annotated[str | None, typer.Option(help="Held-out conversations, likewise.")] = None,
    policy_type: Annotated[str, typer.Option(help="huggingface or minimind.")] = "huggingface",
    epochs: Annotated[int, typer.Option(min=1, help="Times that every conversation is learned from.")] = 1,
    batch_size: Annotated[int, typer.Option(min=1, help="Conversations of an optimizer step.")] = 16,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 200,
    evaluate_every: Annotated[int, typer.Option(min=1, help="Steps between evaluations.")] = 100,
) -> None:
    """Train, or continue; exit code 0 at the end, 130 after Ctrl-C with a checkpoint of the last whole step."""
    raw = _raw(data, model_path, policy_type, overrides or [])
    config = parse_config(raw, source="sft")
    make_folder(output_dir, "--output-dir")
    from agent_rl.distributed.backend import Backend
    from agent_rl.learning.chat_sft import ChatSftSettings

    settings = ChatSftSettings(
        batch_size=batch_size, epochs=epochs, save_every=save_every, evaluate_every=evaluate_every
    )
    with closing(Backend(config.run.device, timeout_s=config.run.timeout_s)) as backend:
        _train(raw, config, (data, eval_data), settings, backend, output_dir)


def _train(
    raw: dict[str, Any],
    config: Config,
    paths: tuple[str, str | None],
    settings: "ChatSftSettings",
    backend: "Backend",
    folder: Path,
) -> None:
    from agent_rl.core.interrupts import deferred_interrupt, sigterm_as_interrupt
    from agent_rl.distributed.checkpoint import MODEL_FOLDER, latest_checkpoint
    from agent_rl.distributed.stopping import AgreedInterrupt
    from agent_rl.learning.chat_sft import ChatSft, num_steps
    from agent_rl.policies.make_policy import load_trained_model
    from agent_rl.telemetry.metrics import MetricsWriter

    say = _say if backend.is_main_process else _say_nothing
    newest = latest_checkpoint(folder / "checkpoints")
    model = load_trained_model(config, backend, checkpoint=newest and newest / MODEL_FOLDER)
    samples, held_out = (_samples(config, model.tokenizer, path, say) if path else [] for path in paths)
    steps = num_steps(len(samples), settings)
    config = parse_config({**raw, "train": {**raw["train"], "steps": steps}}, source="sft")
    training = ChatSft(config, model, samples, held_out, settings, backend, folder)
    if newest is not None:
        training.restore(newest)
        say(f"continuing after step {training.step} of {steps}")
    say(f"{len(samples)} conversations, {len(held_out)} held out, {steps} steps")
    with ExitStack() as stack:
        writer = None
        if backend.is_main_process:
            first = training.step + 1 if newest is not None else 0
            writer = stack.enter_context(MetricsWriter(folder / "metrics.jsonl", first))

        def report(step: int, metrics: dict[str, float]) -> None:
            if writer is not None:
                writer.write(step, metrics)
            if step % SHOW_EVERY == 0 or step == steps or "eval/loss" in metrics:
                say(_line(step, steps, metrics))

        stack.enter_context(sigterm_as_interrupt())
        stack.enter_context(backend.stopping_together())
        try:
            training.train(report, deferred_interrupt)
        except KeyboardInterrupt as error:
            if backend.num_processes == 1 or isinstance(error, AgreedInterrupt):
                training.save(deferred_interrupt)
            raise
    training.save_model(folder / MODEL_FOLDER)
    say(f"saved {folder / MODEL_FOLDER}")


def _raw(data: str, model_path: str, policy_type: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The mapping of a configuration. ConfigError for keys that are not read here."""
    raw: dict[str, Any] = {"model": {"path": model_path}, "policy": {"type": policy_type}, "train": {}}
    for text in overrides:
        key = text.partition("=")[0].strip()
        if key in _OWN:
            raise ConfigError(f"override {key!r}: {_OWN[key]}")
        if key.partition(".")[0] not in _SECTIONS:
            raise ConfigError(f"override {key!r:.80}: not read by sft; its sections are {', '.join(_SECTIONS)}")
        apply_override(raw, text)
    has_adapters = bool(raw["model"].get("lora", {}).get("rank"))
    raw["train"].setdefault("learning_rate", _DEFAULT_ADAPTER_RATE if has_adapters else _DEFAULT_RATE)
    raw["train"]["steps"] = 1
    raw["policy"]["max_new_tokens"] = 1  # nothing is sampled, so the window is the conversation's alone
    raw |= {"data": {"train_path": data}, "env": {"name": "prompts"}}
    find_files(raw)
    return raw


def _samples(config: Config, tokenizer: Any, path: str, say: Any) -> list[Any]:
    """The samples of a file that fit the window; DataError where none does."""
    from agent_rl.agent.chat_format import make_chat_format
    from agent_rl.data.tasks import read_tasks
    from agent_rl.learning.conversations import conversation_sample, read_conversation

    chat = make_chat_format(tokenizer, config.agent.type)
    rows = read_tasks(path)
    samples = [
        conversation_sample(chat, *read_conversation(row, f"{path}:row {number}"))
        for number, row in enumerate(rows, start=1)
    ]
    fitting = [sample for sample in samples if len(sample.token_ids) <= config.policy.max_context]
    if len(fitting) < len(samples):
        left_out = f"{len(samples) - len(fitting)} of {len(samples)} conversations in {path} are longer than"
        sentence = f"{left_out} policy.max_context = {config.policy.max_context} tokens"
        if not fitting:
            raise DataError(f"{sentence}, so nothing is left; raise it (the longest has {_longest(samples)})")
        say(f"{sentence} and left out (the longest has {_longest(samples)})")
    return fitting


def _longest(samples: Sequence[Any]) -> int:
    return max(len(sample.token_ids) for sample in samples)


def _line(step: int, steps: int, metrics: dict[str, float]) -> str:
    parts = [f"step {step}/{steps}"]
    if "train/loss" in metrics:
        parts += [f"loss {metrics['train/loss']:.4f}", f"{metrics['perf/tokens_per_s']:,.0f} tokens/s"]
    if "eval/loss" in metrics:
        parts.append(f"held-out loss {metrics['eval/loss']:.4f}")
    if not math.isfinite(metrics.get("optim/grad_norm", 0.0)):
        parts.append("update refused: loss or gradient is not finite")
    return "  ".join(parts)


def _say(text: str) -> None:
    print(text, flush=True)


def _say_nothing(text: str) -> None:
    pass


app = make_app(main)
