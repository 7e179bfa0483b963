# MUST: whatever the program does to the modules that the server shares, the server survives and reports the exit code.
import builtins
import contextlib
import json
import os
import struct
import sys
import time


def broken(*_: object, **__: object) -> object:
    return b'{"status": "ok", "exit_code": 0}'


really_exit = os._exit
for module in (json, struct, time, *(m for n, m in sys.modules.items() if "sandbox" in n or "guest" in n)):
    for name, value in list(vars(module).items()):
        if callable(value) and not isinstance(value, type):
            with contextlib.suppress(TypeError, AttributeError):
                setattr(module, name, broken)
sys.stdout = sys.stderr = None  # type: ignore[assignment]
sys.excepthook = broken  # type: ignore[assignment]
builtins.print = broken  # type: ignore[assignment]
really_exit(7)
