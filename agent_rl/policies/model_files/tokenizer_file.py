"""Try a stranger's tokenizer.json in a process under limits, before the process of the run loads it.

Not here: what is tried (`tokenizer_child.py`), the rest of a model folder (`model_folder.py`).
"""

import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from agent_rl.errors import CheckpointError
from agent_rl.policies.model_files import tokenizer_child

_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")
_TIMEOUT_S = 300.0
_REASON_CHARS = 400


def check_tokenizer_file(path: Path) -> None:
    """CheckpointError, one sentence, for a tokenizer that no run should load; each file is tried once a process."""
    about = path.stat()
    if reason := _complaint(str(path.resolve()), about.st_size, about.st_mtime_ns, about.st_ino):
        raise CheckpointError(f"{path} {reason}; take the tokenizer from its source")


@lru_cache(maxsize=64)
def _complaint(path: str, _size: int, _changed_ns: int, _number: int) -> str:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(Path(tokenizer_child.__file__)), path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment | {"TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"},
            cwd="/",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"takes more than {_TIMEOUT_S:g} s"
    if done.returncode:
        return (
            f"takes more than {tokenizer_child.PROBE_CPU_S} s or {tokenizer_child.PROBE_MEMORY_BYTES >> 20} MiB on a "
            "short text, or to be loaded"
        )
    return " ".join(done.stdout.decode("utf-8", "replace").split())[:_REASON_CHARS]
