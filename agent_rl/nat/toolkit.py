"""The toolkit as seen from the host: run a project in `.venv-nat`'s warm processes and bring back raw evidence.

Evidence is what the candidate's process said; whoever scores it compares answers with the oracle. A candidate that
crashes, hangs or floods is evidence with `error` set; only a failure of the sandbox raises (SandboxError). Without the
toolkit's interpreter nothing can be opened: there is no fallback. Equal calls are run once and remembered.
"""

import hashlib
import json
import os
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from agent_rl.errors import NatUnavailableError, SandboxError, UserError
from agent_rl.nat.mcp_client import Conversation, converse
from agent_rl.sandbox.grading import Files
from agent_rl.sandbox.limits import JobResult, Limits, Status
from agent_rl.sandbox.mutation import MutationGrader
from agent_rl.sandbox.parsing import Kind, Parsed, parse_texts
from agent_rl.sandbox.sandbox import BASE_JOBS, Call, Sandbox
from agent_rl.sandbox.verdict import Verdict

PYTHON_VARIABLE = "AGENT_RL_NAT_PYTHON"
DEFAULT_LIMITS = Limits(wall_s=8.0, cpu_s=5, memory_mb=512, output_kb=16, output_hard_kb=256)
TESTS_LIMITS = Limits(wall_s=4.0, cpu_s=3, memory_mb=256, output_kb=8, output_hard_kb=256)
_DEFAULT_PYTHON = Path(__file__).resolve().parents[2] / ".venv-nat" / "bin" / "python"
_JOBS = ("agent_rl.nat.worker_jobs", *BASE_JOBS)
_CACHE_ENTRIES = 4096
_USES_TOOLKIT = re.compile(r"\bnat\.|\bmcp\b|\bregister\b|\bmcp_server\b")
"""Tests with these words run where the toolkit is imported already; elsewhere they would work too, but slowly."""

AgentStage = Literal["import", "load", "build", "run", "done"]
EvidenceT = TypeVar("EvidenceT", "AgentEvidence", "McpEvidence", "TestsEvidence")
AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """Answers under one set of overrides, in the order of the inputs; `{"exception": ...}` where a call raised."""

    workflow: tuple[Any, ...]
    """Answers of the whole workflow."""
    function: tuple[Any, ...]
    """Answers of the registered function asked by itself."""
    override_applied: bool
    """True when the configs of both the function and the workflow have every overridden field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvidence:
    """A project imported, loaded, built and run by the toolkit."""

    stage: AgentStage
    """The last stage reached; `import` when the process gave no report at all."""
    error: str | None
    workflow_type: str | None
    function_schemas: dict[str, dict[str, str]]
    """Instance name -> argument name -> JSON type."""
    function_schema: dict[str, str]
    """The entry of the instance that was asked for; empty when it was not built."""
    runs: tuple[AgentRun, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class McpEvidence:
    """A conversation with the MCP server over its standard input and output."""

    stage: str
    """start, initialize, tools/list, tools/call or done."""
    error: str | None
    server_name: str | None
    tools: dict[str, dict[str, str]]
    """Tool name -> argument name -> JSON type."""
    answers: tuple[str, ...]
    """Text of each call, in the order of the inputs."""
    is_error: tuple[bool, ...]
    unknown_tool_refused: bool | None
    """Whether a call to a tool that does not exist came back as an error; None when it was not reached."""
    num_unasked: int
    """Messages that answered no request of ours: notifications, forged or repeated answers."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TestsEvidence:
    """One run of pytest. A file that cannot be collected counts as one collected test with outcome `error`."""

    __test__: ClassVar[bool] = False  # pytest must not collect this class

    error: str | None
    """Why there is no report; None when pytest ran, whatever the outcomes."""
    collected: int
    passed: int
    failed: int
    errors: int
    skipped: int
    outcomes: dict[str, str]
    """Test id -> passed, failed, error or skipped."""
    exit_code: int | None
    seconds: float


