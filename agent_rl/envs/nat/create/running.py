"""Start a packaged agent with the toolkit: `nat serve` or `nat mcp serve`, in the sandbox or plainly without one.

In the sandbox the agent has no network and no file of this machine; its port is a tunnel through the run's standard
streams. That takes the tier `namespaces`. Not here: making agents (`creator.py`), keys and TLS (a proxy's business).
"""

import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_rl.envs.nat.create import serve_jobs
from agent_rl.envs.nat.create.package import read_files, read_zip, write_folder
from agent_rl.envs.nat.create.packaging import PROVENANCE, agent_configs, digests
from agent_rl.envs.nat.create.tunnel import TunnelServer
from agent_rl.envs.nat.judge.toolkit import toolkit_python, toolkit_react_python
from agent_rl.errors import SandboxError, UserError
from agent_rl.sandbox.limits import Limits
from agent_rl.sandbox.sandbox import Sandbox
from agent_rl.sandbox.workspace import WorkspaceError

Mode = Literal["http", "mcp"]
_LONG = 10**8
"""Seconds: a server has no deadline."""
LIMITS = Limits(wall_s=_LONG, cpu_s=_LONG, memory_mb=2048, processes=128, open_files=512, output_hard_kb=256)
START_S = 60.0
_POLL_S = 0.2
_KEPT_LINES, _SHOWN_LINES, _SHOWN_CHARS = 400, 3, 200
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b")
_LOG_BYTES = 64 * 1024
_ENVIRONMENT = ("PATH", "LANG", "TZ")
"""Variables that a server without a sandbox gets of ours; keys are not among them."""
_MODULE = "agent_rl.envs.nat.create.serve_jobs"
_SEALED = (
    "in the sandbox (tier namespaces): no network but this port, no file of this machine, no key, and everything it "
    "starts ends with it"
)
_OPEN = "WITHOUT a sandbox: what the model wrote runs as you, with your files and your network"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAgent:
    """A running server."""

    url: str
    isolation: str
    """What keeps it in, in words."""
    wait: Callable[[], None]
    """Returns when the server is gone. UserError with the last lines that it printed."""


