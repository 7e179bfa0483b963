"""Many hostile runs at once: nothing is left, no answer is lost or invented, regardless of what is killed."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import LIMITS
from host import descendants, nothing_left_over, processes_named

from agent_rl.errors import SandboxError
from agent_rl.sandbox.limits import Limits, RunResult, Status
from agent_rl.sandbox.sandbox import Sandbox

QUICK = Limits(**{name: getattr(LIMITS, name) for name in LIMITS.__slots__} | {"wall_s": 0.3})
DAEMON = """import os, subprocess, sys, time
subprocess.Popen(["sleep", "9" + sys.argv[2]], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    os.closerange(0, 3)
    time.sleep(1000)
print(sys.argv[1])
"""
FILES = """import sys
for folder in ("/tmp", "/dev/shm", "."):
    open(f"{folder}/left_{sys.argv[2]}_{sys.argv[1]}", "w").write(sys.argv[1])
print(sys.argv[1])
"""
Kind = tuple[str, Limits, Callable[[RunResult, str], bool]]


def _printed(result: RunResult, number: str) -> bool:
    return result.status is Status.OK and result.stdout == f"{number}\n"


KINDS: dict[str, Kind] = {
    "answer": ("import sys; print(sys.argv[1])", LIMITS, _printed),
    "daemon": (DAEMON, LIMITS, _printed),
    "files": (FILES, LIMITS, _printed),
    "crash": ("import sys; sys.exit(int(sys.argv[1]) % 7 + 1)", LIMITS, lambda r, n: r.exit_code == int(n) % 7 + 1),
    "abort": ("import os; os.abort()", LIMITS, lambda r, n: (r.status, r.exit_code) == (Status.NONZERO, -6)),
    "silence": (
        "import sys, time; print(sys.argv[1], flush=True); time.sleep(99)",
        QUICK,
        lambda r, n: (r.status, r.stdout) == (Status.TIMEOUT, f"{n}\n"),
    ),
    "flood": ("while True: print('x' * 9999)", LIMITS, lambda r, n: r.status is Status.OUTPUT_LIMIT),
    "memory": ("x = bytearray(2 ** 30)", LIMITS, lambda r, n: r.status in (Status.NONZERO, Status.MEMORY)),
}


def open_sandbox(size: int = 2) -> Sandbox:
    try:
        return Sandbox.open(python=sys.executable, limits=LIMITS, size=size, tier="namespaces")
    except SandboxError as error:
        pytest.skip(f"isolation tier namespaces is not available here: {error}")


def wrong_answers(sandbox: Sandbox, num_runs: int, token: str) -> Counter[str]:
    """Run a shuffled mix in 8 threads and count what came out other than it had to."""
    kinds = [list(KINDS)[number % len(KINDS)] for number in range(num_runs)]
    random.Random(0).shuffle(kinds)

    def run(number: int) -> str | None:
        source, limits, is_right = KINDS[kinds[number]]
        result = sandbox.run_python(source, argv=(str(number), token), limits=limits)
        return None if is_right(result, str(number)) else f"{kinds[number]}: {result.status} {result.exit_code}"

    with ThreadPoolExecutor(8) as pool:
        return Counter(answer for answer in pool.map(run, range(num_runs)) if answer is not None)


@pytest.mark.parametrize("num_runs", [100, pytest.param(2000, marks=[pytest.mark.long, pytest.mark.timeout(900)])])
def test_mixed_runs_in_eight_threads_leave_nothing_and_mix_nothing_up(num_runs: int, tmp_path: Path) -> None:
    token = str(random.randrange(10**7, 10**8))
    with nothing_left_over(tmp_path):
        with open_sandbox() as sandbox:
            before = descendants()
            assert wrong_answers(sandbox, num_runs, token) == Counter()
            assert descendants() == before
            assert sandbox.describe()["restarts"] == 0
        assert processes_named(token) == []
    assert [path for folder in ("/tmp", "/dev/shm") for path in Path(folder).glob(f"left_{token}*")] == []


def test_a_server_killed_in_the_middle_is_replaced_and_no_answer_is_lost_or_invented(tmp_path: Path) -> None:
    source = "import sys, time; time.sleep(0.05); print(sys.argv[1])"
    others = descendants()
    with nothing_left_over(tmp_path), open_sandbox(size=2) as sandbox:
        servers = sorted(set(descendants()) - set(others))

        def run(number: int) -> str:
            return sandbox.run_python(source, argv=(str(number),)).stdout

        with ThreadPoolExecutor(4) as pool:
            answers = pool.map(run, range(30))
            time.sleep(0.15)
            os.kill(servers[-1], signal.SIGKILL)
            assert list(answers) == [f"{number}\n" for number in range(30)]
        assert sandbox.describe()["restarts"] >= 1
        assert servers[-1] not in descendants()


def test_a_sandbox_closed_during_runs_ends_them_with_an_error_of_the_sandbox(tmp_path: Path) -> None:
    token = str(random.randrange(10**7, 10**8))
    source = f"import subprocess; subprocess.run(['sleep', '9{token}'])"
    raised: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.run_python(source)
        except SandboxError as error:
            raised.append(error)

    with nothing_left_over(tmp_path):
        sandbox = open_sandbox()
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        _wait_until(lambda: len(processes_named(token)) == 2)
        sandbox.close()
        for thread in threads:
            thread.join(timeout=5.0)
        assert [type(error) for error in raised] == [SandboxError, SandboxError]
        assert processes_named(token) == []


HOST = """import sys
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox
source = f'''import os, signal, subprocess
for number in (1, 2, 15):
    signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    subprocess.Popen(["sleep", "9{sys.argv[1]}"], start_new_session=True)
signal.pause()
'''
with Sandbox.open(python=sys.executable, size=2, tier="namespaces") as sandbox:
    sandbox.run_python(source, limits=Limits(wall_s=60.0))
"""


def test_killing_the_host_process_leaves_nothing_alive() -> None:
    open_sandbox(size=1).close()
    token = str(random.randrange(10**7, 10**8))
    host = subprocess.Popen([sys.executable, "-c", HOST, token], cwd=Path(__file__).parents[2])
    try:
        _wait_until(lambda: len(processes_named(f"9{token}")) >= 3)
        below = descendants(host.pid)
        assert len(below) >= 5
    finally:
        host.kill()
        host.wait()
    _wait_until(lambda: not processes_named(token))
    _wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


def _wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
