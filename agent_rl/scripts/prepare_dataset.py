"""Make the NAT task files: seeded specs, training and held-out, divided by what the tool does.

    python agent_rl/scripts/prepare_dataset.py --num-samples 1200 --seed 0 --output-dir dataset/nat_tasks

Writes train.jsonl (90 %) and val.jsonl (10 %), the same bytes for the same seed. No fingerprint, and so no renamed
copy, is in both files, nor in the demonstrations of the warm start.
"""

import itertools
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.scripts.common import run_app

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(help=__doc__)
def main(
    output_dir: Annotated[Path, typer.Option(help="Folder the two files are written to.")],
    num_samples: Annotated[int, typer.Option(min=10, help="Specs in both files together.")] = 1200,
    seed: Annotated[int, typer.Option(help="Seed of the specs.")] = 0,
) -> None:
    from agent_rl.nat.generate import generate_specs

    output_dir.mkdir(parents=True, exist_ok=True)
    num_val = num_samples // 10
    for split, count, name in (("train", num_samples - num_val, "train.jsonl"), ("val", num_val, "val.jsonl")):
        specs = list(itertools.islice(generate_specs(seed, split), count))
        path = output_dir / name
        path.write_text("".join(f"{spec.model_dump_json()}\n" for spec in specs), encoding="utf-8")
        families = Counter(f"{spec.family} level {spec.level}" for spec in specs)
        print(f"{path}: {len(specs)} specs; " + ", ".join(f"{name} {num}" for name, num in sorted(families.items())))


if __name__ == "__main__":
    run_app(app)
