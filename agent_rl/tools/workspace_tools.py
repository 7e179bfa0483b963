"""Tools on the files of an episode, for any environment: `code_exec`, `pytest_run`, `file_write`, `file_read`.

An episode's workspace is a dictionary of texts in memory, and its tools share it. Programs and tests run in a sandbox
that the whole run shares, on a copy: what a program writes is gone when it ends. How a program's end is told to the
model is here for environments with a `code_exec` of their own too.
Not here: a verdict on a program (`sandbox/graders.py`, `envs/code/`).
"""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal, Protocol

from agent_rl.errors import SandboxError
from agent_rl.sandbox.limits import Limits, RunResult, Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.workspace import WorkspaceError
from agent_rl.tools.base import BaseTool, ToolResult, shortened
from agent_rl.tools.file_tools import FileReadTool, Files, FileWriteTool

NO_OUTPUT = "no output"
MAX_ERROR_CHARS = 200
_LINE = re.compile(r'^  File "main\.py", line (\d+)', re.MULTILINE)
_TRACEBACK = re.compile(r"^(Traceback \(most recent call last\):|  File \"main\.py\")", re.MULTILINE)
_TEST_FILE = re.compile(r"(.*/)?(test_[^/]*|[^/]*_test)\.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeWorkspace:
    """What the tools of one episode share."""

    get_sandbox: Callable[[], Sandbox]
    """The run's sandbox; SandboxError where it is not running."""
    output_chars: int
    """Characters that the model reads of what a program prints, or of pytest's report."""
    files: Files = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceTool:
    """An entry of `tools.use` whose tool is made of the workspace of its episode."""

    kind: type[BaseTool]
    make: Callable[[EpisodeWorkspace], BaseTool]
    needs_sandbox: bool = False


class ProgramTool(BaseTool):
    """`code_exec` without tests: runs a program beside the files of its episode."""

    name = "code_exec"
    description = "Run a Python program and read what it prints."
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}

    def __init__(self, workspace: EpisodeWorkspace) -> None:
        self._workspace = workspace

    def __call__(self, **arguments: Any) -> ToolResult:
        sandbox = self._workspace.get_sandbox()
        try:
            run = sandbox.run_python(arguments["code"], files=self._workspace.files)
        except OSError as error:
            raise SandboxError(f"the sandbox cannot work: {error!r}") from error
        except WorkspaceError as error:
            return ToolResult(text=f"error: {error}", ok=False)
        lines = [*printed(run, self._workspace.output_chars), *failure(run, sandbox.limits)]
        return ToolResult(text="\n".join(lines) or NO_OUTPUT, ok=run.status is Status.OK)


class PytestTool(BaseTool):
    """`pytest_run` on the test files of its episode; `src/` can be imported."""

    name = "pytest_run"
    description = "Run the tests among the files with pytest and read its report."
    parameters = {"type": "object", "properties": {}, "required": []}

    def __init__(self, workspace: EpisodeWorkspace) -> None:
        self._workspace = workspace

    def __call__(self, **arguments: Any) -> ToolResult:
        files = self._workspace.files
        targets = sorted(path for path in files if _TEST_FILE.fullmatch(path))
        if not targets:
            return ToolResult(text="error: there are no tests yet; write a file such as test_main.py first", ok=False)
        sandbox = self._workspace.get_sandbox()
        try:
            run = sandbox.run_pytest(files, targets)
        except OSError as error:
            raise SandboxError(f"the sandbox cannot work: {error!r}") from error
        report = [shortened(run.stdout.strip("\n"), self._workspace.output_chars)] if run.stdout.strip() else []
        stopped = failure(run, sandbox.limits) if run.status is not Status.NONZERO else []
        return ToolResult(text="\n".join([*report, *stopped]) or NO_OUTPUT, ok=run.status is Status.OK)


def printed(run: RunResult, output_chars: int) -> list[str]:
    """What a program printed as the model reads it: its stdout, and behind `stderr:` what it wrote there itself.

    A traceback is left out, `failure` has its end. Of both together `output_chars` characters at most.
    """
    out, err = run.stdout.strip("\n"), _written(run)
    lines = [clipped(out, output_chars)] if out.strip() else []
    room = output_chars - len(out)
    return [*lines, f"stderr: {clipped(err, room)}"] if err and room > 0 else lines


def _written(run: RunResult) -> str:
    """stderr without what `failure` tells: a traceback, or the last line of a program that failed without one."""
    if found := _TRACEBACK.search(run.stderr):
        return run.stderr[: found.start()].strip()
    text = run.stderr.strip()
    return text.rpartition("\n")[0].strip() if run.status in (Status.NONZERO, Status.CRASHED) else text


def failure(run: RunResult, limits: Limits, *, num_lines_before: int = 0) -> list[str]:
    """How a program failed: the limit it ran into, or the end of its traceback with the last line of its own in it.

    One line, none where it did not fail. `num_lines_before` lines of `main.py` are not the model's.
    """
    if run.status is Status.OK:
        return []
    stopped = {
        Status.TIMEOUT: f"stopped after {limits.wall_s:g} s",
        Status.MEMORY: f"stopped at {limits.memory_mb} MB of memory",
        Status.PROCESS_LIMIT: "stopped, too many processes",
        Status.OUTPUT_LIMIT: "stopped, too much output",
    }
    if run.status in stopped:
        return [f"error: {stopped[run.status]}"]
    message = run.stderr.strip().rpartition("\n")[2].strip()
    if not message:
        return [f"error: exit code {run.exit_code}"]
    lines = [int(number) for number in _LINE.findall(run.stderr)]
    where = f" in line {lines[-1] - num_lines_before}" if lines and lines[-1] > num_lines_before else ""
    return [f"error{where}: {clipped(message, MAX_ERROR_CHARS)}"]


def clipped(text: str, chars: int) -> str:
    """The first `chars` characters, with dots where some are missing."""
    return text if len(text) <= chars else f"{text[:chars]}..."


class ProgramLimits(Protocol):
    """What a configuration says of the sandbox of programs."""

    time_limit_s: float
    memory_mb: int
    workers: int
    sandbox_tier: Literal["auto", "namespaces", "landlock", "rlimits"]


def open_sandbox(config: ProgramLimits, *, output_kb: int = 64, reuse_verdicts: bool = False) -> Sandbox:
    """A sandbox for programs that a model wrote, of this interpreter; SandboxError where none can be had.

    `output_kb` is kept of what a program prints; `reuse_verdicts` as of `Sandbox.open`.
    """
    limits = Limits(
        wall_s=config.time_limit_s,
        cpu_s=ceil(config.time_limit_s),
        memory_mb=config.memory_mb,
        processes=16,
        open_files=64,
        output_kb=output_kb,
        output_hard_kb=256,
    )
    return Sandbox.open(
        python=sys.executable,
        limits=limits,
        size=config.workers,
        tier=config.sandbox_tier,
        reuse_verdicts=reuse_verdicts,
    )


code_exec = WorkspaceTool(kind=ProgramTool, make=ProgramTool, needs_sandbox=True)
pytest_run = WorkspaceTool(kind=PytestTool, make=PytestTool, needs_sandbox=True)
file_write = WorkspaceTool(kind=FileWriteTool, make=lambda workspace: FileWriteTool(workspace.files))
file_read = WorkspaceTool(kind=FileReadTool, make=lambda workspace: FileReadTool(workspace.files))
