"""Rendering of chat templates, which come with a model and are programs of their own: in a process under limits.

A template may count to a billion, write without end, or take all memory once a conversation is long enough; the process
of the run waits for it for a second of computing at most. One process renders for all templates. Not here: what is
rendered (`chat_template.py`), how (`template_child.py`).
"""

import atexit
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from agent_rl.agent import template_child
from agent_rl.closing import Closing

_PASSED_ON = ("PATH", "TZ", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME", "PYTHONPATH")


class TemplateRefusalError(ValueError):
    """A template raised an error on a conversation; perhaps it takes another shape."""


class TemplateLimitError(Exception):
    """A template took more time or memory than any honest one."""


class TemplateProcess(Closing):
    """`render(source, {"messages": [...]})`; safe to call from many threads. It starts with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def render(self, source: str, arguments: dict[str, Any]) -> str:
        """The text that Transformers would render; TemplateRefusalError or TemplateLimitError when there is none."""
        request = json.dumps({"template": source, "arguments": arguments}).encode() + b"\n"
        with self._lock:
            process, answer = self._started(), None
            try:
                with suppress(BrokenPipeError):
                    process.stdin.write(request)
                    process.stdin.flush()
                    answer = _read_answer(process.stdout)
            finally:
                if answer is None:  # interrupted between question and answer, or ended by a limit
                    self._stop()
        if answer is None:
            raise TemplateLimitError(
                f"takes more than {template_child.MAX_CPU_S:g} s or {template_child.MAX_MEMORY_BYTES >> 20} MiB"
            )
        kind, text = answer
        if kind == "error":
            raise TemplateRefusalError(text)
        return text

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():  # a fork must not share the pipes
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(Path(template_child.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                cwd="/",
                start_new_session=True,  # Ctrl-C is for the run
            )
            self._owner = os.getpid()
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # of a request that was not sent
                pipe.close()


def _read_answer(pipe: IO[bytes]) -> tuple[str, str] | None:
    """Kind and text; None where the process ended before it had written both."""
    head = pipe.readline()
    if not head.endswith(b"\n"):
        return None
    kind, size = head.split()
    written = pipe.read(int(size))
    return (kind.decode(), written.decode(errors="surrogatepass")) if len(written) == int(size) else None


_shared = TemplateProcess()
atexit.register(_shared.close)
render = _shared.render
