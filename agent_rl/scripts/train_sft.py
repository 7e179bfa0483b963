"""Make a warm start: train a tokenizer of the domain and a small MiniMind on demonstrations, from nothing.

    python agent_rl/scripts/train_sft.py --output-dir model/nat_minimind

Demonstrations are generated on the fly, from tasks that are neither held out nor trained on later; `--faulty-share` of
them are faulty on purpose (agent_rl/envs/nat/demonstrations.py and its likes in the other environments say how).
agent_rl.json beside the weights says what they were of, and what the model of --init-from was trained for unless its
tokenizer is replaced. Demonstrations that are longer than the model's window are left out, and counted.
"""

import sys

if __name__ == "__main__":  # run by its path, where the package need not be installed
    sys.path.insert(0, __file__.rpartition("/agent_rl/")[0])

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Literal

import typer

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.config import AgentType
from agent_rl.envs.demonstrations import Choice, Demonstration, mixed, read_demonstrations
from agent_rl.envs.registry import DOMAINS, make_env_factory
from agent_rl.errors import ConfigError
from agent_rl.registry import CHAT_FORMATS
from agent_rl.scripts.common import Domain, make_app, run_app
from agent_rl.telemetry.files import make_folder

TOKENIZER_DOCUMENTS = 3000
"""At most; fewer demonstrations are all read."""
MAX_TOO_LONG = 1000
"""Demonstrations in a row that do not fit the window before a training says so and ends; generators do not end."""


Recorded = Annotated[
    Path | None,
    typer.Option(help="File of recorded demonstrations to mix in; `prepare-dataset --kind demonstrations` writes it."),
]
Wordings = Annotated[
    Literal["own", "any"], typer.Option(help="any: requests in many wordings and with names of any words (nat).")
]
FreeShare = Annotated[
    float,
    typer.Option(
        min=0.0, max=1.0, help="With --wordings any: share of the requests that come without a plan, as free words do."
    ),
]
Written = Annotated[
    Path | None,
    typer.Option(help="With --wordings any: task file whose requests people wrote, shown under other names (nat)."),
]
WrittenShare = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Share of requests of --written among the demonstrations made here.")
]
Levels = Annotated[
    str | None,
    typer.Option(help="Levels of the demonstrations, such as 1,2,3, of all families (nat); default: the starter's."),
]
Families = Annotated[
    str | None,
    typer.Option(
        help="Families of the demonstrations, such as note_search,api_client, in turn (nat); one that stands twice is "
        "shown twice as often."
    ),
]
NumCopied = Annotated[
    int,
    typer.Option(
        min=0,
        help="First demonstrations of which the request alone is shown, and learned to copy; "
        "for a model that has seen others before (--init-from).",
    ),
]
InitFrom = Annotated[Path | None, typer.Option(help="Model folder to continue, tokenizer included.")]
NewTokenizer = Annotated[
    bool,
    typer.Option(
        help="With --init-from: train another tokenizer on these demonstrations; what both have keeps its embeddings."
    ),
]
MoreWords = Annotated[
    int,
    typer.Option(
        min=0,
        help="With --init-from: so many of the words that most of these demonstrations have, and that its tokenizer "
        "cuts into several tokens, get one of their own.",
    ),
]
NamesApart = Annotated[
    bool, typer.Option(help="Give names that the tokenizer does not know the same tokens wherever they stand.")
]
RecordedShare = Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of recorded demonstrations.")]


def main(
    output_dir: Annotated[Path, typer.Option(help="Folder for the model and the tokenizer.")],
    domain: Domain = "nat",
    agent_type: Annotated[AgentType, typer.Option(help="How calls are written; agent.type of the runs.")] = "hf",
    num_demonstrations: Annotated[int, typer.Option(min=1, help="Demonstrations, each seen once.")] = 20_000,
    num_copied: NumCopied = 0,
    num_read: Annotated[
        int, typer.Option(min=0, help="Next demonstrations whose whole text is learned, not the teacher's words alone.")
    ] = 0,
    faulty_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of faulty demonstrations.")] = 0.65,
    wordings: Wordings = "own",
    free_share: FreeShare = 0.0,
    written: Written = None,
    written_share: WrittenShare = 0.3,
    levels: Levels = None,
    families: Families = None,
    recorded: Recorded = None,
    recorded_share: RecordedShare = 0.3,
    hidden_size: Annotated[int, typer.Option(min=64, help="Width of the model, a multiple of 64.")] = 192,
    num_layers: Annotated[int, typer.Option(min=1, help="Layers of the model.")] = 6,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of embeddings and norms.")] = 2e-3,
    muon_learning_rate: Annotated[float, typer.Option(help="Peak learning rate of the layers' matrices.")] = 0.02,
    batch_size: Annotated[int, typer.Option(min=1, help="Demonstrations per step.")] = 16,
    init_from: InitFrom = None,
    new_tokenizer: NewTokenizer = False,
    more_words: MoreWords = 0,
    names_apart: NamesApart = False,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU where there is one.")] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of specs, faults, initial weights and order.")] = 0,
) -> None:
    _make(SimpleNamespace(**locals()))


