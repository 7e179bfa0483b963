"""Whole runs: the default run on the GPU and on the CPU, and one that vLLM samples inside the process.

The default run needs the checker's interpreter (`.venv-nat`); without it the math run is trained instead, and said so.
Not here: what a run does; servers.
"""

import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from acceptance.figures import Recorder, Setting, need
from acceptance.runner import ROOT, environment

SHORT = "data.max_eval_tasks=2 eval.temperatures=[] log.progress=false log.trackers=[] log.transcripts_per_step=0"
SMALL = "rollout.group_size=4 rollout.groups_per_step=2"
CHECKER = ROOT / ".venv-nat/bin/python"
Rows = list[dict[str, float]]


def train_default(setting: Setting, out: Recorder) -> None:
    """A few steps on the device; on a GPU also on the CPU, to compare rewards and time."""
    domain = "hello" if setting.tiny else "nat" if CHECKER.exists() else "math"
    config = {"hello": "configs/hello.yaml", "nat": "configs/nat_grpo.yaml", "math": "configs/math_grpo.yaml"}[domain]
    if domain != "nat":
        why = "a tiny run" if setting.tiny else f"{CHECKER.parent.parent.name} is missing"
        out.note(f"{config} instead of configs/nat_grpo.yaml: {why}")
    steps = setting.pick(4, 2)
    sizes = SMALL.split() if setting.tiny else []
    rows = _train(setting, config, [*sizes, f"train.steps={steps}", f"run.device={setting.device}"], "on_device")
    out.figure("steps", len(rows))
    out.figure("reward_mean", statistics.mean(row["reward/mean"] for row in rows))
    out.figure("step_s", _step_s(rows))
    _record_mismatch(rows, out)
    if not setting.is_gpu:
        return
    other = _train(setting, config, [*sizes, f"train.steps={steps}", "run.device=cpu"], "on_cpu")
    out.figure("cpu_reward_mean", statistics.mean(row["reward/mean"] for row in other))
    out.figure("cpu_step_s", _step_s(other))
    out.figure("reward_gap", reward_gap(rows, other, num_episodes=setting.pick(128, 8)))
    out.figure("speedup", _step_s(other) / _step_s(rows))


def _record_mismatch(rows: Rows, out: Recorder) -> None:
    """Of steps that trained: those whose groups all had equal rewards have no log-probs."""
    trained = [row for row in rows if "mismatch/k3" in row]
    if not trained:
        out.figure("k3", "no step trained")
        return
    out.figure("abs_log_diff_max", max(row["mismatch/abs_log_diff_max"] for row in trained))
    out.figure("k3", statistics.mean(row["mismatch/k3"] for row in trained))


def reward_gap(rows: Rows, other: Rows, *, num_episodes: int) -> float:
    """How far the mean rewards of two runs are apart, in standard errors of the difference."""
    means = [statistics.mean(row["reward/mean"] for row in each) for each in (rows, other)]
    variances = [statistics.mean(row["reward/std"] ** 2 for row in each) for each in (rows, other)]
    error = math.sqrt(sum(variances) / (num_episodes * len(rows)))
    return abs(means[0] - means[1]) / error if error else float(means[0] != means[1]) * math.inf


def _step_s(rows: Rows) -> float:
    """Median without the first step, in which everything is set up."""
    return statistics.median(row["time/step_s"] for row in rows[1:] or rows)


def _train(setting: Setting, config: str, overrides: Sequence[str], name: str) -> Rows:
    """Rows of the metrics of a run of its own."""
    options = [*SHORT.split(), *overrides, f"run.name={name}", f"run.output_dir={setting.folder}"]
    command = [sys.executable, "-m", "agent_rl.scripts.cli", "train", "--config", config, *options]
    ran = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"the run {name} ended with code {ran.returncode}:\n{(ran.stderr or ran.stdout)[-4000:]}")
    lines = (setting.folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "time/step_s" in row]


def train_with_vllm(setting: Setting, out: Recorder) -> None:
    """Three steps with the engine inside the process; then an engine alone: its start, speed and sleep."""
    need("vllm")
    options = ["policy.type=vllm", f"run.device={setting.device}", "train.steps=3"]
    options += ["policy.max_batch_size=8", *SMALL.split()] if setting.tiny else []
    rows = _train(setting, "configs/hello.yaml", options, "vllm")
    out.figure("steps", len(rows))
    out.figure("probe_gap", max(row["sync/probe_gap"] for row in rows))
    out.figure("sync_s", statistics.median(row["sync/total_s"] for row in rows))
    _record_mismatch(rows, out)
    _measure_engine(setting, out)


def _measure_engine(setting: Setting, out: Recorder) -> None:
    """The 1.5B shape with random weights in bfloat16, 64 completions at a time."""
    import torch
    from acceptance.models import forget, make_model, model_config

    from agent_rl.inference.vllm.engine import VLLMEngine
    from agent_rl.inference.vllm.engine_start import EngineOptions
    from agent_rl.planning.machine import GIB
    from agent_rl.records import SamplingParams

    count, num_new = setting.pick((64, 256), (4, 4))
    config = model_config("1.5B", setting, window=1024)
    model = make_model(config, setting.device, torch.bfloat16)
    model.save_pretrained(setting.folder / "model")
    options = EngineOptions(
        model=str(setting.folder / "model"), dtype="bfloat16", max_context=1024, max_batch_size=count
    )
    started = time.perf_counter()
    engine = VLLMEngine(options)
    out.figure("engine_start_s", time.perf_counter() - started)
    with closing(engine):
        sampling = [SamplingParams(max_new_tokens=num_new, seed=seed) for seed in range(count)]
        prompts = [[3 + index] * 64 for index in range(count)]
        with ThreadPoolExecutor(count) as pool:
            for _ in range(2):  # a warm-up first
                started = time.perf_counter()
                list(pool.map(engine.complete, prompts, sampling))
        out.figure("tokens_per_s", count * num_new / (time.perf_counter() - started))
        if not setting.is_gpu:
            return
        names = [(name, weight.detach()) for name, weight in model.named_parameters()]
        for level in (2, 1):
            engine.pause()
            started = time.perf_counter()
            if level == 2:
                engine.sleep()
            else:  # what an engine with adapters does, whose base is not sent again
                engine._engine.sleep(level=1)
                engine._is_asleep = True
            out.figure(f"level_{level}_sleep_s", time.perf_counter() - started)
            forget(setting.device)
            free, whole = torch.cuda.mem_get_info()
            out.figure(f"level_{level}_asleep_gib", (whole - free - torch.cuda.memory_allocated()) / GIB)
            started = time.perf_counter()
            if level == 2:
                engine.load(names, 1)
            engine.resume(1)
            out.figure(f"level_{level}_wake_s", time.perf_counter() - started)
