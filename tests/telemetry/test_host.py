"""Figures of the machine, from files and a library that stand for the kernel's and the driver's."""

import ctypes
import time
from pathlib import Path
from typing import Any

import pytest

from agent_rl.telemetry.host import NVML, GPUFigures, HostFigures, NVMLError


def write_proc(folder: Path, idle: int, busy: int) -> None:
    (folder / "self").mkdir(exist_ok=True)
    (folder / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable:    250 kB\n")
    (folder / "self/statm").write_text("1000 262144 0 0 0 0 0\n")
    (folder / "stat").write_text(f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n")


def test_shares_are_of_the_time_since_the_last_call(tmp_path: Path) -> None:
    write_proc(tmp_path, idle=100, busy=100)
    figures = HostFigures(proc=tmp_path)
    write_proc(tmp_path, idle=110, busy=130)
    found = figures.metrics()
    assert found["host/memory_share"] == 0.75
    assert found["host/process_memory_gib"] == pytest.approx(1.0)  # pages of 4 KiB
    assert found["host/cpu_share"] == pytest.approx(0.75)
    write_proc(tmp_path, idle=120, busy=130)
    assert figures.metrics()["host/cpu_share"] == 0.0


def test_a_system_without_these_files_has_no_figures(tmp_path: Path) -> None:
    assert HostFigures(proc=tmp_path).metrics() == {}


class Driver:
    """Two GPUs, at work for 20 and 60 %, with 1 and 3 of 4 bytes used."""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, device: Any) -> int:
        numbers = {b"GPU-a": 1, b"GPU-b": 2}
        if uuid not in numbers:
            return 6
        ctypes.cast(device, ctypes.POINTER(ctypes.c_void_p))[0] = numbers[uuid]
        return 0

    def nvmlDeviceGetUtilizationRates(self, device: ctypes.c_void_p, found: Any) -> int:
        found._obj.gpu = {1: 20, 2: 60}[device.value]
        return 0

    def nvmlDeviceGetMemoryInfo(self, device: ctypes.c_void_p, found: Any) -> int:
        found._obj.used, found._obj.total = {1: (1, 4), 2: (3, 4)}[device.value]
        return 0


def test_gpus_are_read_through_the_drivers_library() -> None:
    nvml = NVML(["GPU-a", "GPU-b"], library=Driver())
    assert nvml.read() == [(0.2, 1, 4), (0.6, 3, 4)]
    with pytest.raises(NVMLError, match="nvmlDeviceGetHandleByUUID gave 6"):
        NVML(["GPU-c"], library=Driver())


def test_the_figures_of_gpus_are_means_since_the_last_call() -> None:
    with GPUFigures(NVML(["GPU-a", "GPU-b"], library=Driver()).read, period_s=0.01) as figures:
        deadline = time.monotonic() + 20
        while not (found := figures.metrics()) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert found == {"gpu/utilization": pytest.approx(0.4), "gpu/memory_share": 0.75}


def test_without_gpus_or_a_driver_there_are_no_figures() -> None:
    assert GPUFigures.open([]) is None
