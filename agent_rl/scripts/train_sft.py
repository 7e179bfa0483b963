"""Make a warm start: train a tokenizer of the domain and a small MiniMind on demonstrations, from nothing.

    python agent_rl/scripts/train_sft.py --output-dir model/nat_minimind

Demonstrations are drawn on the fly, of tasks that are neither held out nor trained on later; `--faulty-share` of them
are faulty on purpose (agent_rl/envs/nat_demonstrations.py and its neighbours say how).
"""

import importlib
import itertools
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.scripts.common import run_app

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TOKENIZER_DOCUMENTS = 3000


class Domain(StrEnum):
    NAT = "nat"
    CODE = "code"
    SEARCH = "search"
    MATH = "math"


@app.command(help=__doc__)
def main(
    output_dir: Annotated[Path, typer.Option(help="Folder for the model and the tokenizer.")],
    domain: Annotated[Domain, typer.Option(help="What is demonstrated.")] = Domain.NAT,
    num_demonstrations: Annotated[int, typer.Option(help="Demonstrations, each seen once.")] = 20_000,
    num_read: Annotated[
        int, typer.Option(min=0, help="First demonstrations whose whole text is learnt, not the teacher's words alone.")
    ] = 0,
    faulty_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of faulty demonstrations.")] = 0.65,
    hidden_size: Annotated[int, typer.Option(help="Width of the model.")] = 192,
    num_layers: Annotated[int, typer.Option(help="Layers of the model.")] = 6,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of embeddings and norms.")] = 2e-3,
    batch_size: Annotated[int, typer.Option(help="Demonstrations per step.")] = 16,
    init_from: Annotated[Path | None, typer.Option(help="Model folder to continue, tokenizer included.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of specs, faults, initial weights and order.")] = 0,
) -> None:
    import torch

    from agent_rl.agent.chat_format import ChatFormat
    from agent_rl.core.minimind_policy import load_tokenizer
    from agent_rl.core.sft import SftSettings, train_sft
    from model.model_minimind import MiniMindForCausalLM

    torch.manual_seed(seed)
    if init_from is None:
        tokenizer = _train_tokenizer(_demonstrations(domain, faulty_share, seed))
        model = _new_model(len(tokenizer), hidden_size, num_layers)
    else:
        tokenizer, model = load_tokenizer(init_from), MiniMindForCausalLM.from_pretrained(init_from)
    chat = ChatFormat(tokenizer)
    print(f"vocabulary {len(tokenizer)}, {model.num_parameters / 1e6:.2f}M parameters", flush=True)
    settings = SftSettings(
        num_conversations=num_demonstrations, batch_size=batch_size, learning_rate=learning_rate, seed=seed
    )
    train_sft(model, _conversations(chat, _demonstrations(domain, faulty_share, seed), num_read), settings, _report)
    output_dir.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    print(f"saved {output_dir}", flush=True)


def _new_model(vocab_size: int, hidden_size: int, num_layers: int):
    from model.model_minimind import MiniMindConfig, MiniMindForCausalLM

    config = MiniMindConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=2,
        intermediate_size=hidden_size * 11 // 4,
        max_position_embeddings=2048,
        rope_theta=10_000.0,  # conversations are short
    )
    return MiniMindForCausalLM(config)


def _report(step: int, num_steps: int, loss: float, tokens_per_s: float) -> None:
    print(f"step {step}/{num_steps}  loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s", flush=True)


def _train_tokenizer(demonstrations: Iterator[tuple]):
    from tokenizers import Tokenizer, models

    from agent_rl.agent.phrase_bpe import as_pretrained, train_phrase_bpe

    template = as_pretrained(Tokenizer(models.BPE()))
    texts = []
    for messages, turns, tools in itertools.islice(demonstrations, TOKENIZER_DOCUMENTS):
        flat = list(messages)
        for message, replies in turns:
            flat += [message, *replies]
        rows = [_as_dict(message) for message in flat]
        texts.append(
            template.apply_chat_template(rows, tools=[spec.to_openai() for spec in tools] or None, tokenize=False)
        )
    return as_pretrained(train_phrase_bpe(texts))


def _as_dict(message) -> dict:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return {"role": message.role, "content": message.content, **({"tool_calls": calls} if calls else {})}


def _demonstrations(domain: Domain, faulty_share: float, seed: int) -> Iterator[tuple]:
    module = importlib.import_module(f"agent_rl.envs.{domain.value}_demonstrations")
    return module.demonstrations(seed, faulty_share=faulty_share)


def _conversations(chat, demonstrations: Iterator[tuple], num_read: int) -> Iterator:
    from agent_rl.core.sft import render_conversation

    for number, (messages, turns, tools) in enumerate(demonstrations):
        conversation = render_conversation(chat, messages, turns, tools)
        # What is read repeats names much more often than what is written: from it a model learns to copy them.
        yield conversation.with_all_learnt() if number < num_read else conversation


if __name__ == "__main__":
    run_app(app)
