"""Write the NAT task files (train, val, test_generalisation), divided by what the agent does.

    python agent_rl/scripts/prepare_dataset.py --num-samples 1200 --seed 0 --output-dir dataset/nat_tasks

Writes train (90 %), val (10 %) and test_generalisation (another 10 %), each as .jsonl and .parquet, the same bytes for
the same seed. No fingerprint, and so no renamed copy, is in two files. `--source gemini` turns free requests into specs
with the google-genai planner instead (requirements-gemini.txt, GEMINI_API_KEY); it resumes where it stopped.
"""

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Literal

import typer

from agent_rl.data.tasks import write_tasks
from agent_rl.envs.nat.factory.generate import STARTER_FAMILIES, STARTER_LEVELS, Split, generate_specs
from agent_rl.envs.nat.factory.telling import with_telling
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import ConfigError
from agent_rl.telemetry.files import make_folder

_WORTH_PROCESSES = 64
"""Specs; fewer take less time than processes do to start."""


def main(
    output_dir: Annotated[Path, typer.Option(help="Folder the files are written to.")],
    source: Annotated[Literal["offline", "gemini"], typer.Option(help="Where specs come from.")] = "offline",
    num_samples: Annotated[int, typer.Option(min=10, help="Specs in train and val together.")] = 1200,
    seed: Annotated[int, typer.Option(help="Seed of the specs.")] = 0,
    families: Annotated[str | None, typer.Option(help="Only these task families, separated by commas.")] = None,
    levels: Annotated[str | None, typer.Option(help="Only these levels, such as 1,2.")] = None,
    starter: Annotated[
        bool,
        typer.Option(
            help="Tasks for the shipped small model: its families and levels, without the fingerprints of the "
            "demonstrations it has seen, in requests that leave out what it has learned from them."
        ),
    ] = False,
    hidden_cases: Annotated[
        Literal["chosen", "sampled"],
        typer.Option(
            help="chosen: store inputs that tell the rules from wrong ones one step away, which takes one to four "
            "seconds of a core for each spec; sampled: leave them out, so all inputs are sampled when an episode ends."
        ),
    ] = "chosen",
    requests_file: Annotated[
        Path | None, typer.Option(help="gemini: one request a line, instead of the built-in library.")
    ] = None,
    gemini_model: Annotated[str | None, typer.Option(help="gemini: the planner's model.")] = None,
    requests_per_minute: Annotated[float | None, typer.Option(help="gemini: rate limit; 60 by default.")] = None,
    price_in: Annotated[float | None, typer.Option(help="gemini: price per million tokens read, for the cost.")] = None,
    price_out: Annotated[float | None, typer.Option(help="gemini: the same for tokens written.")] = None,
) -> None:
    start = time.monotonic()
    make_folder(output_dir, "--output-dir")
    given = {
        "model": gemini_model,
        "requests_per_minute": requests_per_minute,
        "price_in": price_in,
        "price_out": price_out,
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if source == "offline":
        if settings or requests_file:
            raise ConfigError("options for gemini were given with --source offline; leave them out")
        num_val = num_samples // 10
        chosen = families.split(",") if families else None
        sets = offline(num_samples - num_val, num_val, seed, chosen, _levels(levels), starter)
    else:
        if families or levels or starter:
            raise ConfigError("--families, --levels and --starter are for --source offline; leave them out")
        from agent_rl.envs.nat.factory.planner.dataset import plan_task_sets

        sets = plan_task_sets(output_dir, num_samples, seed, requests_file, settings)
    for name, specs in sets.items():
        write(output_dir, name, with_telling_inputs(specs) if hidden_cases == "chosen" else specs)
    print(f"{sum(map(len, sets.values()))} specs in {time.monotonic() - start:.1f} s")


def _levels(text: str | None) -> list[int] | None:
    if text is None:
        return None
    if not all(part.strip().isdigit() for part in text.split(",")):
        raise ConfigError(f"--levels is {text!r}; give numbers from 1 to 5 separated by commas, such as 1,2")
    return [int(part) for part in text.split(",")]


def offline(
    num_train: int,
    num_val: int,
    seed: int,
    families: list[str] | None = None,
    levels: list[int] | None = None,
    starter: bool = False,
) -> dict[str, list[NATSpec]]:
    """train, val and test_generalisation from the generator."""
    if starter and (families or levels):
        raise ConfigError("--starter chooses families and levels itself; leave out --families and --levels")
    if starter:
        families, levels = list(STARTER_FAMILIES), list(STARTER_LEVELS)
    wanted: list[tuple[str, list[Split], int]] = [
        ("train", ["train"] if starter else ["train", "sft"], num_train),
        ("val", ["val"], num_val),
        ("test_generalisation", ["test_generalisation"], num_val),
    ]
    chosen = {"families": families, "levels": levels, "terse": starter}
    return {
        name: list(itertools.islice(generate_specs(seed, splits, **chosen), count)) for name, splits, count in wanted
    }


def with_telling_inputs(specs: Sequence[NATSpec]) -> list[NATSpec]:
    """The specs with inputs that tell their rules from wrong ones (`factory/telling.py`), a second or less each;
    many are shared out over all processors."""
    if len(specs) < _WORTH_PROCESSES:
        return [with_telling(spec) for spec in specs]
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        return list(pool.map(with_telling, specs, chunksize=8))


def write(output_dir: Path, name: str, specs: list[NATSpec]) -> None:
    """NAME.jsonl and NAME.parquet, and a line with what is in them."""
    rows = [spec.model_dump(mode="json") for spec in specs]
    for suffix in (".jsonl", ".parquet"):
        write_tasks(output_dir / f"{name}{suffix}", rows)
    difficulty = Counter(spec.difficulty for spec in specs)
    families = Counter(spec.family for spec in specs)
    shares = ", ".join(f"{each} {difficulty[each]}" for each in ("easy", "medium", "hard") if difficulty[each])
    print(f"{output_dir / name}: {len(specs)} specs ({shares}); " + ", ".join(f"{k} {v}" for k, v in families.items()))
