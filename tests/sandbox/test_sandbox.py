"""The sandbox with its own jobs, run by the interpreter that runs these tests."""

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_rl.errors import SandboxError, UserError
from agent_rl.sandbox.guest import linux
from agent_rl.sandbox.limits import Capability, Limits, Status
from agent_rl.sandbox.run_files import RunFiles, SandboxFailed
from agent_rl.sandbox.sandbox import TIERS, Call, Sandbox
from agent_rl.sandbox.server_process import ServerProcess
from agent_rl.sandbox.session import SessionEnded
from agent_rl.sandbox.workspace import MAX_FILE_BYTES, MAX_FILES, Workspace, WorkspaceError, validate_files

LIMITS = Limits(wall_s=3.0, cpu_s=3, memory_mb=256, output_kb=4, output_hard_kb=64)
QUICK = replace(LIMITS, wall_s=0.4)


@pytest.fixture(scope="module", params=TIERS)
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    os.environ["SECRET_OF_THE_HOST"] = "s3cret"
    with open_tier(request.param) as opened:
        yield opened


def open_tier(tier: str) -> Sandbox:
    try:
        return Sandbox.open(python=sys.executable, limits=LIMITS, tier=tier)
    except SandboxError as error:
        pytest.skip(f"isolation tier {tier} is not available here: {error}")


def need(sandbox: Sandbox, capability: str) -> None:
    if capability not in sandbox.describe()["enforced"]:
        pytest.skip(f"tier {sandbox.describe()['tier']} does not enforce {capability} on this machine")


def test_signals_that_the_host_blocks_reach_a_program() -> None:
    earlier = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        sandbox = open_tier(TIERS[0])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, earlier)
    source = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n"
    source += "    print('blocked')\nexcept KeyboardInterrupt:\n    print('delivered')"
    with sandbox:
        assert sandbox.run_python(source).stdout == "delivered\n"


def test_a_program_gets_its_files_and_input_and_returns_its_output(sandbox: Sandbox) -> None:
    source = "import helper, sys\nprint(helper.double(int(input())))\nprint('oops', file=sys.stderr)"
    result = sandbox.run_python(source, files={"helper.py": "def double(x):\n    return 2 * x\n"}, stdin="21\n")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == (Status.OK, 0, "42\n", "oops\n")
    assert not result.truncated and 0 < result.wall_s < 3


@pytest.mark.parametrize(
    ("source", "exit_code"),
    [("raise ValueError('no')", 1), ("import sys; sys.exit(3)", 3), ("import os; os._exit(4)", 4), ("1 +", 1)],
)
def test_an_unhappy_end_has_the_exit_code_the_shell_would_show(sandbox: Sandbox, source: str, exit_code: int) -> None:
    result = sandbox.run_python(source)
    assert (result.status, result.exit_code) == (Status.NONZERO, exit_code)


def test_a_traceback_shows_the_program_and_nothing_of_ours(sandbox: Sandbox) -> None:
    stderr = sandbox.run_python("def f():\n    raise ValueError('no')\nf()").stderr
    assert "ValueError: no" in stderr and 'File "main.py", line 2' in stderr
    assert "base_jobs" not in stderr and "fork_server" not in stderr


def test_threads_and_exit_handlers_finish_as_in_a_real_interpreter(sandbox: Sandbox) -> None:
    source = """import atexit, threading, time
atexit.register(print, "bye")
threading.Thread(target=lambda: (time.sleep(0.05), print("late"))).start()
"""
    assert sandbox.run_python(source).stdout == "late\nbye\n"


def test_folders_nested_too_deep_to_remove_cost_a_server_and_no_answer() -> None:
    source = "import os\nfor _ in range(1500):\n    os.mkdir('d')\n    os.chdir('d')\nprint('deep')"
    with Sandbox.open(python=sys.executable, limits=LIMITS) as sandbox:
        assert sandbox.run_python(source).stdout == "deep\n"
        assert sandbox.run_python("print(1)").stdout == "1\n"


