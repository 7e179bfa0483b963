"""The plan against real trainings: resident memory of processes, and their peak."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from distributed import plan_run
from distributed.ranks import start_ranks

from agent_rl.planning.fit import fit, total
from agent_rl.planning.gpus import find_gpu
from agent_rl.planning.layout import Layout, read_layout
from agent_rl.planning.memory import CPU_BASE, Job, resident
from agent_rl.planning.shapes import shape_of

SIZES = {
    "vocab_size": 16_000,
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 1408,
}
"""38.9 million weights."""
ZERO_3 = Path("configs/deepspeed/zero3.json")
HALF = {"model": {"dtype": "bfloat16"}}
LONG = {
    "rollout": {"group_size": 64},
    "train": {"micro_batch_tokens": 2112},
    "model": {"gradient_checkpointing": True},
}
"""Two micro-batches, in which activations and logits weigh as much as the weights."""


def make_job(folder: Path, num: int, settings: Path | None, sections: dict[str, Any], *, is_cpu: bool = True) -> Job:
    layout = Layout(num_processes=num)
    if settings is not None:
        launch = {
            "distributed_type": "DEEPSPEED",
            "num_processes": num,
            "deepspeed_config": {"deepspeed_config_file": str(settings)},
        }
        (folder / "launch.yaml").write_text(json.dumps(launch))
        layout = read_layout(folder / "launch.yaml")
    return Job(
        shape=shape_of(plan_run.model_config(**SIZES), "measured"),
        config=plan_run.plan_config(folder, **sections),
        layout=layout,
        is_cpu=is_cpu,
        overhead=0.0,
    )


def measure(
    folder: Path, num: int, settings: Path | None, sections: dict[str, Any], *, keeps_freed: bool = False
) -> list[dict[str, int]]:
    """Bytes of every process by phase."""
    target = functools.partial(plan_run.train, keeps_freed=keeps_freed)
    ranks = start_ranks(target, folder, SIZES, "cpu", sections, folder=folder, num=num, deepspeed_config=settings)
    codes = ranks.wait(timeout_s=500)
    assert codes == [0] * num, ranks.log(0)
    return [json.loads((folder / f"{rank}_{plan_run.FIGURES}").read_text()) for rank in range(num)]


def planned_peak(job: Job, *, keeps_freed: bool) -> float:
    """Bytes of a process during its update."""
    items = fit(job, None, num_gpus=None, machine_memory=None).places[0].phases["update"]
    return total(items if keeps_freed else items[:-1])  # the last is freed, retained memory


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("num", "settings", "sections"),
    [(1, None, {}), (2, ZERO_3, {}), (4, ZERO_3, {}), (2, ZERO_3, HALF), (1, None, LONG)],
    ids=["one", "zero3_2", "zero3_4", "zero3_2_bfloat16", "one_checkpointing"],
)
def test_resident_and_peak_memory_are_as_planned(
    tmp_path: Path, num: int, settings: Path | None, sections: dict[str, Any]
) -> None:
    job = make_job(tmp_path, num, settings, sections)
    stays = CPU_BASE + total(resident(job))
    peak = planned_peak(job, keeps_freed=False)
    for figures in measure(tmp_path, num, settings, sections):
        print({name: round(value / 1e6) for name, value in figures.items()}, round(stays / 1e6), round(peak / 1e6))
        assert 0.95 * stays < figures["update_kept"] < 1.06 * stays
        assert 0.85 * peak < figures["update_1"] < 1.02 * peak
        # Moments come with the first step, so that the second update takes more.
        assert figures["update_0"] < 0.92 * figures["update_1"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("num", "settings"), [(1, None), (2, ZERO_3)], ids=["one", "zero3_2"])
def test_retained_freed_memory_is_planned(tmp_path: Path, num: int, settings: Path | None) -> None:
    peak = planned_peak(make_job(tmp_path, num, settings, {}), keeps_freed=True)
    for figures in measure(tmp_path, num, settings, {}, keeps_freed=True):
        print({name: round(value / 1e6) for name, value in figures.items()}, round(peak / 1e6))
        assert 0.8 * peak < figures["update_1"] < 1.1 * peak


@pytest.mark.gpu
@pytest.mark.parametrize("sections", [{}, HALF, LONG], ids=["float32", "bfloat16", "checkpointing"])
def test_peak_memory_of_a_gpu_is_as_planned(tmp_path: Path, sections: dict[str, Any]) -> None:
    job = make_job(tmp_path, 1, None, sections, is_cpu=False)
    items = fit(job, find_gpu("H100"), num_gpus=None, machine_memory=None).places[0].phases["update"]
    peak = sum(item.num_bytes for item in items if not item.name.startswith("fragmentation"))
    plan_run.train(tmp_path, SIZES, "cuda", sections, keeps_freed=True)
    figures = json.loads((tmp_path / f"0_{plan_run.FIGURES}").read_text())
    assert 0.75 * peak < figures["update_1"] < 1.1 * peak
