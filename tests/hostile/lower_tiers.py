"""Judge linked runs and plain ones in a lower tier and print what held as JSON: `python lower_tiers.py TIER [UID]`."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from host import processes_named

TESTS = {"test_a.py": "from solution import f\ndef test_a():\n    assert f(1) == 7_310\n"}
RIGHT = {"solution.py": "def f(x):\n    return 7_310\n"}
SEARCH = """
import os
def f(x):
    found = []
    home = os.path.dirname(os.path.dirname(os.getcwd()))
    places = [home, os.path.dirname(home), "/dev/shm", "/tmp"]
    places += [os.path.join(home, str(n), "work") for n in range(4)]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        places += [f"/proc/{pid}/cwd", f"/proc/{pid}/fd", f"/proc/{pid}/root"]
    for place in places:
        try:
            for name in os.listdir(place):
                path = os.path.join(place, name)
                if os.path.isfile(path) and "7_310" in open(path, errors="replace").read():
                    found.append(path)
        except OSError:
            pass
    return 7_310 if [path for path in found if "solution" not in path] else 0
"""
DEEP = """
import os
for n in range(DEPTH):
    os.mkdir("d")
    os.chdir("d")
os.chmod(".", 0)
print("done")
"""
LOCKED = """
import os
for n in range(40):
    os.makedirs(f"a{n}/b/c")
    open(f"a{n}/b/c/file", "w").write("x")
    for path in (f"a{n}/b/c", f"a{n}/b", f"a{n}"):
        os.chmod(path, 0)
open("lo" + "ng" * 120, "w")
os.symlink("/", "root")
os.mkfifo("pipe")
os.chmod("..", 0)
os.chmod(".", 0)
print("done")
"""
LOCK = """
import os
def lock(mode):
    for path in ("../../..", "../../1", "../..", ".."):  # a locked one hides those above it
        try:
            os.chmod(path, mode)
        except OSError:
            pass
"""
LOCK_OUT = (
    LOCK
    + """
import threading
def always():
    while True:
        lock(0)
threading.Thread(target=always, daemon=True).start()
def f(x):
    return 0
"""
)
"""A candidate that goes on locking while its judge is set up."""
SESSIONS = """
import os, time
for n in range(12):
    if os.fork() == 0:
        os.setsid()
        while True:
            pass
time.sleep(10)
"""
DAEMON = """
import ctypes, os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(15, b"TOKEN", 0, 0, 0)
        for n in range(8):
            try:
                os.close(n)
            except OSError:
                pass
        time.sleep(60)
    os._exit(0)
open("x", "w").write("x")
time.sleep(SECONDS)
"""
KILLED = """
import os, sys
from agent_rl.sandbox.sandbox import Sandbox
with Sandbox.open(python=sys.executable, tier=sys.argv[1], size=2) as sandbox:
    print(sandbox._hello["scratch"], flush=True)
    sandbox.run_python(os.environ['PROGRAM'])
"""


def boxes_of(scratch: Path) -> list[str]:
    """What the runs of a server have in the file system."""
    return [str(path) for path in scratch.parent.glob(f"{scratch.name}*") if path != scratch]


def outlives(token: str, end: Callable[[], object]) -> bool:
    """Whether the daemon of that name, once it is there, is still there a while after `end`."""
    _wait_until(lambda: processes_named(token), 20.0)
    end()
    return not _wait_until(lambda: not processes_named(token), 5.0)


def _wait_until(is_so: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (holds := bool(is_so())) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds


def ends_of_daemons(tier: str) -> dict[str, bool]:
    """Whether the daemon of a run ends with its sandbox, and with a server that is killed."""
    from agent_rl.errors import SandboxError
    from agent_rl.sandbox.sandbox import Sandbox

    def close() -> None:
        sandbox.close()

    def kill_server() -> None:
        (guard,) = (server.process.pid for server in sandbox._servers)
        for child in Path(f"/proc/{guard}/task/{guard}/children").read_text().split():
            os.kill(int(child), signal.SIGKILL)

    held = {}
    for name, end in (("a closed sandbox", close), ("a killed server", kill_server)):
        token = f"daemon{time.monotonic_ns() % 10**8}"
        with Sandbox.open(python=sys.executable, tier=tier) as sandbox, ThreadPoolExecutor(1) as pool:
            run = pool.submit(sandbox.run_python, DAEMON.replace("TOKEN", token).replace("SECONDS", "2"))
            held[f"a daemon ends with {name}"] = not outlives(token, end)
            with contextlib.suppress(SandboxError):
                run.result()
    return held


READ = """
import os, sys, sysconfig
packages = sysconfig.get_paths()["purelib"]
def can_read(path):
    try:
        return open(path).read() != ""
    except OSError:
        return False
def look(request, workdir):
    import colorsys, beside
    names = sorted(os.listdir(packages))
    return [can_read(os.path.join(packages, "agent_rl", "oracle.py")), can_read(os.path.join(sys.prefix, "pip.conf")),
            can_read(os.path.join(packages, "beside.py")), "beside.py" in names, beside.x]
JOBS = {"look": look}
"""


def hides_what_is_installed(tier: str) -> bool:
    """Whether a package of ours and keys in the interpreter's folder cannot be read, and what lies beside them can."""
    from agent_rl.sandbox.sandbox import Sandbox

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        venv.create(Path(folder, "venv"), symlinks=True)
        (packages,) = Path(folder, "venv").glob("lib/python3*/site-packages")
        (packages / "agent_rl").mkdir()
        (packages / "agent_rl" / "oracle.py").write_text("answer = 7_310\n")
        (packages / "beside.py").write_text("x = 5\n")
        Path(folder, "venv", "pip.conf").write_text("key")
        Path(folder, "jobs").mkdir()
        Path(folder, "jobs", "jobs.py").write_text(READ)
        options: dict[str, Any] = {"tier": tier, "jobs": [str(Path(folder, "jobs", "jobs.py"))]}
        with Sandbox.open(python=Path(folder, "venv", "bin", "python"), **options) as sandbox:
            return bool(sandbox.call("look").result == [False, False, True, True, 5])


