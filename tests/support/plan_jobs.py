"""Models of round numbers, and jobs that train them."""

from dataclasses import replace
from typing import Any

from agent_rl.config import Config, parse_config
from agent_rl.planning.gpus import find_gpu
from agent_rl.planning.layout import Layout
from agent_rl.planning.machine import Machine
from agent_rl.planning.memory import Job
from agent_rl.planning.shapes import ModelShape

H100 = find_gpu("H100")
# 1000 weights: a table and a head of 100 each, 2 layers of 400.
SMALL = ModelShape(
    name="small",
    num_weights=1000,
    num_matmul_weights=800,
    num_head_weights=100,
    largest_weight=100,
    largest_layer=400,
    num_layers=2,
    hidden_size=10,
    intermediate_size=30,
    num_heads=2,
    num_kv_heads=1,
    head_dim=5,
    vocab_size=10,
    linear_widths={"q_proj": 40, "down_proj": 80},
)
# The same with a few billion weights, where no bucket is as large as the model.
LARGE = replace(
    SMALL,
    num_weights=8_000_000_000,
    num_matmul_weights=7_000_000_000,
    num_head_weights=500_000_000,
    largest_weight=500_000_000,
    largest_layer=200_000_000,
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14_336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128_000,
)


def make_config(**sections: dict[str, Any]) -> Config:
    raw = {
        "data": {"train_path": "a.jsonl", "eval_path": "b.jsonl"},
        "env": {"name": "nat_agent_creation"},
        "model": {"path": "x", "dtype": "float32"},
        "policy": {"type": "huggingface", "max_new_tokens": 8, "max_context": 16},
        "rollout": {"group_size": 2, "groups_per_step": 3},
        "train": {"steps": 1, "learning_rate": 1e-3, "micro_batch_tokens": 16},
    }
    merged = {name: raw.get(name, {}) | sections.get(name, {}) for name in raw.keys() | sections.keys()}
    return parse_config(merged, source="test")


def make_job(shape: ModelShape = SMALL, layout: Layout | None = None, **sections: dict[str, Any]) -> Job:
    return Job(shape=shape, config=make_config(**sections), layout=layout or Layout(), is_cpu=False, overhead=0.0)


def assumed(**keys: Any) -> Machine:
    """Episodes of one turn on one machine: `assumed(prompt_tokens=10, new_tokens=6, tool_tokens=4)`."""
    return Machine(**{"turns": 1, "link_gb_s": 150} | keys)
