"""What the sandbox's interpreter does with a server of `tools.mcp`: runs its script where the SDK is loaded already.

Loaded into a fork server; each server of the configuration is a fork of it, so it is up in a fraction of a second.
Not here: anything of the host's side (`transport.py`).
"""

import os
import runpy
import sys
import traceback
from typing import Any

import mcp.server.mcpserver  # noqa: F401


def run_server(request: dict[str, Any], workdir: str) -> None:
    """Run the script `path` with `argv` as `__main__`; how it ended is on its stderr."""
    path = os.path.join(workdir, request["path"])
    sys.argv = [path, *request["argv"]]
    sys.path.insert(0, os.path.dirname(path))
    try:
        runpy.run_path(path, run_name="__main__")
    except Exception:  # the boundary to the server's code: its traceback is what a person needs
        traceback.print_exc()


JOBS = {"run_python": run_server}
