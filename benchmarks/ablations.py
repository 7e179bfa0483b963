"""What each part of the recipe is worth: `python benchmarks/ablations.py --output-dir runs/ablations`.

Trains configs/nat_grpo.yaml anew for every variant and seed, shorter and with half the tasks a step, each in a run
folder of its own, and prints one table: held-out success after training, and the difference to the recipe. `key=value`
changes what all of them have in common, such as `train.steps=80`. It may be stopped and started again: finished runs
are read, an unfinished one continues from its last checkpoint. `--jobs 2` with OMP_NUM_THREADS=1 gets two cores further
than one run at a time. Not here: what the variants mean (docs/configuration.md).
"""

import argparse
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from over_seeds import TEMPERATURES, table

ROOT = Path(__file__).resolve().parents[1]
AS_IT_IS = "as it is"
COMMON = ["train.steps=20", "rollout.groups_per_step=8", "data.max_eval_tasks=150"]
NO_SHAPING = [f"env.options.reward.{part}=0" for part in ("tools", "integration", "workflow", "efficiency")]
VARIANTS: dict[str, list[str]] = {
    AS_IT_IS: [],
    "RLOO": ["algorithm.advantage=rloo"],
    "REINFORCE++ with baseline": ["algorithm.advantage=reinforce_plus_plus_baseline"],
    "MaxRL": ["algorithm.advantage=maxrl"],
    "without the standard deviation": ["algorithm.scale_by_std=false"],
    "standard deviation of at least 0.25": ["algorithm.min_std=0.25"],
    "dynamic sampling": ["rollout.max_attempts=3"],
    "reward: success only": NO_SHAPING,
    "reward: without tools": ["env.options.reward.tools=0"],
    "reward: without integration": ["env.options.reward.integration=0"],
    "reward: without workflow": ["env.options.reward.workflow=0"],
    "reward: without complete": ["env.options.reward.complete=0"],
    "reward: without efficiency": ["env.options.reward.efficiency=0"],
    "curriculum by success": ["data.curriculum.mode=success"],
    "token TIS": ["algorithm.correction.kind=token_tis"],
    "KL to the warm start": ["algorithm.kl.place=loss", "algorithm.kl.coef=0.01"],
    "groups of 4, twice as many": ["rollout.group_size=4", "rollout.groups_per_step=16"],
    "one update a step": ["train.minibatches=1"],
    "learning rate halved": ["train.learning_rate=1e-4", "train.final_learning_rate=1e-5"],
    "learning rate doubled": ["train.learning_rate=4e-4", "train.final_learning_rate=4e-5"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("overrides", nargs="*", help="section.key=value for all runs")
    options = parser.parse_intermixed_args()
    variants = list(dict.fromkeys([AS_IT_IS, *options.variants]))
    pool = ThreadPoolExecutor(options.jobs)
    try:
        by_seed = [pool.map(lambda each, seed=seed: train(each, seed, options), variants) for seed in options.seeds]
        folders = list(zip(*by_seed, strict=True))
    finally:  # a run that fails, or Ctrl-C, starts no other
        pool.shutdown(cancel_futures=True)
    print(table(dict(zip(variants, folders, strict=True))))


def train(variant: str, seed: int, options: argparse.Namespace) -> Path:
    """Run folder of one training, evaluated afterwards alone: before it all variants are the same model."""
    name = f"{re.sub('[^a-z0-9]+', '-', variant.lower()).strip('-')}-{seed}"
    folder = options.output_dir / name
    if (folder / "finished").exists():
        return folder
    print(f"{variant}, seed {seed}", flush=True)
    common = ["--config", "configs/nat_grpo.yaml", *COMMON, *options.overrides, f"run.seed={seed}"]
    settings = [*VARIANTS[variant], f"run.output_dir={options.output_dir}", f"run.name={name}"]
    settings += ["eval.temperatures=[]", "checkpoint.resume=auto", "checkpoint.keep=1"]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        run("train_nat_agent.py", *common, *settings, log=folder / "output.log")
        last = max(folder.glob("checkpoints/step_*"))
        for temperature in TEMPERATURES:
            to = ["--temperature", str(temperature), "--output-dir", str(folder / f"t{temperature}")]
            run("evaluate_model.py", *common, "--checkpoint", str(last), *to, log=folder / "output.log")
    except subprocess.CalledProcessError:
        raise SystemExit(f"{variant}, seed {seed} ended with an error; {folder}/output.log tells which") from None
    (folder / "finished").touch()
    return folder


def run(script: str, *arguments: str, log: Path) -> None:
    with log.open("a", encoding="utf-8") as output:
        command = [sys.executable, f"agent_rl/scripts/{script}", *arguments]
        subprocess.run(command, check=True, cwd=ROOT, stdout=output, stderr=output)


if __name__ == "__main__":
    main()
