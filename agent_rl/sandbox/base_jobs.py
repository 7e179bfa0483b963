"""The sandbox's own jobs: run a Python program, run pytest for the reader, run pytest for its outcomes.

Loaded by path inside the target interpreter (which needs pytest), preloaded once, each call in a fresh fork. Standard
library and pytest only; nothing of this package is imported. Reports of tests are the word of a process that ran
candidate code.
"""

import atexit
import contextlib
import io
import os
import sys
import tempfile
import threading
import traceback
import types
from typing import Any

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import pytest

BASE_FLAGS = ("-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "-s")
"""No file of the candidate's configures pytest, and its output goes to our pipes."""

_UNUSED = (
    *(
        "doctest",
        "junitxml",
        "pastebin",
        "faulthandler",
        "setuponly",
        "setupplan",
        "stepwise",
        "legacypath",
        "debugging",
    ),
    *("threadexception", "unraisableexception", "subtests", "warnings", "reports", "logging", "terminal"),
)
FAST_FLAGS = ("--assert=plain", *(flag for name in _UNUSED for flag in ("-p", f"no:{name}")))
"""Half of pytest's time goes into plugins that outcomes do not need, and into rewriting asserts for their messages."""


def pytest_flags(workdir: str) -> list[str]:
    # Without confcutdir and rootdir pytest lists every parent folder of the tests.
    return [*BASE_FLAGS, f"--rootdir={workdir}", f"--confcutdir={workdir}"]


def run_python(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Run `source` as `__main__` with `stdin` as its input; the exit code is what `python main.py` would give."""
    stdin = os.memfd_create("stdin")
    os.write(stdin, request["stdin"].encode())
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, closefd=False)), encoding="utf-8")
    sys.argv = ["main.py"]
    sys.path.insert(0, workdir)
    main = types.ModuleType("__main__")
    main.__file__ = os.path.join(workdir, "main.py")
    sys.modules["__main__"] = main
    exit_code = 0
    try:
        exec(compile(request["source"], "main.py", "exec"), main.__dict__)
    except SystemExit as stop:
        exit_code = _exit_code(stop.code)
    except BaseException as error:  # as the interpreter would: print it and end with 1
        own = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(own))
        exit_code = 1
    threading._shutdown()  # other threads may still be at work; the interpreter would wait for them
    atexit._run_exitfuncs()
    return {"exit_code": exit_code}


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return int(code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def run_pytest(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Run pytest on `targets` and leave its report on stdout."""
    _add_sources(workdir)
    return {"exit_code": int(pytest.main([*pytest_flags(workdir), "-q", *request["targets"]]))}


def run_tests(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Run pytest on `targets` as fast as it goes and return the outcome of every test."""
    _add_sources(workdir)
    seen = _Outcomes()
    exit_code = pytest.main([*pytest_flags(workdir), *FAST_FLAGS, *request["targets"]], plugins=[seen])
    outcomes = list(seen.outcomes.values())
    return {
        "collected": seen.num_collected,
        "passed": outcomes.count("passed"),
        "failed": outcomes.count("failed"),
        "errors": outcomes.count("error"),
        "skipped": outcomes.count("skipped"),
        "outcomes": seen.outcomes,
        "exit_code": int(exit_code),
    }


def _add_sources(workdir: str) -> None:
    """At the end, so that no project file can shadow an installed module."""
    sys.path.append(os.path.join(workdir, "src"))


class _Outcomes:
    """Pytest plugin: test id -> passed, failed, error or skipped. An expected failure counts as skipped."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.num_collected = 0

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.num_collected += 1
            self.outcomes[report.nodeid] = "error"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.num_collected += len(session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not hasattr(report, "wasxfail"):
            self.outcomes[report.nodeid] = report.outcome
        elif report.when == "call" or report.skipped:
            self.outcomes[report.nodeid] = "skipped"
        elif report.failed:
            self.outcomes[report.nodeid] = "error"


def warm_up() -> None:
    """One run of a trivial test does what pytest does only once: late imports, compiled patterns."""
    path = list(sys.path)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.mkdir(os.path.join(folder, "tests"))
        with open(os.path.join(folder, "tests", "test_warm_up.py"), "w") as file:
            file.write("def test_warm_up():\n    assert True\n")
        for flags in ((), FAST_FLAGS):
            pytest.main([*pytest_flags(folder), *flags, os.path.join(folder, "tests", "test_warm_up.py")])
            del sys.modules["test_warm_up"]
            sys.path[:] = path


JOBS = {"run_python": run_python, "run_pytest": run_pytest, "run_tests": run_tests}
ABOUT = {"pytest": pytest.__version__}

warm_up()
