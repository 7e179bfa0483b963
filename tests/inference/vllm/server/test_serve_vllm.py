"""`agent-rl serve-vllm` without vLLM: what it would start, what it refuses, and that nothing outlives it."""

import contextlib
import dataclasses
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from waiting import free_port, wait_for
from watched_servers import watched

from agent_rl.errors import ConfigError, UserError
from agent_rl.inference.vllm.server import launch, launch_plan
from agent_rl.inference.vllm.server.launch import ServerSupervisor
from agent_rl.inference.vllm.server.launch_plan import ServeOptions, ServerPlan, check_vllm_is_installed, plan_servers
from agent_rl.scripts.commands import serve_vllm

FAKE = Path(__file__).resolve().parents[3] / "support/vllm/fake_vllm_server.py"
ROOT = FAKE.parents[3]
GPUS = [str(index) for index in range(8)]


@pytest.fixture(autouse=True)
def vllm_is_there(monkeypatch):
    monkeypatch.setattr(launch_plan, "check_vllm_is_installed", lambda has_gpus: None)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"max_position_embeddings": 2048}')
    return str(tmp_path / "model")


def options(model, **changes):
    return ServeOptions(**{"model": model, "port": 8290, "max_context": 2048, **changes})


def test_each_server_has_its_port_and_its_gpus(model):
    plans = plan_servers(options(model, num_servers=2, tensor_parallel=2, devices=("4", "5", "6", "7")), gpus=GPUS)
    assert [plan.address for plan in plans] == ["http://127.0.0.1:8290", "http://127.0.0.1:8291"]
    assert [plan.environment["CUDA_VISIBLE_DEVICES"] for plan in plans] == ["4,5", "6,7"]
    assert [plan.log_path.name for plan in plans] == ["server-8290.log", "server-8291.log"]


def flag(plan, name):
    return plan.command[plan.command.index(name) + 1]


