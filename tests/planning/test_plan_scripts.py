"""The scripts of a whole job and of its checks, with a fake interpreter."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FAKE_PYTHON = """#!{python}
# A fake interpreter: logs the commands that it gets, serves /health, "trains" until a signal ends it.
import http.server, os, signal, sys, threading, time
arguments = sys.argv[1:]
if arguments[0] in ("-c", "scripts/rehearsal.py"): os.execv({python!r}, [{python!r}, *arguments])
log = open({log!r}, "a", buffering=1)
if "serve-vllm" in arguments:
    log.write("serve\\n")
    port = int(arguments[arguments.index("--port") + 1])
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200); self.end_headers(); self.wfile.write(b'{{"weight_version": "default"}}')
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
    def stop(*_):
        log.write("training got Ctrl-C\\n"); os._exit(1)
    signal.signal(signal.SIGINT, stop)
    if "run.name=deaf" in arguments:
        signal.signal(signal.SIGINT, lambda *_: log.write("training ignores Ctrl-C\\n"))
        signal.signal(signal.SIGTERM, lambda *_: log.write("training ignores TERM\\n"))
    # A test that reads these lines may send its signal: the handlers are there.
    log.write("train on " + os.environ["CUDA_VISIBLE_DEVICES"] + " " + arguments[-1] + "\\n")
    log.write("threads " + os.environ["OMP_NUM_THREADS"] + "\\n")
    if "train.steps=1" in arguments: sys.exit(3)
    if "train.steps=2" in arguments: sys.exit(0)
    while True: time.sleep(60)
