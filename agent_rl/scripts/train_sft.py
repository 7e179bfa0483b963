"""Make a warm start: train a tokenizer of the domain and a small MiniMind on demonstrations, from nothing.

    python agent_rl/scripts/train_sft.py --output-dir model/nat_minimind

Demonstrations are generated on the fly, from tasks that are neither held out nor trained on later; `--faulty-share` of
them are faulty on purpose (agent_rl/envs/nat/demonstrations.py and its likes in the other environments say how).
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.config import AgentType
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.envs.registry import make_env_factory
from agent_rl.errors import ConfigError
from agent_rl.registry import CHAT_FORMATS
from agent_rl.scripts.common import Domain, make_app, run_app
from agent_rl.telemetry.files import make_folder

TOKENIZER_DOCUMENTS = 3000
"""At most; fewer demonstrations are all read."""
PHRASE_SHARE_OF_KIND = 0.3
"""A name, an operation or a unit is in up to a quarter of the documents of one family, and has to stay apart."""
PHRASE_DOCUMENTS_OF_KINDS = 1200


def main(
    output_dir: Annotated[Path, typer.Option(help="Folder for the model and the tokenizer.")],
    domain: Domain = "nat",
    agent_type: Annotated[AgentType, typer.Option(help="How calls are written; agent.type of the runs.")] = "hf",
    num_demonstrations: Annotated[int, typer.Option(min=1, help="Demonstrations, each seen once.")] = 20_000,
    num_copied: Annotated[
        int,
        typer.Option(
            min=0,
            help="First demonstrations of which the request alone is shown, and learned to copy; "
            "for a model that has seen others before (--init-from).",
        ),
    ] = 0,
    num_read: Annotated[
        int, typer.Option(min=0, help="Next demonstrations whose whole text is learned, not the teacher's words alone.")
    ] = 0,
    faulty_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of faulty demonstrations.")] = 0.65,
    hidden_size: Annotated[int, typer.Option(min=64, help="Width of the model, a multiple of 64.")] = 192,
    num_layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = 6,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of embeddings and norms.")] = 2e-3,
    batch_size: Annotated[int, typer.Option(min=1, help="Demonstrations per step.")] = 16,
    init_from: Annotated[Path | None, typer.Option(help="Model folder to continue, tokenizer included.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of specs, faults, initial weights and order.")] = 0,
) -> None:
    _check_sizes(num_demonstrations, batch_size, hidden_size)
    CHAT_FORMATS.get(agent_type)
    make_folder(output_dir, "--output-dir")
    import torch

    from agent_rl.learning.sft import SftSettings, copy_task, train_sft
    from agent_rl.modeling.minimind import MiniMindForCausalLM
    from agent_rl.policies.minimind_policy import load_tokenizer

    torch.manual_seed(seed)
    if init_from is None:
        documents = min(num_demonstrations, TOKENIZER_DOCUMENTS)
        read = list(itertools.islice(_demonstrations(domain, faulty_share, seed), documents))
        tokenizer = _train_tokenizer(read, agent_type)
        model = _new_model(len(tokenizer), hidden_size, num_layers)
    else:
        tokenizer, model = load_tokenizer(init_from), MiniMindForCausalLM.from_pretrained(init_from)
    chat = make_chat_format(tokenizer, agent_type)
    print(f"vocabulary {len(tokenizer)}, {model.num_parameters / 1e6:.2f}M parameters", flush=True)
    settings = SftSettings(
        num_conversations=num_demonstrations, batch_size=batch_size, learning_rate=learning_rate, seed=seed
    )
    shown = _demonstrations(domain, faulty_share, seed)
    rng = random.Random(f"copied-{seed}")
    copied = (
        copy_task(tokenizer.encode(each.messages[-1].content), rng) for each in itertools.islice(shown, num_copied)
    )
    conversations = itertools.chain(copied, _conversations(chat, shown, num_read))
    train_sft(model, conversations, settings, print_progress)
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    print(f"saved {output_dir}", flush=True)


def _check_sizes(num_demonstrations: int, batch_size: int, hidden_size: int) -> None:
    if num_demonstrations < batch_size:
        raise ConfigError(
            f"--num-demonstrations is {num_demonstrations}, less than one batch (--batch-size {batch_size}), so "
            "nothing would be learned; raise it, or lower --batch-size"
        )
    if hidden_size % 64:
        raise ConfigError(f"--hidden-size is {hidden_size}; give a multiple of 64, which heads of 32 in pairs need")


def _new_model(vocab_size: int, hidden_size: int, num_layers: int):
    from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM

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


def print_progress(step: int, num_steps: int, loss: float, tokens_per_s: float) -> None:
    print(f"step {step}/{num_steps}  loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s", flush=True)


def _train_tokenizer(shown: Sequence[Demonstration], agent_type: AgentType):
    """A tokenizer of the very texts that a model with it will read and write."""
    from agent_rl.agent.phrase_bpe import as_pretrained, train_phrase_bpe
    from agent_rl.learning.sft import render_conversation

    bytes_alone = as_pretrained(train_phrase_bpe([""]))
    chat = make_chat_format(bytes_alone, agent_type)
    texts = [
        bytes_alone.decode(render_conversation(chat, each.messages, each.turns, each.tools).token_ids) for each in shown
    ]
    if not any(each.kind for each in shown):
        return as_pretrained(train_phrase_bpe(texts))
    options = {"min_document_share": PHRASE_SHARE_OF_KIND, "phrase_documents": PHRASE_DOCUMENTS_OF_KINDS}
    return as_pretrained(train_phrase_bpe(texts, kinds=[each.kind for each in shown], max_vocab_size=6144, **options))


def _demonstrations(domain: str, faulty_share: float, seed: int) -> Iterator[Demonstration]:
    """Those of an environment; ConfigError where it has none."""
    shown = make_env_factory(domain).demonstrations(seed, faulty_share=faulty_share)
    first = next(shown, None)
    if first is None:
        raise ConfigError(f"--domain {domain}: its environment has no demonstrations; see EnvFactory.demonstrations")
    return itertools.chain([first], shown)


def _conversations(chat, demonstrations: Iterator[Demonstration], num_read: int) -> Iterator:
    from agent_rl.learning.sft import render_conversation

    for number, each in enumerate(demonstrations):
        conversation = render_conversation(chat, each.messages, each.turns, each.tools)
        # What is read repeats names much more often than what is written: from it a model learns to copy them.
        yield conversation.with_full_loss() if number < num_read else conversation


app = make_app(main)

if __name__ == "__main__":
    run_app(app)
