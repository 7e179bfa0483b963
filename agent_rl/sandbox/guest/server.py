"""Program: a warm, single-threaded process that runs each request in a fresh fork. Standard library only.

Exchanges length-prefixed JSON on the socket it gets as stdin: names of jobs, limits, descriptors, exits. A jobs module
does the heavy imports and defines `JOBS: dict[str, Callable[[request, workdir], JSON]]`; it may define `ABOUT` and
`prepare(workdir)`, called once. What a run is given and what it answers passes the server by, in files of memory that
the host shares with that run alone.
"""

import contextlib
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

from agent_rl.sandbox.guest import linux
from agent_rl.sandbox.guest.cgroups import Bases, ControlGroup
from agent_rl.sandbox.guest.run import DESCRIPTORS
from agent_rl.sandbox.guest.supervision import HostGone, NotRun, SupervisedRun, Supervisor
from agent_rl.sandbox.guest.tiers import TIERS, UNPRIVILEGED, Tier

MOST_DESCRIPTORS = 253
HASH_SEED = "PYTHONHASHSEED"
TIDY = b"tidy"
"""Sent after the headers in the lower tiers, where files of a run may take long to remove: ready for the next one."""
HUGE_PAGE, MADV_COLLAPSE = 2**21, 25
PACKAGE = os.path.abspath(__file__).rpartition("/sandbox/")[0]


def send_frame(channel: socket.socket, payload: bytes) -> None:
    channel.sendall(struct.pack(">I", len(payload)) + payload)


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The next frame and the descriptors that came with it, or None at end of file."""
    header, descriptors, _, _ = socket.recv_fds(channel, 4, MOST_DESCRIPTORS)
    header += _receive_exactly(channel, 4 - len(header)) if header else b""
    if len(header) < 4:
        return None
    size = struct.unpack(">I", header)[0]
    payload = _receive_exactly(channel, size)
    return (dict(json.loads(payload)), descriptors) if len(payload) == size else None


def _receive_exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (chunk := channel.recv(min(size - len(data), 1 << 20))):
        data += chunk
    return bytes(data)


class Server:
    """Answers requests one after the other until the host closes the channel."""

    def __init__(self, channel: socket.socket, jobs: dict[str, Any], tier: Tier, bases: Bases) -> None:
        self.channel, self.jobs, self.tier, self._bases = channel, jobs, tier, bases
        self.group: ControlGroup | None = None
        self.branches: dict[int, str] = {}
        """Servers forked from this one: process -> name of its control group."""
        with open("/proc/self/statm") as file:
            self.base_memory = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def serve(self) -> None:
        with contextlib.suppress(HostGone, ConnectionError):
            while (received := receive_frame(self.channel)) is not None:
                request, descriptors = received
                self.reap_branches()
                if request["op"] == "branch":
                    self.branch(socket.socket(fileno=descriptors[0]))
                else:
                    self.answer(request["runs"], descriptors)

    def answer(self, plans: list[dict[str, Any]], descriptors: list[int]) -> None:
        """Run one program, or a server and its clients, and send the headers. A plan is a job's name and limits."""
        supervisor = Supervisor(self.channel.fileno(), watch=not (self.group and self.group.bounds_memory))
        count = len(DESCRIPTORS)
        shares = [descriptors[start : start + count] for start in range(0, len(descriptors), count)]
        if len(plans) == 1:
            runs = [self.start(plans[0], shares[0])]
            supervisor.drive(runs, until=runs[0])
            if plans[0]["interactive"]:
                supervisor.await_stop()
        else:
            runs = self.linked(supervisor, plans, shares)
        self.tier.after_run(set(self.branches))
        send_frame(self.channel, json.dumps([run.header() for run in runs]).encode())
        if self.tier.scratch:
            self.tier.tidy_up()
            with contextlib.suppress(ConnectionError):  # the host of a session waits for its end alone
                send_frame(self.channel, TIDY)

    def linked(
        self, supervisor: Supervisor, plans: list[dict[str, Any]], shares: list[list[int]]
    ) -> list[SupervisedRun | NotRun]:
        """The first is connected with each of the others, which run one after the other, until one has to be killed:
        then nothing is expected of those left, and they end for its reason without having started."""
        pairs = [socket.socketpair() for _ in plans[1:]]
        hub = self.start(plans[0], shares[0], [ours.fileno() for ours, _ in pairs])
        for ours, _ in pairs:
            ours.close()
        runs: list[SupervisedRun | NotRun] = [hub]
        cause = "ended"
        for (_, theirs), plan, share in zip(pairs, plans[1:], shares[1:], strict=True):
            if cause == "ended":
                client = self.start(plan, share, [theirs.fileno()])
                runs.append(client)
                supervisor.drive([hub, client], until=client)
                cause = client.cause
            else:
                runs.append(NotRun(cause, share))
            theirs.close()
        hub.kill("stopped")
        supervisor.drive([hub], until=hub)
        return runs

    def start(self, plan: dict[str, Any], descriptors: list[int], links: Sequence[int] = ()) -> SupervisedRun:
        if self.group and self.group.bounds_memory:
            self.group.set_limit(plan["limits"]["memory_mb"] + 16)  # what the server itself may still need
        job = self.jobs.get(plan["job"], _no_such_job)
        return SupervisedRun(self.tier, job, plan["limits"], descriptors, links, self.base_memory, self.group)

    def branch(self, channel: socket.socket) -> None:
        """Fork a server with a channel of its own: warm at once, for one session."""
        group_name = new_group_name()
        pid = os.fork()
        if pid:
            channel.close()
            self.branches[pid] = group_name
            return
        try:
            self.channel.close()
            self.channel, self.branches = channel, {}
            linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
            linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
            self.tier.name_boxes()
            self.group = self._bases.enter(group_name)
            self.serve()
            self.tier.leave()
        finally:
            os._exit(0)

    def reap_branches(self) -> None:
        for pid in list(self.branches):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._bases.remove(self.branches.pop(pid))