def read_package(path: Path, *, unverified: bool = False) -> tuple[dict[str, str], dict[str, Any]]:
    """Files and provenance of a packaged agent, a folder or a zip.

    UserError unless it was accepted or built and its files are those that were judged; `unverified` takes any.
    """
    if not path.exists():
        raise UserError(f"{path}: no such folder or file; give the folder or the zip of an agent")
    files = read_files(path) if path.is_dir() else read_zip(path)
    if "pyproject.toml" not in files or not agent_configs(files):
        lacks = "pyproject.toml or configs/config.yml" if files else "any file"
        raise UserError(f"{path} holds no agent, it lacks {lacks}; give the folder or the zip of one")
    try:
        provenance = json.loads(files.get(PROVENANCE, ""))
        state, known = provenance["state"], dict(provenance["file_sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        if unverified:
            return files, {}
        raise UserError(
            f"{path} has no readable {PROVENANCE}, so nobody checked it; check it with `agent-rl nat validate`, then "
            "give --unverified"
        ) from None
    if unverified:
        return files, provenance
    if state not in ("accepted", "built"):
        raise UserError(f"{path} was {str(state)[:20]!r}, not accepted; give --unverified to run it all the same")
    found = digests({name: text for name, text in files.items() if name in known or _runs(name)})
    if found != known:
        changed = sorted({name for name in {*found, *known} if found.get(name) != known.get(name)})
        raise UserError(
            f"{path}: {changed[0]} is not what was judged; make the agent again, or give --unverified to run it"
        )
    return files, provenance


def check_runnable(provenance: Mapping[str, Any], *, sandboxed: bool, python: str | None) -> str | None:
    """The interpreter for this agent, None for the usual one. UserError for one that needs an LLM's address inside."""
    plan = provenance.get("plan")
    flow = plan.get("workflow") if isinstance(plan, dict) else None
    if not isinstance(flow, dict) or flow.get("kind") != "react":
        return python
    if sandboxed:
        raise UserError(
            "this agent asks an LLM, and the sandbox has no network; set the LLM in its config.yml, then give "
            "--no-sandbox and --unverified"
        )
    return python or str(toolkit_react_python())


def _runs(name: str) -> bool:
    return name.endswith((".py", ".yml", ".yaml", ".toml", ".pth", ".so"))


@contextmanager
def served(
    files: Mapping[str, str],
    mode: Mode,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    python: str | None = None,
    sandboxed: bool = True,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[ServedAgent]:
    """Serve the agent until the block ends; yields once it answers. `say` gets what it prints; port 0 takes a free one.

    Raises UserError where no sandbox of that tier works, where the interpreter lacks the toolkit, and where the server
    does not come up, with what it printed.
    """
    configs = agent_configs(files)
    if "pyproject.toml" not in files or not configs:
        raise UserError("this is no packaged agent: it lacks pyproject.toml or configs/config.yml")
    last: deque[str] = deque(maxlen=_KEPT_LINES)

    def keep(line: str) -> None:
        last.append(line)
        say(line)

    interpreter = toolkit_python(python)
    start = _in_sandbox if sandboxed else _plainly
    launch = _Launch(files=files, mode=mode, config=configs[0], host=host, port=port, python=interpreter, say=keep)
    with start(launch) as (bound, has_ended):
        url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"
        _await(url, has_ended, last)

        def wait() -> None:
            while not has_ended():
                time.sleep(_POLL_S)
            raise UserError(f"the agent's server ended: {_told(last)}")

        yield ServedAgent(url=url, isolation=_SEALED if sandboxed else _OPEN, wait=wait)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launch:
    """What is served, and where."""

    files: Mapping[str, str]
    mode: Mode
    config: str
    host: str
    port: int
    python: Path
    say: Callable[[str], None]


@contextmanager
def _in_sandbox(launch: _Launch) -> Iterator[tuple[int, Callable[[], bool]]]:
    marker = f"{serve_jobs.PROJECT}/pyproject.toml"
    inside = {f"{serve_jobs.PROJECT}/{path}": text for path, text in launch.files.items() if path != PROVENANCE}
    try:
        with Sandbox.open(python=launch.python, jobs=(_MODULE,), limits=LIMITS, tier="namespaces") as sandbox:
            session = sandbox.session(marker, inside, argv=[launch.mode, launch.config])
            try:
                with TunnelServer(session, launch.host, launch.port, say=launch.say) as tunnel:
                    yield tunnel.port, tunnel.ended.is_set
            finally:
                session.close()
    except WorkspaceError as error:
        raise UserError(f"the sandbox does not take this agent: {error}") from None
    except SandboxError as error:
        raise UserError(
            f"an agent is served in the tier namespaces, which does not work here ({error}); --no-sandbox serves it as "
            "you, with your files and your network"
        ) from None


@contextmanager
def _plainly(launch: _Launch) -> Iterator[tuple[int, Callable[[], bool]]]:
    bound = launch.port or _free_port(launch.host)
    with tempfile.TemporaryDirectory(prefix="agent_rl_run_") as folder, tempfile.TemporaryFile() as log:
        project = Path(folder, serve_jobs.PROJECT)
        write_folder(launch.files, project)
        words = [str(project), str(Path(folder, serve_jobs.SITE)), launch.mode, launch.config, launch.host, str(bound)]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = subprocess.Popen(
            [str(launch.python), "-P", "-B", str(serve_jobs.__file__), *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**environment, "HOME": folder, "NAT_TELEMETRY_ENABLED": "0"},
            cwd=folder,
            start_new_session=True,
        )

        def has_ended() -> bool:
            if process.poll() is None:
                return False
            log.seek(0)
            for line in log.read()[-_LOG_BYTES:].decode("utf-8", "replace").splitlines():
                launch.say("".join(char if char.isprintable() else " " for char in line))
            return True

        try:
            yield bound, has_ended
        finally:
            process.terminate()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_port(host: str) -> int:
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        return int(found.getsockname()[1])


def _await(url: str, has_ended: Callable[[], bool], last: deque[str]) -> None:
    """Until it answers. UserError when it ends first, or not in time."""
    deadline = time.monotonic() + START_S
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while time.monotonic() < deadline:
        if has_ended():
            raise UserError(f"the agent's server did not start: {_told(last)}")
        try:
            with opener.open(f"{url}/health", timeout=2.0):
                return
        except urllib.error.HTTPError:
            return  # it answers
        except (OSError, ValueError):
            time.sleep(_POLL_S)
    raise UserError(f"the agent's server did not answer within {START_S:g} s: {_told(last)}")


def _told(last: deque[str]) -> str:
    """The errors that it printed last; what is missing from the interpreter is said in our words."""
    text = "\n".join(last)
    if re.search(r"No module named '(sqlalchemy|aiosqlite)", text):
        return (
            "the interpreter lacks packages that `nat serve` needs; run `make setup`, or install requirements-nat.txt"
        )
    errors = [line[:_SHOWN_CHARS] for line in last if _ERROR.match(line)]
    shown = list(dict.fromkeys(errors))[-_SHOWN_LINES:] or [line[:_SHOWN_CHARS] for line in last if line.strip()][-1:]
    return " | ".join(shown) or "it printed nothing"
