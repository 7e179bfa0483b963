"""Figures of the machine a run is on: memory, processors, and its NVIDIA GPUs where their driver answers.

Read from `/proc` once a step, GPUs once a second by a thread, through the driver's own library (NVML), so that no
package is needed. Figures that a system does not have are left out. Not here: memory of PyTorch's allocator.
"""

import ctypes
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from agent_rl.closing import Closing

_PROC = Path("/proc")
_SAMPLE_S = 1.0
_NVML = "libnvidia-ml.so.1"


class HostFigures(Closing):
    """`figures.metrics()` once a step: means since the last call, or what is at the moment."""

    def __init__(self, *, proc: Path = _PROC, gpus: "GPUFigures | None" = None) -> None:
        self._proc = proc
        self._cpu = _cpu_times(proc)
        self._gpus = gpus

    def metrics(self) -> dict[str, float]:
        """`host/*`, and `gpu/*` with a GPU."""
        return dict(self._host()) | (self._gpus.metrics() if self._gpus is not None else {})

    def _host(self) -> Iterator[tuple[str, float]]:
        memory = _memory(self._proc)
        if memory.get("MemTotal") and "MemAvailable" in memory:
            yield "host/memory_share", 1.0 - memory["MemAvailable"] / memory["MemTotal"]
        if (resident := _resident_bytes(self._proc)) is not None:
            yield "host/process_memory_gib", resident / 2**30
        before, self._cpu = self._cpu, _cpu_times(self._proc)
        if before and self._cpu and (total := self._cpu[1] - before[1]) > 0:
            yield "host/cpu_share", min(1.0, max(0.0, 1.0 - (self._cpu[0] - before[0]) / total))

    def close(self) -> None:
        if self._gpus is not None:
            self._gpus.close()


class GPUFigures(Closing):
    """Samples GPUs in a thread; `read` gives one (share of time at work, used bytes, all bytes) for each."""

    def __init__(self, read: Any, *, period_s: float = _SAMPLE_S) -> None:
        self._read = read
        self._work: list[float] = []
        self._memory = 0.0
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._period_s = period_s
        self._thread = threading.Thread(target=self._sample, name="gpu figures", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, uuids: Sequence[str]) -> "GPUFigures | None":
        """Of the GPUs with these ids; None without any, and where NVML is not there or does not answer."""
        try:
            nvml = NVML(uuids) if uuids else None
        except (OSError, AttributeError, NVMLError):
            return None
        return cls(nvml.read) if nvml is not None else None

    def _sample(self) -> None:
        while True:
            try:
                found = self._read()
            except NVMLError:  # a GPU that fell off the bus: the run notices by itself
                return
            with self._lock:
                self._work += [work for work, _, _ in found]
                self._memory = max([self._memory, *(used / total for _, used, total in found if total)])
            if self._is_closed.wait(self._period_s):
                return

    def metrics(self) -> dict[str, float]:
        """Mean share of time at work, and the largest share of memory, over all GPUs since the last call."""
        with self._lock:
            work, memory = self._work, self._memory
            self._work, self._memory = [], 0.0
        return {"gpu/utilization": fmean(work), "gpu/memory_share": memory} if work else {}

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join(2 * self._period_s)


class NVMLError(Exception):
    """The driver's library refused a call."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class NVML:
    """The few calls of NVML that are needed; OSError without the library, NVMLError where it refuses."""

    def __init__(self, uuids: Sequence[str], *, library: Any = None) -> None:
        self._library = library or ctypes.CDLL(_NVML)
        self._call("nvmlInit_v2")
        self._devices = [self._device(uuid) for uuid in uuids]

    def _device(self, uuid: str) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(device))
        return device

    def read(self) -> list[tuple[float, int, int]]:
        """Of each GPU: share of time at work in the last second or less, used bytes, all bytes."""
        found = []
        for device in self._devices:
            work, memory = _Utilization(), _Memory()
            self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(work))
            self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
            found.append((work.gpu / 100.0, memory.used, memory.total))
        return found

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise NVMLError(f"{name} gave {code}")


def gpu_uuids() -> list[str]:
    """Of the GPUs that PyTorch sees, as NVML names them."""
    import torch

    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [f"GPU-{each.uuid}" for each in found if hasattr(each, "uuid")]


def memory_bytes() -> int | None:
    """Memory of this machine."""
    return _memory(_PROC).get("MemTotal")


def cpu_name() -> str | None:
    """As the kernel names the first processor."""
    with suppress(OSError):
        for line in (_PROC / "cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return None


def _memory(proc: Path) -> dict[str, int]:
    """`/proc/meminfo`, in bytes."""
    found = {}
    with suppress(OSError, ValueError):
        for line in (proc / "meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                found[name] = int(value.removesuffix(" kB")) * 1024
    return found


def _resident_bytes(proc: Path) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        return int((proc / "self" / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


def _cpu_times(proc: Path) -> tuple[int, int] | None:
    """Idle time and all time of all processors, in ticks."""
    with suppress(OSError, ValueError, IndexError):
        words = (proc / "stat").read_text().split("\n", 1)[0].split()
        ticks = [int(word) for word in words[1:9]]
        return ticks[3] + ticks[4], sum(ticks)
    return None
