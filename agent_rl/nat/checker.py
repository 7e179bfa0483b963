"""The verdict on a project: hidden cases through the real toolkit, compared with the oracle in this process.

Only files the spec asks for are looked at. The toolkit's process runs the candidate and returns raw answers; it is
never told what is right, and nothing it says about itself (built, loaded, passed) earns by itself: points come from
answers that agree with the oracle, schemas that agree with the spec, and tests that tell right code from wrong.
This module never runs candidate code, and it decides no weights (`reward.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_rl.nat.cases import CaseRun, hidden_cases
from agent_rl.nat.families import FAMILIES
from agent_rl.nat.project import render_logic
from agent_rl.nat.spec import NATSpec
from agent_rl.nat.toolkit import AgentEvidence, NatToolkit, TestsEvidence
from agent_rl.sandbox.freeze import Flag, freeze, screen

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
    flags: tuple[Flag, ...] = ()
    """What looks like an attempt on the verdict; for metrics, it costs nothing."""

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
    register, logic, config_text = toolkit.parse(
        [
            ("python", kept.get(f"src/{spec.package}/register.py", "")),
            ("python", kept.get(f"src/{spec.package}/logic.py", "")),
            ("yaml", kept.get(f"src/{spec.package}/configs/config.yml", "")),
        ]
    )
    static = _static(spec, register.value, logic.value, problems)
    evidence = None
    if config_text.refused:
        problems.append(f"config.yml is refused: {config_text.refused}")
    elif all(path in kept for path in spec.files[:4]):
        evidence = _run_agent(toolkit, spec, kept, cases)
    behaviour, workflow = _answers(evidence, cases, problems)
    config = _config(spec, evidence, problems)
    mcp = _mcp(toolkit, spec, kept, cases[0], problems)
    if behaviour == 0.0 and workflow == 0.0:  # a file that merely loads is worth nothing
        config = 0.0
    if len(kept) < len(spec.files):
        config = min(config, 0.5)
    tests = _tests(toolkit, spec, kept, problems, is_right=behaviour == 1.0)
    return CheckReport(
        static=static,
        behaviour=behaviour,
        tests=tests,
        config=config,
        mcp=mcp,
        workflow=workflow,
        problems=tuple(problems),
        flags=_flags(spec, files),
    )


def _flags(spec: NATSpec, files: Mapping[str, str]) -> tuple[Flag, ...]:
    """Files nobody asked for, and suspicious patterns in those that were asked for."""
    found = set(freeze({path: text for path, text in files.items() if path not in spec.files}, keep=())[1])
    for path, text in files.items():
        if path in spec.files and path.endswith(".py"):
            # Tests import pytest, and a server asks how it was started: both are what the task asks for.
            usual = {Flag.SOURCE_PATCHES_TESTS} if path.startswith("tests/") else set()
            found |= set(screen(text)) - usual
    return tuple(flag for flag in Flag if flag in found)


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


def _tests(
    toolkit: NatToolkit, spec: NATSpec, files: Mapping[str, str], problems: list[str], *, is_right: bool
) -> float:
    """Half for tests that hold on the model's code and on a right solution, half for the wrong ones they catch.

    Code that `is_right` in every hidden case behaves as the right solution does, so the tests need not run on both.
    """
    path, logic = f"tests/test_{spec.package}.py", f"src/{spec.package}/logic.py"
    if path not in files or logic not in files:
        return 0.0
    own = {f"src/{spec.package}/__init__.py": "", path: files[path], logic: files[logic]}
    if not is_right and not _all_passed(toolkit.run_tests(own, targets=[path])):
        problems.append("the tests fail on the project's own code")
        return 0.0
    module = f"{spec.package}/logic.py"
    verdict = toolkit.grade_tests(
        files,
        path=path,
        modules=[f"{spec.package}.logic"],
        reference={f"{spec.package}/__init__.py": "", module: render_logic(spec)},
        mutants=[{module: render_logic(spec, body)} for body in FAMILIES[spec.family].mutants(spec)],
    )
    if not verdict.full:
        problems.append(f"the tests catch {verdict.passed} of {verdict.total} wrong solutions; {verdict.evidence}")
    return 0.5 + 0.5 * verdict.score if verdict.passed else 0.0


def _all_passed(evidence: TestsEvidence) -> bool:
    return not evidence.error and evidence.passed > 0 and evidence.passed == evidence.collected


def _static(spec: NATSpec, register: Any, logic: Any, problems: list[str]) -> float:
    """Share of structural points of the outlines of register.py and logic.py, which were read and not run for this."""
    classes, builders = _entries(register, "classes"), _entries(register, "functions")
    points = {
        "register.py and logic.py are valid Python": register is not None and logic is not None,
        f"a config class with name={spec.type_name!r}": any(
            each["documented"] and each["keywords"].get("name") == spec.type_name for each in classes
        ),
        "a builder under @register_function": any(
            each["is_async"] and "register_function" in each["decorators"] and each["documented"] and each["returns"]
            for each in builders
        ),
        f"{spec.function} has type hints and a docstring": any(
            each["name"] == spec.function and each["hinted"] and each["returns"] and each["documented"]
            for each in _entries(logic, "functions")
        ),
    }
    problems += [f"register.py or logic.py lacks: {name}" for name, holds in points.items() if not holds]
    return _share(list(points.values()))


def _entries(outline: Any, kind: str) -> list[dict[str, Any]]:
    return outline[kind] if outline else []