def test_a_run_sees_nothing_of_the_run_before(sandbox: Sandbox) -> None:
    leave = """import builtins, os, sys, tempfile
builtins.left = sys.left = 1
for folder in (".", tempfile.gettempdir(), "/tmp", "/dev/shm"):
    try:
        open(os.path.join(folder, "left_by_a_test"), "w").write("x")
        os.makedirs(os.path.join(folder, "locked_by_a_test/inner"))
        os.chmod(os.path.join(folder, "locked_by_a_test"), 0)
    except OSError:
        pass
"""
    look = """import builtins, glob, sys, os
print(hasattr(builtins, "left"), hasattr(sys, "left"), os.listdir("."), glob.glob(os.path.dirname(os.getcwd()) + "/*"))
"""
    sandbox.run_python(leave)
    for name in ("left_by_a_test", "locked_by_a_test"):  # in the lower tier these two folders are the host's
        for folder in (Path("/tmp"), Path("/dev/shm")):
            left = folder / name
            if left.exists():
                left.chmod(0o700)
                left.unlink() if left.is_file() else ((left / "inner").rmdir(), left.rmdir())
    flags, cwd = sandbox.run_python(look).stdout.split(" [", 1)
    assert flags == "False False"
    assert "left" not in cwd and "locked" not in cwd
    assert sandbox.describe()["restarts"] == 0


@pytest.mark.parametrize("source", ["while True:\n    pass", "import time\ntime.sleep(60)"])
def test_a_program_that_does_not_end_is_killed_at_its_deadline(sandbox: Sandbox, source: str) -> None:
    result = sandbox.run_python(source, limits=QUICK)
    assert (result.status, result.exit_code) == (Status.TIMEOUT, None)
    assert 0.4 <= result.wall_s < 2.0
    assert sandbox.run_python("print(1)").stdout == "1\n"
    assert sandbox.describe()["restarts"] == 0


def test_signals_that_can_be_ignored_have_no_effect(sandbox: Sandbox) -> None:
    source = """import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU):
    signal.signal(number, signal.SIG_IGN)
os.setsid() if os.getsid(0) != os.getpid() else None
time.sleep(60)
"""
    assert sandbox.run_python(source, limits=QUICK).status is Status.TIMEOUT


def test_cpu_time_is_limited_too(sandbox: Sandbox) -> None:
    result = sandbox.run_python("while True:\n    pass", limits=replace(LIMITS, cpu_s=1, wall_s=60.0))
    assert result.status is Status.TIMEOUT and result.wall_s < 50.0 and result.cpu_s < 5.0


def test_a_daemon_that_forked_twice_is_dead_afterwards(sandbox: Sandbox) -> None:
    marker = f"daemon_{os.getpid()}_{time.monotonic_ns()}"
    source = f"""import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"{marker[-15:]}", 0, 0, 0)
        print("daemon up", flush=True)
        time.sleep(60)
    os._exit(0)
time.sleep(0.2)
"""
    result = sandbox.run_python(source)
    assert result.stdout == "daemon up\n" and result.wall_s < 2.0
    names = []
    for entry in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.append(entry.read_text().strip())
        except OSError:
            continue
    assert len(names) > 1 and marker[-15:] not in names


def test_a_fork_that_comes_back_gives_one_result(sandbox: Sandbox) -> None:
    result = sandbox.run_python("import os\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)\n    print('parent')")
    assert (result.status, result.stdout) == (Status.OK, "parent\n")
    assert sandbox.run_python("print(2)").stdout == "2\n"


def test_a_fork_bomb_ends_with_the_run(sandbox: Sandbox) -> None:
    need(sandbox, "proc_limit")
    source = "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n"
    assert sandbox.run_python(source, limits=replace(QUICK, processes=16)).status is Status.TIMEOUT
    assert sandbox.run_python("print(3)").stdout == "3\n"


def test_both_ends_of_the_output_are_captured_and_a_flood_ends_the_run(sandbox: Sandbox) -> None:
    result = sandbox.run_python("print('x' * 10_000 + 'end')")
    assert (result.status, result.truncated) == (Status.OK, True)
    assert result.stdout == "x" * 2048 + "\n[... 5908 bytes left out ...]\n" + "x" * 2044 + "end\n"
    flood = sandbox.run_python("while True:\n    print('x' * 1000)")
    assert flood.status is Status.OUTPUT_LIMIT and flood.wall_s < 2.0
    assert len(flood.stdout) < 5000


def test_memory_file_size_and_open_files_are_limited(sandbox: Sandbox) -> None:
    assert "MemoryError" in sandbox.run_python("x = bytearray(400 * 2**20)").stderr
    assert sandbox.run_python("x = bytearray(50 * 2**20)").status is Status.OK
    write = "f = open('big', 'wb')\nfor _ in range(40):\n    f.write(bytes(2**20))\n    f.flush()"
    assert "File too large" in sandbox.run_python(write).stderr
    assert "Too many open files" in sandbox.run_python("fs = [open('/dev/null') for _ in range(500)]").stderr


