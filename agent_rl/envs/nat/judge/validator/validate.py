"""Validate a user's own project stage by stage, in the records of `report.py`.

With a spec it is exactly the checker's. Without one the code, the configurations, the build, the MCP handshake and the
project's own tests are checked, and the user's test cases run. The project runs in the toolkit's sandbox only; nothing
is repaired, and answers without an expected one are not judged.
"""

from collections.abc import Sequence
from pathlib import Path

from agent_rl.envs.nat.factory.cases import WORKFLOW
from agent_rl.envs.nat.factory.user_test_cases import UserTestCase, judge
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.evidence import AgentEvidence, Schema
from agent_rl.envs.nat.judge.report import Point, Stage, ValidationReport, point
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.toolkit_names import BUILT_IN, SECTIONS
from agent_rl.envs.nat.judge.validator.folder import Folder, Project, find_project, read_folder
from agent_rl.envs.nat.judge.validator.validate_texts import (
    NO_SERVER,
    NO_TESTS,
    Sources,
    check_configs,
    check_files,
    check_modules,
    choose_configs,
    read_sources,
)
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import DataError
from agent_rl.sandbox.limits import Limits

PROJECT_LIMITS = Limits(wall_s=20.0, cpu_s=15, memory_mb=1024, output_kb=16, output_hard_kb=1024)
"""Caps of one run; a person's tests may take longer than those of a task."""
ROOTS = ("src", "")
"""Folders of the project that its modules are imported from."""
_WITHOUT_AGENTS = {"current_datetime", "current_timezone"}
"""Functions of the toolkit that need neither its agents nor an LLM."""


def validate_folder(
    toolkit: NatToolkit,
    root: Path,
    *,
    spec: NATSpec | None = None,
    cases: Sequence[UserTestCase] = (),
    config: str | None = None,
    with_mcp: bool = True,
    with_tests: bool = True,
    seed: int = 0,
) -> ValidationReport:
    """Validate a project. With `config` (a path in it) only that one is checked; else all are, and cases run on the
    main one.

    With a `spec` only `seed` matters besides, which samples its hidden cases. Raises UserError where there is no
    project, and SandboxError when the sandbox fails; all else is in the report.
    """
    folder = read_folder(root)
    if spec is not None:
        return check_project(toolkit, spec, folder.files, seed=seed)
    return validate_files(toolkit, folder, root, cases=cases, config=config, with_mcp=with_mcp, with_tests=with_tests)


def validate_files(
    toolkit: NatToolkit,
    folder: Folder,
    root: Path,
    *,
    cases: Sequence[UserTestCase] = (),
    config: str | None = None,
    with_mcp: bool = True,
    with_tests: bool = True,
) -> ValidationReport:
    """As `validate_folder` without a spec, for files that are in memory; `root` stands for them in errors."""
    (pyproject,) = toolkit.parse([("toml", folder.files.get("pyproject.toml", ""))])
    project = find_project(root, folder.files, pyproject.value, pyproject.refused)
    sources = read_sources(toolkit, project, folder.files)
    configs = choose_configs(root, project, sources, config)
    if configs:
        _refuse_llm_cases(sources, configs[0], cases)
    points = [*check_files(folder, project, with_mcp, with_tests), *check_modules(project, sources)]
    points += check_configs(project, sources, configs)
    seconds = {"build": 0.0}
    for path in configs:
        points += _build(toolkit, project, sources, path, seconds)
    if not configs:
        points.append(point("build", "loads and builds", 0, "there is no configuration to build"))
    points += _run_cases(toolkit, project, sources, configs, cases, seconds)
    points += _served(toolkit, project, folder.files, seconds) if with_mcp else []
    points += _tested(toolkit, project, folder.files, seconds) if with_tests else []
    stages: tuple[Stage, ...] = ("behaviour", "workflow", "mcp", "tests")
    seen = {each.stage for each in points}
    skipped = tuple(stage for stage in stages if stage not in seen)
    return ValidationReport(points=tuple(points), skipped=skipped, seconds=seconds)


# ---------------------------------------------------------------- running it


def _build(
    toolkit: NatToolkit, project: Project, sources: Sources, path: str, seconds: dict[str, float]
) -> list[Point]:
    names = ("loads and builds", "workflow", "functions")
    where = project.short(path)
    if why := sources.refused(path):
        return [point("build", name, 0, why.replace(path, where)) for name in names]
    found = _run(toolkit, project, sources, path, [], describe=True)
    seconds["build"] += found.seconds
    if found.error:
        score = {"import": 0.0, "load": 0.0, "build": 0.5}.get(found.stage, 0.5)
        points = [point("build", names[0], score, f"{where}: at {found.stage}: {found.error}")]
        return points + [point("build", name, 0, f"{where}: it was not built") for name in names[1:]]
    functions = "; ".join(_signature(name, schema) for name, schema in sorted(found.schemas.items()))
    return [
        point("build", names[0], 1, f"{where}: built"),
        point("build", names[1], 1, f"{where}: {_signature(str(found.workflow_type), found.workflow_schema)}"),
        point("build", names[2], 1, f"{where}: {functions or 'none but the workflow'}"),
    ]


