"""What clients may send, checked; `CreateBody` is the body of `POST /v1/agents`.

Not here: HTTP (`app.py`), what becomes of it (`runner.py`).
"""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from agent_rl.envs.nat.create.judging import ProjectJudge
from agent_rl.envs.nat.create.scope import MAX_REQUEST_CHARS, bad_request
from agent_rl.envs.nat.create.settings import ServeConfig
from agent_rl.envs.nat.factory.user_test_cases import UserTestCase, parse_cases
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.judge.report import ValidationReport
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.judge.validator.folder import Folder
from agent_rl.envs.nat.judge.validator.validate import validate_files
from agent_rl.envs.nat.service.records import AgentJob, Verdict
from agent_rl.envs.nat.service.store import new_job_id
from agent_rl.errors import DataError, UserError
from agent_rl.sandbox import workspace

MAX_CASES = 64
MAX_COMMENT_CHARS = 2000
_TEXT_CHARS = 4000


class Body(BaseModel):
    """Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class CaseBody(Body):
    """A question with its answer, as `agent-rl nat validate --cases` takes them."""

    target: Annotated[str, Field(max_length=200)] | None = None
    """A function; without one the workflow is asked."""
    input: str | dict[str, JsonValue]
    expected: Annotated[str, Field(max_length=_TEXT_CHARS)]

    def row(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True)


class CreateBody(Body):
    """A request for an agent: words for the planner, or a plan, or both."""

    request: Annotated[str, Field(max_length=MAX_REQUEST_CHARS)] = ""
    """What the agent should do, in a person's words."""
    spec: dict[str, JsonValue] | None = None
    """A plan: a row as in `dataset/nat_tasks`. With it nothing is planned."""
    cases: Annotated[tuple[CaseBody, ...], Field(max_length=MAX_CASES)] = ()
    """Cases that the agent has to answer besides."""
    candidates: Annotated[int, Field(ge=1, le=16)] | None = None
    repairs: Annotated[int, Field(ge=0, le=3)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    deadline_s: Annotated[float, Field(ge=10)] | None = None
    """From now to the verdict; by default `creation.deadline_s`."""

    @model_validator(mode="after")
    def _asks_for_something(self) -> "CreateBody":
        if not self.request.strip() and self.spec is None:
            raise ValueError("request is empty; say what the agent should do, or give a plan as spec")
        return self


class FeedbackBody(Body):
    """What a person says about an agent that was made."""

    verdict: Verdict
    comment: Annotated[str, Field(max_length=MAX_COMMENT_CHARS)] = ""
    cases: Annotated[tuple[CaseBody, ...], Field(max_length=MAX_CASES)] = ()
    consent: bool
    """Whether it, the request and the plan may be used for training."""


class ValidateBody(Body):
    """A project to be looked at."""

    files: dict[str, str]
    """Path -> text."""
    cases: Annotated[tuple[CaseBody, ...], Field(max_length=MAX_CASES)] = ()


def make_job(body: CreateBody, key_name: str, config: ServeConfig, toolkit: NatToolkit) -> AgentJob:
    """The job of a request. UserError for what no job can be made of."""
    spec = None
    _check_unicode(body.model_dump(mode="python"))
    if body.spec is not None:
        spec = parse_spec(dict(body.spec), "spec")
    request = body.request or (spec.request if spec else "")
    if why := bad_request(request):
        raise DataError(why)
    cases = read_cases(body.cases)
    ProjectJudge(toolkit, spec, cases, seed=body.seed)  # refuses cases that this plan cannot have
    deadline_s = body.deadline_s or config.creation.deadline_s
    if deadline_s > config.service.max_deadline_s:
        raise DataError(f"deadline_s is {deadline_s:g}, at most {config.service.max_deadline_s:g} is taken here")
    options = {"cases": [each.row() for each in body.cases], "candidates": body.candidates, "repairs": body.repairs}
    return AgentJob(
        id=new_job_id(),
        key_name=key_name,
        state="queued",
        request=request,
        options=options,
        seed=body.seed,
        deadline_s=deadline_s,
        planner="given" if spec else "",
        spec=spec.model_dump(mode="json") if spec else None,
        created_at=time.time(),
    )


def read_cases(cases: Sequence[CaseBody]) -> tuple[UserTestCase, ...]:
    """The cases of a body. DataError for one that asks nothing."""
    return parse_cases([each.row() for each in cases], "cases")


def digest_of_body(body: BaseModel) -> str:
    """Equal for requests that ask for the same."""
    return hashlib.sha256(json.dumps(body.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def validated(toolkit: NatToolkit, files: Mapping[str, str], cases: Sequence[UserTestCase]) -> ValidationReport:
    """The report on files that somebody sent. UserError where they are no project, and for names and sizes that no
    project has."""
    try:
        workspace.validate_files(dict(files))
    except workspace.WorkspaceError as error:
        raise UserError(str(error)) from None
    return validate_files(toolkit, Folder(files=dict(files), left_out={}), Path("the project"), cases=cases)


def _check_unicode(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise DataError("a text holds half of a surrogate pair, which is no character; send valid Unicode") from None
