"""Prints a plan as tables, or as plain data."""

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_rl.planning.fit import Place, total
from agent_rl.planning.machine import GIB
from agent_rl.planning.memory import checkpoint_bytes, num_checkpoints, weight_file_bytes
from agent_rl.planning.plan import RunPlan


def as_data(plan: RunPlan) -> dict[str, Any]:
    """The plan for programs: bytes, tokens, seconds."""
    config, job = plan.run.job.config, plan.run.job
    model, optimizer = checkpoint_bytes(job)
    return {
        "fits": plan.fits,
        "verdict": plan.verdict,
        "headroom": plan.fit.lowest,
        "problems": list(plan.fit.problems),
        "change": None if plan.change is None else asdict(plan.change),
        "model": asdict(job.shape) | {"linear_widths": dict(job.shape.linear_widths)},
        "layout": asdict(job.layout),
        "gpu": None if plan.run.gpu is None else asdict(plan.run.gpu),
        "places": [_place_data(place) for place in plan.fit.places],
        "checkpoint": {"model": model, "optimizer": optimizer, "total": num_checkpoints(config) * (model + optimizer)},
        "weight_files": 2 * weight_file_bytes(job),
        "tokens": asdict(plan.tokens),
        "seconds": None if plan.times is None else asdict(plan.times) | {"step": plan.times.step},
        "assumptions": plan.assumed.model_dump(mode="json") | {"steps": config.train.steps},
    }


def show(plan: RunPlan, console: Console) -> None:
    """Print tables of memory, of tokens and time, the assumptions, and the verdict."""
    console.print(Text(_heading(plan)), soft_wrap=True)
    for place in plan.fit.places:
        console.print(_memory_table(place))
    console.print(Text(_on_disk(plan)), soft_wrap=True)
    console.print(_step_table(plan))
    console.print(Text(_assumptions(plan), "dim"), soft_wrap=True)
    console.print(Text(plan.verdict, "green" if plan.fits else "red"), soft_wrap=True)


def _heading(plan: RunPlan) -> str:
    job = plan.run.job
    layout = job.layout
    sharding = f"ZeRO-{layout.zero_stage}" if layout.zero_stage else "no sharding"
    moved = [
        name
        for name, is_moved in (("optimizer", layout.offload_optimizer), ("weights", layout.offload_weights))
        if is_moved
    ]
    what = f"adapters of rank {job.config.model.lora.rank}" if job.config.model.lora.rank else "all weights"
    held = f"{job.config.model.dtype}{', in layers 4 bits' if job.config.model.load_in_4bit else ''}"
    lines = [
        f"{job.shape.name}: {job.shape.num_weights:,} weights, {held}; trained: {what}",
        f"{layout.num_processes} process{'es' if layout.num_processes > 1 else ''} with {sharding}"
        + (f", {' and '.join(moved)} in the machine's memory" if moved else ""),
    ]
    if layout.num_servers:
        lines.append(f"{layout.num_servers} vLLM servers of {layout.tensor_parallel} GPUs")
    return "\n".join(lines)


def _on_disk(plan: RunPlan) -> str:
    model, optimizer = (size / GIB for size in checkpoint_bytes(plan.run.job))
    weights, config = weight_file_bytes(plan.run.job), plan.run.job.config
    num = num_checkpoints(config)
    place = config.engine.weight_folder or "the run's folder"
    files = f"\nweights as files in {place}, two versions while they are sent: {2 * weights / GIB:.2f} GiB" * bool(
        weights
    )
    return (
        f"checkpoint on disk: {model + optimizer:.2f} GiB (model {model:.2f}, optimizer {optimizer:.2f}); up to {num} "
        f"at a time: {num * (model + optimizer):.2f} GiB{files}"
    )


