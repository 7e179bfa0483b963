"""The verdict on a project: hidden cases through the real toolkit, compared with the oracle in this process.

Only files the spec asks for are looked at. The toolkit's process runs the candidate and returns raw answers; it is
never told what is right, and nothing it says about itself (built, loaded, passed) earns by itself: points come from
answers that agree with the oracle, schemas that agree with the spec, and tests that tell right code from wrong.
This module never runs candidate code, and it decides no weights (`reward.py`).
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.nat.cases import CaseRun, hidden_cases
from agent_rl.nat.families import FAMILIES
from agent_rl.nat.project import render_logic
from agent_rl.nat.spec import NATSpec
from agent_rl.nat.toolkit import AgentEvidence, NatToolkit, TestsEvidence

_JSON_TYPES = {"float": "number", "int": "integer", "str": "string"}
_NUM_MCP_VALID = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Shares in [0, 1], each with its own evidence; `problems` says in words what cost points."""

    static: float
    """Structure of register.py and logic.py: base class, `name=`, decorator, type hints, docstring."""
    behaviour: float
    """Hidden cases answered right by the registered function itself; valid and error cases weigh the same."""
    tests: float
    """The model's own tests: pass on its code and on a right solution, fail on wrong ones."""
    config: float
    """The configuration loads and builds, with the instance and workflow that were asked for."""
    mcp: float
    """The MCP server: handshake, tool schema, right answers over standard input and output."""
    workflow: float
    """Hidden cases answered right end to end through the workflow."""
    problems: tuple[str, ...]

    @property
    def tools(self) -> float:
        return 0.2 * self.static + 0.5 * self.behaviour + 0.3 * self.tests

    @property
    def integration(self) -> float:
        return 0.5 * self.config + 0.5 * self.mcp

    @property
    def complete(self) -> bool:
        """Every component is full."""
        shares = (self.static, self.behaviour, self.tests, self.config, self.mcp, self.workflow)
        return all(share == 1.0 for share in shares)


def check_project(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], *, seed: int) -> CheckReport:
    """Check a project against its spec. Infrastructure failures raise SandboxError; all else is in the report."""
    kept = {path: files[path] for path in spec.files if path in files}
    problems = [f"missing {path}" for path in spec.files if path not in kept]
    cases = hidden_cases(spec, seed)
    static = _static(spec, kept, problems)
    evidence = None
    if all(path in kept for path in spec.files[:4]):
        evidence = _run_agent(toolkit, spec, kept, cases)
    behaviour, workflow = _answers(evidence, cases, problems)
    config = _config(spec, evidence, problems)
    mcp = _mcp(toolkit, spec, kept, cases[0], problems)
    if behaviour == 0.0 and workflow == 0.0:  # a file that merely loads is worth nothing
        config = 0.0
    if len(kept) < len(spec.files):
        config = min(config, 0.5)
    tests = _tests(toolkit, spec, kept, problems)
    return CheckReport(
        static=static,
        behaviour=behaviour,
        tests=tests,
        config=config,
        mcp=mcp,
        workflow=workflow,
        problems=tuple(problems),
    )


def _run_agent(
    toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], cases: tuple[CaseRun, ...]
) -> AgentEvidence:
    return toolkit.run_agent(
        files,
        package=spec.package,
        config_path=f"src/{spec.package}/configs/config.yml",
        instance=spec.instance,
        runs=[{"overrides": run.overrides, "inputs": [dict(case) for case in run.inputs]} for run in cases],
    )


def _answers(evidence: AgentEvidence | None, cases: tuple[CaseRun, ...], problems: list[str]) -> tuple[float, float]:
    """Shares of hidden cases answered right by the function and by the workflow."""
    if evidence is None:
        return 0.0, 0.0
    if evidence.error:
        problems.append(f"toolkit, at {evidence.stage}: {evidence.error}")
    shares = []
    for who in ("function", "workflow"):
        valid, errors = [], []
        for index, run in enumerate(cases):
            given: tuple[Any, ...] = getattr(evidence.runs[index], who) if index < len(evidence.runs) else ()
            for position, expected in enumerate(run.expected):
                right = position < len(given) and type(given[position]) is str and given[position] == expected
                (errors if expected.startswith("error") else valid).append(right)
                if not right and len(problems) < 8 and position < len(given):
                    problems.append(
                        f"{who}: {run.inputs[position]} gave {_show(given[position])}, expected {expected!r}"
                    )
        shares.append((_share(valid) + _share(errors)) / 2)
    return shares[0], shares[1]


def _show(value: Any) -> str:
    """An answer in few characters. A forged one may be nested too deep for `repr`, so only known shapes are shown."""
    if isinstance(value, dict) and isinstance(value.get("exception"), str):
        return str(value["exception"])[:200]
    return repr(value[:200]) if isinstance(value, str) else f"a {type(value).__name__}"


