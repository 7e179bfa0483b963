"""A whole GRPO step side by side with TRL's GRPOTrainer: seconds by stage, tokens per second, MFU, peak memory.

    python benchmarks/train_step.py [--smollm2 FOLDER] [--trl-python PATH] [--repeats 3] [--profile]

The same weights, prompts, group size and completion lengths (no completion stops early; one turn, no tools, a reward
that costs nothing), float32, each trainer in a process and an interpreter of its own, alternating; the first step of
each is dropped, figures are medians of the rest.
Not here: what the processes do (`stepping/`), GPUs (`acceptance/update.py`).
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from stepping.train_step_parts import Readings, Workload, cpu_seconds

HERE = Path(__file__).resolve().parent
NUM_WARM_UP = 1
MIB = 2**20
TRL_ADVICE = "Ours runs alone; for both, run `make setup-trl` and give --trl-python .venv-trl/bin/python."


def main(
    smollm2: Annotated[
        Path | None, typer.Option(help="Folder of SmolLM2-135M-Instruct; left out when not given.")
    ] = None,
    trl_python: Annotated[Path | None, typer.Option(exists=True, help="The Python of an environment with TRL.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each trainer.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a run besides the warm-up.")] = 3,
    prompts: Annotated[int, typer.Option(help="Prompts of a step.")] = 2,
    group_size: Annotated[int, typer.Option(min=2)] = 8,
    prompt_tokens: Annotated[int, typer.Option()] = 64,
    new_tokens: Annotated[int, typer.Option(help="Tokens of every completion.")] = 128,
    trl_rows: Annotated[
        int | None, typer.Option(help="TRL's per_device_train_batch_size; by default all episodes of a step.")
    ] = None,
    micro_batch_tokens: Annotated[
        int, typer.Option(help="Ours, likewise; a step of the defaults fits into one micro-batch.")
    ] = 8192,
    threads: Annotated[int, typer.Option()] = 2,
    small: Annotated[bool, typer.Option(help="Also the model of 5 million parameters.")] = True,
    profile: Annotated[bool, typer.Option("--profile", help="Also show what our update spends its time on.")] = False,
) -> None:
    """Measure and print."""
    if trl_python is None:
        print(TRL_ADVICE, flush=True)
    sizes = [f"--num-prompts={prompts}", f"--group-size={group_size}", f"--prompt-tokens={prompt_tokens}"]
    sizes += [f"--num-new={new_tokens}", f"--steps={NUM_WARM_UP + steps}"]
    for source in ([None] if small else []) + ([smollm2] if smollm2 is not None else []):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            given = [] if source is None else [f"--smollm2={source.resolve()}"]
            _start(sys.executable, "train_step_ours.py", "prepare", str(folder), *sizes, *given, threads=threads)
            cut = {"trl_rows": trl_rows, "micro_batch_tokens": micro_batch_tokens}
            runs = _alternate(folder, trl_python, repeats=repeats, threads=threads, **cut)
            _print_steps(Workload.read(folder / "workload.json"), runs, threads=threads)
            if profile:
                _profile(folder, threads=threads)


def _alternate(
    folder: Path, trl_python: Path | None, *, repeats: int, trl_rows: int | None, micro_batch_tokens: int, threads: int
) -> dict[str, list[Readings]]:
    """Readings by trainer, which take turns."""
    workload, out = str(folder / "workload.json"), folder / "readings.json"
    rows = [] if trl_rows is None else [str(trl_rows)]
    ours = [sys.executable, "train_step_ours.py", "run", workload, str(out)]
    commands: dict[str, list[str]] = {"agent_rl": [*ours, f"--micro-batch-tokens={micro_batch_tokens}"]}
    if trl_python is not None:
        commands = {"TRL": [str(trl_python), "train_step_trl.py", workload, str(out), *rows]} | commands
    runs: dict[str, list[Readings]] = {name: [] for name in commands}
    total_s, ours_s = cpu_seconds()
    started = time.monotonic()
    for _ in range(repeats):
        for name, (python, *arguments) in commands.items():
            _start(python, *arguments, threads=threads)
            runs[name].append(Readings.read(out))
            print(f"{name}: steps of {', '.join(f'{s:.2f}' for s in _step_s(runs[name][-1]))} s", flush=True)
    total_s, ours_s = (now - before for now, before in zip(cpu_seconds(), (total_s, ours_s), strict=True))
    capacity_s = (os.cpu_count() or 1) * (time.monotonic() - started)
    print(f"Meanwhile others used {max(0.0, total_s - ours_s) / capacity_s:.0%} of the CPUs", flush=True)
    read = {name: readings[-1].num_prompt_tokens for name, readings in runs.items()}
    if len(set(read.values())) > 1:
        raise SystemExit(f"the trainers did not read the same prompts: tokens by trainer are {read}")
    return runs


def _start(python: str, script: str, *arguments: str, threads: int) -> str:
    """Run one of the programs in `stepping/` and return what it printed; its errors end this one."""
    done = subprocess.run(
        [python, str(HERE / "stepping" / script), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{script} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout


def _profile(folder: Path, *, threads: int) -> None:
    arguments = ("run", str(folder / "workload.json"), str(folder / "profiled.json"), "--profile")
    print(_start(sys.executable, "train_step_ours.py", *arguments, threads=threads), flush=True)


def _step_s(readings: Readings) -> list[float]:
    """Whole steps, from the end of an update to the end of the next."""
    ends = readings.ends[NUM_WARM_UP - 1 :]
    return [last - first for first, last in pairwise(ends)]


def _rest_s(readings: Readings) -> list[float]:
    """Logging, data, and what else is neither rollout nor update."""
    stages = zip(_step_s(readings), readings.rollout_s[NUM_WARM_UP:], readings.update_s[NUM_WARM_UP:], strict=True)
    return [step_s - rollout_s - update_s for step_s, rollout_s, update_s in stages]


def _print_steps(workload: Workload, runs: dict[str, list[Readings]], *, threads: int) -> None:
    title = (
        f"{workload.name}: {workload.num_prompts} prompts x {workload.group_size} completions of {workload.num_new} "
        f"tokens, float32, {threads} threads, median of {len(runs['agent_rl'])} x {workload.num_steps - NUM_WARM_UP}"
    )
    table = Table(title=title)
    for column in ("", *runs, *(["ratio"] if len(runs) > 1 else [])):
        table.add_column(column)
    for row in _rows(workload, runs):
        table.add_row(*row)
    Console(width=110).print(table)
    ours = runs["agent_rl"]
    mfu, peak, tokens_per_s = (
        statistics.median(readings.extra[name] for readings in ours)
        for name in ("perf/mfu", "peak_flops", "perf/update_tokens_per_s")
    )
    print(
        f"agent_rl's update: {tokens_per_s:,.0f} tokens/s, {mfu:.1%} MFU of the {peak / 1e9:,.0f} GFLOP/s that a "
        f"square matrix product reached in the same process\n",
        flush=True,
    )


def _rows(workload: Workload, runs: dict[str, list[Readings]]) -> Iterator[list[str]]:
    def row(
        name: str, of: Callable[[Readings], Sequence[float]], text: str = "{:.2f}", *, higher: bool = False
    ) -> list[str]:
        values = [statistics.median(v for readings in series for v in of(readings)) for series in runs.values()]
        cells = [name, *(text.format(value) for value in values)]
        if len(values) > 1:
            theirs, ours = values
            cells.append(f"{ours / theirs if higher else theirs / ours:.2f}" if min(values) > 0 else "")
        return cells

    def work(readings: Readings) -> int:
        return readings.peak - readings.libraries - readings.weights

    yield row("whole step, s", _step_s)
    spread = [[s for readings in series for s in _step_s(readings)] for series in runs.values()]
    yield ["  shortest to longest", *(f"{min(values):.2f} to {max(values):.2f}" for values in spread)]
    yield row("  rollout, s", lambda r: r.rollout_s[NUM_WARM_UP:])
    yield row("  update, s", lambda r: r.update_s[NUM_WARM_UP:])
    yield row("  all else, s", _rest_s, "{:.3f}")
    yield row(
        "tokens generated/s, whole step", lambda r: [workload.num_drawn / s for s in _step_s(r)], "{:,.0f}", higher=True
    )
    yield row("peak memory, MiB", lambda r: [r.peak / MIB], "{:,.0f}")
    yield row("  libraries alone", lambda r: [r.libraries / MIB], "{:,.0f}")
    yield row("  weights", lambda r: [r.weights / MIB], "{:,.0f}")
    yield row("  beyond these", lambda r: [work(r) / MIB], "{:,.0f}")


if __name__ == "__main__":
    typer.run(main)