def _signature(name: str, schema: Schema) -> str:
    return f"{name}({', '.join(f'{argument}: {kind}' for argument, kind in schema.items())})"


def _run(
    toolkit: NatToolkit, project: Project, sources: Sources, path: str, cases: Sequence[UserTestCase], *, describe: bool
) -> AgentEvidence:
    llms, needs_agents = _llms(sources, path)
    run = {
        "config": path,
        "overrides": [],
        "swapped": {},
        "through_client": False,
        "exchanges": {},
        "scripted": llms,
        "questions": [[case.target, case.inputs, ""] for case in cases],
    }
    return toolkit.run_agent(
        sources.files,
        package=project.package,
        schemas=None if describe else [],
        runs=[run],
        react=needs_agents,
        modules=list(project.modules),
        roots=ROOTS,
    )


def _llms(sources: Sources, path: str) -> tuple[list[str], bool]:
    """(the LLMs of a configuration, whether it needs the toolkit's own agents)."""
    value = sources.combined(sources.chain(path))
    llms = value.get("llms")
    entries = [value.get("workflow")]
    for section in SECTIONS:
        entries += each.values() if isinstance(each := value.get(section), dict) else []
    types = [entry.get("_type") for entry in entries if isinstance(entry, dict)]
    agents = BUILT_IN["function"] - _WITHOUT_AGENTS
    names = list(llms) if isinstance(llms, dict) else []
    return names, bool(names) or any(isinstance(each, str) and each in agents for each in types)


def _refuse_llm_cases(sources: Sources, path: str, cases: Sequence[UserTestCase]) -> None:
    for case in cases:
        if case.target == WORKFLOW and _llms(sources, path)[0]:
            raise DataError(
                f"{case.where}: the workflow of {path} has an LLM, and none answers in the sandbox; "
                "name one of its functions as the 'target'"
            )


def _run_cases(
    toolkit: NatToolkit,
    project: Project,
    sources: Sources,
    configs: Sequence[str],
    cases: Sequence[UserTestCase],
    seconds: dict[str, float],
) -> list[Point]:
    """The cases, in order, on a build of their own: one that hangs costs no point of the build."""
    if not cases:
        return []
    why = sources.refused(configs[0]) if configs else "there is no configuration to build"
    if why:
        return judge(cases, [], why)
    found = _run(toolkit, project, sources, configs[0], cases, describe=False)
    seconds["cases"] = found.seconds
    return judge(cases, found.runs[0].answers if found.runs else [], found.error)


def _served(toolkit: NatToolkit, project: Project, files: dict[str, str], seconds: dict[str, float]) -> list[Point]:
    names = ("handshake", "tools", "unknown tool")
    if project.server is None:
        return [point("mcp", name, 0, NO_SERVER) for name in names]
    server = toolkit.run_mcp(files, server_path=project.server, calls=[], roots=ROOTS)
    seconds["mcp"] = server.seconds
    shook = server.server_name is not None
    tools = "; ".join(_signature(name, schema) for name, schema in server.tools.items())
    lost = f"at {server.stage}: {server.error}" if server.error else None
    refused = bool(server.unknown_tool_refused)
    return [
        point("mcp", names[0], shook, f"{project.server} answers as {server.server_name!r}" if shook else str(lost)),
        point("mcp", names[1], bool(server.tools), tools or lost or "it offers none"),
        point(
            "mcp", names[2], refused, "refused" if refused else lost or "a call to a tool that is not there succeeds"
        ),
    ]


def _tested(toolkit: NatToolkit, project: Project, files: dict[str, str], seconds: dict[str, float]) -> list[Point]:
    if not project.tests:
        return [point("tests", "all pass", 0, NO_TESTS)]
    found = toolkit.run_project_tests(files, targets=project.tests, roots=ROOTS)
    seconds["tests"] = found.seconds
    num_run = found.collected - found.skipped
    evidence = f"{found.passed} of {found.collected} passed, {found.skipped} skipped"
    bad = [f"{name}: {outcome}" for name, outcome in found.outcomes.items() if outcome not in ("passed", "skipped")]
    if found.error:
        evidence = found.error
    elif bad:
        evidence += f"; {', '.join(bad[:3])}{f' and {len(bad) - 3} more' if len(bad) > 3 else ''}"
        if any(path.endswith("conftest.py") for path in files):
            evidence += "; conftest.py is not used here"
    elif not num_run:
        evidence += "; no test was run"
    # The counts come from a process that ran the project, so they may be forged.
    share = found.passed / num_run if 0 <= found.passed <= num_run and num_run and not found.error else 0.0
    return [point("tests", "all pass", share, evidence)]