def test_the_network_cannot_be_reached(sandbox: Sandbox) -> None:
    need(sandbox, "no_network")
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=1).close()  # it is there, for us
        source = f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=1)"
        result = sandbox.run_python(source)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # the second in the queue would be the program's
            server.accept()[0].close()
            server.accept()
    assert result.exit_code == 1 and "Error" in result.stderr


def test_the_hosts_environment_is_not_visible(sandbox: Sandbox) -> None:
    source = """import glob, os
text = repr(dict(os.environ))
for path in glob.glob("/proc/*/environ"):
    try:
        text += open(path).read()
    except OSError:
        pass
print("s3cret" in text, sorted(os.environ))
"""
    secret, names = sandbox.run_python(source).stdout.split(" ", 1)
    assert "PATH" in names and "SECRET_OF_THE_HOST" not in names
    if "pid_isolation" in sandbox.describe()["enforced"]:
        assert secret == "False"


def test_the_host_cannot_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    need(sandbox, "readonly_host")
    tmp_path.chmod(0o777)
    for target in (Path(__file__).with_name("written_by_a_test"), tmp_path / "written_by_a_test"):
        assert sandbox.run_python(f"open({str(target)!r}, 'w')").exit_code == 1
        assert not target.exists()


def test_the_hosts_files_are_hidden(sandbox: Sandbox, tmp_path: Path) -> None:
    need(sandbox, "hide_files")
    (tmp_path / "secret").write_text("s3cret")
    project = Path(__file__).resolve().parents[2]
    inside = (project / "agent_rl/envs/nat/factory/oracle/__init__.py", project / "README.md")
    for path in (tmp_path / "secret", *inside, Path("/etc/shadow")):
        result = sandbox.run_python(f"open({str(path)!r})")
        assert result.exit_code == 1 and ("FileNotFound" in result.stderr or "PermissionError" in result.stderr)


def test_the_server_cannot_be_killed_or_read_by_what_it_runs(sandbox: Sandbox) -> None:
    need(sandbox, "pid_isolation")
    source = """import os, signal
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGINT, signal.SIGTERM):
    try:
        os.kill(os.getppid(), number)
    except PermissionError:
        pass
try:
    print(os.listdir(f"/proc/{os.getppid()}/fd"))
except PermissionError:
    print("refused")
"""
    assert sandbox.run_python(source).stdout == "refused\n"
    assert sandbox.describe()["restarts"] == 0


def test_standard_streams_are_all_that_is_open_besides_the_result_pipe(sandbox: Sandbox) -> None:
    result = sandbox.run_python("import os\nprint(sorted(map(int, os.listdir('/proc/self/fd')))[:5])")
    assert result.stdout in ("[0, 1, 2, 3, 4]\n", "[0, 1, 2, 3]\n")  # the listing itself opens one


def test_arguments_environment_and_collected_files_come_and_go(sandbox: Sandbox) -> None:
    source = """import os, sys
print(sys.argv[1:], os.environ["COLOUR"])
os.mkdir("out")
open("out/answer.bin", "wb").write(bytes(range(256)))
open("other.txt", "w").write("x")
os.symlink("/etc/passwd", "link")
"""
    result = sandbox.run_python(
        source, argv=["-a", "é"], env={"COLOUR": "red"}, collect=["out/answer.bin", "link", "no"]
    )
    assert result.stdout == "['-a', 'é'] red\n"
    assert result.files == {"out/answer.bin": bytes(range(256))}
    assert set(sandbox.run_python(source, env={"COLOUR": ""}, collect=["*"]).files) == {"out/answer.bin", "other.txt"}


def test_another_program_can_be_run(sandbox: Sandbox) -> None:
    result = sandbox.run_command(
        ["/bin/sh", "-c", "cat - notes.txt; exit 3"], files={"notes.txt": b"two"}, stdin="one "
    )
    assert (result.status, result.exit_code, result.stdout) == (Status.NONZERO, 3, "one two")
    assert sandbox.run_command(["/no/such/program"]).status is Status.ERROR


