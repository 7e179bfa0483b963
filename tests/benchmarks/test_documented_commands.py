"""The commands that made the figures of docs/benchmarks.md and docs/results.md still run, each block at a tiny size.

Blocks run as they are written, in a folder that looks like the checkout. Only `python` and `agent-rl` are replaced:
they add what makes a program small, and a model that a block makes is written elsewhere than over the shipped one.
"""

from pathlib import Path

import pytest
from checkout import blocks, make_checkout, run_block

TRAIN = "train.steps=1 rollout.group_size=2 rollout.groups_per_step=2 data.max_eval_tasks=1 checkpoint.every=1"
SMALL_POLICY = "policy.max_new_tokens=8"
SFT = "--num-demonstrations 16"
TINY = {
    "benchmarks/service/service_load.py": "--jobs 3",
    "benchmarks/ablations.py": f"{TRAIN} {SMALL_POLICY} --seeds 0 --variants=RLOO",
    "benchmarks/async_simulation.py": "--steps 20",
    "benchmarks/controls.py": TRAIN,
    "benchmarks/generation.py": "--repeats 1 --new-tokens 2 --batch-sizes 1,2 --no-tools",
    "-m benchmarks.generation_memory": "--width 8",
    "benchmarks/hostile/weak_cases.py": "--limit 2 --fresh 20",
    "benchmarks/over_seeds.py": "",
    "benchmarks/pass_at_k.py": "",
    "benchmarks/race.py": "--minutes 0.001 --seeds 1 --points 1 --tasks reverse_text --models small --prompts 2 "
    "--group-size 2 --num-train 8 --num-eval 2 --demonstrations 16",
    "benchmarks/recheck.py": "--num 1",
    "benchmarks/sandbox.py": "--rounds 1 --calls 1",
    "benchmarks/step_time.py": f"{TRAIN} {SMALL_POLICY}",
    "benchmarks/train_step.py": "--repeats 1 --steps 1 --prompts 1 --group-size 4 --new-tokens 24",
    "scripts/gpu_acceptance.py": "--tiny --device cpu --part parity",
    "scripts/plot_success.py": "",
    "agent_rl/scripts/train_sft.py": SFT,
    "agent_rl/scripts/train_nat_agent.py": f"{TRAIN} {SMALL_POLICY}",
    "agent_rl/scripts/train_math_agent.py": TRAIN,
    "agent_rl/scripts/train_search_agent.py": f"{TRAIN} {SMALL_POLICY}",
    "agent_rl/scripts/train_code_exec_agent.py": f"{TRAIN} {SMALL_POLICY}",
    "agent-rl eval": "data.max_eval_tasks=4",
    "agent-rl sft": SFT,
    "agent-rl train": TRAIN,
}
"""Start of a command -> what is added to it."""
IN_PLACE_OF = {
    "step_00080": "step_00001",
    "step_00100": "step_00001",
    "--minutes 30": "--minutes 0.6",
    "math_grpo 1\n": "math_grpo 0.3\n",
    "search_qa_grpo 1.2": "search_qa_grpo 0.3",
    "in 0 1 2": "in 0",
    ",runs/rl-1,runs/rl-2": "",
    ",runs/rejection-1,runs/rejection-2": "",
    ",runs/$1-1,runs/$1-2": "",
    "--output-dir model/": "--output-dir runs/made/",
    "benchmarks/generation_vllm.py --batch-sizes 16,64": "benchmarks/generation_vllm.py --batch-sizes 2 --new-tokens 2",
}
PAGES = ("docs/benchmarks.md", "docs/results.md")
BLOCKS = [pytest.param(block, id=f"{Path(page).stem}-{i}") for page in PAGES for i, block in enumerate(blocks(page))]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path, TINY)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", BLOCKS)
def test_a_documented_block_runs_at_a_tiny_size(block: str, checkout: Path) -> None:
    for text, tiny in IN_PLACE_OF.items():
        block = block.replace(text, tiny)
    ran = run_block(block, checkout)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]


def test_every_tiny_size_belongs_to_a_documented_command() -> None:
    documented = "\n".join(block for page in PAGES for block in blocks(page))
    assert [start for start in TINY if start not in documented] == []
