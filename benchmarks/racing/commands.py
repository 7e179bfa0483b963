"""Starts the programs of a race, one at a time; what they print goes to a file. Not here: which, and when."""

import os
import subprocess
import sys
from pathlib import Path

from agent_rl.errors import UserError

BENCHMARKS = Path(__file__).resolve().parents[1]


def start(command: list[str], *, log: Path, threads: int | None = None) -> None:
    """Run a program to its end, with the modules of this folder and of the checkout. UserError when it fails."""
    path = os.pathsep.join(filter(None, [str(BENCHMARKS), str(BENCHMARKS.parent), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path}
    if threads is not None:
        environment |= {"OMP_NUM_THREADS": str(threads)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as output:
        done = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(command)[:200]} ended with {done.returncode}; {log} tells why")


def agent_rl_command(*words: str, log: Path) -> None:
    """Run `agent-rl WORDS` of this checkout."""
    start([sys.executable, "-m", "agent_rl.scripts.cli", *words], log=log)
