"""Errors as RFC 9457 has them: `application/problem+json` with a title, a status and one sentence.

Not here: errors of the chat protocols, which have shapes of their own (`endpoint/errors.py`).
"""

import sqlite3
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from agent_rl.endpoint.app import refuse
from agent_rl.endpoint.errors import EndpointError
from agent_rl.envs.nat.service.metrics import ServiceMetrics
from agent_rl.envs.nat.service.runner import DISK_FULL, is_disk_full
from agent_rl.errors import EngineError, SandboxError, UserError

MEDIA_TYPE = "application/problem+json"
_SHOWN_CHARS = 300


class ServiceProblem(HTTPException):
    """A request is refused and changed nothing."""

    def __init__(self, status: int, detail: str, *, retry_after_s: float | None = None) -> None:
        headers = None if retry_after_s is None else {"Retry-After": str(max(1, round(retry_after_s)))}
        super().__init__(status, detail, headers)


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def add_handlers(app: FastAPI, metrics: ServiceMetrics) -> None:
    """Have every error of the application answered as a problem."""

    async def http_error(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), error.headers)

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(422, _sentence(error.errors()[0]))

    async def user_error(_request: Request, error: Exception) -> Response:
        return problem(422, str(error))

    async def machinery(_request: Request, error: Exception) -> Response:
        metrics.incident("sandbox" if isinstance(error, SandboxError) else "engine")
        return problem(503, f"the service's machinery failed ({error}); ask again", {"Retry-After": "5"})

    async def store_error(_request: Request, error: Exception) -> Response:
        if not is_disk_full(error):
            return await bug(_request, error)
        metrics.incident("disk_full")
        return problem(507, DISK_FULL)

    async def bug(_request: Request, error: Exception) -> Response:
        metrics.incident("bug")
        return problem(500, f"the service failed at this ({type(error).__name__}); report it")

    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(EndpointError, refuse)
    app.add_exception_handler(UserError, user_error)
    app.add_exception_handler(SandboxError, machinery)
    app.add_exception_handler(EngineError, machinery)
    app.add_exception_handler(sqlite3.Error, store_error)
    app.add_exception_handler(Exception, bug)


def _sentence(error: Mapping[str, Any]) -> str:
    """What pydantic found first, with its place."""
    where = ".".join(str(part) for part in error["loc"] if part != "body")
    message = str(error["msg"]).removeprefix("Value error, ")
    text = f"{where}: {message[0].lower()}{message[1:]}" if where else message
    return "".join(char if char.isprintable() else " " for char in text)[:_SHOWN_CHARS]