def test_a_session_answers_line_by_line_and_keeps_its_state(sandbox: Sandbox) -> None:
    source = "total = 0\nwhile True:\n    total += int(input())\n    print(total, flush=True)\n"
    with (
        sandbox.session("sum.py", {"sum.py": source}) as first,
        sandbox.session("sum.py", {"sum.py": source}) as second,
    ):
        assert [first.request("1", 2.0), second.request("10", 2.0), first.request("2", 2.0)] == ["1", "10", "3"]
        assert sandbox.run_python("print('meanwhile')").stdout == "meanwhile\n"
        first.write_line("no number")
        with pytest.raises(SessionEnded) as ended:
            first.read_line(2.0)
        assert ended.value.reason == "closed"
        assert "ValueError" in first.close().stderr
        assert second.request("5", 2.0) == "15"
        with pytest.raises(SessionEnded, match="no line within"):
            second.read_line(0.05)


def test_a_session_reads_lines_that_come_together_or_in_drips(sandbox: Sandbox) -> None:
    source = """import os, time
os.write(1, b"one\\ntwo\\nthr")
for part in (b"e", b"e", b"\\nfour"):
    time.sleep(0.02)
    os.write(1, part)
"""
    with sandbox.session("drip.py", {"drip.py": source}) as session:
        assert [session.read_line(5.0) for _ in range(3)] == ["one", "two", "three"]
        with pytest.raises(SessionEnded):
            session.read_line(5.0)


def test_a_program_that_takes_its_bytes_back_or_fills_its_own_input_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at a pipe says that it is ready, and by the time of the call it is not."""
    with (
        open_tier(TIERS[0]) as sandbox,
        sandbox.session("a.py", {"a.py": "import time\ntime.sleep(30)\n"}) as session,
        ThreadPoolExecutor(1) as pool,
    ):
        monkeypatch.setattr("agent_rl.sandbox.session._is_ready", lambda *_: True)
        for talk in (lambda: session.read_line(0.2), lambda: session.write_line("x" * 200_000, 0.2)):
            with pytest.raises(SessionEnded) as ended:
                done = pool.submit(talk)
                try:
                    done.result(timeout=5.0)
                except TimeoutError:
                    session.close()  # lets the thread go on
                    raise
            assert ended.value.reason == "silent"


def test_a_line_that_drips_on_is_late(sandbox: Sandbox) -> None:
    source = "import os, time\nwhile True:\n    os.write(1, b'x' * 20)\n    time.sleep(0.001)\n"
    with sandbox.session("drip.py", {"drip.py": source}) as session:
        started = time.monotonic()
        with pytest.raises(SessionEnded) as ended:
            session.read_line(0.3)
        assert ended.value.reason == "silent" and time.monotonic() - started < 1.5


def test_every_result_lists_what_was_enforced(sandbox: Sandbox) -> None:
    result, about = sandbox.run_python("pass"), sandbox.describe()
    assert (result.tier, sorted(result.enforced)) == (about["tier"], about["enforced"])
    assert set(about["enforced"]) | set(about["not_enforced"]) == set(Capability)
    assert result.cpu_s > 0 and result.max_rss_mb > 1


def test_pytest_reports_in_words(sandbox: Sandbox) -> None:
    files = {
        "src/thing.py": "x = 1\n",
        "tests/test_thing.py": "from thing import x\ndef test_x():\n    assert x == 2\n",
    }
    result = sandbox.run_pytest(files, ["tests/test_thing.py"])
    assert (result.status, result.exit_code) == (Status.NONZERO, 1)
    assert "assert 1 == 2" in result.stdout and "1 failed" in result.stdout


def test_assertions_are_rewritten_for_a_report_and_not_for_outcomes(sandbox: Sandbox) -> None:
    source = """import sys
def test_rewritten():
    assert any("Rewriting" in type(each).__name__ for each in sys.meta_path)
