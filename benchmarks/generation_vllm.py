"""The in-process engine against vLLM's CPU build, side by side in one interpreter: tokens per second.

    .venv-vllm/bin/python benchmarks/generation_vllm.py [--model model/smollm2-135m] [--batch-sizes 16]

Same weights, prompts and numbers of new tokens as `generation.py`, by turns; medians of the repeats. vLLM's engine runs
in a process of its own, as `vllm.LLM` starts it, and forgets its prefixes before every repeat. Not here: servers, GPUs.
"""

import agent_rl  # noqa: F401, I001  first: says how long PyTorch's threads wait

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from generation import PROMPT_TOKENS, make_prompts, medians_s
from transformers import AutoModelForCausalLM

from agent_rl.inference.local.engine import GenerationEngine
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.records import SamplingParams


def start_vllm(model: Path, dtype: str, batch_size: int, window: int) -> Any:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm import LLM

    return LLM(str(model), dtype=dtype, max_model_len=window, max_num_seqs=batch_size, disable_log_stats=True)


def run_vllm(llm: Any, prompts: list[list[int]], num_new: int) -> None:
    from vllm import SamplingParams as VLLMSampling

    llm.reset_prefix_cache()
    sampling = [VLLMSampling(temperature=1.0, max_tokens=num_new, ignore_eos=True, seed=n) for n in range(len(prompts))]
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)


def main(
    model: Annotated[Path, typer.Option(help="Folder in Hugging Face format.")] = Path("model/smollm2-135m"),
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "16",
    new_tokens: Annotated[int, typer.Option(help="New tokens of every row.")] = 48,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
) -> None:
    """Measure and print a line per batch size."""
    module = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    sizes, window = [int(size) for size in batch_sizes.split(",")], PROMPT_TOKENS + new_tokens
    llm = start_vllm(model, dtype, max(sizes), window)
    for size in sizes:
        prompts = make_prompts(size, module.config.vocab_size)
        engine = GenerationEngine(module, max_batch_size=size, max_context=window)
        with closing(engine), ThreadPoolExecutor(size) as pool:

            def ours(engine: GenerationEngine = engine, prompts: list = prompts, pool: Any = pool) -> None:
                engine.refresh_weights(engine.weight_version + 1)
                release_openmp_threads()
                seeds = [SamplingParams(max_new_tokens=new_tokens, seed=seed) for seed in range(len(prompts))]
                list(pool.map(engine.generate, prompts, seeds))

            ours_s, vllm_s = medians_s([ours, lambda prompts=prompts: run_vllm(llm, prompts, new_tokens)], repeats)
        total = size * new_tokens
        print(
            f"batch {size}: vLLM {total / vllm_s:,.0f} tokens/s, agent_rl {total / ours_s:,.0f} tokens/s, ratio "
            f"{vllm_s / ours_s:.2f} ({dtype}, median of {repeats})",
            flush=True,
        )


if __name__ == "__main__":
    typer.run(main)
