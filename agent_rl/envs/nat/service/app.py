"""The routes of the service: agents, their events and files, feedback, validation, health, the page.

Handlers that wait for the store or the sandbox are plain functions, which run in threads. Not here: keys and bodies
(`gate.py`), the making of agents (`runner.py`), the chat routes, which `service.py` mounts.
"""

import asyncio
import base64
import hashlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from agent_rl.endpoint.app import KEEP_ALIVE_S
from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.package import read_zip
from agent_rl.envs.nat.service import packages, shown
from agent_rl.envs.nat.service.changes import JobChanges
from agent_rl.envs.nat.service.gate import needs
from agent_rl.envs.nat.service.keys import ApiKey
from agent_rl.envs.nat.service.metrics import ServiceMetrics
from agent_rl.envs.nat.service.problems import ServiceProblem, add_handlers
from agent_rl.envs.nat.service.records import WITH_PROJECT, AgentJob, Feedback
from agent_rl.envs.nat.service.requests import (
    CreateBody,
    FeedbackBody,
    ValidateBody,
    digest_of_body,
    make_job,
    read_cases,
    validated,
)
from agent_rl.envs.nat.service.runner import JobRunner
from agent_rl.envs.nat.service.store import FeedbackFullError, JobStore, KeyReusedError, QueueFullError

MAX_WAIT_S = 60.0
"""Longest wait that `Prefer: wait=N` gets."""
MAX_STREAMS = 256
"""Clients that may follow events or wait at the same time."""
MAX_STREAMS_OF_KEY = MAX_STREAMS // 4
"""Those of one key."""
FEEDBACK_SHARE = 8
"""The part of `service.store_mb` that one key's feedback may take is one in so many."""
NUM_LISTED = 50
_IDEMPOTENCY_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_WAIT = re.compile(r"(?:^|[,;\s])wait=(\d{1,4})(?:$|[,;\s])")
_JSON, _ZIP = "application/json", "application/zip"
Creating = Annotated[ApiKey, Depends(needs("create"))]