SLOW = """
import time
from agent_rl.sandbox.guest import trees
remove_all = trees.remove_all
def slow(prefix):
    time.sleep(1.5)
    remove_all(prefix)
trees.remove_all = slow
JOBS = {"leave": lambda request, workdir: 7}
"""
"""As though each run left as many files as take that long to remove."""


def waits_for_what_runs_leave(tier: str) -> bool:
    """Whether a run is not late for what it leaves; whether its server is replaced shows in `restarts`."""
    from agent_rl.sandbox import sandbox as module
    from agent_rl.sandbox.limits import Limits

    counts = []
    with tempfile.TemporaryDirectory() as folder:
        jobs = Path(folder, "jobs.py")
        jobs.write_text(SLOW)
        Path(folder).chmod(0o755)
        options: dict[str, Any] = {"tier": tier, "jobs": [str(jobs)], "limits": Limits(wall_s=0.5)}
        with module.Sandbox.open(python=sys.executable, **options) as sandbox:
            module._GRACE_S = 0.5
            for module._TIDY_S in (30.0, 0.2, 30.0):
                counts.append((sandbox.call("leave").result, sandbox.describe()["restarts"]))
    module._GRACE_S = 10.0
    return counts == [(7, 0), (7, 0), (7, 1)]


def left_by_a_killed_host(tier: str) -> tuple[Path, bool]:
    """The scratch folder of a host that was killed a second ago, and whether the daemon of its run lived on."""
    token = f"daemon{time.monotonic_ns() % 10**8}"
    program = DAEMON.replace("TOKEN", token).replace("SECONDS", "60")
    environment = os.environ | {"PROGRAM": program}  # among its arguments it would have the name of the daemon
    command = [sys.executable, "-c", KILLED, tier]
    host = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert host.stdout is not None
    folder = Path(host.stdout.readline().strip())
    lives_on = outlives(token, lambda: (host.kill(), host.wait()))
    time.sleep(1.0)
    return folder, lives_on


def main() -> None:
    from agent_rl.sandbox.graders import SplitPytestGrader
    from agent_rl.sandbox.limits import Limits, Status
    from agent_rl.sandbox.mutation import MutationGrader
    from agent_rl.sandbox.sandbox import Sandbox

    tier = sys.argv[1]
    with Sandbox.open(python=sys.executable, tier=tier, size=1, limits=Limits(wall_s=20.0)) as sandbox:
        scratch = Path(sandbox._hello["scratch"])

        def left() -> list[str]:
            return boxes_of(scratch)

        def is_still_well() -> bool:
            return sandbox.run_python("print(1)").stdout == "1\n" and sandbox.describe()["restarts"] == 0

        split = SplitPytestGrader.record(sandbox, TESTS, RIGHT, ["solution"])
        suites = MutationGrader(
            "test_a.py",
            RIGHT,
            ["solution"],
            mutants={"wrong": {"solution.py": "def f(x):\n    return 1\n"}},
            rewrites={},
        )
        facts: dict[str, Callable[[], object]] = {
            "a right solution passes": lambda: split.grade(sandbox, RIGHT).full,
            "a wrong one does not": lambda: (
                split.grade(sandbox, {"solution.py": "def f(x):\n    return 1\n"}).passed == 0
            ),
            "a suite is judged": lambda: suites.grade(sandbox, TESTS).score == 1.0,
            "tests are out of the candidate's reach": lambda: split.grade(sandbox, {"solution.py": SEARCH}).passed == 0,
            "a tree 2,500 deep": lambda: (
                "done" in sandbox.run_python(DEEP.replace("DEPTH", "2500")).stdout and not left()
            ),
            "a tree 20,000 deep": lambda: sandbox.run_python(DEEP.replace("DEPTH", "20000")) and not left(),
            "locked folders": lambda: "done" in sandbox.run_python(LOCKED).stdout and not left(),
            "a program takes no share of the processors for each of many sessions": lambda: (
                sandbox.describe()["cpu"] != "shared" or sandbox.run_python(SESSIONS).status is Status.PROCESS_LIMIT
            ),
            "no program locks what lies above it": lambda: (
                all(sandbox.run_python(f"{LOCK}\nlock({mode})").exit_code == 0 for mode in (0, 0o400))
                and is_still_well()
            ),
            "no candidate locks its judge out": lambda: (
                split.grade(sandbox, {"solution.py": LOCK_OUT}).passed == 0 and is_still_well()
            ),
            "the server was never replaced": lambda: sandbox.describe()["restarts"] == 0,
        }
        held = {name: bool(fact()) for name, fact in facts.items()}
    for _ in range(5):  # a sandbox of another test may remove it first
        folder, lives_on = left_by_a_killed_host(tier)
        if is_left := folder.exists():
            break
    with Sandbox.open(python=sys.executable, tier=tier) as sandbox:
        held["what a killed host left is removed"] = is_left and not list(folder.parent.glob(f"{folder.name}*"))
        held["what a living one uses is not"] = Path(sandbox._hello["scratch"]).exists()
    held["an installed package of ours is hidden"] = hides_what_is_installed(tier)
    held["no run is late for what it leaves"] = waits_for_what_runs_leave(tier)
    held |= {"a daemon ends with a killed host": not lives_on} | ends_of_daemons(tier)
    print(json.dumps({"uid": os.getuid(), "held": held}))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        from as_user import become

        become(int(sys.argv[2]), __file__)
    main()
