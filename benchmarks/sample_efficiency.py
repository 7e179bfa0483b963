"""What a run needs to a success: `python benchmarks/sample_efficiency.py "first=runs/a-0,runs/a-1" "second=runs/b"`.

Success is that of the training tasks, sampled as training samples, in the mean of five steps. Episodes, sampled tokens
and minutes (rollout and update; evaluations and checkpoints are not in it) are those up to the last of these steps.
Several folders of a name are training seeds: the mean of them, empty where one does not get there.

Not here: held-out success (`over_seeds.py`).
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from agent_rl.errors import DataError, UserError
from agent_rl.reports.run.data import Run, read_run

WINDOW = 5
THRESHOLDS = (0.6, 0.8, 0.9)
NEEDED = ("success/mean", "rollout/num_episodes", "rollout/tokens_mean", "time/step_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="+", metavar="NAME=RUN,RUN", help="a name and its run folders, one a seed")
    parser.add_argument("--to", type=float, nargs="+", default=THRESHOLDS, metavar="SUCCESS", help="between 0 and 1")
    options = parser.parse_args()
    named = (side.partition("=") for side in options.sides)
    try:
        sides = {name: [spent_by(read_run(Path(run))) for run in runs.split(",")] for name, _, runs in named}
    except UserError as error:
        parser.error(str(error))
    print(table(sides, options.to))


@dataclass(frozen=True, slots=True)
class Spent:
    """One run, a value for each step: success of the step, and what was spent up to its end."""

    success: Sequence[float]
    episodes: Sequence[float]
    tokens: Sequence[float]
    minutes: Sequence[float]

    def step_at(self, threshold: float) -> int | None:
        """Index of the first step that ends a window of at least `threshold`."""
        ends = range(WINDOW - 1, len(self.success))
        return next((end for end in ends if fmean(self.success[end + 1 - WINDOW : end + 1]) >= threshold), None)


def spent_by(run: Run) -> Spent:
    """DataError where the metrics are not those of training with rewards."""
    metrics = run.metrics
    if missing := [name for name in NEEDED if name not in metrics]:
        raise DataError(f"{run.path} has no {missing[0]} in its metrics.jsonl; give the folder of a GRPO run")
    episodes = metrics["rollout/num_episodes"]
    tokens = [each * mean for each, mean in zip(episodes, metrics["rollout/tokens_mean"], strict=True)]
    minutes = [seconds / 60 for seconds in metrics["time/step_s"]]
    return Spent(metrics["success/mean"], *(list(accumulate(each)) for each in (episodes, tokens, minutes)))


def table(sides: Mapping[str, Sequence[Spent]], thresholds: Sequence[float] = THRESHOLDS) -> str:
    """Markdown; a row for each of `sides`, name -> runs, and success."""
    lines = ["| | solved | by seed, in steps | episodes | sampled tokens | minutes |", "| --- " * 6 + "|"]
    for name, runs in sides.items():
        for threshold in thresholds:
            ends = [run.step_at(threshold) for run in runs]
            cells = [name, f"{threshold:.0%}", ", ".join("-" if end is None else str(end + 1) for end in ends)]
            reached = [(run, end) for run, end in zip(runs, ends, strict=True) if end is not None]
            if len(reached) == len(runs):
                cells += [f"{fmean(run.episodes[end] for run, end in reached):,.0f}"]
                cells += [f"{fmean(run.tokens[end] for run, end in reached) / 1e6:.2f}M"]
                cells += [f"{fmean(run.minutes[end] for run, end in reached):.1f}"]
            else:
                cells += ["", "", ""]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