def _make(given: SimpleNamespace) -> None:
    """Train by the options of the command."""
    _check_sizes(given.num_demonstrations, given.batch_size, given.hidden_size)
    _check_rates(given.learning_rate, given.muon_learning_rate)
    place = _found(given.device)
    CHAT_FORMATS.get(given.agent_type)
    # Imported as it is called, because every command of `agent-rl` imports this file for its help.
    import torch

    from agent_rl.learning.sft import SftProgress, SftSettings, train_sft
    from agent_rl.learning.warm_start import WarmStart
    from agent_rl.policies.minimind_policy import load_tokenizer

    begin = WarmStart(**{each: getattr(given, each) for each in WarmStart.__dataclass_fields__})
    make_folder(given.output_dir, "--output-dir")
    torch.manual_seed(given.seed)
    mix = (read_demonstrations(given.recorded) if given.recorded else [], given.recorded_share)
    choice = _choice(given)
    make_shown = partial(_demonstrations, given.domain, given.faulty_share, given.seed, choice, mix)
    progress = SftProgress(given.output_dir / "unfinished.pt", of=_described(vars(given)))
    is_begun = progress.is_there()
    if is_begun:
        print(f"continuing from {progress.path}; demonstrations that were seen are made again first", flush=True)
    read = itertools.islice(make_shown(), min(given.num_demonstrations, TOKENIZER_DOCUMENTS))
    tokenizer = load_tokenizer(given.output_dir) if is_begun else begin.tokenizer(read)
    tokenizer.save_pretrained(given.output_dir)  # a training that continues need not make it again
    model = begin.model(tokenizer)
    chat = make_chat_format(tokenizer, given.agent_type)
    print(f"vocabulary {len(tokenizer)}, {model.num_parameters / 1e6:.2f}M parameters", flush=True)
    settings = SftSettings(
        num_conversations=given.num_demonstrations,
        batch_size=given.batch_size,
        learning_rate=given.learning_rate,
        muon_learning_rate=given.muon_learning_rate,
        seed=given.seed,
    )
    shown, seen = make_shown(), _Seen()
    copied = _copied(tokenizer, itertools.islice(shown, given.num_copied), given.seed)
    window = model.config.max_position_embeddings
    conversations = itertools.chain(copied, _conversations(chat, shown, given.num_read, window, seen))
    train_sft(model.to(place), conversations, settings, print_progress, progress=progress)
    model.save_pretrained(given.output_dir)
    before = None if given.new_tokenizer else given.init_from
    _trained_for(before, given.domain, seen).save(given.output_dir)
    if seen.num_too_long:
        print(f"left out {seen.num_too_long} demonstrations of more than the model's {window} tokens", flush=True)
    progress.path.unlink(missing_ok=True)
    print(f"saved {given.output_dir}", flush=True)


def _described(given: Mapping[str, object]) -> str:
    """The options that a training is told apart by, as they would be typed."""
    told = {name: value for name, value in given.items() if name not in ("output_dir", "device") and value is not None}
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in told.items())


def _found(device: str) -> str:
    import torch

    has_gpu = torch.cuda.is_available()
    if device == "cuda" and not has_gpu:
        raise ConfigError("--device cuda: PyTorch sees no GPU here; leave it out")
    return "cuda" if has_gpu and device != "cpu" else "cpu"


def _check_rates(learning_rate: float, muon_learning_rate: float) -> None:
    for option, rate in (("--learning-rate", learning_rate), ("--muon-learning-rate", muon_learning_rate)):
        if not 0.0 < rate < math.inf:
            raise ConfigError(f"{option} is {rate}, expected a finite number above 0; give another")


