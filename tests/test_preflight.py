"""Each check on made-up machines, all on this one, and the script of the whole job with a stand-in for Python."""

import http.server
import importlib.metadata
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_rl.errors import DataError
from agent_rl.planning.machine import GIB
from agent_rl.planning.preflight import (
    FoundGpu,
    Status,
    asked,
    check_disk,
    check_gpus,
    check_memory,
    check_packages,
    check_port,
    check_server,
    machine_memory,
    read_requirements,
)
from agent_rl.scripts.cli import app

ROOT = Path(__file__).resolve().parents[1]
H100 = FoundGpu(name="NVIDIA H100 80GB HBM3", memory=79.2 * GIB)
FAKE_PYTHON = """#!{python}
# Stands in for the interpreter: notes what it was asked to run, serves /health, "trains" until it is told to end.
import http.server, os, signal, sys, threading, time
log = open({log!r}, "a", buffering=1)
arguments = sys.argv[1:]
if "serve-vllm" in arguments:
    log.write("serve\\n")
    port = int(arguments[arguments.index("--port") + 1])
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers()
        def log_message(self, *_): pass
    for number in (port, port + 1):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", number), Health)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    def end(*_):
        log.write("servers ended\\n"); os._exit(0)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, lambda *_: log.write("servers got Ctrl-C\\n"))
    while True: time.sleep(60)
if "accelerate.commands.launch" in arguments:
    log.write("train on " + os.environ["CUDA_VISIBLE_DEVICES"] + " " + arguments[-1] + "\\n")
    def stop(*_):
        log.write("training got Ctrl-C\\n"); os._exit(1)
    signal.signal(signal.SIGINT, stop)
    if "train.steps=1" in arguments: sys.exit(3)
    while True: time.sleep(60)
log.write(arguments[2] + "\\n")
sys.exit(1 if arguments[2] == {failing!r} else 0)
"""


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_gpus_must_be_as_many_and_as_large_as_the_plan_wants():
    assert check_gpus([H100] * 8, wanted=8, memory=79 * GIB, driver="550").status is Status.OK
    few = check_gpus([H100] * 4, wanted=8, memory=79 * GIB, driver="550")
    assert few.status is Status.FAILED and "4 x NVIDIA H100" in few.text and "needs 8" in few.text
    small = FoundGpu(name="NVIDIA A100-SXM4-40GB", memory=39.4 * GIB)
    assert (
        "2 of 2 have 39 GiB, and the plan is for 79"
        in check_gpus([small] * 2, wanted=2, memory=79 * GIB, driver="550").text
    )


def test_no_gpu_is_right_for_a_run_that_wants_none_unless_a_driver_is_there():
    assert check_gpus([], wanted=0, memory=0.0, driver=None).status is Status.OK
    hidden = check_gpus([], wanted=0, memory=0.0, driver="550.54")
    assert hidden.status is Status.FAILED and "install its CUDA build" in hidden.text


def test_packages_are_compared_with_the_requirement_files(tmp_path):
    (tmp_path / "base.txt").write_text("# comment\ntorch==2.0.0\n")
    (tmp_path / "more.txt").write_text("-r base.txt\npeft==0.1\n")
    assert read_requirements([tmp_path / "more.txt"]) == {"torch": "2.0.0", "peft": "0.1"}

    def version(found: dict[str, str]):
        def of(name: str) -> str:
            if name not in found:
                raise importlib.metadata.PackageNotFoundError(name)
            return found[name]

        return of

    paths = [tmp_path / "more.txt"]
    assert check_packages(paths, version({"torch": "2.0.0+cpu", "peft": "0.1"})).status is Status.OK
    other = check_packages(paths, version({"torch": "2.1.0", "peft": "0.1"}))
    assert other.status is Status.WARNING and "torch 2.1.0 instead of 2.0.0" in other.text
    missing = check_packages(paths, version({"torch": "2.0.0"}))
    assert (missing.status, missing.text) == (Status.FAILED, "missing: peft; pip install -r more.txt")


def test_the_disk_must_hold_all_checkpoints(tmp_path):
    def free(_path: Path) -> int:
        return 10 * GIB

    folder = tmp_path / "runs" / "later"
    statuses = [check_disk(folder, wanted * GIB, free).status for wanted in (5, 9, 11)]
    assert statuses == [Status.OK, Status.WARNING, Status.FAILED]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    found = check_disk(place / "below", 0.0)
    assert found.status is Status.FAILED and "set run.output_dir" in found.text


def test_memory_with_little_to_spare_is_a_warning():
    assert [check_memory(n * GIB, 100 * GIB).status for n in (50, 95, 101)] == [
        Status.OK,
        Status.WARNING,
        Status.FAILED,
    ]
    assert 0.5 * GIB < machine_memory() < 1e15


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.server.is_vllm else 404)
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(params=[True, False])
def server(request) -> Iterator[http.server.HTTPServer]:
    opened = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    opened.is_vllm = request.param
    threading.Thread(target=opened.serve_forever, daemon=True).start()
    yield opened
    opened.shutdown()
    opened.server_close()


def test_a_servers_address_answers_or_is_free_or_is_somebody_elses(server, port):
    taken = check_server(f"http://127.0.0.1:{server.server_port}")
    assert taken.status is (Status.OK if server.is_vllm else Status.FAILED)
    assert taken.text == "answers" or "answers 404 that is no vLLM server" in taken.text
    free = check_server(f"http://127.0.0.1:{port}")
    assert free.status is Status.OK and "the port is free" in free.text
    away = check_server("http://no-such-host.invalid:8000", timeout_s=1)
    assert away.status is Status.FAILED and "start agent-rl serve-vllm there" in away.text


