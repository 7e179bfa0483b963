"""The tools `pytest_run` and `nat_check`: run the current project with the real pytest and the real toolkit.

Both run in the sandbox and return text for the model. They are help, not verdicts: the reward is computed apart from
them, on hidden cases.
"""

from collections.abc import Callable
from typing import Any

from agent_rl.envs.nat.factory.cases import example_run
from agent_rl.envs.nat.factory.questions import agent_runs
from agent_rl.envs.nat.judge.check_static import refused_config
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.tools.base import BaseTool, ToolResult, spec_of
from agent_rl.tools.file_tools import FileReadTool, Files, FileWriteTool, SubmitTool

GetToolkit = Callable[[], NatToolkit]
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}


def test_report(*, passed: int, failed: int, details: str = "") -> str:
    """The reply to `pytest_run`: counts first, then what failed."""
    counts = f"{failed} failed, {passed} passed" if failed else f"{passed} passed"
    return f"{counts}\n{details}" if details else counts


class PytestRunTool(BaseTool):
    name = "pytest_run"
    description = "Run the tests of the project with pytest and report what passed and failed."
    parameters = _NO_ARGUMENTS

    def __init__(self, files: Files, get_toolkit: GetToolkit) -> None:
        self.files = files
        self.get_toolkit = get_toolkit

    def __call__(self, **arguments: Any) -> ToolResult:
        targets = sorted(path for path in self.files if path.startswith("tests/test_") and path.endswith(".py"))
        if not targets:
            return ToolResult(text="error: there are no tests yet; write tests/test_PACKAGE.py first", ok=False)
        evidence = self.get_toolkit().run_tests(self.files, targets=targets)
        if evidence.error:
            return ToolResult(text=f"error: {evidence.error}", ok=False)
        bad = [f"{outcome} {test}" for test, outcome in sorted(evidence.outcomes.items()) if outcome != "passed"]
        num_failed = evidence.failed + evidence.errors
        text = test_report(passed=evidence.passed, failed=num_failed, details="\n".join(bad[:5]))
        return ToolResult(text=text, ok=num_failed == 0 and evidence.passed > 0)


class NatCheckTool(BaseTool):
    name = "nat_check"
    description = "Load, build and run the project's workflow on the example of the request with the NAT toolkit."
    parameters = _NO_ARGUMENTS

    def __init__(self, files: Files, get_toolkit: GetToolkit, spec: NATSpec) -> None:
        self.files = files
        self.get_toolkit = get_toolkit
        self.nat_spec = spec

    def __call__(self, **arguments: Any) -> ToolResult:
        spec = self.nat_spec
        if reason := refused_config(self.get_toolkit(), self.files):
            return ToolResult(text=f"error: {reason}", ok=False)
        evidence = self.get_toolkit().run_agent(
            self.files,
            package=spec.package,
            schemas=[],
            runs=agent_runs(spec, (example_run(spec),)),
            react=spec.workflow.kind == "react",
        )
        if evidence.error:
            return ToolResult(text=f"error at {evidence.stage}: {evidence.error}", ok=False)
        answer = evidence.runs[0].answers[0]
        return ToolResult(text=f"built; the example gives {answer!r}", ok=True)


TOOL_SPECS = tuple(spec_of(tool) for tool in (FileWriteTool, FileReadTool, PytestRunTool, NatCheckTool, SubmitTool))
"""The environment's tools as the model sees them, in the order of the registry."""