def _memory_table(place: Place) -> Table:
    """Items as rows, phases as columns, GiB; an item below a hundredth of a GiB is in the sum only."""
    capacity = "" if place.capacity is None else f" of {place.capacity / GIB:.1f}"
    table = Table(title=f"{place.name} (x{place.count}), GiB{capacity}", title_justify="left")
    table.add_column("")
    names: dict[str, dict[str, float]] = {}
    for phase, items in place.phases.items():
        table.add_column(phase, justify="right")
        for item in items:
            row = names.setdefault(item.name, {})
            row[phase] = row.get(phase, 0.0) + item.num_bytes
    for name, row in names.items():
        if max(row.values()) >= 0.01 * GIB:
            table.add_row(name, *(f"{row[phase] / GIB:.2f}" if row.get(phase) else "" for phase in place.phases))
    table.add_section()
    table.add_row("together", *(f"{total(items) / GIB:.2f}" for items in place.phases.values()))
    if place.capacity is not None:
        left = (1.0 - total(items) / place.capacity for items in place.phases.values())
        table.add_row("headroom", *(f"{share:.0%}" for share in left))
    return table


def _step_table(plan: RunPlan) -> Table:
    tokens, times = plan.tokens, plan.times
    table = Table("one step", "", title="Tokens and time", title_justify="left")
    table.add_row("tasks, episodes", f"{tokens.num_prompts:,}, {tokens.num_episodes:,}")
    table.add_row("tokens generated (and trained, once an epoch)", f"{tokens.generated:,}")
    table.add_row("tokens read, prompts and tools included", f"{tokens.read:,}")
    table.add_row("tokens computed in an epoch, prompts shared", f"{tokens.computed:,}")
    table.add_row("micro-batches of a process in an epoch", f"{tokens.num_micro_batches:,}")
    if times is None:
        return table
    config = plan.run.job.config
    table.add_section()
    table.add_row("generation", f"{_clock(times.generation)}, {times.slots:.0f} episodes at a time on an engine")
    table.add_row("update", _clock(times.update))
    table.add_row("weight sync", _clock(times.sync))
    how = "the longer of generation and learning" if times.is_asynchronous else "one after the other"
    table.add_row("step", f"{_clock(times.step)} ({how})")
    table.add_row(f"{config.train.steps:,} steps", _clock(times.step * config.train.steps))
    table.add_row("checkpoint, when due", _clock(times.checkpoint))
    return table


def _assumptions(plan: RunPlan) -> str:
    job, a = plan.run.job, plan.assumed
    lines = [
        "An estimate; assumed, and set by the machine file or --set:",
        f"an episode: {a.prompt_tokens:,} tokens of prompt, {a.new_tokens:,} generated, {a.tool_tokens:,} of tools, "
        f"{a.turns:g} turns; the "
        f"largest micro-batch: {job.batch_tokens:,} tokens",
    ]
    if plan.times is not None:
        gpu = plan.run.gpu
        lines += [
            f"{gpu.name}: {gpu.memory / GIB:.1f} GiB, {gpu.bandwidth / 1e12:.2f}e12 bytes/s, {gpu.peak / 1e12:.0f}e12 "
            f"operations/s in bfloat16; libraries, CUDA and NCCL: {job.overhead / GIB:.1f} GiB",
            f"{a.mfu:.0%} of that peak, {a.hbm:.0%} of that bandwidth, {a.busy:.0%} of slots busy; GB/s: "
            f"{a.link_gb_s:g} between GPUs, {a.sync_gb_s:g} to the inference engine, {a.files_gb_s:g} of weight files, "
            f"{a.pcie_gb_s:g} to the machine's memory",
            "left out: tools and checks, evaluations, fragmentation beyond a tenth",
        ]
    return "\n".join(lines)


def _place_data(place: Place) -> dict[str, Any]:
    return {
        "name": place.name,
        "count": place.count,
        "capacity": place.capacity,
        "need": place.need,
        "headroom": place.headroom,
        "phases": {phase: {i.name: i.num_bytes for i in items} for phase, items in place.phases.items()},
    }


def _clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
