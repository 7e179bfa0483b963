"""Where a step of the default run spends its time: `python benchmarks/step_time.py [--steps N] [key=value ...]`.

Runs N training steps of configs/nat_grpo.yaml into a temporary folder and prints the median of each stage, tokens per
second, and how much of the work was done once for several samples. With `--compare` the same without any of that, both
taking turns, and the ratio of the two. No pass or fail: machines differ.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

COLUMNS = (
    "time/step_s",
    "time/rollout_s",
    "time/update_s",
    "perf/tokens_per_s",
    "perf/update_tokens_per_s",
    "rollout/sampled_tokens",
    "rollout/decoded_tokens",
    "batch/num_computed_tokens",
    "judge/asked",
    "judge/run",
)
ALONE = ("policy.share_contexts=false", "train.share_prefixes=false", "env.options.reuse_verdicts=false")
NUM_TURNS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--compare", action="store_true", help="also with nothing shared, in turn")
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    ways = {"shared": (), "alone": ALONE} if options.compare else {"": ()}
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    for _ in range(NUM_TURNS if options.compare else 1):
        for name, changes in ways.items():
            rows[name] += measured(options.steps, [*changes, *options.overrides])
    show(rows)


def measured(num_steps: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Metrics of each step."""
    from agent_rl import GRPOTrainer, load_config

    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        fixed = [f"run.output_dir={folder}", f"train.steps={num_steps}", "eval.temperatures=[]"]
        config = load_config(root / "configs/nat_grpo.yaml", [*fixed, *overrides])
        with GRPOTrainer.from_config(config) as trainer:
            trainer.train()
        return [
            json.loads(line) for line in (Path(folder) / config.run.name / "metrics.jsonl").read_text().splitlines()
        ]


def show(rows: dict[str, list[dict[str, Any]]]) -> None:
    table = Table("median (min to max) of a step", *rows, *(["ratio"] if len(rows) > 1 else []))
    for column in COLUMNS:
        values = [[row[column] for row in of_way if column in row] for of_way in rows.values()]
        if all(values):
            medians = [statistics.median(each) for each in values]
            spans = [f"({min(each):,.1f} to {max(each):,.1f})" for each in values]
            cells = [f"{median:,.1f} {span}" for median, span in zip(medians, spans, strict=True)]
            ratio = [f"{medians[0] / medians[1]:.2f}" if medians[1] else ""] if len(rows) > 1 else []
            table.add_row(column, *cells, *ratio)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
