"""The in-process engine against Transformers' `generate`, side by side: tokens per second, tool turns, memory.

    python benchmarks/generation.py [--smollm2 FOLDER] [--repeats 3] [--dtype float32]

Both sample at temperature 1 from the same weights and prompts, in groups of eight as GRPO does, by turns; the figures
are medians of the repeats. The tool workload is 16 episodes of 4 turns with tools of 200 ms: Transformers runs them
in step, all tools of a turn one after the other (as TRL 1.16.0 does without vLLM) or side by side. Not here: training.
"""

import agent_rl  # noqa: F401, I001  first: says how long PyTorch's threads wait

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import AutoModelForCausalLM, StoppingCriteria

from agent_rl.inference.local.engine import GenerationEngine
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.records import SamplingParams
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM

GROUP_SIZE = 8
PROMPT_TOKENS = 64
NUM_EPISODES, NUM_TURNS, TOOL_TOKENS, TOOL_S = 16, 4, 32, 0.2
MINIMIND = MiniMindConfig(
    vocab_size=4096,
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
)


@dataclass(frozen=True)
class Contestants:
    """The same weights twice: for our engine, and as a Transformers model."""

    name: str
    ours: nn.Module
    theirs: Any
    vocab_size: int


def load_contestants(smollm2: Path | None, dtype: torch.dtype) -> Iterator[Contestants]:
    torch.manual_seed(0)
    minimind = MiniMindForCausalLM(MINIMIND).to(dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        minimind.save_pretrained(folder)
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    millions = minimind.num_parameters / 1e6
    yield Contestants(f"MiniMind {millions:.1f}M", minimind, theirs, MINIMIND.vocab_size)
    if smollm2 is not None:
        model = AutoModelForCausalLM.from_pretrained(smollm2, dtype=dtype).eval()
        yield Contestants("SmolLM2 135M", model, model, model.config.vocab_size)


def make_prompts(count: int, vocab_size: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(count)
    num_groups = -(-count // GROUP_SIZE)
    prompts = torch.randint(3, vocab_size, (num_groups, PROMPT_TOKENS), generator=generator).tolist()
    return [prompts[index // GROUP_SIZE] for index in range(count)]


class OwnLengths(StoppingCriteria):
    """Ends every row at its own number of new tokens, as stop ids would."""

    def __init__(self, num_prompt: int, lengths: Sequence[int], device: torch.device) -> None:
        self._ends = torch.tensor([num_prompt + length for length in lengths], device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        return input_ids.shape[1] >= self._ends


@torch.inference_mode()
def generate_theirs(model: Any, prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> list[list[int]]:
    """One call of `generate` for all rows, left-padded."""
    width, device = max(map(len, prompts)), model.device
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    out = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=max(lengths),
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=[OwnLengths(width, lengths, device)],
    )
    return [row[width : width + length].tolist() for row, length in zip(out, lengths, strict=True)]


def turn_lengths() -> list[list[int]]:
    """New tokens of every turn and episode, 16 to 128: replies of agents are short or long. [turns][episodes]"""
    generator = torch.Generator().manual_seed(5)
    return torch.randint(16, 129, (NUM_TURNS, NUM_EPISODES), generator=generator).tolist()


def tool(_: int) -> list[int]:
    time.sleep(TOOL_S)
    return [7] * TOOL_TOKENS


def play_theirs(contestants: Contestants, *, tools_in_parallel: bool) -> None:
    contexts = make_prompts(NUM_EPISODES, contestants.vocab_size)
    with ThreadPoolExecutor(NUM_EPISODES) as pool:
        for turn, lengths in enumerate(turn_lengths()):
            generated = generate_theirs(contestants.theirs, contexts, lengths)
            contexts = [[*context, *new] for context, new in zip(contexts, generated, strict=True)]
            if turn < NUM_TURNS - 1:
                replies = (pool.map if tools_in_parallel else map)(tool, range(NUM_EPISODES))
                contexts = [[*context, *reply] for context, reply in zip(contexts, replies, strict=True)]


def play_ours(contestants: Contestants, engine: GenerationEngine) -> None:
    lengths = turn_lengths()

    def episode(index: int, prompt: list[int]) -> None:
        context = list(prompt)
        for turn in range(NUM_TURNS):
            params = SamplingParams(max_new_tokens=lengths[turn][index], seed=NUM_TURNS * index + turn)
            context += engine.generate(context, params).token_ids
            if turn < NUM_TURNS - 1:
                context += tool(index)

    with ThreadPoolExecutor(NUM_EPISODES) as pool:
        list(pool.map(episode, range(NUM_EPISODES), make_prompts(NUM_EPISODES, contestants.vocab_size)))


def medians_s(contestants: Sequence[Callable[[], None]], repeats: int) -> list[float]:
    """Median wall time of each, taken in turns after one warm-up."""
    for run in contestants:
        run()
    times = [[_seconds(run) for run in contestants] for _ in range(repeats)]
    return [statistics.median(column) for column in zip(*times, strict=True)]


def _seconds(run: Callable[[], None]) -> float:
    release_openmp_threads()  # each starts without the threads of the other
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def batch_rows(contestants: Contestants, batch_sizes: Sequence[int], num_new: int, repeats: int) -> Iterator[list[str]]:
    for batch_size in batch_sizes:
        prompts = make_prompts(batch_size, contestants.vocab_size)
        engine = GenerationEngine(contestants.ours, max_batch_size=batch_size, max_context=PROMPT_TOKENS + num_new)
        with closing(engine), ThreadPoolExecutor(batch_size) as pool:

            def ours(engine: GenerationEngine = engine, prompts: list = prompts, pool: Any = pool) -> None:
                engine.refresh_weights(engine.weight_version + 1)  # nothing is cached from the last repeat
                release_openmp_threads()  # as a rollout does
                seeds = [SamplingParams(max_new_tokens=num_new, seed=seed) for seed in range(len(prompts))]
                list(pool.map(engine.generate, prompts, seeds))

            def theirs(prompts: list = prompts) -> None:
                generate_theirs(contestants.theirs, prompts, [num_new] * len(prompts))

            ours_s, theirs_s = medians_s([ours, theirs], repeats)
        total = batch_size * num_new
        yield [
            contestants.name,
            f"batch {batch_size}",
            f"{total / theirs_s:,.0f} tokens/s",
            f"{total / ours_s:,.0f} tokens/s",
            f"{theirs_s / ours_s:.1f}",
        ]


def tool_rows(contestants: Contestants, repeats: int) -> Iterator[list[str]]:
    engine = GenerationEngine(contestants.ours, max_batch_size=NUM_EPISODES, max_context=704)
    with closing(engine):

        def ours() -> None:
            engine.refresh_weights(engine.weight_version + 1)
            release_openmp_threads()
            play_ours(contestants, engine)

        ours_s, parallel_s, sequential_s = medians_s(
            [
                ours,
                lambda: play_theirs(contestants, tools_in_parallel=True),
                lambda: play_theirs(contestants, tools_in_parallel=False),
            ],
            repeats,
        )
    for name, seconds in (("one after the other", sequential_s), ("side by side", parallel_s)):
        yield [
            contestants.name,
            f"{NUM_TURNS} turns, tools {name}",
            f"{seconds:.2f} s",
            f"{ours_s:.2f} s",
            f"{seconds / ours_s:.1f}",
        ]


def main(
    smollm2: Annotated[
        Path | None, typer.Option(help="Folder of SmolLM2-135M-Instruct; left out when not given.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1)] = 3,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    batch_sizes: Annotated[str, typer.Option(help="Comma-separated.")] = "1,8,16,64",
    new_tokens: Annotated[int, typer.Option(help="New tokens of every row in the batch runs.")] = 128,
    tools: Annotated[bool, typer.Option(help="Also run the tool workload.")] = True,
) -> None:
    """Measure and print one table."""
    table = Table(title=f"{dtype}, {torch.get_num_threads()} threads, PyTorch {torch.__version__}, median of {repeats}")
    for column in ("model", "workload", "Transformers generate", "agent_rl", "ratio"):
        table.add_column(column)
    for contestants in load_contestants(smollm2, getattr(torch, dtype)):
        for row in batch_rows(contestants, [int(size) for size in batch_sizes.split(",")], new_tokens, repeats):
            print(*row, sep="  ", flush=True)
            table.add_row(*row)
        for row in tool_rows(contestants, repeats) if tools else ():
            print(*row, sep="  ", flush=True)
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
