"""Agents as people have them: a Python function, or a command with an address and a key in its environment.

    async def agent(task, base_url, api_key) -> float | Reward: ...
    python my_agent.py      # OPENAI_BASE_URL, OPENAI_API_KEY, AGENT_RL_TASK

They run as this user, with this process's rights: nothing of them is in the sandbox. A function that ignores its
deadline is left behind in its thread, where the endpoint refuses whatever it asks; a command is killed with all its
children. Not here: rewards, sessions.
"""

import asyncio
import inspect
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from agent_rl.data.tasks import Task
from agent_rl.errors import in_one_line, raised_at
from agent_rl.failures import MAX_TRACEBACK_CHARS

POLL_S = 0.02
MAX_OUTPUT = 2**16
"""Bytes of a command's output that are read, from its end."""
MAX_TASK_BYTES = 96 * 2**10
"""Longest task row for a command; the kernel takes 128 KiB for one variable."""


class AgentFailedError(Exception):
    """The agent failed; the text says how and, for a Python function, where in the user's code."""

    said = ""
    """End of what a command wrote to its standard error."""


class AgentLateError(Exception):
    """The agent was still running at its deadline, or when the rollout was cancelled."""


class IsOver(Protocol):
    """Whether the agent has to end now."""

    def __call__(self) -> bool: ...


class Agent(Protocol):
    name: str

    def run(self, task: Task, base_url: str, key: str, *, is_over: IsOver) -> Any:
        """Play one episode and return what the agent returned, or its output. AgentFailedError, AgentLateError."""


class FunctionAgent:
    """`agent(task, base_url, api_key)`, plain or `async`."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self._function = function

    def run(self, task: Task, base_url: str, key: str, *, is_over: IsOver) -> Any:
        call = _Call(self._function, (dict(task), base_url, key))
        threading.Thread(target=call.run, name="agent", daemon=True).start()
        while not call.done.wait(POLL_S):
            if is_over():
                call.cancel()
                raise AgentLateError
        if call.error is not None:
            raise AgentFailedError(describe(call.error)) from call.error
        return call.result


class _Call:
    """One call in a thread of its own, with an event loop where the function is a coroutine function."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self._function, self._arguments = function, arguments
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None

    def run(self) -> None:
        try:
            result = self._function(*self._arguments)
            self.result = asyncio.run(self._await(result)) if inspect.isawaitable(result) else result
        except BaseException as error:  # the user's code, whatever it raises, is told to who waits
            self.error = error
        finally:
            self.done.set()

    async def _await(self, result: Any) -> Any:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        return await result

    def cancel(self) -> None:
        if self._loop is not None and self._task is not None:
            with suppress(RuntimeError):  # the loop is closed: it has just ended
                self._loop.call_soon_threadsafe(self._task.cancel)


class CommandAgent:
    """A program: exit code 0, and its output is the result."""

    def __init__(self, command: Sequence[str]) -> None:
        self.name = " ".join(command)
        self._command = list(command)

    def run(self, task: Task, base_url: str, key: str, *, is_over: IsOver) -> str:
        environment = {**os.environ, **variables(task, base_url, key)}
        with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
            try:
                process = subprocess.Popen(
                    self._command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                )
            except OSError as error:
                raise AgentFailedError(f"{self.name}: {error.strerror}") from error
            try:
                while process.poll() is None:
                    if is_over():
                        raise AgentLateError
                    time.sleep(POLL_S)
            finally:
                _kill_group(process)
            if process.returncode:
                said = _tail(errors).strip()
                last = f": {said.splitlines()[-1][:300]}" if said else ""
                failure = AgentFailedError(f"{self.name} ended with exit code {process.returncode}{last}")
                failure.said = said[-MAX_TRACEBACK_CHARS:]
                raise failure
            return _tail(output)


def variables(task: Task, base_url: str, key: str) -> dict[str, str]:
    """What a command finds in its environment; proxies are kept from what is on this machine."""
    host = base_url.split("//", 1)[1].split("/", 1)[0].rsplit(":", 1)[0]
    no_proxy = ",".join(filter(None, [os.environ.get("NO_PROXY") or os.environ.get("no_proxy"), host]))
    return {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
        "AGENT_RL_TASK": json.dumps(task),
        "NO_PROXY": no_proxy,
        "no_proxy": no_proxy,
    }


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """End the command and what it started; also after it ended by itself, where children may be left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _tail(file: Any) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - MAX_OUTPUT))
    return file.read().decode(errors="replace")


def describe(error: BaseException) -> str:
    """An error of a user's function in one line, with the innermost line of the user's own code."""
    return in_one_line(error) + raised_at(error)


def parse_output(output: str) -> Any:
    """The reward in a command's output: its last line, as JSON; None where there is none."""
    line = re.split(r"[\r\n]", output.strip())[-1]  # JSON's texts may hold the other characters that end lines
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, int | float | Mapping) else None
