"""Checks of one machine before a run starts: each looks at one thing and reports it in a line.

A check never raises for what it finds. Facts about the machine are arguments, so that every check can be tested on any
machine. Does not: compute what a run needs (`memory.py`, `engines.py`), run the environment's own checks, print.
"""

import importlib.metadata
import re
import shutil
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from agent_rl.errors import UserError
from agent_rl.planning.machine import GIB


class CheckStatus(StrEnum):
    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """`ok("disk", "12.0 GiB free")`; a failure's text has the remedy."""

    status: CheckStatus
    name: str
    text: str


ok, warning, failed = (partial(MachineCheck, status) for status in CheckStatus)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    name: str
    memory: float
    """Bytes."""


LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""By CUDA's major version, the oldest major version of NVIDIA's driver that programs built with it run on."""


def check_gpus(
    found: Sequence[FoundGpu], *, wanted: int, memory: float, driver: str | None, cuda: str | None = None
) -> MachineCheck:
    """Check for `wanted` GPUs of `memory` bytes each; 0: any number will do.

    `driver` is None without nvidia-smi, `cuda` (CUDA's version) for a PyTorch that was built without it.
    """
    names = ", ".join(f"{gpu.name} {gpu.memory / GIB:.0f} GiB" for gpu in found[:1])
    what = f"{len(found)} x {names}, driver {driver or 'unknown'}" if found else "no GPU"
    if not found and driver is not None:
        return failed("GPUs", f"the driver {driver} is installed, but {_why_unseen(driver, cuda)}")
    if len(found) < wanted:
        return failed("GPUs", f"{what}, and the run needs {wanted}; use another machine or another configuration")
    if wanted and (small := [gpu for gpu in found[:wanted] if gpu.memory < 0.98 * memory]):
        return failed(
            "GPUs",
            f"{len(small)} of {wanted} have {small[0].memory / GIB:.0f} GiB, and the plan is for {memory / GIB:.0f}; "
            "plan again with their name, --set gpu=NAME",
        )
    return ok("GPUs", what if found or wanted else "none found and none required; the run uses the CPU")


def _why_unseen(driver: str, cuda: str | None) -> str:
    """Why PyTorch sees none of the driver's GPUs, and the remedy."""
    if cuda is None:
        return "this PyTorch was built without CUDA; install its CUDA build, and not the one for CPUs"
    numbers = [text.partition(".")[0] for text in (driver, cuda)]
    own, major = (int(text) if text.isdigit() else 0 for text in numbers)
    least = LEAST_DRIVER.get(major, 0)
    if own and own < least:
        return (
            f"this PyTorch was built with CUDA {cuda}, which needs the driver {least} or a newer one; install that, as "
            "the pinned versions of vLLM are built with the same CUDA"
        )
    return "this PyTorch, built with CUDA, sees no GPU; check that CUDA_VISIBLE_DEVICES is not empty"


def read_requirements(paths: Iterable[Path]) -> dict[str, str]:
    """Version by package of the lines `name==version`; `-r` lines are followed."""
    wanted: dict[str, str] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            if match := re.match(r"-r\s+(\S+)", line):
                wanted |= read_requirements([path.parent / match[1]])
            elif match := re.match(r"([A-Za-z0-9._-]+)==([^\s;]+)", line):
                wanted[match[1]] = match[2]
    return wanted


def check_packages(
    paths: Sequence[Path], version_of: Callable[[str], str] = importlib.metadata.version
) -> MachineCheck:
    """Compare installed versions with requirement files; another version is a warning, a missing package a failure."""
    missing, other = [], []
    wanted = read_requirements(paths)
    for name, version in wanted.items():
        try:
            found = version_of(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if found != version:
            other.append(f"{name} {found} instead of {version}")
    files = " and ".join(path.name for path in paths)
    if missing:
        return failed("packages", f"missing: {', '.join(missing)}; pip install -r {' -r '.join(p.name for p in paths)}")
    if other:
        return warning("packages", f"other versions than {files} were tested with: {', '.join(other)}")
    return ok("packages", f"{len(wanted)} as in {files}")


def check_disk(
    folder: Path,
    wanted: float,
    free_bytes: Callable[[Path], int] | None = None,
    *,
    what: str = "checkpoints",
    remedy: str = "set run.output_dir or checkpoint.keep",
) -> MachineCheck:
    """Check for `wanted` free bytes for `what` where `folder` is or will be."""
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    try:
        free = (free_bytes or (lambda path: shutil.disk_usage(path).free))(place)
        (probe := place / f".agent_rl_preflight_{socket.gethostname()}").touch()
        probe.unlink()
    except OSError as error:
        return failed("disk", f"{place} cannot be written to ({error.strerror}); {remedy}")
    text = f"{free / GIB:.1f} GiB free in {place}, {what} take up to {wanted / GIB:.1f}"
    if free < wanted:
        return failed("disk", f"{text}; {remedy}")
    return ok("disk", text) if free > 1.2 * wanted else warning("disk", f"{text}, without logs and transcripts")


def check_memory(wanted: float, available: float) -> MachineCheck:
    """Compare the bytes that all processes of a machine need together, by the plan, with its memory."""
    text = f"{available / GIB:.1f} GiB, the run needs about {wanted / GIB:.1f}"
    if wanted > available:
        return failed("memory", f"{text}; offload less, train fewer weights, or use another machine")
    return ok("memory", text) if wanted < 0.9 * available else warning("memory", f"{text}, less than 10 % spare")


def machine_memory(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Bytes of this machine's memory; a control group's limit counts if it is lower."""
    total = next(
        int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if line.startswith("MemTotal")
    )
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return float(total if text == "max" else min(total, int(text)))


def check_server(address: str, *, timeout_s: float = 3.0) -> MachineCheck:
    """Check an address of `vllm.servers`: a healthy server answers or, on this machine, the port is free for one."""
    name = f"server {address}"
    parts = urllib.parse.urlsplit(address)
    is_here = parts.hostname in ("127.0.0.1", "localhost", "::1", socket.gethostname())
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{address}/health", timeout=timeout_s):
            return ok(name, "answers")
    except urllib.error.HTTPError as error:
        return failed(name, f"a program that is no vLLM server answers {error.code}; stop it, or use another port")
    except OSError as error:
        reason = getattr(error, "reason", error)
        if not is_here:
            return failed(name, f"does not answer ({reason}); start agent-rl serve-vllm there, with --host")
        if isinstance(reason, ConnectionRefusedError):
            return ok(name, "the port is free; start agent-rl serve-vllm before the run")
        return failed(name, f"the port is taken by a program that is no server ({reason}); use another port")


def check_port(port: int) -> MachineCheck:
    """Check that the launcher's port is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return failed("launcher's port", f"{port} is not free ({error.strerror}); add --main_process_port")
    return ok("launcher's port", f"{port} is free")


def check_compilers() -> MachineCheck:
    """Check for the compiler of DeepSpeed's CPU Adam, which `offload_optimizer` needs."""
    if shutil.which("g++") is None:
        return failed("compiler", "g++ is missing, which DeepSpeed needs to build its CPU Adam; install it")
    return ok("compiler", "g++ is installed, for DeepSpeed's CPU Adam")


def check_kernels(lack: str) -> MachineCheck:
    """Check for what compiles the kernels of the model's head on a GPU; `lack`: what is missing."""
    if lack:
        return warning("kernels", f"{lack} is missing; without it the head of the model takes about twice the time")
    return ok("kernels", "a compiler for Triton is installed")


def attempt(name: str, action: Callable[[], str]) -> MachineCheck:
    """Run `action` and report the text that it returns; a UserError is a failure with its sentence."""
    try:
        return ok(name, action())
    except UserError as error:
        return failed(name, str(error))
