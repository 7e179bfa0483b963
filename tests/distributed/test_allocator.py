"""Freed memory stays with the process: the next pass over the same sizes costs no page faults; settings for GPUs."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from agent_rl.distributed import allocator, backend
from agent_rl.distributed.backend import Backend

PROGRAM = """
import resource, sys
import torch
from agent_rl.distributed.allocator import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()
before = 0
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    layers = [torch.ones(4 * 2**20) for _ in range(20)]  # 16 MiB each, 4096 pages
    del layers
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(mode: str) -> int:
    done = subprocess.run([sys.executable, "-c", PROGRAM, mode], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="only glibc has mallopt")
def test_a_pass_over_sizes_that_were_freed_costs_no_page_faults() -> None:
    assert faults("keep") < 5 * 4096
    # Now and then something lies at the end of the heap and keeps all of it. Never: the module can go.
    assert any(faults("leave") > 10 * 4096 for _ in range(6))


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_blocks_grow_on_a_gpu_unless_the_environment_has_settings_of_its_own(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for each in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(each, "")
        monkeypatch.delenv(each)
    allocator.grow_blocks_on_gpu()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    monkeypatch.setenv(name, "max_split_size_mb:64")
    allocator.grow_blocks_on_gpu()
    assert {key: value for key, value in os.environ.items() if key.endswith("ALLOC_CONF")} == {
        name: "max_split_size_mb:64"
    }


def test_a_run_on_a_cpu_sets_nothing_for_gpus_and_reports_no_memory_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "grow_blocks_on_gpu", lambda: pytest.fail("set on a CPU"))
    assert Backend("cpu").memory_metrics() == {}


def test_unused_memory_of_a_gpu_is_peak_against_peak_and_counted_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _device: 9 * 2**30)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: 7 * 2**30)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", resets.append)
    alone = Backend("cpu")
    alone.device = torch.device("cuda", 0)
    assert alone.memory_metrics() == {"memory/reserved_unused_gib": 2.0}
    assert resets == [alone.device]


@pytest.mark.gpu
def test_blocks_of_a_gpu_really_grow() -> None:
    program = """
import torch
from agent_rl.distributed.backend import Backend
backend = Backend("cuda")
torch.ones(3 * 2**20, device="cuda")
print(torch.cuda.memory_snapshot()[0]["is_expandable"], backend.memory_metrics())
"""
    environment = {key: value for key, value in os.environ.items() if not key.endswith("ALLOC_CONF")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("True {'memory/reserved_unused_gib'")
