"""Successes of an evaluation once more, with the toolkit's own commands: `python benchmarks/recheck.py EVALUATION`.

`--num` successful episodes are sampled from EVALUATION/episodes.jsonl. Each project is written to a folder and
installed by pip, as its user would; then `nat validate` must accept its configuration, `nat run` and `nat mcp serve`
must answer as the task requires, as must its own MCP server over stdio, and its tests must pass. Questions are sampled
anew (`--seed`), so they differ from those of training and of the evaluation. `nat run` hands one text to the workflow,
so only workflows with one input are called through it. The network alone is not real: httpx answers requests from a
table of what the services of the task would say.

This runs programs that a model wrote, without a sandbox. Exits with 1 when a project fails.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.factory.cases import hidden_cases
from agent_rl.envs.nat.factory.families.base import Exchange
from agent_rl.envs.nat.factory.questions import mcp_calls
from agent_rl.envs.nat.spec import Inputs, NATSpec
from agent_rl.reports.episodes import read_episode_lines
from agent_rl.telemetry.statistics import is_success

ROOT = Path(__file__).resolve().parents[1]
START_S, CALL_S = 60.0, 20.0
RESULT = re.compile(r"Workflow Result:\n(.*?)(?:\x1b\[39m)?\n-{20}", re.DOTALL)

NETWORK = """'''Answers httpx from exchanges.json, which lies beside this file.'''
import json
import pathlib

import httpx

EXCHANGES = json.loads(pathlib.Path(__file__).with_name("exchanges.json").read_text(encoding="utf-8"))


async def answer(self, request):
    known = EXCHANGES.get(f"{request.method} {request.url}")
    if known is None or any(request.headers.get(name) != value for name, value in known["headers"].items()):
        return httpx.Response(599, text="unknown request", request=request)
    if known["failure"]:
        kinds = {"timeout": httpx.ReadTimeout, "connection": httpx.ConnectError}
        raise kinds[known["failure"]](known["failure"], request=request)
    return httpx.Response(known["status"], text=known["body"], request=request)


httpx.AsyncHTTPTransport.handle_async_request = answer
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluation", type=Path)
    parser.add_argument("--tasks", type=Path, default=ROOT / "dataset/nat_tasks/starter/val.jsonl")
    parser.add_argument("--num", type=int, default=30)
    parser.add_argument("--seed", type=int, default=20_000)
    parser.add_argument("--nat-python", type=Path, default=ROOT / ".venv-nat/bin/python")
    options = parser.parse_args()
    specs = {spec.task_id: spec for spec in map(NATSpec.model_validate, read_tasks(options.tasks))}
    episodes = read_episode_lines(options.evaluation / "episodes.jsonl")
    successes = [each for each in episodes if is_success(each["reward_parts"])]
    if not successes:
        parser.error(f"{options.evaluation}: no successes there; give the output folder of `agent-rl eval`")
    chosen = random.Random(options.seed).sample(successes, min(options.num, len(successes)))
    num_failed = 0
    for episode in chosen:
        spec = specs[episode["task_id"]]
        problems, num_answers = recheck(spec, written(episode, spec), options.seed, options.nat_python)
        num_failed += bool(problems)
        verdict = "; ".join(problems) if problems else f"right, {num_answers} answers"
        print(f"{spec.task_id}  {spec.family}, level {spec.level}: {verdict}", flush=True)
    print(f"{len(chosen) - num_failed} of {len(chosen)} projects hold, of {len(successes)} successes")
    sys.exit(1 if num_failed else 0)


def written(episode: dict[str, Any], spec: NATSpec) -> dict[str, str]:
    """Path -> text of the files that the task requires (no others are judged), as they were when the episode ended."""
    files = {}
    for message in episode["messages"]:
        for call in message.get("tool_calls") or ():
            if call["name"] == "file_write" and call["arguments"].get("path") in spec.files:
                files[call["arguments"]["path"]] = call["arguments"]["content"]
    return files


