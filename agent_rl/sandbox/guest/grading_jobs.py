"""The graders' jobs: call a candidate's function on cases, serve its modules, judge them by a test suite.

No request to a job that runs candidate code ever holds an expected value or a test. What `call_cases` and
`serve_modules` report comes from the candidate; what `judge_suite` reports comes from the author of the tests.
Compares nothing and scores nothing: the host does.
"""

import importlib
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from agent_rl.sandbox.guest.base_jobs import run_tests
from agent_rl.sandbox.guest.codec import CodecError, Link, builtin_base, decode, encode, type_name
from agent_rl.sandbox.guest.module_proxy import Remote, install
from agent_rl.sandbox.guest.module_server import ModuleServer
from agent_rl.sandbox.guest.run import LINK_FD, direct

MAX_TEXT_CHARS = 500


def call_cases(request: dict[str, Any], workdir: str) -> Iterator[dict[str, Any]]:
    """Call functions of `module` on `cases`, in order; yield for each its number and the answer or what it raised.

    A case is `{"function", "args", "kwargs", "want_args"}`, values encoded; with `want_args` the arguments are yielded
    as they are after the call.
    """
    _import_from(workdir)
    module = importlib.import_module(request["module"])
    for number, case in enumerate(request["cases"]):
        yield {"case": number, **_call(module, case)}


def _call(module: Any, case: dict[str, Any]) -> dict[str, Any]:
    args, kwargs = decode(case["args"]), decode(case["kwargs"])
    try:
        answer = {"value": encode(getattr(module, case["function"])(*args, **kwargs))}
        return answer | ({"args": encode(args)} if case["want_args"] else {})
    except CodecError as error:
        return {"refused": str(error)}
    except Exception as error:  # the boundary to candidate code
        return {"raised": builtin_base(type(error)), "type": type_name(error), "message": str(error)[:MAX_TEXT_CHARS]}


def serve_modules(request: dict[str, Any], workdir: str) -> None:
    """Serve `modules` to every client in turn, from the folder `variants[i]` to client i.

    All from one process: with more than one client the variants must be trusted not to spoil each other. `call_s`, for
    trusted variants, ends a call that takes longer, so that a hanging one does not block later clients.
    """
    for client, folder in enumerate(request["variants"]):
        path, known = list(sys.path), set(sys.modules)
        _import_from(os.path.join(workdir, folder))
        with socket.socket(fileno=LINK_FD + client) as connection:
            ModuleServer(Link(connection), request["modules"], call_s=request["call_s"]).serve()
        sys.path[:] = path
        for name in set(sys.modules) - known:
            del sys.modules[name]


def judge_suite(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Run pytest on `targets` with proxies for `modules` that call the other end of the link.

    Beside the report of `run_tests`: `lost`, why the judge stopped waiting for the candidate; `failures`, the first few
    answers that were none; `opaque`, how often a test met an object where plain data is needed; `star_imports`, the
    names that star imports took.
    """
    allowed = {name: request[name] for name in ("call_s", "total_s", "exports")}
    remote = Remote(Link(socket.socket(fileno=LINK_FD)), **allowed)
    install(remote, request["modules"])
    plugins = [_FileByFile()] if request["by_file"] else []
    report = run_tests({"targets": request["targets"]}, workdir, *plugins)
    about = {"lost": remote.lost, "failures": remote.failures, "opaque": remote.num_refused}
    return {**report, **about, "star_imports": remote.star_imports}


class _FileByFile:
    """Pytest plugin: a file that fails to load does not keep the tests of others from being run."""

    def pytest_collection_finish(self, session: Any) -> None:
        session.config.option.continue_on_collection_errors = True


def _import_from(folder: str) -> None:
    sys.path[:0] = [folder, os.path.join(folder, "src")]


JOBS = {"call_cases": direct(call_cases), "serve_modules": direct(serve_modules), "judge_suite": direct(judge_suite)}
