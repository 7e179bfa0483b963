"""Run a project in the toolkit's warm processes (`.venv-nat`) and return raw evidence.

Evidence is what the candidate's process reported; the checker compares answers with the oracle. A candidate that
crashes, hangs or floods is evidence with `error` set; only a failure of the sandbox raises (SandboxError). Without the
toolkit's interpreter nothing can be opened: there is no fallback. Equal calls are run once.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from agent_rl import resources
from agent_rl.envs.nat.errors import NatUnavailableError
from agent_rl.envs.nat.judge.agent_client import converse_agent
from agent_rl.envs.nat.judge.evidence import (
    AgentEvidence,
    EvidenceT,
    McpEvidence,
    TestsEvidence,
    agent_evidence,
    mcp_evidence,
    tests_evidence,
)
from agent_rl.envs.nat.judge.read_texts import Kind, Parsed, parse_texts
from agent_rl.envs.nat.judge.worker.mcp_client import converse
from agent_rl.errors import SandboxError, UserError
from agent_rl.memo import Memo
from agent_rl.sandbox.grading import Files
from agent_rl.sandbox.limits import JobResult, Limits
from agent_rl.sandbox.mutation import MutationGrader
from agent_rl.sandbox.sandbox import BASE_JOBS, Call, Sandbox
from agent_rl.sandbox.verdict import Verdict

PYTHON_VARIABLE = "AGENT_RL_NAT_PYTHON"
DEFAULT_LIMITS = Limits(wall_s=8.0, cpu_s=5, memory_mb=512, output_kb=16, output_hard_kb=256)
TESTS_LIMITS = Limits(wall_s=4.0, cpu_s=3, memory_mb=256, output_kb=8, output_hard_kb=256)
REACT_PYTHON_VARIABLE = "AGENT_RL_NAT_REACT_PYTHON"
_ROOT = Path(__file__).resolve().parents[4]
_DEFAULT_PYTHON = ".venv-nat/bin/python"
_DEFAULT_REACT_PYTHON = ".venv-nat-react/bin/python"
_REQUIREMENTS = resources.folder() / "requirements-nat.txt"
_TEXT_JOBS = ("agent_rl.envs.nat.judge.worker.parse_jobs", *BASE_JOBS)
_JOBS = ("agent_rl.envs.nat.judge.worker.jobs", *_TEXT_JOBS)
_REACT_JOBS = "agent_rl.envs.nat.judge.worker.react"
_USES_TOOLKIT = re.compile(r"\bnat\.|\bmcp\b|\bregister\b|\bmcp_server\b")
"""Tests with these words run where the toolkit is imported already; elsewhere they would work too, but slowly."""


class NatToolkit:
    """Warm toolkit processes, shared by threads. Make it with `NatToolkit.open`, use it as a context manager."""

    def __init__(
        self, sandbox: Sandbox, tests_sandbox: Sandbox, open_react: Callable[[], Sandbox], *, reuse_verdicts: bool
    ) -> None:
        self._sandbox = sandbox
        self._tests_sandbox = tests_sandbox
        self._open_react = open_react
        self._react_sandbox: Sandbox | None = None
        self._react_lock = threading.Lock()
        self._on_run: Callable[[str, float], None] = lambda status, seconds: None
        self.memo, self.checks = Memo(is_on=reuse_verdicts), Memo(is_on=reuse_verdicts)
        """In front of the runs below, and in front of whole checks (`checker.py`)."""

    @classmethod
    def open(
        cls,
        *,
        python: str | Path | None = None,
        react_python: str | Path | None = None,
        processes: int = 1,
        limits: Limits = DEFAULT_LIMITS,
        tier: str = "auto",
        reuse_verdicts: bool = True,
    ) -> "NatToolkit":
        """Start `processes` warm processes of `python`, else of $AGENT_RL_NAT_PYTHON, else of `.venv-nat`, in the
        working directory or else in the checkout.

        `react_python` ($AGENT_RL_NAT_REACT_PYTHON, `.venv-nat-react`) has the toolkit's agents too; it is started when
        the first project needs it. Without `reuse_verdicts`, equal projects are judged anew. Raises
        NatUnavailableError when the interpreter is missing or cannot import the toolkit.
        """
        path = toolkit_python(python)
        try:
            with ExitStack() as opened:
                sandbox = Sandbox.open(python=path, jobs=_JOBS, limits=limits, size=processes, tier=tier)
                opened.enter_context(sandbox)
                # A fork of a process without the toolkit is cheaper, and most tests need the project's logic only.
                tests_sandbox = Sandbox.open(python=path, jobs=_TEXT_JOBS, limits=limits, size=processes, tier=tier)
                opened.pop_all()
                open_react = partial(_open_react, toolkit_react_python(react_python), limits, tier)
                return cls(sandbox, tests_sandbox, open_react, reuse_verdicts=reuse_verdicts)
        except (UserError, SandboxError) as error:
            raise NatUnavailableError(
                f"the NAT toolkit is not usable with {path} ({error}); run `make setup`, which makes .venv-nat, "
                f"or outside a checkout `python -m venv .venv-nat && .venv-nat/bin/pip install -r {_REQUIREMENTS}`, "
                f"or set {PYTHON_VARIABLE} to an interpreter with nvidia-nat-core and nvidia-nat-mcp"
            ) from error

    def run_agent(
        self,
        files: Mapping[str, str],
        *,
        package: str,
        schemas: Sequence[str] | None,
        runs: Sequence[Mapping[str, Any]],
        react: bool = False,
        modules: Sequence[str] = (),
        roots: Sequence[str] = ("src",),
        confined: bool = False,
    ) -> AgentEvidence:
        """Import `package`.register, then load, build and question it for every run; `schemas` names functions
        to describe.

        `modules` are imported in its place, from the folders `roots`; with `schemas` None all functions are described.
        A run is `{"config": path, "overrides": [[section, name or None, {field: value}]], "swapped": {name: answer},
        "through_client": bool, "exchanges": {request: ...}, "scripted": [llm], "questions": [[target, inputs, via]]}`
        (`questions.py` makes them), and maybe `"leads"`: for each question the calls `[tool, inputs]` that swapped
        tools answer otherwise, which is all without it. With `react` it runs where the toolkit's agents are installed.
        With `confined` the code has open names and its own objects alone (`worker/confined.py`).
        """
        tables = _tables([run["exchanges"] for run in runs])
        request = {
            "package": package,
            "schemas": None if schemas is None else list(schemas),
            "num_runs": len(runs),
            "modules": list(modules),
            "roots": list(roots),
            "table_bytes": len(tables),
            "confined": confined,
        }
        sandbox = self._react() if react else self._sandbox
        call = Call(job="run_agent", files=files, request=request)

        def run() -> tuple[AgentEvidence, bool]:
            conversation, job = sandbox.converse(
                call, lambda session: converse_agent(session, runs, tables, answer_s=sandbox.limits.wall_s + 1.0)
            )
            evidence = agent_evidence(conversation, job)
            return evidence, evidence.is_settled

        return self.memo.answer(["run_agent", dict(files), request, [dict(each) for each in runs]], run)

    def run_mcp(
        self,
        files: Mapping[str, str],
        *,
        server_path: str,
        calls: Sequence[tuple[str, Mapping[str, Any]]],
        exchanges: Mapping[str, Mapping[str, Any]] | None = None,
        request_timeout_s: float = 3.0,
        roots: Sequence[str] = (),
    ) -> McpEvidence:
        """Serve the file over stdio, shake hands, list its tools and make every call, in order.

        The server can import from its own folder and from `roots`.
        """
        sent_calls = [(name, dict(inputs)) for name, inputs in calls]
        tables = _tables([dict(exchanges or {})])
        request = {"server_path": server_path, "table_bytes": len(tables), "roots": list(roots)}
        call = Call(job="serve_mcp", files=files, request=request)

        def run() -> tuple[McpEvidence, bool]:
            conversation, job = self._sandbox.converse(
                call, lambda session: converse(session, sent_calls, request_timeout_s, before=tables.decode())
            )
            evidence = mcp_evidence(conversation, job)
            return evidence, evidence.is_settled

        return self.memo.answer(["run_mcp", dict(files), request, tables.decode(), sent_calls, request_timeout_s], run)

    def run_tests(self, files: Mapping[str, str], *, targets: Sequence[str]) -> TestsEvidence:
        """Run pytest on `targets`, with `src/` importable."""
        sandbox = self._for_tests(files, targets)
        return self._run_job(sandbox, "run_tests", files, {"targets": list(targets)}, tests_evidence)

    def printed_by_tests(self, files: Mapping[str, str], *, targets: Sequence[str]) -> str:
        """As `run_tests`: what pytest prints, for a reader; the code under test may have printed anything too."""
        sandbox = self._for_tests(files, targets)
        return self._run_job(sandbox, "run_pytest", files, {"targets": list(targets)}, lambda job: job.stdout)

    def _for_tests(self, files: Mapping[str, str], targets: Sequence[str]) -> Sandbox:
        uses_toolkit = any(_USES_TOOLKIT.search(files.get(target, "")) for target in targets)
        return self._sandbox if uses_toolkit else self._tests_sandbox

    def run_project_tests(
        self, files: Mapping[str, str], *, targets: Sequence[str], roots: Sequence[str]
    ) -> TestsEvidence:
        """Run the tests of a person's project, with `roots` importable and `async def` tests awaited."""
        request = {"targets": list(targets), "roots": list(roots)}
        return self._run_job(self._sandbox, "run_project_tests", files, request, tests_evidence)

    def grade_tests(
        self, files: Mapping[str, str], *, path: str, modules: Sequence[str], reference: Files, mutants: Sequence[Files]
    ) -> Verdict:
        """Whether the tests in `files[path]` hold on `reference` and which of `mutants` (changed files) they kill.

        The tests run apart from the `modules` they test, so they can distinguish versions by behaviour only.
        """
        named = {f"mutant {number}": changed for number, changed in enumerate(mutants)}
        grader = MutationGrader(path, reference, modules, mutants=named, rewrites={}, limits=TESTS_LIMITS)
        tests = {path: files[path]}

        def run() -> tuple[Verdict, bool]:
            verdict = grader.grade(self._tests_sandbox, tests)
            return verdict, verdict.is_settled

        return self.memo.answer(["grade_tests", tests, list(modules), dict(reference), named], run)

    def parse(self, texts: Sequence[tuple[Kind, str]]) -> list[Parsed]:
        """Read texts in a process that runs nothing of the candidate's; see `read_texts.py`."""
        return self.memo.answer(
            ["parse", [list(text) for text in texts]], lambda: (parse_texts(self._tests_sandbox, texts), True)
        )

    def version(self) -> str:
        """Installed version of nvidia-nat-core."""
        return self.versions()["nvidia-nat-core"]

    def versions(self) -> dict[str, str]:
        """Installed versions of what a project depends on, by the names of the distributions."""
        return dict(self._sandbox.describe()["about"])

    def describe(self) -> dict[str, Any]:
        """Version, isolation of the processes, and counters so far."""
        sandbox = self._sandbox.describe()
        missing = f", not enforced: {', '.join(sandbox['not_enforced'])}" if sandbox["not_enforced"] else ""
        summary = f"NAT {self.version()} in sandbox tier {sandbox['tier']}{missing}; memory: {sandbox['memory']}"
        return {"summary": summary, "nat": self.version(), "sandbox": sandbox, "counters": self.memo.counters()}

    def observe_runs(self, on_run: Callable[[str, float], None]) -> None:
        """Have `on_run` told of every run from now on, as `Sandbox.on_run`."""
        self._on_run = on_run
        for sandbox in filter(None, (self._sandbox, self._tests_sandbox, self._react_sandbox)):
            sandbox.on_run = on_run

    def close(self) -> None:
        self._sandbox.close()
        self._tests_sandbox.close()
        if self._react_sandbox is not None:
            self._react_sandbox.close()

    def _react(self) -> Sandbox:
        with self._react_lock:
            if self._react_sandbox is None:
                self._react_sandbox = self._open_react()
                self._react_sandbox.on_run = self._on_run
            return self._react_sandbox

    def __enter__(self) -> "NatToolkit":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run_job(
        self,
        sandbox: Sandbox,
        job: str,
        files: Mapping[str, str],
        request: dict[str, Any],
        read: Callable[[JobResult], EvidenceT],
    ) -> EvidenceT:
        def run() -> tuple[EvidenceT, bool]:
            result = sandbox.call(job, files, **request)
            return read(result), result.is_settled

        return self.memo.answer([job, dict(files), request], run)


