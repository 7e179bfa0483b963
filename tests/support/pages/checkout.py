"""A folder that looks like the checkout, in which the commands of a page run at a tiny size.

Blocks run as they are written. Only `python` and `agent-rl` are replaced: they add what makes a program small.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SHIM = """#!{python}
import os, sys
tiny = {tiny!r}
words = [{name!r}, *sys.argv[1:]] if {name!r} == "agent-rl" else sys.argv[1:]
known = [start for start in tiny if words[: len(start.split())] == start.split()]
if len(known) != 1:
    sys.exit(f"no tiny size is known for {{words}}")
command = ["-m", "agent_rl.scripts.cli", *words[1:]] if words[0] == "agent-rl" else words
os.execv(sys.executable, [sys.executable, *command, *tiny[known[0]].split()])
"""


def blocks(page: str) -> list[str]:
    """The blocks of commands of a page, by its path."""
    return re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)


def make_checkout(folder: Path, tiny: Mapping[str, str]) -> Path:
    """The checkout's files as links, in which what a command writes is its own; `tiny`: start of a command -> what is
    added to it."""
    for name in ("agent_rl", "benchmarks", "configs", "dataset", "scripts", "tests"):
        (folder / name).symlink_to(ROOT / name)
    for name in (".venv-nat", ".venv-trl", ".venv-vllm"):
        (folder / name).symlink_to(ROOT / name)
    for path in ROOT.glob("requirements*.txt"):
        (folder / path.name).symlink_to(path)
    (folder / "model").mkdir()
    for path in (ROOT / "model").iterdir():
        (folder / "model" / path.name).symlink_to(path)
    (folder / "docs/images").mkdir(parents=True)
    programs = folder / "bin"
    programs.mkdir()
    for name in ("python", "agent-rl"):
        text = SHIM.format(python=sys.executable, tiny=dict(tiny), name=name)
        (programs / name).write_text(text, encoding="utf-8")
        (programs / name).chmod(0o755)
    return folder


class PageFolder:
    """A folder in which a page's commands run as they are written, at their size: `PageFolder(tmp_path).run(block)`."""

    def __init__(self, folder: Path) -> None:
        for name in ("configs", "dataset", "model", "Makefile"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "bin").mkdir()
        program = folder / "bin/agent-rl"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m agent_rl.scripts.cli "$@"\n')
        program.chmod(0o755)
        self._folder = folder
        self.environment = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(self, block: str, timeout_s: float | None = None) -> str:
        """What it prints; it must succeed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=self._folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, block + done.stdout + done.stderr
        return done.stdout


def run_block(block: str, checkout: Path) -> subprocess.CompletedProcess[str]:
    """Run it by bash, which ends at the first command that fails."""
    environment = {**os.environ, "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    command = [shutil.which("bash") or "bash", "-euo", "pipefail", "-c", block]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