log.write(arguments[2] + "\\n")
sys.exit(1 if arguments[2] == {failing!r} else 0)
"""


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def job(folder: Path, port: int, *arguments: str, failing: str = "") -> subprocess.Popen:
    """Start `train_agenthands.sh` with a fake interpreter."""
    python = folder / "python"
    python.write_text(FAKE_PYTHON.format(python=sys.executable, log=str(folder / "log"), failing=failing))
    python.chmod(0o755)
    return subprocess.Popen(
        ["scripts/train_agenthands.sh", *arguments],
        env=os.environ
        | {
            "PYTHON": str(python),
            "PORT": str(port),
            "MODEL": "some/model",
            "OMP_NUM_THREADS": "7",
            "STOP_TIMEOUT_S": "2",
        }
        | {"http_proxy": "http://no-such-proxy.invalid:1", "no_proxy": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 300  # several interpreters start first, on a machine that may be slow
    while text not in (path.read_text() if path.exists() else ""):
        assert time.monotonic() < deadline, f"{text!r} never came"
        time.sleep(0.05)


def commands_of(output: str) -> list[str]:
    return [line.replace("agent_rl.scripts.cli", "") for line in output.splitlines() if line.startswith("+")]


def test_a_dry_run_prints_all_commands_and_starts_none(tmp_path, port):
    process = job(tmp_path, port, "--dry-run", "train.steps=5")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    names = [
        next(n for n in ("preflight", "plan", "serve-vllm", "accelerate", "report") if n in line)
        for line in commands_of(output)
    ]
    assert names == ["preflight", "plan", "serve-vllm", "accelerate", "report"]
    assert "--devices 4\\,5\\,6\\,7" in output and "CUDA_VISIBLE_DEVICES=0\\,1\\,2\\,3" in output
    assert output.count("train.steps=5") == 3 and "checkpoint.resume=auto" in output
    assert not (tmp_path / "log").exists()


def test_the_servers_end_with_the_training_and_its_exit_code_is_the_scripts(tmp_path, port):
    process = job(tmp_path, port, "train.steps=1")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 3, output
    assert (tmp_path / "log").read_text().splitlines() == [
        "preflight",
        "plan",
        "serve",
        "train on 0,1,2,3 train.steps=1",
        "threads 7",
        "servers ended",
    ]


def test_a_training_that_is_finished_is_reported_on_and_ends_with_0(tmp_path, port):
    process = job(tmp_path, port, "train.steps=2", f"run.output_dir={tmp_path}", "run.name=mine")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert commands_of(output)[-1].endswith(f"report {tmp_path}/mine")
    assert (tmp_path / "log").read_text().splitlines()[-2:] == ["report", "servers ended"]


def test_a_rehearsal_has_the_commands_of_the_job_with_other_sizes(tmp_path, port):
    outputs = []
    for options in ([], ["--rehearse"]):
        process = job(tmp_path, port, "--dry-run", *options)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, output
        outputs.append([[word for word in line.split() if "=" not in word] for line in commands_of(output)])
    real, small = outputs
    assert [len(line) for line in real] == [len(line) for line in small]
    differing = {(a, b) for pair in zip(real, small, strict=True) for a, b in zip(*pair, strict=True) if a != b}
    files = "configs/accelerate/zero3_offload_optimizer_"
    assert {(a, b) for a, b in differing if "rehearsal" not in b} == {
        ("configs/machines/8xh100.yaml", "configs/machines/2cpu.yaml"),
        (f"{files}4gpu.yaml", f"{files}2cpu.yaml"),
        ("2", "1"),  # --tensor-parallel
        ("4\\,5\\,6\\,7", "''"),  # --devices
        ("32768", "768"),  # --max-context
    }
    assert {a for a, b in differing if "rehearsal" in b} == {"runs/serve_vllm", "runs/nat_grpo_8xh100"}
    assert not (tmp_path / "log").exists()


def test_a_rehearsal_interrupts_the_training_once_and_names_the_phase_that_failed(tmp_path, port, monkeypatch):
    """The fake training writes nothing, so the wait for its first checkpoint is what fails."""
    monkeypatch.setenv("REHEARSAL_FOLDER", str(tmp_path / "rehearsal"))
    process = job(tmp_path, port, "--rehearse", "train.steps=2")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "before the checkpoint of step 1" in output
    assert output.splitlines()[-1] == 'error: the job ended in the phase "training" with exit code 1'
    assert (tmp_path / "log").read_text().splitlines()[-1] == "servers ended"
    assert not list(Path("/dev/shm").glob("agent_rl_rehearsal_*"))


def test_a_rehearsal_is_never_mixed_with_an_earlier_one(tmp_path, port, monkeypatch):
    monkeypatch.setenv("REHEARSAL_FOLDER", str(tmp_path))
    process = job(tmp_path, port, "--rehearse")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2 and str(tmp_path) in output


@pytest.mark.parametrize(("gpus", "affinity"), [("0,1,2,3", "1"), ("4,5,6,7", "0")])
def test_processes_are_bound_to_the_cores_near_the_first_gpus_only(tmp_path, port, monkeypatch, gpus, affinity):
    (tmp_path / "pynvml.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("TRAIN_GPUS", gpus)
    process = job(tmp_path, port, "--dry-run")
    output, _ = process.communicate(timeout=300)
    assert f"ACCELERATE_CPU_AFFINITY={affinity} " in output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_reaches_the_training_first_and_then_ends_the_servers(tmp_path, port, number, code):
    process = job(tmp_path, port)
    wait_for(tmp_path / "log", "train on")
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode == code
    assert (tmp_path / "log").read_text().splitlines()[-2:] == ["training got Ctrl-C", "servers ended"]


def test_a_training_that_ignores_signals_is_killed_and_the_servers_end_after_it(tmp_path, port):
    process = job(tmp_path, port, "run.name=deaf")
    wait_for(tmp_path / "log", "threads")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 143
    wanted = ["training ignores Ctrl-C", "training ignores TERM", "servers ended"]
    assert (tmp_path / "log").read_text().splitlines()[-3:] == wanted


@pytest.mark.parametrize("failing", ["preflight", "plan"])
def test_nothing_starts_where_a_check_fails(tmp_path, port, failing):
    process = job(tmp_path, port, failing=failing)
    process.communicate(timeout=300)
    assert process.returncode == 1
    assert (tmp_path / "log").read_text().splitlines()[-1] == failing


def test_an_argument_without_a_key_is_refused(tmp_path, port):
    process = job(tmp_path, port, "--steps")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2 and "--steps" in output


def test_the_check_script_reports_a_missing_interpreter():
    done = subprocess.run(
        ["scripts/preflight_check.sh"],
        env=os.environ | {"PYTHON": "/no/python"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "/no/python" in done.stderr


def test_the_check_script_takes_the_default_config_and_passes_options_on(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)

    def output_of(*arguments: str) -> str:
        command = ["scripts/preflight_check.sh", *arguments]
        return subprocess.run(
            command, env=os.environ | {"PYTHON": str(python)}, capture_output=True, text=True, check=True
        ).stdout

    assert (
        output_of("--set", "gpus=8")
        == "-m agent_rl.scripts.cli preflight --config configs/nat_grpo.yaml --set gpus=8\n"
    )
    assert output_of("--config", "x.yaml") == "-m agent_rl.scripts.cli preflight --config x.yaml\n"


def test_the_check_script_finds_files_of_the_folder_that_it_is_called_from(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$@"\n')
    python.chmod(0o755)
    (tmp_path / "mine.yaml").write_text("")
    done = subprocess.run(
        [
            ROOT / "scripts/preflight_check.sh",
            "--config",
            "mine.yaml",
            "--machine=mine.yaml",
            "data.eval_path=mine.yaml",
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=True,
    )
    mine = f"{tmp_path}/mine.yaml"
    assert done.stdout.split()[3:] == ["--config", mine, f"--machine={mine}", "data.eval_path=mine.yaml"]