def _no_such_job(_request: Any, _workdir: str) -> None:
    raise LookupError("there is no such job")


def new_group_name() -> str:
    """Servers in namespaces of their own may have the same process number."""
    return f"server_{os.getpid()}_{time.monotonic_ns()}"


def collapse_memory() -> None:
    """Ask for huge pages under the warm heap: fewer page-table entries to copy make every fork and exit cheaper.

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


def load_jobs(name: str) -> Any:
    """A module by its name, or by its path when it ends in .py."""
    if not name.endswith(".py"):
        return importlib.import_module(name)
    spec = importlib.util.spec_from_file_location(os.path.basename(name)[:-3], name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(tier_name: str, jobs_names: Sequence[str], groups: str) -> None:
    os.environ.pop(HASH_SEED, None)  # for this interpreter alone, and its forks
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # Ray's workers block SIGINT, and programs would inherit that
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    bases = Bases(groups)
    if os.getuid() == 0:
        bases.hand_over(UNPRIVILEGED, UNPRIVILEGED)
    modules: list[Any] = []
    tier = TIERS[tier_name](sorted({sys.prefix, sys.exec_prefix, sys.base_prefix}))
    folders = [PACKAGE, *(os.path.dirname(os.path.abspath(name)) for name in jobs_names if name.endswith(".py"))]

    def load() -> None:
        modules.extend(map(load_jobs, jobs_names))
        for prepare in filter(None, (getattr(module, "prepare", None) for module in modules)):
            prepare(os.getcwd())

    try:
        tier.enter(load, folders)
        if linux.threads_of("self") > 1:
            raise RuntimeError("the jobs module started a thread, and a process with threads cannot be forked safely")
        server = Server(channel, {name: job for m in modules for name, job in m.JOBS.items()}, tier, bases)
        server.group = bases.enter(new_group_name())
    except OSError as error:
        send_frame(channel, json.dumps({"unavailable": f"{tier_name}: {error}"}).encode())
        return
    except Exception as error:  # whatever the preload raises belongs in the host's message
        send_frame(channel, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return
    os.dup2(null, 2)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # changing the user cleared it
    enforced = [*tier.enforced, "mem_total"]
    about = {key: value for module in modules for key, value in getattr(module, "ABOUT", {}).items()}
    hello = {"enforced": enforced, "about": about, "python": sys.version.split()[0]}
    hello |= {"scratch": tier.scratch} | bases.about(server.group)
    tidy_memory()
    send_frame(channel, json.dumps(hello).encode())
    server.serve()


def tidy_memory() -> None:
    """What was loaded will not be collected, nor copied page by page in every fork."""
    gc.collect()
    gc.freeze()
    collapse_memory()