class NatToolkit:
    """Warm toolkit processes, shared by threads. Make it with `NatToolkit.open`, use it as a context manager."""

    def __init__(self, sandbox: Sandbox, tests_sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._tests_sandbox = tests_sandbox
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Future[Any]] = OrderedDict()
        self._counters = {"calls": 0, "cache_hits": 0, "seconds": 0.0}

    @classmethod
    def open(
        cls,
        *,
        python: str | Path | None = None,
        processes: int = 1,
        limits: Limits = DEFAULT_LIMITS,
        tier: str = "auto",
    ) -> "NatToolkit":
        """Start `processes` warm processes of `python`, else of $AGENT_RL_NAT_PYTHON, else of `.venv-nat`.

        Raises NatUnavailableError when the interpreter is missing or cannot import the toolkit.
        """
        path = python or os.environ.get(PYTHON_VARIABLE) or _DEFAULT_PYTHON
        try:
            with ExitStack() as opened:
                sandbox = Sandbox.open(python=path, jobs=_JOBS, limits=limits, size=processes, tier=tier)
                opened.enter_context(sandbox)
                # A fork of a process without the toolkit is cheaper, and most tests need the project's logic only.
                tests_sandbox = Sandbox.open(python=path, limits=limits, size=processes, tier=tier)
                opened.pop_all()
                return cls(sandbox, tests_sandbox)
        except (UserError, SandboxError) as error:
            raise NatUnavailableError(
                f"the NAT toolkit is not usable with {path} ({error}); run `make setup`, which makes .venv-nat, "
                f"or set {PYTHON_VARIABLE} to an interpreter with nvidia-nat-core and nvidia-nat-mcp"
            ) from error

    def run_agent(
        self,
        files: Mapping[str, str],
        *,
        package: str,
        config_path: str,
        instance: str,
        runs: Sequence[Mapping[str, Any]],
    ) -> AgentEvidence:
        """Import `package`.register, load `config_path`, build, and ask for every input of every run.

        `runs` holds `{"overrides": {field: value}, "inputs": [{argument: value}, ...]}`; overrides are written into the
        config sections of the instance and of the workflow before validation.
        """
        request = {"package": package, "config_path": config_path, "instance": instance, "runs": list(runs)}
        return self._run_job(self._sandbox, "run_agent", files, request, lambda job: _agent_evidence(job, instance))

    def run_mcp(
        self,
        files: Mapping[str, str],
        *,
        server_path: str,
        tool: str,
        inputs: Sequence[Mapping[str, Any]],
        request_timeout_s: float = 3.0,
    ) -> McpEvidence:
        """Serve the file over stdio, shake hands, list its tools and call `tool` with every input."""
        asked = [dict(given) for given in inputs]
        call = Call(job="serve_mcp", files=files, request={"server_path": server_path})

        def run() -> tuple[McpEvidence, bool]:
            said, job = self._sandbox.converse(call, lambda session: converse(session, tool, asked, request_timeout_s))
            return _mcp_evidence(said, job), not said.error

        return self._remembered(["run_mcp", dict(files), server_path, tool, asked, request_timeout_s], run)

    def run_tests(self, files: Mapping[str, str], *, targets: Sequence[str]) -> TestsEvidence:
        """Run pytest on `targets`, with `src/` importable."""
        uses_toolkit = any(_USES_TOOLKIT.search(files.get(target, "")) for target in targets)
        sandbox = self._sandbox if uses_toolkit else self._tests_sandbox
        return self._run_job(sandbox, "run_tests", files, {"targets": list(targets)}, _tests_evidence)

    def grade_tests(
        self, files: Mapping[str, str], *, path: str, modules: Sequence[str], reference: Files, mutants: Sequence[Files]
    ) -> Verdict:
        """Whether the tests in `files[path]` hold on `reference` and which of `mutants` (changed files) they kill.

        The tests run apart from the `modules` they test, so they can tell versions by behaviour only.
        """
        named = {f"mutant {number}": changed for number, changed in enumerate(mutants)}
        grader = MutationGrader(path, reference, modules, mutants=named, rewrites={}, limits=TESTS_LIMITS)
        tests = {path: files[path]}

        def run() -> tuple[Verdict, bool]:
            verdict = grader.grade(self._tests_sandbox, tests)
            return verdict, verdict.status is not Status.TIMEOUT

        return self._remembered(["grade_tests", tests, list(modules), dict(reference), named], run)

    def parse(self, texts: Sequence[tuple[Kind, str]]) -> list[Parsed]:
        """Read texts in a process that runs nothing of the candidate's; see `sandbox/parsing.py`."""
        return self._remembered(
            ["parse", [list(text) for text in texts]], lambda: (parse_texts(self._tests_sandbox, texts), True)
        )

    def version(self) -> str:
        """Installed version of nvidia-nat-core."""
        return str(self._sandbox.describe()["about"]["nvidia-nat-core"])

    def describe(self) -> dict[str, Any]:
        """Version, isolation of the processes, and counters so far."""
        sandbox = self._sandbox.describe()
        missing = f", not enforced: {', '.join(sandbox['not_enforced'])}" if sandbox["not_enforced"] else ""
        summary = f"NAT {self.version()} in sandbox tier {sandbox['tier']}{missing}; memory: {sandbox['memory']}"
        return {"summary": summary, "nat": self.version(), "sandbox": sandbox, "counters": self.counters()}

    def counters(self) -> dict[str, float]:
        """`calls`, `cache_hits` among them, and `seconds` spent in the processes by all threads together."""
        with self._lock:
            return dict(self._counters)

    def close(self) -> None:
        self._sandbox.close()
        self._tests_sandbox.close()

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
            # A deadline may have been missed because the machine was busy: not a property of the files.
            return read(result), result.status is not Status.TIMEOUT

        return self._remembered([job, dict(files), request], run)

    def _remembered(self, question: list[Any], run: Callable[[], tuple[AnswerT, bool]]) -> AnswerT:
        """The remembered answer to an equal question, also one still running in another thread; else run it.

        `run` returns (evidence, whether to remember it).
        """
        key = hashlib.sha256(json.dumps(question, sort_keys=True, ensure_ascii=True).encode()).hexdigest()
        with self._lock:
            self._counters["calls"] += 1
            future = self._cache.get(key)
            if future is not None:
                self._counters["cache_hits"] += 1
                self._cache.move_to_end(key)
            else:
                mine: Future[Any] = Future()
                self._cache[key] = mine
                if len(self._cache) > _CACHE_ENTRIES:
                    self._cache.popitem(last=False)
        if future is not None:
            return cast(AnswerT, future.result())
        started = time.monotonic()
        try:
            evidence, keep = run()
        except BaseException as error:
            self._forget(key)
            mine.set_exception(error)
            raise
        with self._lock:
            self._counters["seconds"] += time.monotonic() - started
        if not keep:
            self._forget(key)
        mine.set_result(evidence)
        return evidence

    def _forget(self, key: str) -> None:
        with self._lock:
            self._cache.pop(key, None)


