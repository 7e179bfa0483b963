"""Starts the programs of a long comparison, one at a time; what they print goes to a file. Its settings are kept.

Not here: which programs, and when.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent_rl.errors import ConfigError, UserError
from agent_rl.telemetry.files import write_json

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


def keep_settings(folder: Path, now: Mapping[str, Any]) -> None:
    """Write what a folder is begun with; ConfigError where it was begun with something else."""
    path = folder / "settings.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, now)
        return
    earlier = json.loads(path.read_text(encoding="utf-8"))
    if other := [name for name in now if earlier.get(name) != now[name]]:
        raise ConfigError(
            f"{folder} was begun with {other[0]} = {earlier.get(other[0])}, not {now[other[0]]}; name another folder"
        )