class ServiceApp:
    """The application around a creator, a store and a runner."""

    def __init__(
        self,
        creator: AgentCreator,
        store: JobStore,
        runner: JobRunner,
        metrics: ServiceMetrics,
        changes: JobChanges,
        *,
        needs_key: bool,
        probe: Callable[[], dict[str, str]],
    ) -> None:
        """`probe` says what of model and toolkit does not answer, at once."""
        self._creator, self._store, self._runner = creator, store, runner
        self._metrics, self._changes = metrics, changes
        self._needs_key, self._probe = needs_key, probe
        self._config = creator.config.service
        self._validating = threading.BoundedSemaphore(self._config.workers)
        self.is_draining = False
        """Set before the end: nothing new is taken."""
        self.app = FastAPI(title="agent_rl", version="1", docs_url=None, redoc_url=None, description=__doc__)
        add_handlers(self.app, metrics)
        self._add_routes()

    def _add_routes(self) -> None:
        add = self.app.add_api_route
        agent = "/v1/agents/{job_id}"
        add("/v1/agents", self.create, methods=["POST"], status_code=202, summary="Ask for an agent")
        add("/v1/agents", self.list, methods=["GET"], summary="Your newest jobs")
        add(agent, self.show, methods=["GET"], summary="A job, with plan, candidates and report")
        add(agent, self.delete, methods=["DELETE"], summary="Cancel a job, or remove one that has ended")
        add(f"{agent}/events", self.events, methods=["GET"], summary="What happens to it, as server-sent events")
        add(f"{agent}/project.zip", self.zip, methods=["GET"], summary="The package as a zip")
        add(f"{agent}/package.whl", self.wheel, methods=["GET"], summary="The package as a wheel")
        add(f"{agent}/files/{{path:path}}", self.file, methods=["GET"], summary="One file of it")
        add(f"{agent}/feedback", self.feedback, methods=["POST"], status_code=201, summary="Say how it works")
        bodies = {_JSON: {"schema": ValidateBody.model_json_schema(ref_template="#/components/schemas/{model}")}}
        bodies |= {_ZIP: {"schema": {"type": "string", "format": "binary"}}}
        add(
            "/v1/validate",
            self.validate,
            methods=["POST"],
            summary="Check a project of your own",
            openapi_extra={"requestBody": {"required": True, "content": bodies}},
        )
        add("/healthz", lambda: {"status": "ok"}, methods=["GET"], summary="The process lives")
        add("/readyz", self.readyz, methods=["GET"], summary="Whether it takes requests, and why not")
        for path, name in (("/", "page.html"), ("/docs", "docs.html")):
            add(path, _page(name), methods=["GET"], include_in_schema=False)

    # Making agents

    async def create(
        self,
        body: CreateBody,
        key: Creating,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
        prefer: Annotated[str, Header()] = "",
    ) -> Response:
        """202 with the job's id and links; with `Prefer: wait=N` 200 and all of it, where it ends in time."""
        job, is_new = await run_in_threadpool(self._admitted, body, key, idempotency_key)
        if is_new:
            self._runner.wake()
        wait = _WAIT.search(prefer)
        headers = {"Location": f"/v1/agents/{job.id}"}
        if wait is not None and self._full_streams(key) is None:  # the job is queued, whether one can wait or not
            headers["Preference-Applied"] = f"wait={wait.group(1)}"
            ended = await self._ended(job.id, key, min(float(wait.group(1)), MAX_WAIT_S))
            if await request.is_disconnected():
                self._metrics.incident("client_gone")
            if ended is not None:
                return JSONResponse(shown.whole(ended), 200, headers)
        return JSONResponse(shown.brief(job), 202, headers)

    def _admitted(self, body: CreateBody, key: ApiKey, idempotency_key: str | None) -> tuple[AgentJob, bool]:
        self._check_open()
        if idempotency_key is not None and not _IDEMPOTENCY_KEY.fullmatch(idempotency_key):
            raise ServiceProblem(422, "Idempotency-Key is 1 to 255 visible ASCII characters; take a UUID")
        digest = digest_of_body(body)
        job = make_job(body, key.name, self._creator.config, self._creator.toolkit)
        if self._store.num_bytes() >= self._config.store_mb * 2**20:
            self._metrics.incident("disk_full")
            raise ServiceProblem(507, "the service's store has reached its quota; remove agents, or ask its operator")
        try:
            known = None if idempotency_key is None else self._store.known(key.name, idempotency_key, digest)
            if known is not None:
                return known, False
            self._count(key)
            return self._store.admit(
                job, body_sha256=digest, idempotency_key=idempotency_key, max_queue=self._config.max_queue
            )
        except QueueFullError:
            self._metrics.rate_limited(key.name)
            raise ServiceProblem(
                429, f"{self._config.max_queue} jobs are waiting; ask again later", retry_after_s=10
            ) from None
        except KeyReusedError:
            raise ServiceProblem(
                422, "this Idempotency-Key came with another body before; take a new one for another request"
            ) from None

    async def _ended(self, job_id: str, key: ApiKey, seconds: float) -> AgentJob | None:
        """The job once it has ended; None where it takes longer."""
        with self._changes.listening(job_id, key.name) as changed:
            try:
                async with asyncio.timeout(seconds):
                    while True:
                        changed.clear()
                        job = await run_in_threadpool(self._store.find, job_id)
                        if job is None or job.has_ended:
                            return job
                        await changed.wait()
            except TimeoutError:
                return None

    def _check_open(self) -> None:
        if self.is_draining:
            raise ServiceProblem(503, "the service is about to end and takes nothing new; ask again", retry_after_s=10)

    def _full_streams(self, key: ApiKey) -> str | None:
        """Why nobody with this key may follow another job now, or None."""
        if self._changes.num_listening >= MAX_STREAMS:
            return f"{MAX_STREAMS} clients follow jobs already; ask again later"
        if self._needs_key and self._changes.num_of_key[key.name] >= MAX_STREAMS_OF_KEY:
            return f"{MAX_STREAMS_OF_KEY} clients with the key {key.name!r} follow jobs already; end one, or ask later"
        return None

    def _count(self, key: ApiKey) -> None:
        wait_s = self._store.use(key.name, key.per_hour)
        if wait_s:
            self._metrics.rate_limited(key.name)
            raise ServiceProblem(
                429, f"the key {key.name!r} has used up its {key.per_hour} requests of this hour", retry_after_s=wait_s
            )

    # Looking at them

    def list(self, key: Creating) -> dict[str, Any]:
        """The newest first; all of them for a key with the scope admin."""
        name = None if "admin" in key.scopes else key.name
        return {"agents": [shown.brief(job) for job in self._store.newest(name, NUM_LISTED)]}

    def show(self, job_id: str, key: Creating) -> dict[str, Any]:
        return shown.whole(self._job(job_id, key))

    def delete(self, job_id: str, key: Creating) -> Response:
        """202 for one under way, which ends as `cancelled`; 204 for one that has ended, of which nothing is left."""
        job = self._job(job_id, key)
        if job.has_ended:
            self._store.delete(job.id)
            return Response(status_code=204)
        self._runner.cancel(job)
        return JSONResponse(shown.brief(self._job(job_id, key)), 202)

    async def events(
        self, job_id: str, key: Creating, last_event_id: Annotated[str, Header()] = "0"
    ) -> EventSourceResponse:
        """Ids are numbers; after a lost connection `Last-Event-ID` continues. The stream ends with `end`."""
        if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) < 10):
            raise ServiceProblem(422, "Last-Event-ID is no number of an event; leave it out")
        await run_in_threadpool(self._job, job_id, key)
        if (why := self._full_streams(key)) is not None:
            raise ServiceProblem(429, why, retry_after_s=5)
        return EventSourceResponse(self._events(job_id, key, int(last_event_id)))

    async def _events(self, job_id: str, key: ApiKey, after: int) -> AsyncIterator[bytes]:
        is_over = False
        try:
            with self._changes.listening(job_id, key.name) as changed:
                while not is_over:
                    changed.clear()
                    job = await run_in_threadpool(self._store.find, job_id)
                    for event in await run_in_threadpool(self._store.events, job_id, after):
                        data = json.dumps(dict(event.data))
                        yield format_sse_event(data_str=data, event=event.event, id=str(event.number))
                        after, is_over = event.number, event.event == "end"
                    if job is None or job.has_ended:
                        is_over = True
                    else:
                        try:
                            await asyncio.wait_for(changed.wait(), KEEP_ALIVE_S)
                        except TimeoutError:
                            yield KEEPALIVE_COMMENT
        finally:
            if not is_over:
                self._metrics.incident("client_gone")

    def zip(self, job_id: str, key: Creating, rejected: Annotated[str, Query()] = "") -> Response:
        job = self._with_files(job_id, key, rejected)
        return self._download(packages.kept_zip(self._store.path_of(job.id), job), "application/zip")

    def wheel(self, job_id: str, key: Creating) -> Response:
        job = self._with_files(job_id, key, "")
        return self._download(packages.kept_wheel(self._store.path_of(job.id), job), "application/zip")

    def file(self, job_id: str, path: str, key: Creating, rejected: Annotated[str, Query()] = "") -> Response:
        job = self._with_files(job_id, key, rejected)
        return self._download(packages.kept_file(self._store.path_of(job.id), job, path), "text/plain; charset=utf-8")

    def _download(self, path: Path | None, media_type: str) -> Response:
        if path is None or not path.is_file():
            raise ServiceProblem(404, "this job has no such file; its files are listed in the job")
        return FileResponse(path, media_type=media_type, filename=path.name, content_disposition_type="attachment")

    def _job(self, job_id: str, key: ApiKey) -> AgentJob:
        """The caller's job; to others there is none."""
        job = self._store.find(job_id)
        if job is None or (job.key_name != key.name and "admin" not in key.scopes):
            raise ServiceProblem(404, "there is no such job of this key; it may have been removed")
        return job

    def _with_files(self, job_id: str, key: ApiKey, rejected: str) -> AgentJob:
        job = self._job(job_id, key)
        if not job.has_ended:
            raise ServiceProblem(409, f"the job is {job.state}; its files are there when it has ended")
        if job.state not in WITH_PROJECT:
            raise ServiceProblem(409, f"the job is {job.state}, so there are no files")
        if job.state == "rejected" and rejected != "yes":
            raise ServiceProblem(409, "this project did not pass its checks; ask with ?rejected=yes to see it")
        return job

    # Feedback and validation

    def feedback(
        self, job_id: str, body: FeedbackBody, key: Annotated[ApiKey, Depends(needs("feedback"))]
    ) -> dict[str, Any]:
        """The last feedback of a key on a job counts."""
        job = self._job(job_id, key)
        if job.state not in WITH_PROJECT:
            raise ServiceProblem(409, f"the job is {job.state}, so there is nothing to say about its agent")
        read_cases(body.cases)
        said = Feedback(
            job_id=job.id,
            key_name=key.name,
            verdict=body.verdict,
            comment=body.comment,
            cases=[case.row() for case in body.cases],
            consent=body.consent,
            created_at=time.time(),
        )
        most = self._config.store_mb * 2**20 // FEEDBACK_SHARE
        try:
            if self._store.put_feedback(said, max_bytes=most):
                self._metrics.feedback(body.verdict, job.state)
        except FeedbackFullError:
            raise ServiceProblem(
                507, f"the feedback of the key {key.name!r} would take more than {most} bytes of the store; remove jobs"
            ) from None
        return {"id": job.id, "verdict": body.verdict, "consent": body.consent}

    async def validate(self, request: Request, key: Annotated[ApiKey, Depends(needs("validate"))]) -> Response:
        """A zip of the project's folder, or `{"files": {path: text}, "cases": [...]}`; the answer is the report."""
        raw = await request.body()
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        return await run_in_threadpool(self._validated, raw, kind, key)

    def _validated(self, raw: bytes, kind: str, key: ApiKey) -> Response:
        self._check_open()
        if kind == _ZIP:
            body = ValidateBody.model_construct(files=read_zip(Path("the zip"), raw), cases=())
        elif kind == _JSON:
            body = _validate_body(raw)
        else:
            raise ServiceProblem(415, f"send {_ZIP}, or {_JSON}")
        cases = read_cases(body.cases)
        if not self._validating.acquire(blocking=False):
            self._metrics.rate_limited(key.name)
            raise ServiceProblem(429, "as many projects are checked as may be; ask again", retry_after_s=2)
        try:
            self._count(key)
            report = validated(self._creator.toolkit, body.files, cases)
        finally:
            self._validating.release()
        return Response(report.model_dump_json(), media_type=_JSON)

    # Health

    def readyz(self) -> Response:
        """200, or 503 with what is not ready."""
        why = self.not_ready()
        about = {"ready": not why, "why": why, "planner": self._creator.config.planner.source}
        about["needs_key"] = self._needs_key
        return JSONResponse({**about, "model": self._creator.model["name"]}, 503 if why else 200)

    def not_ready(self) -> dict[str, str]:
        """What is not ready, and why."""
        found = self._probe()
        if self.is_draining:
            found["service"] = "it is about to end"
        if self._store.counts().get("queued", 0) >= self._config.max_queue:
            found["queue"] = "it is full"
        if self._store.num_bytes() >= self._config.store_mb * 2**20:
            found["store"] = "it is full"
        return found


def _validate_body(raw: bytes) -> ValidateBody:
    try:
        return ValidateBody.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(str(part)[:80] for part in first["loc"])
        raise ServiceProblem(422, f"{where or 'the body'}: {first['msg'].lower()}") from None


def _page(name: str) -> Callable[[], Response]:
    """A page of ours. Only its own script and style run, whatever a model or a person wrote."""
    text = resources.files("agent_rl.envs.nat.service").joinpath("static", name).read_text(encoding="utf-8")

    def hashes(tag: str) -> str:
        inside = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in inside]
        return " ".join(f"'sha256-{digest}'" for digest in digests)

    policy = (
        f"default-src 'none'; script-src {hashes('script')}; style-src {hashes('style')}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )

    def page() -> Response:
        return HTMLResponse(text, headers={"Content-Security-Policy": policy})

    return page
