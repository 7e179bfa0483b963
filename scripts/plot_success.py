"""The README's figure: success of a run by step, on training tasks and on held-out tasks with 95 % intervals.

agent-rl train --config configs/math_grpo.yaml eval.every=10
python scripts/plot_success.py runs/math_grpo docs/images/math_run.svg
"""

import json
import sys
from pathlib import Path

from agent_rl.reports.plots import ACCENT, INK, SECOND, new_figure

SMOOTHED_STEPS = 5


def main(run: Path, target: Path) -> None:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    figure, axes = new_figure(2.6, x="step", y="solved %")
    trained = [(row["step"], 100 * row["success/mean"]) for row in rows if "success/mean" in row]
    steps = [step for step, _ in trained]
    windows = [trained[max(0, end - SMOOTHED_STEPS) : end] for end in range(1, len(trained) + 1)]
    means = [sum(value for _, value in window) / len(window) for window in windows]
    axes.plot(steps, [value for _, value in trained], color=INK, alpha=0.25, linewidth=0.8)
    axes.plot(steps, means, color=INK, linewidth=1.4, label=f"training tasks, mean of {SMOOTHED_STEPS} steps")
    for name, label, colour, marker in (("t0", "greedily", ACCENT, "o"), ("t1", "at temperature 1", SECOND, "s")):
        held_out = [row for row in rows if f"eval/{name}/success" in row]
        values = [100 * row[f"eval/{name}/success"] for row in held_out]
        bounds = [[100 * row[f"eval/{name}/success_{side}"] for row in held_out] for side in ("low", "high")]
        errors = [[abs(bound - value) for bound, value in zip(side, values, strict=True)] for side in bounds]
        style = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1, "elinewidth": 0.8, "capsize": 2}
        axes.errorbar([row["step"] for row in held_out], values, yerr=errors, label=f"held-out tasks, {label}", **style)
    axes.set(ylim=(0, 100))
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, metadata={"Date": None} if target.suffix == ".svg" else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