def _choice(given: SimpleNamespace) -> Choice:
    if given.free_share and given.wordings == "own":
        raise ConfigError(
            f"--free-share {given.free_share} without --wordings any: requests in the own wording have a plan"
        )
    if given.written and given.wordings == "own":
        raise ConfigError(f"--written {given.written} without --wordings any; add that, or leave --written out")
    if given.levels and given.wordings == "any":
        raise ConfigError(
            "--levels and --wordings any: requests in any wording are of the starter's levels; leave one out"
        )
    parts = _parts(given.levels)
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--levels {given.levels!r}: expected numbers with commas between them, such as 1,2,3")
    return Choice(
        wordings=given.wordings,
        free_share=given.free_share,
        written=given.written,
        written_share=given.written_share if given.written else 0.0,
        levels=tuple(dict.fromkeys(map(int, parts))),
        families=_parts(given.families),
    )


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",")) if text is not None else ()


def _check_sizes(num_demonstrations: int, batch_size: int, hidden_size: int) -> None:
    if num_demonstrations < batch_size:
        raise ConfigError(
            f"--num-demonstrations is {num_demonstrations}, less than one batch (--batch-size {batch_size}), so "
            "nothing would be learned; raise it, or lower --batch-size"
        )
    if hidden_size % 64:
        raise ConfigError(f"--hidden-size is {hidden_size}; give a multiple of 64, which heads of 32 in pairs need")


def print_progress(step: int, num_steps: int, loss: float, tokens_per_s: float) -> None:
    print(f"step {step}/{num_steps}  loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s", flush=True)


def _demonstrations(
    domain: str, faulty_share: float, seed: int, choice: Choice, recorded: tuple[Sequence[Demonstration], float]
) -> Iterator[Demonstration]:
    """Those of an environment, with a share of recorded ones; ConfigError where it has none."""
    factory = make_env_factory(domain)
    chosen = [name for name, value in asdict(choice).items() if value != getattr(Choice(), name)]
    given = [f"--{name.replace('_', '-')}" for name in chosen]
    if given:
        shown = factory.chosen_demonstrations(seed, faulty_share=faulty_share, choice=choice)
    else:
        shown = factory.demonstrations(seed, faulty_share=faulty_share)
    first = next(shown, None)
    if first is None:
        lack = f" to choose from; leave out {', '.join(given)}" if given else "; see EnvFactory.demonstrations"
        raise ConfigError(f"--domain {domain}: its environment has no demonstrations{lack}")
    shown = itertools.chain([first], shown)
    return mixed(shown, *recorded, seed) if recorded[0] else shown


@dataclass(slots=True)
class _Seen:
    """What the demonstrations of a training were of."""

    max_tokens: int = 0
    num_too_long: int = 0
    """Demonstrations that were left out."""
    covers: Mapping[str, tuple[str | int, ...]] = field(default_factory=dict)


def _trained_for(init_from: Path | None, domain: str, seen: _Seen):
    """What the demonstrations were of, and what the model of `init_from` was trained for."""
    from agent_rl.policies.model_files.trained_for import TrainedFor, read_trained_for

    name = DOMAINS.get(domain, domain)
    before = read_trained_for(init_from) if init_from else None
    before = before or TrainedFor(environment=name, max_context=0, tasks={})
    return before.and_also(name, seen.max_tokens, [seen.covers])


def _copied(tokenizer, demonstrations: Iterator[Demonstration], seed: int) -> Iterator:
    """Requests alone, as copy exercises."""
    from agent_rl.learning.sft import copy_task

    rng = random.Random(f"copied-{seed}")
    return (copy_task(tokenizer.encode(each.messages[-1].content), rng) for each in demonstrations)


def _conversations(chat, demonstrations: Iterator[Demonstration], num_read: int, window: int, seen: _Seen) -> Iterator:
    """Those of `window` tokens at most; ConfigError where too many in a row are longer."""
    from agent_rl.learning.sft import render_conversation
    from agent_rl.policies.model_files.trained_for import union

    num_shown = too_long_in_a_row = 0
    for each in demonstrations:
        conversation = render_conversation(chat, each.messages, each.turns, each.tools, unlearned=each.unlearned)
        num_tokens = len(conversation.token_ids)
        if num_tokens > window:
            seen.num_too_long += 1
            too_long_in_a_row += 1
            if too_long_in_a_row == MAX_TOO_LONG:
                raise ConfigError(
                    f"{MAX_TOO_LONG} demonstrations in a row have more than the model's window of {window} tokens, the "
                    f"last one {num_tokens}; give a model whose config.json has more max_position_embeddings"
                )
            continue
        too_long_in_a_row = 0
        seen.max_tokens = max(seen.max_tokens, num_tokens)
        seen.covers = union([seen.covers, each.covers])
        # What is read repeats names much more often than what is written: from it a model learns to copy them.
        yield conversation.with_full_loss() if num_shown < num_read else conversation
        num_shown += 1


app = make_app(main)

if __name__ == "__main__":
    run_app(app)
