# MUST: a run whose `os._exit` does nothing is still one run: it ends, and the server is not entered twice.
import builtins
import os
import sys

import attack  # noqa: F401  names the process


def nothing(*_: object, **__: object) -> None:
    return None


os._exit = nothing  # type: ignore[assignment]
sys.exit = nothing  # type: ignore[assignment]
os.waitpid = nothing  # type: ignore[assignment]
builtins.exit = nothing
print("main done", flush=True)
