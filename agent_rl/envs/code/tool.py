"""`code_exec`: runs a program in the sandbox, says what it printed and how it failed, and has a task's tests judge it.

A program that fails by itself is not judged: it passes no test. What was run is kept in `attempts` for whoever scores
the episode. Not here: the tests (`task.py`), the reward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agent_rl.envs.code.task import CodeTask, Judged
from agent_rl.errors import SandboxError
from agent_rl.sandbox.freeze import screen
from agent_rl.sandbox.limits import Status
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.verdict import Verdict
from agent_rl.tools.base import BaseTool, ToolResult
from agent_rl.tools.workspace_tools import NO_OUTPUT, failure, printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A program that was run."""

    code: str
    """As it was handed in."""
    verdict: Verdict
    """Of the tests; without any outcome where the program failed by itself, or where there are no tests."""


class CodeExecTool(BaseTool):
    """Without a task it runs programs and judges nothing."""

    name = "code_exec"
    description = "Run a Python program and its tests."
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}

    def __init__(
        self, get_sandbox: Callable[[], Sandbox], task: CodeTask | None = None, *, output_chars: int = 400
    ) -> None:
        self.attempts: list[Attempt] = []
        self._get_sandbox, self._task, self._output_chars = get_sandbox, task, output_chars

    def __call__(self, **arguments: Any) -> ToolResult:
        attempt, text, ended_well = self.try_out(arguments["code"])
        self.attempts.append(attempt)
        return ToolResult(text=text, ok=ended_well, terminal=attempt.verdict.full)

    def try_out(self, code: str) -> tuple[Attempt, str, bool]:
        """Run and judge a program; the text is what the model reads, the truth value whether the program ended well.

        Raises SandboxError for whatever the system refuses to the sandbox, such as descriptors: no program is to blame.
        """
        program = self._task.program(code) if self._task else code
        judged: Judged | None = None
        try:
            sandbox = self._get_sandbox()
            run = sandbox.run_python(program)
            if self._task and run.status is Status.OK:
                judged = self._task.judge(sandbox, code)
        except OSError as error:
            raise SandboxError(f"the sandbox cannot work: {error!r}") from error
        num_given = program.count("\n") - code.count("\n")
        lines = [*printed(run, self._output_chars), *failure(run, sandbox.limits, num_lines_before=num_given)]
        if judged:
            lines.append(judged.report)
        verdict = judged.verdict if judged else Verdict(status=run.status, flags=screen(code))
        return Attempt(code=code, verdict=verdict), "\n".join(lines) or NO_OUTPUT, run.status is Status.OK
