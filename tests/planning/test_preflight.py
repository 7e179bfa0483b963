"""Each check on invented machines, and all checks on this one."""

import http.server
import importlib.metadata
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_rl.errors import ConfigError, DataError
from agent_rl.planning.machine import GIB, read_machine
from agent_rl.planning.plan import read_run
from agent_rl.planning.preflight import (
    CheckStatus,
    FoundGpu,
    attempt,
    check_disk,
    check_gpus,
    check_kernels,
    check_memory,
    check_packages,
    check_port,
    check_server,
    machine_memory,
    ok,
    read_requirements,
)
from agent_rl.planning.preflight_run import planned
from agent_rl.scripts.cli import app

ROOT = Path(__file__).resolve().parents[2]
H100 = FoundGpu(name="NVIDIA H100 80GB HBM3", memory=79.2 * GIB)


@pytest.fixture(autouse=True)
def in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_gpus_must_be_as_many_and_as_large_as_the_plan_wants():
    assert check_gpus([H100] * 8, wanted=8, memory=79 * GIB, driver="550").status is CheckStatus.OK
    few = check_gpus([H100] * 4, wanted=8, memory=79 * GIB, driver="550")
    assert few.status is CheckStatus.FAILED and "4 x NVIDIA H100" in few.text and "needs 8" in few.text
    small = FoundGpu(name="NVIDIA A100-SXM4-40GB", memory=39.4 * GIB)
    assert "2 of 2 have 39 GiB" in check_gpus([small] * 2, wanted=2, memory=79 * GIB, driver="550").text


def test_no_gpu_is_right_for_a_run_that_wants_none_unless_a_driver_is_there():
    assert check_gpus([], wanted=0, memory=0.0, driver=None).status is CheckStatus.OK
    hidden = check_gpus([], wanted=0, memory=0.0, driver="550.54")
    assert hidden.status is CheckStatus.FAILED and "550.54" in hidden.text


