"""The tools `pytest_run` and `nat_check`: run the current project with the real pytest and the real toolkit.

Both run in the sandbox and return text for the model. They are help, not verdicts: the reward is computed apart from
them, on hidden cases.
"""

from collections.abc import Callable, Mapping
from typing import Any

from agent_rl.agent.messages import Message
from agent_rl.envs.nat.factory.cases import example_run
from agent_rl.envs.nat.factory.questions import agent_runs, served_schemas
from agent_rl.envs.nat.judge.check_static import refused_config
from agent_rl.envs.nat.judge.checker import SERVER, serve
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.tools.base import BaseTool, ToolResult, spec_of
from agent_rl.tools.file_tools import FileReadTool, Files, FileWriteTool, SubmitTool

GetToolkit = Callable[[], NatToolkit]
COMPLETION_MARKER = "AGENT_CREATION_COMPLETE"
"""In a reply it means the same as `submit`."""
NO_CALL = "Write the files with file_write, then call submit."
"""The answer to a reply without a call."""
_NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}, "required": []}


def is_marked_complete(message: Message) -> bool:
    """Whether a reply says in words that the project is complete."""
    return COMPLETION_MARKER in message.content


def test_report(*, passed: int, failed: int, details: str = "") -> str:
    """The reply to `pytest_run`: counts first, then what failed."""
    counts = f"{failed} failed, {passed} passed" if failed else f"{passed} passed"
    return f"{counts}\n{details}" if details else counts


def test_files(files: Mapping[str, str]) -> list[str]:
    """Paths of a project's own tests."""
    return sorted(path for path in files if path.startswith("tests/test_") and path.endswith(".py"))


class PytestRunTool(BaseTool):
    name = "pytest_run"
    description = "Run the tests of the project with pytest and report what passed and failed."
    parameters = _NO_ARGUMENTS

    def __init__(self, files: Files, get_toolkit: GetToolkit) -> None:
        self.files = files
        self.get_toolkit = get_toolkit

    def __call__(self, **arguments: Any) -> ToolResult:
        targets = test_files(self.files)
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
        """Two lines: what the workflow gave, and what the MCP server offers; either may be an error.

        Facts: whether it is `built`, the `example` comes out as the request says, and is `served` as the request says;
        `compared`, a line that says what came out beside what the request says, for the example and for each other
        thing that differs.
        """
        compared: list[str] = []
        built, is_right, agent = self._agent(compared)
        serves, is_offered, server = self._server(compared)
        facts = {"built": built, "example": is_right, "served": is_offered, "compared": compared}
        return ToolResult(text=f"{agent}\nmcp: {server}", ok=built and serves, facts=facts)

    def _agent(self, compared: list[str]) -> tuple[bool, bool, str]:
        """Whether it was built, whether the example is right, and a line."""
        spec = self.nat_spec
        if reason := refused_config(self.get_toolkit(), self.files):
            return False, False, f"error: {reason}"
        example = example_run(spec)
        evidence = self.get_toolkit().run_agent(
            self.files,
            package=spec.package,
            schemas=[],
            runs=agent_runs(spec, (example,)),
            react=spec.workflow.kind == "react",
        )
        if evidence.error:
            return False, False, f"error at {evidence.stage}: {evidence.error}"
        (question,) = example.questions
        answer, wanted = evidence.runs[0].answers[0], question.expected
        given = ", ".join(f"{name} = {value!r}" for name, value in question.inputs.items())
        beside = "as the request says" if answer == wanted else f"the request says {wanted!r}"
        compared.append(f"the example, {given}, gives {answer!r}, {beside}")
        return True, answer == wanted, f"built; the example gives {answer!r}"

    def _server(self, compared: list[str]) -> tuple[bool, bool, str]:
        """Whether it answers, whether as the request says, and what it says of itself and answers to the examples."""
        spec = self.nat_spec
        if SERVER not in self.files:
            return False, False, f"there is no {SERVER} yet"
        examples = [] if spec.group else [(tool.instance, tool.example) for tool in spec.tools]
        served = serve(self.get_toolkit(), self.files, example_run(spec), [(n, e.inputs) for n, e in examples])
        if served.error:
            return False, False, f"error at {served.stage}: {served.error}"
        offered, wanted = served.tools, served_schemas(spec)
        is_offered = (served.server_name, offered) == (spec.server.name, wanted)
        is_offered &= list(served.answers) == [example.output for _, example in examples]
        if served.server_name != spec.server.name:
            compared.append(f"mcp: the server is {served.server_name!r}, the request says {spec.server.name!r}")
        if offered != wanted:
            compared.append(f"mcp: the server offers {_told(offered)}, the request says {_told(wanted)}")
        given = "".join(
            f"; the example of {name} gives {answer!r}"
            for (name, _), answer in zip(examples, served.answers, strict=False)
        )
        return True, is_offered, f"answers as {served.server_name!r}; {_told(offered)}{given}"


def _told(tools: Mapping[str, Mapping[str, str]]) -> str:
    """Tools that a server offers, with the types of their arguments."""
    typed = {name: ", ".join(map(": ".join, sorted(types.items()))) for name, types in tools.items()}
    return "; ".join(f"{name}({types})" for name, types in typed.items()) or "no tools"


TOOL_SPECS = tuple(spec_of(tool) for tool in (FileWriteTool, FileReadTool, PytestRunTool, NatCheckTool, SubmitTool))
"""The environment's tools as the model sees them, in the order of the registry."""
