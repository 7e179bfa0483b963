"""Evidence from a project's run: raw answers and the last stage reached. Not a verdict.

The records are filled from reports that a candidate's process may have forged, so their shape is validated; a report of
another shape becomes evidence with `error` set.
"""

import json
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import TypeAdapter, ValidationError

from agent_rl.envs.nat.judge.agent_client import AgentConversation
from agent_rl.envs.nat.judge.worker.mcp_client import McpConversation
from agent_rl.sandbox.limits import MAX_KEPT_BYTES, JobResult, Status

AgentStage = Literal["import", "load", "build", "run", "done"]
EvidenceT = TypeVar("EvidenceT", "AgentEvidence", "McpEvidence", "TestsEvidence", str)
Schema = dict[str, str]
"""Argument name -> JSON type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvidence:
    """One build and its answers; `{"exception": ...}` where a call raised, `{"missing": ...}` where nothing was."""

    applied: bool
    """True when every overridden field exists in the configuration."""
    answers: tuple[Any, ...]
    """In the order of the questions; fewer when it ended early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvidence:
    """A project imported, loaded, built and run by the toolkit."""

    stage: AgentStage
    """The last stage reached; `import` when the process gave no report at all."""
    error: str | None
    workflow_type: str | None
    workflow_schema: Schema
    schemas: dict[str, Schema]
    """Of the requested functions that were built."""
    runs: tuple[RunEvidence, ...]
    seconds: float
    is_settled: bool
    """Whether it is worth keeping for equal files, see `JobResult.is_settled`."""


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
    """Text of each call, in order."""
    is_error: tuple[bool, ...]
    unknown_tool_refused: bool | None
    """Whether a call to a tool that does not exist came back as an error; None when it was not reached."""
    num_unsolicited: int
    """Messages that answered no request of ours: notifications, forged or repeated answers."""
    seconds: float
    is_settled: bool


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
    is_settled: bool


def agent_evidence(conversation: AgentConversation, job: JobResult) -> AgentEvidence:
    """Only a process that stayed to the end is believed anything: one that leaves may have written what it likes."""
    blank: dict[str, Any] = {"stage": "import", "workflow_type": None, "workflow_schema": {}, "schemas": {}, "runs": ()}
    error = job.error or conversation.broken_off
    report = dict(conversation.report) if job.status is Status.OK and not error else None
    evidence = _filled(AgentEvidence, report, error, job, blank)
    return replace(evidence, is_settled=evidence.is_settled and (report is None or _is_short(report)))


def _is_short(report: dict[str, Any]) -> bool:
    try:
        return len(json.dumps(report)) <= MAX_KEPT_BYTES
    except RecursionError:  # what could be read is a little deeper than what can be written
        return False


def mcp_evidence(conversation: McpConversation, job: JobResult) -> McpEvidence:
    error = conversation.error
    if conversation.has_ended:
        last = job.stderr.strip().splitlines()[-1:]
        error = f"the server ended: {last[0]}"[:300] if last else f"the server ended with exit code {job.exit_code}"
    return McpEvidence(
        stage=conversation.stage,
        error=error,
        server_name=conversation.server_name,
        tools=conversation.tools,
        answers=tuple(conversation.answers),
        is_error=tuple(conversation.is_error),
        unknown_tool_refused=conversation.unknown_tool_refused,
        num_unsolicited=conversation.num_unsolicited,
        seconds=job.wall_s,
        is_settled=job.is_settled and not conversation.error and sum(map(len, conversation.answers)) <= MAX_KEPT_BYTES,
    )


def tests_evidence(job: JobResult) -> TestsEvidence:
    counts = dict.fromkeys(("collected", "passed", "failed", "errors", "skipped"), 0)
    return _validated(TestsEvidence, job, {**counts, "outcomes": {}, "exit_code": None})


def _validated(kind: type[EvidenceT], job: JobResult, blank: dict[str, Any]) -> EvidenceT:
    report = job.result if job.status is Status.OK and isinstance(job.result, dict) else None
    return _filled(kind, report, job.error, job, blank)


def _filled(
    kind: type[EvidenceT], report: dict[str, Any] | None, error: str | None, job: JobResult, blank: dict[str, Any]
) -> EvidenceT:
    """The report as a record, or `blank` with `error` set; a report of another shape can only be forged."""
    ours = {"seconds": job.wall_s, "is_settled": job.is_settled}
    if report is not None:
        try:
            return TypeAdapter(kind).validate_python({"error": None, **blank, **report, **ours})
        except (ValidationError, RecursionError):
            error = None
    return kind(**blank, error=error or "the process sent back a report of the wrong shape", **ours)