def _tables(exchanges: Sequence[Mapping[str, Any]]) -> bytes:
    """The fake network's tables as its process reads them; empty where nothing is on the network."""
    return json.dumps([dict(each) for each in exchanges]).encode() if any(exchanges) else b""


def toolkit_python(given: str | Path | None = None) -> Path:
    """The interpreter with the toolkit: the given one, that of $AGENT_RL_NAT_PYTHON, or `.venv-nat`."""
    return Path(given or os.environ.get(PYTHON_VARIABLE) or _find_python(_DEFAULT_PYTHON))


def toolkit_react_python(given: str | Path | None = None) -> Path:
    """The same for the interpreter with the toolkit's agents."""
    return Path(given or os.environ.get(REACT_PYTHON_VARIABLE) or _find_python(_DEFAULT_REACT_PYTHON))


def _find_python(path: str) -> Path:
    """In the working directory, else beside the package, which is the top of a checkout."""
    here = Path.cwd() / path
    return here if here.exists() else _ROOT / path


def _open_react(python: str | Path, limits: Limits, tier: str) -> Sandbox:
    try:
        return Sandbox.open(python=python, jobs=(*_JOBS, _REACT_JOBS), limits=limits, size=1, tier=tier)
    except (UserError, SandboxError) as error:
        raise NatUnavailableError(
            f"this task needs the toolkit's own agents, which are not usable with {python} ({error}); run "
            f"`make setup-react`, which makes .venv-nat-react, or set {REACT_PYTHON_VARIABLE} to an interpreter with "
            f"nvidia-nat-langchain"
        ) from error
