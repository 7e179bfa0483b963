"""The sandbox's own jobs: run a Python program, run pytest for the reader, run pytest for its outcomes.

Loaded inside the target interpreter (which needs pytest), prepared once, each call in a fresh fork. Reports of tests
come from a process that ran candidate code, so they may be forged.
"""

import atexit
import contextlib
import io
import os
import signal
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Sequence
from typing import Any, NoReturn

os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"

import _pytest.config
import _pytest.main
import _pytest.timing
import pytest

from agent_rl.sandbox.guest.run import direct

BASE_FLAGS = ("-p", "no:cacheprovider", "--noconftest", "-c", os.devnull, "-s")
"""No file of the candidate's configures pytest, and its output is not captured: it goes where the run's output goes."""

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
    ),
    *("threadexception", "unraisableexception", "warnings", "reports", "logging", "terminal"),
)
"""Not `debugging`, whose options pytest reads for every method of a `unittest.TestCase`."""
FLAGS = {
    "report": ("-q",),
    "outcomes": ("--assert=plain", *(flag for name in _UNUSED for flag in ("-p", f"no:{name}"))),
}
"""Outcomes need no texts of failures, nor most of the plugins, and both take time."""
_BY_WEIGHT = ("passed", "skipped", "failed", "error")


def _flags(workdir: str) -> list[str]:
    # Without confcutdir and rootdir pytest lists every parent folder of the tests.
    return [*BASE_FLAGS, f"--rootdir={workdir}", f"--confcutdir={workdir}"]


def run_python(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Run `source` as `__main__`; the exit code is what `python main.py` would give."""
    path = request.get("path", "main.py")
    sys.argv = [path, *request["argv"]]
    sys.path.insert(0, os.path.dirname(os.path.join(workdir, path)))
    main = types.ModuleType("__main__")
    main.__file__ = os.path.join(workdir, path)
    sys.modules["__main__"] = main
    exit_code = 0
    try:
        exec(compile(request["source"], path, "exec"), main.__dict__)
    except SystemExit as stop:
        exit_code = _exit_code(stop.code)
    except BaseException as error:  # as the interpreter would: print it and end with 1
        own = error.__traceback__.tb_next if error.__traceback__ else None
        traceback.print_exception(error.with_traceback(own))
        exit_code = 1
    threading._shutdown()  # other threads may still be at work; the interpreter would wait for them
    atexit._run_exitfuncs()
    return {"exit_code": exit_code}


def run_command(request: dict[str, Any], workdir: str) -> NoReturn:
    """Become another program; the result's descriptor closes by itself and the exit code is the process's own."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it, and that would be inherited
    os.execvp(request["argv"][0], request["argv"])


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return int(code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


def run_pytest(request: dict[str, Any], workdir: str) -> dict[str, Any]:
    """Run pytest on `targets` and leave its report on stdout."""
    _add_sources(workdir)
    return {"exit_code": pytest_main("report", request["targets"], workdir)}


def run_tests(request: dict[str, Any], workdir: str, *plugins: object) -> dict[str, Any]:
    """Run pytest on `targets` as fast as it goes and return the outcome of every test."""
    _add_sources(workdir)
    return outcomes_of_tests(request["targets"], workdir, *plugins)


def outcomes_of_tests(targets: Sequence[str], workdir: str, *plugins: object) -> dict[str, Any]:
    """Counts, and the outcome by test id."""
    seen = Outcomes()
    exit_code = pytest_main("outcomes", targets, workdir, seen, *plugins)
    outcomes = list(seen.outcomes.values())
    return {
        "collected": seen.num_collected,
        "passed": outcomes.count("passed"),
        "failed": outcomes.count("failed"),
        "errors": outcomes.count("error"),
        "skipped": outcomes.count("skipped"),
        "outcomes": seen.outcomes,
        "exit_code": exit_code,
    }


def pytest_main(kind: str, targets: Sequence[str], workdir: str, *plugins: object) -> int:
    """As `pytest.main`, on what was prepared before the fork where the working folder is the same; the exit code."""
    if (workdir, kind) not in _prepared:
        return int(pytest.main([*_flags(workdir), *FLAGS[kind], *targets], plugins=list(plugins)))
    config, session, finders = _prepared[workdir, kind]
    sys.meta_path[:0] = finders
    for plugin in plugins:
        config.pluginmanager.register(plugin)
    if reporter := config.pluginmanager.get_plugin("terminalreporter"):
        reporter._session_start = _pytest.timing.Instant()
    config.args = list(targets)
    session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
    try:
        session.exitstatus = _pytest.main._main(config, session) or pytest.ExitCode.OK
    except pytest.UsageError as error:
        session.exitstatus = pytest.ExitCode.USAGE_ERROR
        print(f"ERROR: {error}", file=sys.stderr)
    except session.Failed:  # as `-x` would
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    except (KeyboardInterrupt, pytest.exit.Exception):
        session.exitstatus = pytest.ExitCode.INTERRUPTED
    except SystemExit as stop:
        print(f"the tests stopped the interpreter: SystemExit({stop.code})", file=sys.stderr)
    os.chdir(workdir)
    config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
    return int(session.exitstatus)


_prepared: dict[tuple[str, str], tuple[pytest.Config, pytest.Session, list[Any]]] = {}
"""With the finders of modules that the configuration added: the one that rewrites assertions is for reports alone."""


def prepare(workdir: str) -> None:
    """Build the configuration and the session of pytest once, before the forks."""
    for kind, flags in FLAGS.items():
        _warm_up(flags)
        os.chdir(workdir)
        known = list(sys.meta_path)
        config = _pytest.config._prepareconfig([*_flags(workdir), *flags])
        if kind == "outcomes":
            config.option.tbstyle = "no"  # the flag belongs to a plugin that is not loaded
        session = pytest.Session.from_config(config)
        config._do_configure()
        config.hook.pytest_sessionstart(session=session)
        _prepared[workdir, kind] = (config, session, [finder for finder in sys.meta_path if finder not in known])
        sys.meta_path[:] = known
    sys.stdout.flush()  # else every fork would print the header again


def _add_sources(workdir: str) -> None:
    """At the end, so that no project file can shadow an installed module."""
    sys.path.append(os.path.join(workdir, "src"))


class Outcomes:
    """Pytest plugin: test id -> passed, failed, error or skipped. An expected failure counts as skipped.

    Of several reports of a test the worst counts: those of its parts (`self.subTest()`) have its id, and the test as a
    whole may pass behind a part that failed.
    """

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
            self._add(report.nodeid, report.outcome)
        elif report.when == "call" or report.skipped:
            self._add(report.nodeid, "skipped")
        elif report.failed:
            self._add(report.nodeid, "error")

    def _add(self, name: str, outcome: str) -> None:
        self.outcomes[name] = max(self.outcomes.get(name, "passed"), outcome, key=_BY_WEIGHT.index)


def _warm_up(flags: Sequence[str]) -> None:
    """A run of trivial tests, passing and failing, does what pytest does only once: late imports, compiled patterns."""
    path = list(sys.path)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        with open(os.path.join(folder, "test_warm_up.py"), "w") as file:
            file.write("def test_warm_up():\n    assert True\n\ndef test_failure():\n    assert 'a' == 'b'\n")
        pytest.main([*_flags(folder), *flags, os.path.join(folder, "test_warm_up.py")])
        del sys.modules["test_warm_up"]
        sys.path[:] = path


JOBS = {"run_python": run_python, "run_command": run_command, "run_pytest": run_pytest, "run_tests": direct(run_tests)}
ABOUT = {"pytest": pytest.__version__}