"""
    files, path = {"tests/test_finders.py": source}, "tests/test_finders.py"
    assert sandbox.run_pytest(files, [path]).exit_code == 0
    outcomes = sandbox.call("run_tests", files, targets=[path]).result["outcomes"]
    assert outcomes == {f"{path}::test_rewritten": "failed"}


def test_an_error_that_a_program_forged_can_be_encoded(sandbox: Sandbox) -> None:
    forged = r"""{"error": "a\ud800"}"""
    source = f"import os\nos.write(3, {forged!r}.encode() + b'\\n')\nos._exit(0)"
    assert sandbox.run_python(source).stderr == "a?"


def test_an_unknown_job_and_a_result_that_is_not_json_are_errors(sandbox: Sandbox, tmp_path: Path) -> None:
    assert sandbox.call("no_such_job").error == "LookupError: there is no such job"
    jobs = tmp_path / "jobs.py"
    jobs.write_text(
        "JOBS = {'set': lambda r, w: {1}, 'raise': lambda r, w: 1 / 0, 'big': lambda r, w: 'x' * 5 * 2**20}\n"
    )
    with Sandbox.open(python=sys.executable, jobs=[str(jobs)], limits=LIMITS) as own:
        assert own.call("set").status is Status.ERROR
        assert own.call("raise").error == "ZeroDivisionError: division by zero"
        assert own.call("big").status is Status.OUTPUT_LIMIT


def test_a_killed_server_is_replaced_and_nothing_is_lost() -> None:
    with Sandbox.open(python=sys.executable, limits=LIMITS) as sandbox, ThreadPoolExecutor(1) as pool:
        pending = pool.submit(sandbox.run_python, "import time\ntime.sleep(0.4)\nprint('done')")
        time.sleep(0.2)
        (server,) = sandbox._servers
        os.kill(server.process.pid, signal.SIGKILL)
        assert pending.result().stdout == "done\n"
        assert sandbox.describe()["restarts"] == 1


def test_a_server_on_which_a_run_could_not_be_set_up_gets_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with Sandbox.open(python=sys.executable, limits=LIMITS) as sandbox:
        (broken,) = sandbox._servers
        settle = RunFiles.settle

        def fail_once(self: RunFiles, header: dict[str, object], tier: str) -> None:
            monkeypatch.setattr(RunFiles, "settle", settle)
            raise SandboxFailed("PermissionError: work")

        monkeypatch.setattr(RunFiles, "settle", fail_once)
        assert sandbox.run_python("print(1)").stdout == "1\n"
        assert sandbox.describe()["restarts"] == 1
        assert not is_running(broken.process.pid)


class FakeServer:
    """A server of which only the hello is known."""

    def __init__(self, hello: dict[str, object]) -> None:
        self.hello, self.is_closed = hello, False

    def wait_for_hello(self, timeout_s: float) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True


@pytest.mark.parametrize("hello", [{"unavailable": "namespaces: no space left"}, {"enforced": ["kill_tree"]}])
def test_no_replaced_server_lowers_what_the_first_one_enforced(
    hello: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Sandbox.open(python=sys.executable, limits=LIMITS) as sandbox:
        before = sandbox.describe()
        (server,) = sandbox._servers
        os.kill(server.process.pid, signal.SIGKILL)
        lesser = FakeServer(hello)
        with monkeypatch.context() as patch:
            patch.setattr(ServerProcess, "spawn", lambda *_: lesser)
            with pytest.raises(SandboxError):
                sandbox.run_python("print(1)")
        assert lesser.is_closed
        result = sandbox.run_python("print(1)")
        assert (result.tier, result.enforced, result.stdout) == (before["tier"], set(before["enforced"]), "1\n")
        assert sandbox.describe()["reasons"] == before["reasons"]


def test_a_job_that_kills_its_server_twice_raises_instead_of_scoring() -> None:
    kill = """import os, signal, time
above = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1]
os.kill(int(above), signal.SIGKILL)
time.sleep(1)
"""
    with open_tier("rlimits") as sandbox:
        with pytest.raises(SandboxError, match="failed twice"):
            sandbox.run_python(kill)
        assert sandbox.run_python("print(1)").stdout == "1\n"


def test_many_threads_share_the_servers_and_get_each_their_own_answer() -> None:
    start = threading.Barrier(8)

    def work(index: int) -> list[str]:
        start.wait()
        return [sandbox.run_python(f"print({index} * 10 + {i})").stdout for i in range(4)]

    with Sandbox.open(python=sys.executable, limits=LIMITS, size=2) as sandbox, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(8)))
    assert answers == [[f"{index * 10 + i}\n" for i in range(4)] for index in range(8)]


def test_a_lower_tier_leaves_no_file_behind() -> None:
    with open_tier("rlimits") as sandbox:
        scratch = Path(sandbox._hello["scratch"])
        for _ in range(20):
            sandbox.run_python("open('x', 'w').write('x')")
        assert list(scratch.parent.glob(f"{scratch.name}*")) == [scratch]
    assert not scratch.exists()


def test_servers_die_with_a_host_that_was_killed() -> None:
    host = f"""import sys, time
sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from agent_rl.sandbox.sandbox import Sandbox
sandbox = Sandbox.open(python=sys.executable)
print(next(iter(sandbox._servers)).process.pid, flush=True)
sandbox.run_python("import time\\ntime.sleep(60)")
"""
    with subprocess.Popen([sys.executable, "-c", host], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        launcher = int(process.stdout.readline())
        family = [launcher, *descendants(launcher)]
        process.kill()
    assert len(family) >= 2
    deadline = time.monotonic() + 5.0
    while any(is_running(pid) for pid in family) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not [pid for pid in family if is_running(pid)]


def descendants(pid: int) -> list[int]:
    deadline, found = time.monotonic() + 5.0, []
    while not found and time.monotonic() < deadline:  # until the job's process is there
        found = [int(name) for name in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        found += [int(name) for p in found for name in Path(f"/proc/{p}/task/{p}/children").read_text().split()]
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_closed_sandbox_has_no_server_and_refuses_calls() -> None:
    sandbox = Sandbox.open(python=sys.executable, limits=LIMITS)
    (server,) = sandbox._servers
    sandbox.close()
    assert not is_running(server.process.pid)
    with pytest.raises(SandboxError, match="closed"):
        sandbox.run_python("pass")


def test_an_unknown_tier_and_a_capability_that_is_missing_are_refused() -> None:
    with pytest.raises(UserError, match="unknown isolation tier 'docker'"):
        Sandbox.open(python=sys.executable, tier="docker")
    with open_tier("rlimits"):  # or skip
        pass
    with pytest.raises(SandboxError, match="does not enforce no_network"):
        Sandbox.open(python=sys.executable, tier="rlimits", require={Capability.NO_NETWORK})


def test_a_missing_interpreter_is_for_the_user_to_fix(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no Python interpreter at .*nowhere"):
        Sandbox.open(python=tmp_path / "nowhere")


def test_an_interpreter_below_tmp_leaves_tmp_to_the_run() -> None:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        folder.chmod(0o755)
        venv.create(folder / "venv", symlinks=True)
        jobs = folder / "jobs.py"
        jobs.write_text(
            "import os\ndef look(request, workdir):\n    open('/tmp/mine', 'w').close()\n"
            "    return [sorted(os.listdir('/tmp')), os.path.exists(__file__)]\nJOBS = {'look': look}\n"
        )
        try:
            opened = Sandbox.open(python=folder / "venv/bin/python", jobs=[str(jobs)], tier="namespaces")
        except SandboxError as error:
            pytest.skip(f"isolation tier namespaces is not available here: {error}")
        with opened as sandbox:
            for _ in range(2):
                assert sandbox.call("look").result == [["mine", folder.name], False]
    finally:
        shutil.rmtree(folder)


def test_a_preload_that_fails_reports_why(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.py"
    jobs.write_text("import no_such_module\n")
    with pytest.raises(SandboxError, match="no_such_module"):
        Sandbox.open(python=sys.executable, jobs=[str(jobs)])


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "../x", "a/../../x", "a//b", "./a", "", "a/", "a\0b", "a\nb", "..", "a\\b", "\ud800", "x" * 300],
)
def test_a_path_that_leaves_the_workspace_is_refused(sandbox: Sandbox, path: str) -> None:
    with pytest.raises(WorkspaceError):
        validate_files({path: "x"})
    with pytest.raises(WorkspaceError):
        sandbox.run_python("pass", files={path: "x"})


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({f"f{i}": "" for i in range(MAX_FILES + 1)}, "too many"),
        ({"big": "é" * (MAX_FILE_BYTES // 2 + 1)}, "at most"),
        ({f"f{i}": "x" * MAX_FILE_BYTES for i in range(5)}, "together"),
        ({"a": "", "a/b": ""}, "'a' is a file"),
        ({"a": "\ud800"}, "UTF-8"),
    ],
)
def test_files_beyond_the_caps_are_refused_in_a_sentence(files: dict[str, str], words: str) -> None:
    with pytest.raises(WorkspaceError, match=words):
        validate_files(files)


def test_a_name_that_no_file_system_takes_is_the_fault_of_the_files(sandbox: Sandbox) -> None:
    result = sandbox.run_python("pass", files={"é" * 150 + ".py": ""})  # 303 bytes in one part of the path
    assert result.status is Status.ERROR and "the files cannot be written" in result.stderr
    assert sandbox.describe()["restarts"] == 0


def test_files_that_a_session_refuses_cost_no_server(sandbox: Sandbox) -> None:
    for _ in range(3):
        with pytest.raises(WorkspaceError):
            sandbox.session("a.py", {"a.py": "", "../b.py": ""})
        with pytest.raises(WorkspaceError):
            sandbox.converse(Call(job="run_python", files={"/b.py": ""}), lambda session: None)
    assert sandbox.describe()["restarts"] == 0


def test_the_memory_groups_of_ended_sessions_are_removed() -> None:
    with Sandbox.open(python=sys.executable, limits=LIMITS) as sandbox:
        if sandbox.describe()["memory"] != "control group":
            pytest.skip("no memory control group can be made here")
        for _ in range(3):
            with sandbox.session("a.py", {"a.py": "print(input(), flush=True)"}) as session:
                assert session.request("x", 2.0) == "x"
        base = Path(json.loads(sandbox._groups)["bases"]["memory"][1])
        deadline = time.monotonic() + 5.0
        while len([entry for entry in base.iterdir() if entry.is_dir()]) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
            sandbox.run_python("pass")  # ended ones are noticed with the next request
        assert len([entry for entry in base.iterdir() if entry.is_dir()]) == 1


def test_a_workspace_is_a_snapshot() -> None:
    files = {"a.py": "é"}
    workspace = Workspace(files)
    files["b.py"] = "x"
    assert dict(workspace) == {"a.py": "é".encode()}
    assert dict(workspace.with_files({"c.bin": b"\xff"})) == {"a.py": "é".encode(), "c.bin": b"\xff"}
    with pytest.raises(WorkspaceError):
        workspace.with_files({"../a": ""})


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab./\\ \0\n", max_size=12))
def test_an_accepted_path_always_stays_inside(path: str) -> None:
    try:
        validate_files({path: ""})
    except WorkspaceError:
        return
    assert os.path.normpath(f"/ws/{path}") == f"/ws/{path}"


def test_a_session_works_beside_more_than_a_thousand_open_descriptors(sandbox: Sandbox) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"no more than {hard} descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    others = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        with sandbox.session("echo.py", {"echo.py": "print(input())\n"}) as session:
            assert session.request("x", 2.0) == "x"
    finally:
        for fd in others:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_session_that_cannot_start_keeps_nothing_open(sandbox: Sandbox) -> None:
    (server,) = sandbox._servers
    before, below = num_open(), len(linux.descendants(server.process.pid))
    for _ in range(3):
        with pytest.raises(TypeError):
            sandbox.session("a.py", {"a.py": "pass"}, argv=[object()])  # type: ignore[list-item]
    assert num_open() == before
    deadline = time.monotonic() + 5.0
    while (now := len(linux.descendants(server.process.pid))) > below and time.monotonic() < deadline:
        time.sleep(0.05)
        sandbox.run_python("pass")  # ended ones are noticed with the next request
    assert now <= below


@pytest.mark.parametrize("num_free", [1, 5, 9, 13])
def test_what_cannot_be_opened_is_a_failure_of_the_sandbox_and_keeps_nothing(num_free: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open_tier(TIERS[0]) as sandbox:
        before = num_open()
        for work in (
            lambda: sandbox.session("a.py", {"a.py": "pass"}).close(),
            lambda: sandbox.run_python("print(1)"),
        ):
            free = [os.dup(0) for _ in range(num_free)]  # the lowest numbers that are not in use
            for fd in free:
                os.close(fd)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(free) + 1, hard))
            try:
                with contextlib.suppress(SandboxError):
                    work()
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            assert num_open() <= before
        assert sandbox.run_python("print(1)").stdout == "1\n"


def test_calls_that_wait_for_a_server_hold_no_descriptors() -> None:
    with Sandbox.open(python=sys.executable, limits=LIMITS) as sandbox:
        start, most = threading.Event(), 0
        before = len(os.listdir("/proc/self/fd"))

        def call() -> bool:
            start.wait()
            return sandbox.run_python("import time; time.sleep(0.05)").exit_code == 0

        with ThreadPoolExecutor(16) as pool:
            calls = [pool.submit(call) for _ in range(16)]
            start.set()
            while not all(each.done() for each in calls):
                most = max(most, len(os.listdir("/proc/self/fd")))
        assert all(each.result() for each in calls)
    assert most - before < 30  # each call has about ten