@pytest.mark.parametrize(
    ("driver", "cuda", "fact"),
    [
        ("550.54", None, "built without CUDA"),
        ("550.54", "13.0", "needs the driver 580"),
        ("580.65", "13.0", "CUDA_VISIBLE_DEVICES"),
        ("550.54", "12.8", "CUDA_VISIBLE_DEVICES"),
        ("[N/A]", "13.0", "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_pytorch_does_not_see_are_explained_by_driver_and_cuda(driver, cuda, fact):
    found = check_gpus([], wanted=1, memory=0.0, driver=driver, cuda=cuda)
    assert found.status is CheckStatus.FAILED and driver in found.text
    facts = {"built without CUDA", "needs the driver 580", "CUDA_VISIBLE_DEVICES"}
    assert {each for each in facts if each in found.text} == {fact}


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
    assert check_packages(paths, version({"torch": "2.0.0+cpu", "peft": "0.1"})).status is CheckStatus.OK
    other = check_packages(paths, version({"torch": "2.1.0", "peft": "0.1"}))
    assert other.status is CheckStatus.WARNING and "torch 2.1.0 instead of 2.0.0" in other.text
    missing = check_packages(paths, version({"torch": "2.0.0"}))
    assert (missing.status, missing.text) == (CheckStatus.FAILED, "missing: peft; pip install -r more.txt")


def test_the_disk_must_hold_all_checkpoints(tmp_path):
    def free(_path: Path) -> int:
        return 10 * GIB

    folder = tmp_path / "runs" / "later"
    statuses = [check_disk(folder, wanted * GIB, free).status for wanted in (5, 9, 11)]
    assert statuses == [CheckStatus.OK, CheckStatus.WARNING, CheckStatus.FAILED]
    assert list(tmp_path.iterdir()) == []


def test_weight_files_count_where_they_are_written(tmp_path, monkeypatch):
    def wanted(*overrides: str) -> list[tuple[str, int]]:
        seen = []
        monkeypatch.setattr(
            "agent_rl.planning.preflight.check_disk",
            lambda folder, size, **_: seen.append((str(folder), round(size / GIB))) or ok("disk", ""),
        )
        machine = read_machine(Path("configs/machines/8xh100.yaml"))
        run = read_run(Path("configs/nat_grpo_8xh100.yaml"), overrides, machine)
        list(planned(run))
        return seen

    assert wanted() == [("runs", 1282), ("/dev/shm/nat_grpo_8xh100", 122)]
    assert wanted("vllm.weight_folder=null") == [("runs", 1282 + 122)]
    assert wanted("vllm.weight_transfer=nccl") == [("runs", 1282)]


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    found = check_disk(place / "below", 0.0)
    assert found.status is CheckStatus.FAILED and "set run.output_dir" in found.text


def test_memory_with_little_to_spare_is_a_warning():
    assert [check_memory(n * GIB, 100 * GIB).status for n in (50, 95, 101)] == [
        CheckStatus.OK,
        CheckStatus.WARNING,
        CheckStatus.FAILED,
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


def test_a_servers_address_answers_or_is_free_or_belongs_to_another_program(server, port):
    taken = check_server(f"http://127.0.0.1:{server.server_port}")
    assert taken.status is (CheckStatus.OK if server.is_vllm else CheckStatus.FAILED)
    assert taken.text == "answers" or "404" in taken.text
    free = check_server(f"http://127.0.0.1:{port}")
    assert free.status is CheckStatus.OK and "serve-vllm" in free.text
    away = check_server("http://no-such-host.invalid:8000", timeout_s=1)
    assert away.status is CheckStatus.FAILED and "serve-vllm" in away.text


def test_a_port_with_a_listener_is_taken(port):
    assert check_port(port).status is CheckStatus.OK
    with socket.socket() as listener:
        listener.bind(("", port))
        listener.listen()
        assert check_port(port).status is CheckStatus.FAILED


def test_what_the_kernels_of_the_head_lack_is_a_warning() -> None:
    assert check_kernels("").status is CheckStatus.OK
    found = check_kernels("a C compiler (gcc)")
    assert (found.status, "a C compiler (gcc)" in found.text) == (CheckStatus.WARNING, True)


def test_a_users_mistake_is_the_text_of_a_failure():
    def wrong() -> str:
        raise DataError("x.jsonl:3: no task_id; add one")

    assert attempt("tasks", wrong).text == "x.jsonl:3: no task_id; add one"
    assert attempt("tasks", lambda: "fine").status is CheckStatus.OK


def lines_of(text: str) -> dict[str, str]:
    """CheckStatus by name of each check."""
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


def test_held_out_tasks_that_are_trained_on_are_a_warning():
    path = "dataset/math_tasks/eval.jsonl"
    result = CliRunner().invoke(
        app, ["preflight", "--config", "configs/math_grpo.yaml", "run.device=cpu", f"data.train_path={path}"]
    )
    assert result.exit_code == 0, result.output
    assert lines_of(result.output)["held-out tasks"] == "warning"


def no_wandb_login(ask_service: bool) -> str:
    assert ask_service
    raise ConfigError("no login")


def test_a_machine_without_gpus_fails_for_the_run_on_eight(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    monkeypatch.setattr("agent_rl.planning.preflight_run.driver_version", lambda: None)
    monkeypatch.setattr("agent_rl.policies.hub.hub_unreachable", lambda: "no network in tests")
    monkeypatch.setattr("agent_rl.telemetry.trackers._wandb_login", no_wandb_login)
    result = CliRunner().invoke(
        app,
        [
            *("preflight", "--config", "configs/nat_grpo_8xh100.yaml", "--machine", "configs/machines/8xh100.yaml"),
            "env.options.nat_python=/no/python",
        ],
    )
    assert result.exit_code == 1
    found = lines_of(result.output)
    assert found["GPUs"] == found["model"] == found["environment nat_agent_creation"] == "failed"
    assert found["plan"] == found["training tasks"] == "ok"
    assert "the run needs 8" in result.output
    assert "requirements-trackers.txt" in result.output and found["trackers"] == "failed"


def test_a_file_that_is_no_launchers_file_is_the_line_of_the_plan(tmp_path):
    launch = tmp_path / "launch.yaml"
    launch.write_text("num_processes: auto\n")
    result = CliRunner().invoke(
        app, ["preflight", "--config", "configs/nat_grpo.yaml", "run.device=cpu", "--set", f"launch={launch}"]
    )
    assert result.exit_code == 1
    assert f"plan: {launch}: num_processes is 'auto'; expected a whole number" in result.output