def _agent_evidence(job: JobResult, instance: str) -> AgentEvidence:
    blank = {"stage": "import", "workflow_type": None, "function_schemas": {}, "runs": ()}
    evidence = _validated(AgentEvidence, job, {**blank, "function_schema": {}})
    return replace(evidence, function_schema=evidence.function_schemas.get(instance, {}))


def _mcp_evidence(said: Conversation, job: JobResult) -> McpEvidence:
    error = said.error
    if said.has_ended:
        last = job.stderr.strip().splitlines()[-1:]
        error = f"the server ended: {last[0]}"[:300] if last else f"the server ended with exit code {job.exit_code}"
    return McpEvidence(
        stage=said.stage,
        error=error,
        server_name=said.server_name,
        tools=said.tools,
        answers=tuple(said.answers),
        is_error=tuple(said.is_error),
        unknown_tool_refused=said.unknown_tool_refused,
        num_unasked=said.num_unasked,
        seconds=job.wall_s,
    )


def _tests_evidence(job: JobResult) -> TestsEvidence:
    counts = dict.fromkeys(("collected", "passed", "failed", "errors", "skipped"), 0)
    return _validated(TestsEvidence, job, {**counts, "outcomes": {}, "exit_code": None})


def _validated(kind: type[EvidenceT], job: JobResult, blank: dict[str, Any]) -> EvidenceT:
    """The job's report as a record, or `blank` with `error` set; a report of another shape can only be forged."""
    error = job.error
    if job.status is Status.OK and isinstance(job.result, dict):
        try:
            report = {"error": None, **blank, **job.result, "seconds": job.wall_s}
            return TypeAdapter(kind).validate_python(report)
        except ValidationError:
            error = None
    return kind(**blank, error=error or "the process sent back a report of the wrong shape", seconds=job.wall_s)
