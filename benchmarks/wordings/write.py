"""Write the held-out wordings: `python benchmarks/wordings/write.py`.

The same specs with the same facts, worded as no training data is: in other sentences, in another order, with small talk
around them, with synonyms, under other names; each as `test` and, made of other words, as `val` to tune on. They are
made from `dataset/nat_tasks/wordings/TWIN_original.jsonl.gz`, the specs in the generator's own wording, and are the
same bytes each time; `--originals` samples those anew, which changes what is measured. `test_by_hand.jsonl` was written
by hand and is never made. `--output-dir` writes elsewhere.

No training code imports this folder, and nothing here is what training data is made of.
"""

import sys
from pathlib import Path

if __name__ == "__main__":  # run by its path: the package, and this folder's parent
    sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

import random
from collections.abc import Callable
from typing import Annotated

import typer
from wordings import originals
from wordings.names import renamed
from wordings.originals import SEEDS, Twin
from wordings.phrasing import phrased
from wordings.rewording import greeted, reordered, with_synonyms

from agent_rl.envs.nat.spec import NATSpec

Change = Callable[[NATSpec, Twin, random.Random], NATSpec]


def _words(change: Callable[[str, Twin, random.Random], str]) -> Change:
    return lambda spec, twin, rng: spec.model_copy(update={"request": change(spec.request, twin, rng)})


def _phrased(spec: NATSpec, twin: Twin, rng: random.Random) -> NATSpec:
    return spec.model_copy(update={"request": phrased(spec, twin, rng)})


KINDS: dict[str, Change] = {
    "phrasing": _phrased,
    "order": _words(reordered),
    "greeting": _words(greeted),
    "synonyms": _words(with_synonyms),
    "names": renamed,
    "fresh_names": lambda spec, twin, rng: renamed(spec, "fresh" if twin == "test" else "fresh_val", rng),
}
MADE: list[tuple[Twin, str]] = [(twin, kind) for twin in SEEDS for kind in KINDS]
"""What is written."""


def reworded(specs: list[NATSpec], twin: Twin, kind: str) -> list[NATSpec]:
    """The specs in one kind of wording, under ids of its own."""
    out = []
    for spec in specs:
        changed = KINDS[kind](spec, twin, random.Random(f"{kind}-{SEEDS[twin]}-{spec.task_id}"))
        out.append(changed.model_copy(update={"task_id": f"{kind}-{spec.task_id}"}))
    return out


def main(
    sample_originals: Annotated[bool, typer.Option("--originals", help="Sample the specs anew too.")] = False,
    output_dir: Annotated[Path, typer.Option(help="Folder the files are written to.")] = originals.FOLDER,
) -> None:
    if sample_originals:
        for twin, specs in originals.sample_originals().items():
            originals.write_file(originals.path_of(twin, "original"), originals.file_bytes(specs))
    for twin, kind in MADE:
        specs = originals.read_specs(originals.path_of(twin, "original"))
        path = output_dir / originals.path_of(twin, kind).name
        originals.write_file(path, originals.file_bytes(reworded(specs, twin, kind)))
        print(f"{path}: {len(specs)} tasks")


if __name__ == "__main__":
    typer.run(main)