def test_a_port_that_somebody_listens_on_is_taken(port):
    assert check_port(port).status is Status.OK
    with socket.socket() as listener:
        listener.bind(("", port))
        listener.listen()
        assert check_port(port).status is Status.FAILED


def test_a_users_mistake_is_the_line():
    def wrong() -> str:
        raise DataError("x.jsonl:3: no task_id; add one")

    assert asked("tasks", wrong).text == "x.jsonl:3: no task_id; add one"
    assert asked("tasks", lambda: "fine").status is Status.OK


def lines_of(text: str) -> dict[str, str]:
    """Status by name of each check."""
    rows = [line.split(maxsplit=1) for line in text.splitlines() if ":" in line]
    return {rest.split(":")[0]: status for status, rest in rows}


def test_this_machine_is_ready_for_the_default_run():
    result = CliRunner().invoke(app, ["preflight", "--config", "configs/nat_grpo.yaml", "run.device=cpu"])
    assert result.exit_code == 0, result.output
    found = lines_of(result.output)
    assert set(found.values()) <= {"ok", "warning"}
    wanted = ["packages", "GPUs", "training tasks", "held-out tasks", "model", "memory", "disk"]
    assert list(found) == [*wanted, "environment nat_agent_creation"]


def test_what_is_missing_fails_by_name(tmp_path):
    result = CliRunner().invoke(
        app,
        [
            *("preflight", "--config", "configs/nat_grpo.yaml", "run.device=cpu", "data.train_path=nowhere.jsonl"),
            *("model.path=./no/such/model/here", "env.options.nat_python=/no/python"),
        ],
    )
    assert result.exit_code == 1
    failed = [name for name, status in lines_of(result.output).items() if status == "failed"]
    assert failed == ["training tasks", "model", "plan", "environment nat_agent_creation"]


def test_a_machine_without_gpus_is_told_so_for_the_run_on_eight(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("agent_rl.planning.preflight_run.driver_version", lambda: None)
    monkeypatch.setattr("agent_rl.planning.preflight_run.hub_unreachable", lambda: "no network in tests")
    result = CliRunner().invoke(
        app,
        [
            *("preflight", "--config", "configs/nat_grpo_8xh100.yaml", "--gpus", "8", "--server-gpus", "4"),
            *("--launch", "configs/accelerate/zero3_offload_optimizer_4gpu.yaml", "--server-share", "0.8"),
            "env.options.nat_python=/no/python",
        ],
    )
    assert result.exit_code == 1
    found = lines_of(result.output)
    assert found["GPUs"] == found["model"] == found["environment nat_agent_creation"] == "failed"
    assert found["plan"] == found["training tasks"] == "ok"
    assert "no GPU, and the run needs 8" in result.output


# The scripts


def job(folder: Path, port: int, *arguments: str, failing: str = "") -> subprocess.Popen:
    """`train_agenthands.sh` with a stand-in for Python."""
    python = folder / "python"
    python.write_text(FAKE_PYTHON.format(python=sys.executable, log=str(folder / "log"), failing=failing))
    python.chmod(0o755)
    return subprocess.Popen(
        ["scripts/train_agenthands.sh", *arguments],
        env=os.environ | {"PYTHON": str(python), "PORT": str(port), "MODEL": "some/model"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 30
    while text not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline, f"{text!r} never came"
        time.sleep(0.05)


def test_a_dry_run_says_all_commands_and_starts_none(tmp_path, port):
    process = job(tmp_path, port, "--dry-run", "train.steps=5")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    names = [
        next(n for n in ("preflight", "plan", "serve-vllm", "accelerate") if n in line)
        for line in (line.replace("agent_rl.scripts.cli", "") for line in output.splitlines())
    ]
    assert names == ["preflight", "plan", "serve-vllm", "accelerate"]
    assert "--devices 4\\,5\\,6\\,7" in output and "CUDA_VISIBLE_DEVICES=0\\,1\\,2\\,3" in output
    assert output.count("train.steps=5") == 3 and "checkpoint.resume=auto" in output
    assert not (tmp_path / "log").exists()


def test_the_servers_end_with_the_training_and_its_exit_code_is_the_scripts(tmp_path, port):
    process = job(tmp_path, port, "train.steps=1")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 3, output
    assert (tmp_path / "log").read_text().splitlines() == [
        "preflight",
        "plan",
        "serve",
        "train on 0,1,2,3 train.steps=1",
        "servers ended",
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_training_first_and_then_ends_the_servers(tmp_path, port, number, code):
    process = job(tmp_path, port)
    wait_for(tmp_path / "log", "train on")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert (tmp_path / "log").read_text().splitlines()[-2:] == ["training got Ctrl-C", "servers ended"]


@pytest.mark.parametrize("failing", ["preflight", "plan"])
def test_nothing_starts_where_a_check_fails(tmp_path, port, failing):
    process = job(tmp_path, port, failing=failing)
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert (tmp_path / "log").read_text().splitlines()[-1] == failing


def test_what_is_no_override_is_refused(tmp_path, port):
    process = job(tmp_path, port, "--steps")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 2 and "--steps is no section.key=value" in output


def test_the_check_script_says_that_an_interpreter_is_missing():
    done = subprocess.run(
        ["scripts/preflight_check.sh"],
        env=os.environ | {"PYTHON": "/no/python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "/no/python is not there" in done.stderr


def test_the_check_script_takes_the_default_config_and_hands_options_on(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    def said(*arguments: str) -> str:
        command = ["scripts/preflight_check.sh", *arguments]
        return subprocess.run(
            command, env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True, check=True
        ).stdout

    assert said("--gpus", "8") == "-m agent_rl.scripts.cli preflight --config configs/nat_grpo.yaml --gpus 8\n"
    assert said("--config", "x.yaml") == "-m agent_rl.scripts.cli preflight --config x.yaml\n"
