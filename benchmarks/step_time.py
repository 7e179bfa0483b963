"""Where a step of the default run spends its time: `python benchmarks/step_time.py [--steps N] [key=value ...]`.

Runs N training steps of configs/nat_grpo.yaml into a temporary folder and prints the median of each stage, tokens
generated per second over the whole step, and tokens trained per second in the update. No pass or fail: machines differ.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

COLUMNS = ("time/step_s", "time/rollout_s", "time/update_s", "perf/tokens_per_s", "perf/update_tokens_per_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    from agent_rl import GRPOTrainer, load_config

    root = Path(__file__).resolve().parents[1]
    with tempfile.TemporaryDirectory() as folder:
        fixed = [f"run.output_dir={folder}", f"train.steps={options.steps}", "eval.temperatures=[]"]
        config = load_config(root / "configs/nat_grpo.yaml", [*fixed, *options.overrides])
        with GRPOTrainer.from_config(config) as trainer:
            trainer.train()
        rows = [
            json.loads(line) for line in (Path(folder) / config.run.name / "metrics.jsonl").read_text().splitlines()
        ]
    for column in COLUMNS:
        values = [row[column] for row in rows if column in row]
        print(
            f"{column:28} median {statistics.median(values):10.2f}   min {min(values):10.2f}   max {max(values):10.2f}"
        )


if __name__ == "__main__":
    main()