def _share(outcomes: list[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else 1.0


def _config(spec: NATSpec, evidence: AgentEvidence | None, problems: list[str]) -> float:
    """1 when it loads and builds with the right names and live fields, half when it only loads."""
    if evidence is None or evidence.stage in ("import", "load"):
        return 0.0
    share = 1.0
    wanted = {field.name: _JSON_TYPES[field.type] for field in spec.inputs}
    if evidence.stage != "done":
        share = 0.5
    if evidence.workflow_type != spec.type_name:
        problems.append(f"the workflow is {evidence.workflow_type!r}, not {spec.type_name!r}")
        share = 0.5
    if evidence.function_schema != wanted:
        problems.append(f"instance {spec.instance!r} takes {evidence.function_schema}, not {wanted}")
        share = 0.5
    if not all(run.override_applied for run in evidence.runs):
        problems.append(f"the configuration has no field {list(spec.defaults)}")
        share = 0.5
    return share


def _mcp(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], run: CaseRun, problems: list[str]) -> float:
    if "mcp_server.py" not in files or f"src/{spec.package}/logic.py" not in files:
        return 0.0
    picked = list(range(_NUM_MCP_VALID)) + [i for i, text in enumerate(run.expected) if text.startswith("error")]
    inputs = [dict(run.inputs[index]) for index in picked]
    evidence = toolkit.run_mcp(files, server_path="mcp_server.py", tool=spec.instance, inputs=inputs)
    if evidence.error:
        problems.append(f"MCP server, at {evidence.stage}: {evidence.error}")
        return 0.0
    wanted = {field.name: _JSON_TYPES[field.type] for field in spec.inputs}
    schema_right = evidence.tools == {spec.instance: wanted}
    if not schema_right:
        problems.append(f"MCP server offers {evidence.tools}, not {{{spec.instance!r}: {wanted}}}")
    right = [
        position < len(evidence.answers) and evidence.answers[position] == run.expected[index]
        for position, index in enumerate(picked)
    ]
    if not all(right):
        problems.append(f"MCP server answered {sum(right)} of {len(right)} calls right")
    return 0.25 + 0.25 * schema_right + 0.5 * _share(right) if any(right) else 0.0


def _tests(toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], problems: list[str]) -> float:
    """Half for tests that hold on the model's code and on a right solution, half for the wrong ones they catch."""
    path, logic = f"tests/test_{spec.package}.py", f"src/{spec.package}/logic.py"
    if path not in files or logic not in files:
        return 0.0
    package = {f"src/{spec.package}/__init__.py": "", path: files[path]}

    def run(logic_text: str) -> TestsEvidence:
        return toolkit.run_tests({**package, logic: logic_text}, targets=[path])

    if not _all_passed(run(render_logic(spec))):
        problems.append("the tests do not pass on a right solution")
        return 0.0
    if not _all_passed(run(files[logic])):
        problems.append("the tests fail on the project's own code")
        return 0.0
    mutants = FAMILIES[spec.family].mutants(spec)
    caught = [not _all_passed(run(render_logic(spec, body))) for body in mutants]
    if not all(caught):
        problems.append(f"the tests catch {sum(caught)} of {len(caught)} wrong solutions")
    return 0.5 + 0.5 * _share(caught) if any(caught) else 0.0


def _all_passed(evidence: TestsEvidence) -> bool:
    return not evidence.error and evidence.passed > 0 and evidence.passed == evidence.collected


def _static(spec: NATSpec, files: Mapping[str, str], problems: list[str]) -> float:
    """Share of structural points of register.py and logic.py. Looks at the text only."""
    register = _parse(files.get(f"src/{spec.package}/register.py"))
    logic = _parse(files.get(f"src/{spec.package}/logic.py"))
    points = {
        "register.py and logic.py are valid Python": register is not None and logic is not None,
        f"a config class with name={spec.type_name!r}": _has_config_class(register, spec.type_name),
        "a builder under @register_function": _has_builder(register),
        f"{spec.function} has type hints and a docstring": _is_documented(logic, spec.function),
    }
    problems += [f"register.py or logic.py lacks: {name}" for name, holds in points.items() if not holds]
    return _share(list(points.values()))


def _parse(text: str | None) -> ast.Module | None:
    if text is None:
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _has_config_class(module: ast.Module | None, type_name: str) -> bool:
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.ClassDef) and ast.get_docstring(node):
            for keyword in node.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    return keyword.value.value == type_name
    return False


def _has_builder(module: ast.Module | None) -> bool:
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and _last_name(decorator.func) == "register_function":
                    return ast.get_docstring(node) is not None and node.returns is not None
    return False


def _last_name(node: ast.expr) -> str | None:
    """`f` of `f` and of `a.b.f`. Not by `ast.unparse`, which a deeply nested expression would crash."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _is_documented(module: ast.Module | None, function: str) -> bool:
    for node in ast.walk(module) if module else ():
        if isinstance(node, ast.FunctionDef) and node.name == function:
            hinted = all(argument.annotation is not None for argument in node.args.args)
            return hinted and node.returns is not None and ast.get_docstring(node) is not None
    return False
