"""Program: a warm, single-threaded process that runs each request in a fresh fork. Standard library only.

`python -I -B fork_server.py JOBS_FILE TIER HOME` speaks length-prefixed JSON on the socket it gets as stdin. The jobs
file does the heavy imports and defines `JOBS: dict[str, Callable[[request, workdir], JSON]]`; `TIER` is one of
isolation.py, which hides `HOME`. After a hello, each request is answered with two frames: a header (status, output,
times) and the job's raw JSON. It knows inputs only: no expected answer or verdict is ever sent to it.
"""

import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NoReturn

RESULT_FD = 3
HUGE_PAGE, MADV_COLLAPSE = 2**21, 25


def load_module(path: str) -> Any:
    """Import a file by its path: with `-I` no folder of ours is on sys.path, and candidates shall not find one."""
    spec = importlib.util.spec_from_file_location(f"agent_rl_{os.path.basename(path)[:-3]}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = os.path.dirname(os.path.abspath(__file__))
isolation = load_module(os.path.join(HERE, "isolation.py"))


def send_frame(channel: socket.socket, payload: bytes) -> None:
    channel.sendall(struct.pack(">I", len(payload)) + payload)


def receive_frame(channel: socket.socket) -> bytes | None:
    """The next frame, or None at end of file."""
    header = _receive_exactly(channel, 4)
    return None if header is None else _receive_exactly(channel, struct.unpack(">I", header)[0])


def _receive_exactly(channel: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        chunk = channel.recv(min(size - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return bytes(data)


# ---------------------------------------------------------------- the child that runs the job


def _set_limits(limits: dict[str, Any], base_memory: int, count_processes: bool) -> None:
    wanted = {
        resource.RLIMIT_AS: base_memory + limits["memory_mb"] * 2**20,
        resource.RLIMIT_FSIZE: limits["file_mb"] * 2**20,
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_CORE: 0,
    }
    if count_processes:
        wanted[resource.RLIMIT_NPROC] = limits["processes"]
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (allowed, allowed))
    # One second between the two: a soft limit sends SIGXCPU, which tells a timeout from a crash.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_s"], limits["cpu_s"] + 1))


def _become_candidate(workdir: str, pipes: tuple[int, int, int]) -> None:
    """Own session, own standard streams; nothing of the server's stays open but the result pipe."""
    os.setsid()
    out, err, result = pipes
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.dup2(result, RESULT_FD, inheritable=False)
    os.closerange(RESULT_FD + 1, 1 << 20)
    os.chdir(workdir)
    os.environ["HOME"] = os.environ["TMPDIR"] = workdir
    tempfile.tempdir = None
    random.seed()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    isolation.prctl(isolation.PR_SET_DUMPABLE, 1)  # else /proc/self/fd and /dev/stdout cannot be opened
    isolation.prctl(isolation.PR_SET_PDEATHSIG, signal.SIGKILL)


def _run_job(job: Callable[[dict[str, Any], str], Any], request: dict[str, Any], workdir: str) -> NoReturn:
    pid = os.getpid()
    try:
        message = {"result": job(request, workdir)}
    except BaseException as error:  # the boundary to code we did not write: SystemExit included
        message = {"error": f"{type(error).__name__}: {error}"[:300]}
    if os.getpid() != pid:  # the candidate forked and its copy came back here
        os._exit(0)
    try:
        payload = json.dumps(message).encode()
    except (TypeError, ValueError, RecursionError) as error:
        payload = json.dumps({"error": f"the result is not JSON: {error}"[:300]}).encode()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or replaced by the candidate
            stream.flush()
    while payload:
        payload = payload[os.write(RESULT_FD, payload) :]
    os._exit(0)


# ---------------------------------------------------------------- the server


class Server:
    """Answers requests one after the other until the host closes the channel."""

    def __init__(self, channel: socket.socket, jobs: dict[str, Any], enforced: list[str], scratch: list[str]) -> None:
        self.channel = channel
        self.jobs = jobs
        self.enforced = enforced
        self.pristine = {path: set(os.listdir(path)) for path in scratch}
        with open("/proc/self/statm") as file:
            self.base_memory = int(file.read().split()[0]) * resource.getpagesize()

    def serve(self) -> None:
        while (frame := receive_frame(self.channel)) is not None:
            header, body = self.run(json.loads(frame))
            clean = self.clean()
            send_frame(self.channel, json.dumps(header).encode())
            send_frame(self.channel, body)
            if not clean:
                return  # the host starts a fresh server, with fresh folders

    def run(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        started = time.monotonic()
        limits = request["limits"]
        workdir = tempfile.mkdtemp(dir=next(iter(self.pristine)))
        for path, text in request["files"].items():
            target = os.path.join(workdir, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8", newline="") as file:
                file.write(text)
        readers, writers = zip(*(os.pipe() for _ in range(3)), strict=True)
        pid = os.fork()
        if pid == 0:
            try:
                _become_candidate(workdir, writers)
                _set_limits(limits, self.base_memory, "process_limit" in self.enforced)
                _run_job(self.jobs[request["job"]], request["request"], workdir)
            finally:
                os._exit(1)  # never back into the server's loop
        for writer in writers:
            os.close(writer)
        status, outputs = self.supervise(pid, readers, limits, started + limits["wall_s"])
        out, err, body = (bytes(data) for data in outputs)
        exit_code = self.kill_everything(pid)
        if status == "exited":
            status = "timeout" if exit_code == -signal.SIGXCPU else "ok" if body else "crashed"
        else:
            exit_code = None
        cap = limits["output_kb"] * 1024
        header = {
            "status": status,
            "exit_code": exit_code,
            "stdout": out[:cap].decode("utf-8", "replace"),
            "stderr": err[:cap].decode("utf-8", "replace"),
            "truncated": max(len(out), len(err)) > cap,
            "wall_s": time.monotonic() - started,
        }
        return header, body if status == "ok" else b""

    def supervise(
        self, pid: int, readers: tuple[int, ...], limits: dict[str, Any], deadline: float
    ) -> tuple[str, list[bytearray]]:
        """Read the three pipes until the child ends or a limit is reached; the child may still live then."""
        outputs = {reader: bytearray() for reader in readers}
        handle = os.pidfd_open(pid)
        poller = select.poll()
        for fd in (*readers, handle):
            poller.register(fd, select.POLLIN)
        status = "timeout"
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready = [fd for fd, _ in poller.poll(left * 1000)]
                for fd in ready:
                    if fd != handle and not _read_into(fd, outputs[fd]):
                        poller.unregister(fd)
                out, err, body = (len(data) for data in outputs.values())
                if out + err > limits["output_hard_kb"] * 1024 or body > limits["result_kb"] * 1024:
                    status = "output_limit"
                    break
                if handle in ready:
                    status = "exited"
                    break
            for fd, data in outputs.items():  # what is left in the pipes; a grandchild may hold them open
                os.set_blocking(fd, False)
                with contextlib.suppress(BlockingIOError):
                    for _ in range(32):
                        if not _read_into(fd, data):
                            break
        finally:
            for fd in (*readers, handle):
                os.close(fd)
        return status, list(outputs.values())

    def kill_everything(self, pid: int) -> int:
        """Kill the run's whole process tree, daemons included, and reap it; return the exit code of `pid`."""
        own_namespace = "process_namespace" in self.enforced
        with contextlib.suppress(ProcessLookupError):
            # As process 1, -1 is everything in the namespace, in one step that no fork can outrun.
            os.kill(-1, signal.SIGKILL) if own_namespace else os.killpg(pid, signal.SIGKILL)
        exit_code, give_up = 0, time.monotonic() + 5.0
        while time.monotonic() < give_up:
            try:
                done, status = os.waitpid(-1, 0 if own_namespace else os.WNOHANG)
            except ChildProcessError:
                return exit_code
            if done == pid:
                exit_code = os.waitstatus_to_exitcode(status)
            elif done == 0:  # alive and in another session: orphans become our children, see the subreaper
                for child in _children():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                time.sleep(0.001)
        os._exit(1)  # something cannot be killed: the host starts a fresh server

    def clean(self) -> bool:
        """Remove everything the run left in the writable folders; False when something resists."""
        left = False
        for folder, before in self.pristine.items():
            for name in set(os.listdir(folder)) - before:
                _remove(os.path.join(folder, name))
            left |= bool(set(os.listdir(folder)) - before)
        return not left


def _read_into(fd: int, data: bytearray) -> bool:
    chunk = os.read(fd, 65536)
    data += chunk
    return bool(chunk)


def _children() -> list[int]:
    me, found = os.getpid(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat") as file:
            if int(file.read().rpartition(")")[2].split()[1]) == me:
                found.append(int(name))
    return found


def _remove(path: str) -> None:
    if os.path.islink(path) or not os.path.isdir(path):
        os.unlink(path)
        return
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):  # a run may lock its own folders, or nest them too deep to remove
        with contextlib.suppress(OSError, RecursionError):
            os.chmod(path, 0o700)
            for parent, folders, _ in os.walk(path):
                for folder in (os.path.join(parent, name) for name in folders):
                    if not os.path.islink(folder):
                        os.chmod(folder, 0o700)
            shutil.rmtree(path, ignore_errors=True)


def collapse_memory() -> None:
    """Ask for huge pages under the warm heap: with fewer page-table entries to copy, fork and exit take half the time.

    Needs Linux 6.1; where the kernel refuses, everything works as before.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    with open("/proc/self/maps") as file:
        mappings = [line.split() for line in file]
    for address, mode, *_, name in (fields if len(fields) == 6 else [*fields, ""] for fields in mappings):
        if "w" in mode and name in ("", "[heap]"):
            start, end = (int(part, 16) for part in address.split("-"))
            start, end = -(-start // HUGE_PAGE) * HUGE_PAGE, end // HUGE_PAGE * HUGE_PAGE
            if start < end:
                libc.madvise(start, end - start, MADV_COLLAPSE)


def main() -> None:
    jobs_file, tier, home = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    isolation.prctl(isolation.PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    keep = {sys.prefix, sys.base_prefix, os.path.dirname(HERE), os.path.dirname(os.path.abspath(jobs_file))}
    try:
        enforced, scratch = isolation.isolate(tier, sorted(keep), home)
    except OSError as error:
        send_frame(channel, json.dumps({"unavailable": f"{tier}: {error}"}).encode())
        return
    try:
        module = load_module(jobs_file)
    except Exception as error:  # whatever the preload raises belongs in the host's message
        send_frame(channel, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    server = Server(channel, module.JOBS, enforced, scratch)
    os.dup2(null, 2)
    hello = {"enforced": enforced, "about": getattr(module, "ABOUT", {}), "python": sys.version.split()[0]}
    if tier == "process":
        hello["scratch"] = scratch[0]
    gc.collect()
    gc.freeze()
    collapse_memory()
    send_frame(channel, json.dumps(hello).encode())
    server.serve()


if __name__ == "__main__":
    main()