def test_a_server_on_gpus_samples_with_the_logprobs_it_reports_and_takes_weights(model):
    [plan] = plan_servers(options(model, weight_transfer="nccl", lora_rank=12, gpu_memory_share=0.8), gpus=["0"])
    assert flag(plan, "--logprobs-mode") == "processed_logprobs"
    assert flag(plan, "--generation-config") == "vllm"
    assert flag(plan, "--max-model-len") == "2048"
    assert flag(plan, "--gpu-memory-utilization") == "0.8"
    assert flag(plan, "--worker-extension-cls") == "agent_rl.inference.vllm.server.worker.WorkerExtension"
    assert json.loads(flag(plan, "--weight-transfer-config")) == {"backend": "agent_rl_nccl"}
    assert flag(plan, "--max-lora-rank") == "16"
    names = plan.command[plan.command.index("--served-model-name") + 1 :][:3]
    assert names[:2] == ("policy", "settings/dtype=bfloat16/head_dtype=bfloat16/lora_rank=16/weight_transfer=nccl")
    assert names[2].startswith("--")
    assert "--enable-scale-out" in plan.command and "--enforce-eager" not in plan.command
    wanted = {"VLLM_SERVER_DEV_MODE": "1", "HF_HUB_OFFLINE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
    assert wanted.items() <= plan.environment.items()
    assert plan.environment["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_a_server_on_a_cpu_takes_neither_all_memory_nor_gpus(model):
    [plan] = plan_servers(options(model), gpus=[])
    assert "--enforce-eager" in plan.command and "--gpu-memory-utilization" not in plan.command
    assert plan.environment["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert "--enable-lora" not in plan.command and "--weight-transfer-config" not in plan.command


def test_a_name_on_the_hub_may_be_fetched():
    [plan] = plan_servers(options("HuggingFaceTB/SmolLM2-135M"), gpus=[])
    assert plan.environment.get("HF_HUB_OFFLINE") == os.environ.get("HF_HUB_OFFLINE")


@pytest.mark.parametrize(
    ("changes", "gpus", "expected"),
    [
        ({"model": "./nowhere"}, [], "--model ./nowhere: there is no such folder"),
        ({"model": "tests"}, [], "holds no config.json"),
        ({"max_context": 2049}, [], "--max-context 2049: the model in .* was made for 2048 tokens"),
        ({"num_servers": 3, "tensor_parallel": 3}, GPUS, "needs 9 GPUs and there are 8"),
        ({"tensor_parallel": 2}, [], "needs 2 GPUs and there are 0"),
        ({"devices": ("9",)}, GPUS, "--devices names 9, but GPUs 0, 1, .* are visible"),
        ({"devices": ("0",)}, [], "--devices names 0, but no GPU is visible"),
        ({"devices": ("0", "0"), "num_servers": 2}, GPUS, "names a GPU twice"),
        ({"lora_rank": 1000}, GPUS, "up to rank 512"),
        ({"port": 70000}, [], "port 70000 of 127.0.0.1 cannot be listened on"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(model, changes, gpus, expected):
    with pytest.raises(ConfigError, match=expected) as caught:
        plan_servers(options(**{"model": model, **changes}), gpus=gpus)
    assert "\n" not in str(caught.value)


def test_a_port_in_use_is_named(model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} of 127.0.0.1 is in use"):
            plan_servers(options(model, port=port), gpus=[])


@pytest.mark.parametrize(
    ("has_gpus", "remedy"), [(True, "requirements-vllm.txt"), (False, "scripts/install_vllm_cpu.py")]
)
def test_without_vllm_the_error_names_the_extra_to_install(monkeypatch, has_gpus, remedy):
    monkeypatch.setattr(launch_plan.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=remedy):
        check_vllm_is_installed(has_gpus=has_gpus)


def fake_plan(tmp_path, *flags, port=None):
    port = port or free_port()
    return ServerPlan(
        address=f"http://127.0.0.1:{port}",
        port=port,
        command=(sys.executable, str(FAKE), "--port", str(port), *flags),
        environment=dict(os.environ),
        log_path=tmp_path / "logs" / f"server-{port}.log",
    )


def logged(plan, word):
    """The numbers after `word` in a log: process ids."""
    lines = plan.log_path.read_text().splitlines() if plan.log_path.exists() else []
    return [int(line.split()[-1 if word == "child" else 2]) for line in lines if line.startswith(word)]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_servers_answer_and_nothing_of_them_is_left_afterwards(tmp_path):
    plans, lines = [fake_plan(tmp_path, "--child") for _ in range(2)], []
    with contextlib.closing(ServerSupervisor(plans, say=lines.append)) as supervisor:
        supervisor.start(timeout_s=20.0)
        assert sorted(lines) == sorted(f"{plan.address} answers (CPU, log in {plan.log_path})" for plan in plans)
        processes = [pid for plan in plans for pid in logged(plan, "child") + logged(plan, "fake server")]
        assert len(processes) == 4 and all(is_alive(pid) for pid in processes)
    wait_for(lambda: not any(is_alive(pid) for pid in processes))


def test_a_killed_server_is_started_again_and_its_children_are_not_left(tmp_path, monkeypatch):
    plan, lines = fake_plan(tmp_path, "--child"), []
    monkeypatch.setattr(launch, "FIRST_DELAY_S", 0.1)
    with contextlib.closing(ServerSupervisor([plan], say=lines.append)) as supervisor:
        supervisor.start(timeout_s=20.0)
        [child], [server] = logged(plan, "child"), logged(plan, "fake server")
        with watched(supervisor) as failures:
            os.kill(server, signal.SIGKILL)
            wait_for(lambda: sum("answers" in line for line in lines) == 2)
        assert not failures and not is_alive(child)
    assert lines[1] == f"{plan.address} died; it is started again in 0.1 s (log in {plan.log_path})"
    assert len(logged(plan, "fake server")) == 2


def test_a_server_whose_whole_group_was_killed_is_started_again(tmp_path, monkeypatch):
    plan, lines = fake_plan(tmp_path), []
    monkeypatch.setattr(launch, "FIRST_DELAY_S", 0.1)
    with contextlib.closing(ServerSupervisor([plan], say=lines.append)) as supervisor:
        supervisor.start(timeout_s=20.0)
        with watched(supervisor):
            os.killpg(os.getpgid(logged(plan, "fake server")[0]), signal.SIGKILL)
            wait_for(lambda: sum("answers" in line for line in lines) == 2)


def test_a_server_that_dies_again_and_again_is_not_restarted_with_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "MAX_DEATHS", 2)
    plan, lines = fake_plan(tmp_path, "--die-after-s", "0.6"), []
    monkeypatch.setattr(launch, "FIRST_DELAY_S", 0.05)
    with contextlib.closing(ServerSupervisor([plan], say=lines.append)) as supervisor:
        supervisor.start(timeout_s=20.0)
        with watched(supervisor) as failures:
            wait_for(lambda: failures)
    assert f"the server on port {plan.port} died 3 times" in failures[0]
    assert "0 still run" in failures[0] and "the last words" in failures[0]
    assert [line.split(" in ")[1].split()[0] for line in lines if "died" in line] == ["0.05", "0.1"]


def test_a_server_that_is_not_restarted_does_not_end_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(launch, "MAX_DEATHS", 1)
    ill, well = fake_plan(tmp_path, "--die-after-s", "0.6"), fake_plan(tmp_path)
    lines = []
    monkeypatch.setattr(launch, "FIRST_DELAY_S", 0.05)
    with contextlib.closing(ServerSupervisor([ill, well], say=lines.append)) as supervisor:
        supervisor.start(timeout_s=20.0)
        [survivor] = logged(well, "fake server")
        with watched(supervisor) as failures:
            wait_for(lambda: any("not restarted" in line for line in lines))
            os.kill(survivor, signal.SIGKILL)  # and they are still watched
            wait_for(lambda: sum(line.startswith(f"{well.address} answers") for line in lines) == 2)
        assert not failures
    [not_restarted] = [line for line in lines if "not restarted" in line]
    assert not_restarted.startswith(f"the server on port {ill.port} died 2 times") and "1 still run" in not_restarted
    assert "the last words" in not_restarted


def test_half_precision_is_not_offered_because_the_trainer_has_none():
    (kind, *_) = get_args(inspect.signature(serve_vllm.main).parameters["dtype"].annotation)
    assert set(get_args(kind)) == {"bfloat16", "float32"}


def test_a_server_that_does_not_start_is_an_error_with_what_it_printed(tmp_path):
    plan = fake_plan(tmp_path, "--no-such-flag")
    with contextlib.closing(ServerSupervisor([plan])) as supervisor, pytest.raises(UserError) as caught:
        supervisor.start(timeout_s=20.0)
    assert f"the server on port {plan.port} did not start" in str(caught.value)
    assert "unrecognized arguments: --no-such-flag" in str(caught.value)


def test_the_first_error_of_a_log_is_shown_with_its_end(tmp_path):
    program = "for line in ['ValueError: the cause', *'abcdefgh', 'RuntimeError: see above']: print(line)"
    plan = fake_plan(tmp_path)
    plan = dataclasses.replace(plan, command=(sys.executable, "-c", program))
    with contextlib.closing(ServerSupervisor([plan])) as supervisor, pytest.raises(UserError) as caught:
        supervisor.start(timeout_s=20.0)
    shown = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert shown == ["ValueError: the cause", *"efgh", "RuntimeError: see above", "the server ended with exit code 0"]


LAUNCHER = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored where the tests themselves run under nohup
sys.path[:0] = [{root!r}, {tests!r}, {fakes!r}, {here!r}]
from pathlib import Path
import typer
from test_serve_vllm import fake_plan
from agent_rl.scripts import common
from agent_rl.scripts.commands import serve_vllm
from agent_rl.inference.vllm.server import launch_plan
launch_plan.visible_gpus = list
launch_plan.plan_servers = lambda options, gpus: [fake_plan(Path({folder!r}), "--child", port=options.port)]
app = typer.Typer()
app.command()(serve_vllm.main)
common.run_app(app)
"""


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGKILL, -9), (signal.SIGHUP, -1)]
)
def test_nothing_survives_the_command_however_it_ends(tmp_path, number, code):
    port = free_port()
    program = LAUNCHER.format(
        root=str(ROOT),
        tests=str(FAKE.parents[1]),
        fakes=str(FAKE.parent),
        here=str(Path(__file__).parent),
        folder=str(tmp_path),
    )
    plan = fake_plan(tmp_path, port=port)
    command = [sys.executable, "-c", program, "--model", "m", "--port", str(port)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    lines = [launcher.stdout.readline() for _ in range(3)]
    assert lines[2] == f"vllm.servers: [{plan.address}]\n"
    processes = logged(plan, "child") + logged(plan, "fake server")
    assert len(processes) == 2 and all(is_alive(pid) for pid in processes)
    launcher.send_signal(number)
    launcher.communicate(timeout=15.0)
    assert launcher.returncode == code
    wait_for(lambda: not any(is_alive(pid) for pid in processes))