@dataclass(frozen=True, slots=True)
class Project:
    """A project on disk, and how commands of the toolkit's interpreter run in it."""

    folder: Path
    site: Path
    python: Path

    @property
    def nat(self) -> str:
        return str(self.python.parent / "nat")

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": f"{self.site}:{self.network}", "PYTHONWARNINGS": "ignore"}

    @property
    def network(self) -> Path:
        return self.folder.parent / "network"

    def write(self, files: dict[str, str], exchanges: dict[str, Exchange]) -> None:
        """Its own files, and beside it the module that answers for the network."""
        answers = {request: asdict(each) for request, each in exchanges.items()}
        network = {"sitecustomize.py": NETWORK, "exchanges.json": json.dumps(answers)} if exchanges else {}
        for folder, texts in ((self.folder, files), (self.network, network)):
            for path, text in texts.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text, encoding="utf-8")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        options = {"cwd": self.folder, "env": self.environment, "capture_output": True, "text": True}
        try:
            return subprocess.run(command, check=False, timeout=START_S, **options)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"did not end in {START_S:.0f} s")

    def python_module(self, *arguments: str) -> list[str]:
        return [str(self.python), "-m", *arguments]


def recheck(spec: NATSpec, files: dict[str, str], seed: int, python: Path) -> tuple[list[str], int]:
    """What is wrong with a project, and how many answers were compared."""
    case = hidden_cases(spec, seed)[0]
    calls = mcp_calls(spec, case)
    with tempfile.TemporaryDirectory(prefix="recheck_") as name:
        project = Project(Path(name, "project"), Path(name, "site"), python)
        project.write(files, case.exchanges)
        problems = [f"{command}: {failure}" for command, failure in commands(project, spec.config_path) if failure]
        with serving(project, spec.config_path) as url:
            problems += [f"nat mcp serve: {each}" for each in wrong_answers(Client(url), calls)]
        own = StdioServerParameters(
            command=str(python), args=["mcp_server.py"], env=project.environment, cwd=project.folder
        )
        with open(os.devnull, "w") as quiet:
            client = Client(stdio_client(own, errlog=quiet))
            problems += [f"its own server: {each}" for each in wrong_answers(client, calls, spec.server.raises)]
        single = calls if len(spec.tools[0].inputs) == 1 else []
        for _, inputs, expected in single:
            given = answer_of_run(project, spec.config_path, str(*inputs.values()))
            problems += [] if given == expected else [f"nat run: {inputs} gave {given!r}, expected {expected!r}"]
        return problems, 2 * len(calls) + len(single)


def commands(project: Project, config_path: str) -> Iterator[tuple[str, str]]:
    """Name of each command that must exit with 0, and the end of its output if it does not."""
    pip = project.python_module("pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--target")
    pytest = project.python_module("pytest", "-q", "-p", "no:cacheprovider", "tests")
    for name, command in {
        "pip install": [*pip, str(project.site), str(project.folder)],
        "nat validate": [project.nat, "validate", "--config_file", config_path],
        "its tests": pytest,
    }.items():
        done = project.run(*command)
        yield name, (done.stdout + done.stderr)[-300:] if done.returncode else ""


@contextmanager
def serving(project: Project, config_path: str) -> Iterator[str]:
    """The address of `nat mcp serve` on a free port, once it listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [project.nat, "mcp", "serve", "--config_file", config_path, "--host", "127.0.0.1", "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=project.folder, env=project.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + START_S
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait()


def wrong_answers(client: Client, calls: list[tuple[str, Inputs, str]], raises: bool = False) -> list[str]:
    """What `ask` says, or that the server does not serve."""
    try:
        return asyncio.run(ask(client, calls, raises))
    except Exception as error:  # whatever a program that a model wrote makes of its side of the protocol
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        return [f"{type(error).__name__}: {error}"]


async def ask(client: Client, calls: list[tuple[str, Inputs, str]], raises: bool = False) -> list[str]:
    """The wrong answers of a server; with `raises` bad input is answered by an error that ends with the text."""
    problems = []
    async with client:
        for tool, inputs, expected in calls:
            async with asyncio.timeout(CALL_S):
                result = await client.call_tool(tool, dict(inputs))
            given = "".join(part.text for part in result.content if part.type == "text")
            is_refused = raises and expected.startswith("error")
            is_right = given.endswith(expected) if is_refused else given == expected
            if not is_right or result.is_error != is_refused:
                problems.append(f"{tool} {inputs} gave {given!r}, expected {expected!r}")
    return problems


def answer_of_run(project: Project, config_path: str, text: str) -> str:
    """What `nat run` shows as the workflow's result, else the end of what it says."""
    done = project.run(project.nat, "run", "--config_file", config_path, "--input", text)
    shown = RESULT.search(done.stderr)
    return shown[1] if shown else done.stderr[-300:]


if __name__ == "__main__":
    main()
