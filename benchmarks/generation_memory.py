"""Peak memory of the generation engine on a CPU: `python -m benchmarks.generation_memory [--smollm2 FOLDER]`.

Fills every slot of the cache to its end, in a process of its own for each model, and compares the growth of resident
memory over an interpreter that has all libraries at work with weights plus configured cache. Not here: GPUs, training.
"""

import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

MINIMIND_SLOTS, SMOLLM2_SLOTS = 64, 16


def main(
    smollm2: Annotated[Path | None, typer.Option(help="Folder of SmolLM2-135M-Instruct.")] = None,
    width: Annotated[int, typer.Option(min=2, help="Tokens of every slot.")] = 768,
) -> None:
    """Measure and print one line a model."""
    context = multiprocessing.get_context("spawn")
    for folder, num_slots in ((None, MINIMIND_SLOTS), (smollm2, SMOLLM2_SLOTS)):
        if folder is not None or num_slots == MINIMIND_SLOTS:
            process = context.Process(target=measure, args=(folder, num_slots, width))
            process.start()
            process.join()


def measure(folder: Path | None, num_slots: int, width: int) -> None:
    import torch

    from agent_rl.inference.local.engine import GenerationEngine
    from agent_rl.modeling.minimind import MiniMindForCausalLM
    from benchmarks.generation import MINIMIND

    small = MiniMindForCausalLM(replace(MINIMIND, num_hidden_layers=1)).eval()
    with GenerationEngine(small, max_batch_size=8, max_context=8) as engine:
        fill(engine, num_slots=8, width=8)  # the libraries' own buffers
    base = resident_bytes("VmRSS")
    model = load(folder)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on: how files are read is not the engine's
    with GenerationEngine(model, max_batch_size=num_slots, max_context=width) as engine:
        fill(engine, num_slots=num_slots, width=width)
    cache = cache_bytes(model.config) * num_slots * width
    grown = resident_bytes("VmHWM") - base
    print(
        f"{type(model).__name__}, {torch.get_num_threads()} threads: weights {weights / 2**20:.0f} MiB, cache of "
        f"{num_slots} x {width} tokens {cache / 2**20:.0f} MiB, peak {grown / 2**20:.0f} MiB: "
        f"{grown / (weights + cache):.2f} times the two",
        flush=True,
    )


def fill(engine: Any, *, num_slots: int, width: int) -> None:
    """Generate in every slot to its end."""
    import torch

    from agent_rl.records import SamplingParams

    num_new = min(32, width // 2)
    prompts = torch.randint(3, 4000, (num_slots, width - num_new)).tolist()
    samplings = [SamplingParams(max_new_tokens=num_new, seed=seed) for seed in range(num_slots)]
    with ThreadPoolExecutor(num_slots) as pool:
        list(pool.map(engine.generate, prompts, samplings))


def load(folder: Path | None) -> Any:
    if folder is None:
        from agent_rl.modeling.minimind import MiniMindForCausalLM
        from benchmarks.generation import MINIMIND

        return MiniMindForCausalLM(MINIMIND).eval()
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder).eval()


def cache_bytes(config: Any) -> int:
    """Keys and values of one token in float32."""
    return config.num_hidden_layers * 2 * config.num_key_value_heads * config.head_dim * 4


def resident_bytes(field: str) -> int:
    """`VmRSS`, resident now, or `VmHWM`, the most so far."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    typer.run(main)
