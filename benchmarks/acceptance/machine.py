"""What the machine is and can do, and whether the tests that a GPU is needed for pass on it."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from functools import partial

from acceptance.figures import Recorder, Setting, Skip, need
from acceptance.runner import ROOT, environment

PACKAGES = ("torch", "transformers", "accelerate", "triton", "deepspeed", "peft", "vllm")
DEVICE_TESTS = (
    "tests/modeling/test_packed_attention.py",
    "tests/algorithms/test_logprobs.py",
    "tests/learning/test_logprob_model.py",
)
GPU_TESTS = (
    "tests/planning/test_plan_measured.py",
    "tests/modeling/test_packed_attention.py",
    "tests/distributed/test_allocator.py",
)


def describe(device: str) -> dict[str, str]:
    """Names and versions that every result carries."""
    found = {"python": platform.python_version(), "system": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    if device == "cpu":
        return found | {"device": f"CPU, {os.cpu_count()} cores"}
    import torch

    found |= {"device": torch.cuda.get_device_name(0), "cuda": str(torch.version.cuda), "driver": "unknown"}
    if (program := shutil.which("nvidia-smi")) is not None:
        words = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
        answer = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        found["driver"] = answer.stdout.strip().partition("\n")[0] or "unknown"
    return found


def measure_machine(setting: Setting, out: Recorder) -> None:
    """A square product in bfloat16, and a copy of 4 GiB (read and written, as data sheets count)."""
    import torch
    from acceptance.models import seconds_of

    from agent_rl.telemetry.flops import gpu_row

    device, size = setting.device, setting.pick(8192, 256)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    rate = 2 * size**3 / seconds_of(partial(torch.matmul, a, b), device, 20) / 1e12
    out.figure("product_tflops", rate)
    del a, b
    source = torch.empty(setting.pick(4 * 2**30, 2**22), device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    speed = 2 * source.numel() / seconds_of(partial(target.copy_, source), device, 20) / 1e12
    out.figure("copy_tb_s", speed)
    if not setting.is_gpu:
        return
    row = gpu_row(torch.cuda.get_device_name(0))
    if row is None or row[-1] is None:
        out.note("the GPU is not in the table of data sheets (`telemetry/flops.py`)")
        return
    out.figure("product_share", rate / row[1])
    out.figure("copy_share", speed / row[-1])


def run_tests(setting: Setting, out: Recorder) -> None:
    """Tests marked `gpu`, and those of models and log-probs on the device; in a tiny run a few of them."""
    need("pytest")
    words = ["-k", "padded_rows or of_four_logits or fresh_critic"] if setting.tiny else []
    try:
        need("peft")
    except Skip as skip:
        words = words or ["-k", "not lora"]
        out.note(f"{skip}: cases with adapters were left out")
    _pytest(setting, out, "device", [*DEVICE_TESTS, *words], {"AGENT_RL_TEST_DEVICE": setting.device})
    if setting.is_gpu:
        _pytest(setting, out, "gpu", [*GPU_TESTS, "-m", "gpu"], {})


def _pytest(setting: Setting, out: Recorder, kind: str, words: list[str], variables: dict[str, str]) -> None:
    report = setting.folder / f"{kind}.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, *words]
    started = time.monotonic()
    ran = subprocess.run(command, cwd=ROOT, env=environment() | variables, capture_output=True, text=True, check=False)
    if not report.exists():
        raise RuntimeError(f"pytest wrote no report: {(ran.stderr or ran.stdout)[-1500:]}")
    cases = list(ET.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    num_skipped = sum(case.find("skipped") is not None for case in cases)
    out.figure(f"{kind}_passed", len(cases) - len(bad) - num_skipped)
    out.figure(f"{kind}_skipped", num_skipped)
    out.figure(f"{kind}_failed", len(bad))
    out.figure(f"{kind}_s", time.monotonic() - started)
    for case in bad:
        why = (case.find("failure") if case.find("failure") is not None else case.find("error")).get("message", "")
        out.note(f"failed: {case.get('name')}: {why.partition(chr(10))[0][:200]}")
