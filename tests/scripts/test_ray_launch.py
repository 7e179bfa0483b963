"""`scripts/ray_launch.py`: the environment of Accelerate's launcher, ranks by node, honest ends; on two nodes."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from builders import ROOT
from waiting import wait_for

LAUNCH = ROOT / "scripts/ray_launch.py"
DDP, ZERO3 = "configs/accelerate/ddp_2cpu.yaml", "configs/accelerate/zero3_2cpu.yaml"
needs_ray = [pytest.mark.ray, pytest.mark.timeout(300)]
REPORT = """
import json, os, sys
folder, name = sys.argv[1:]
with open(f"{folder}/{name}_{os.environ['RANK']}.json", "w") as file:
    json.dump(dict(os.environ), file)
print("said by", os.environ["RANK"])
"""
WAIT = """
import os, signal, sys, time
folder = sys.argv[1]
rank = os.environ["RANK"]
def note(word):
    with open(f"{folder}/log", "a") as log: log.write(f"{word} {rank} {os.getpid()}\\n")
def stop(number, _frame):
    note(f"signal-{number}"); sys.exit(0)
signal.signal(signal.SIGINT, stop)
signal.signal(signal.SIGTERM, stop)
note("began")
if rank == "1" and {"fail", "crash"} & set(sys.argv):
    while open(f"{folder}/log").read().count("began") < 2: time.sleep(0.02)
    if "fail" in sys.argv: sys.exit(3)
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(200)
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ray_launch", LAUNCH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["ray_launch"] = module
    spec.loader.exec_module(module)
    return module


def test_processes_of_a_node_have_consecutive_ranks_and_see_its_gpus(script: ModuleType) -> None:
    on = [("b", "3"), ("a", "1"), ("b", "0"), ("a", "0")]
    places = [script.Place(node=node, address=f"10.0.0.{node}", gpus=(gpu,)) for node, gpu in on]
    order = script.rank_order(places)
    assert order == [0, 2, 1, 3]
    ranks = script.rank_variables([places[index] for index in order])
    assert [(r["RANK"], r["LOCAL_RANK"], r["GROUP_RANK"], r["CUDA_VISIBLE_DEVICES"]) for r in ranks] == [
        ("0", "0", "0", "3,0"),
        ("1", "1", "0", "3,0"),
        ("2", "0", "1", "1,0"),
        ("3", "1", "1", "1,0"),
    ]
    assert {(r["WORLD_SIZE"], r["LOCAL_WORLD_SIZE"]) for r in ranks} == {("4", "2")}


def test_variables_are_passed_on(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "secret")
    assert script.passed_on(["SOME_KEY", "A=b=c", "EMPTY="]) == {"SOME_KEY": "secret", "A": "b=c", "EMPTY": ""}
    with pytest.raises(script.ConfigError, match="NO_SUCH_NAME"):
        script.passed_on(["NO_SUCH_NAME"])


@pytest.mark.parametrize("content", [None, "a: 1", "distributed_type: 'NO'\nnum_processes: 1", "- 3"])
def test_a_file_that_starts_no_processes_is_refused(script: ModuleType, tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "file.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(script.ConfigError, match=r"file\.yaml"):
        script.read_launch_file(file)


@pytest.mark.parametrize("file", sorted((ROOT / "configs/accelerate").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_file_gives_its_environment(
    script: ModuleType, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    options = script.parse(["--config_file", str(file), "--cpus-per-process", "3", "train.py", "--config", "x.yaml"])
    settings = script.read_launch_file(file)
    found = script.accelerate_environment(options, settings["num_processes"])
    assert found["OMP_NUM_THREADS"] == "3" and options.arguments == ["--config", "x.yaml"]
    given = settings.get("deepspeed_config", {}).get("deepspeed_config_file")
    assert found.get("ACCELERATE_DEEPSPEED_CONFIG_FILE") == given
    assert ("ACCELERATE_USE_DEEPSPEED" in found) == (given is not None)


class Interrupted:
    """An actor at whose start the launcher gets a signal, where told to."""

    def __init__(self, at_start: bool) -> None:
        self.place = SimpleNamespace(remote=lambda: {"node": "a", "address": "10.0.0.1", "gpus": ()})
        self.free_port = SimpleNamespace(remote=lambda: 1234)
        self.start = SimpleNamespace(remote=lambda *_: KeyboardInterrupt() if at_start else None)


def test_a_job_knows_what_is_started_when_a_signal_comes(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(answer: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get=get))
    job, actors = script.Job(), [Interrupted(False), Interrupted(True), Interrupted(False)]
    with pytest.raises(KeyboardInterrupt):
        script.start(job, actors, ["train.py"], {})
    assert job.running == {0: actors[0], 1: actors[1]}


# On a cluster


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    pytest.importorskip("ray")
    from distributed.ray_cluster import ray_cluster

    with ray_cluster() as (cluster, _nodes):
        yield cluster.address


def launch(address: str, *words: str | Path, file: str = DDP) -> subprocess.Popen[str]:
    command = [sys.executable, LAUNCH, "--config_file", file, "--address", address, *words]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
    return subprocess.Popen(
        [str(word) for word in command],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def write(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


def reports(folder: Path, name: str) -> list[dict[str, str]]:
    return [json.loads((folder / f"{name}_{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("file", [DDP, ZERO3])
class TestEnvironment:
    pytestmark = needs_ray

    def test_it_is_that_of_accelerate_launch(self, address: str, tmp_path: Path, file: str) -> None:
        script = write(tmp_path, REPORT)
        job = launch(address, "--cpus-per-process", "1", "--env", "OWN=7", script, tmp_path, "ours", file=file)
        output, errors = job.communicate(timeout=120)
        assert job.returncode == 0, output + errors
        assert {"[0] said by 0", "[1] said by 1", "[1] ended with exit code 0"} <= set(output.splitlines())
        command = [
            sys.executable,
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            file,
            "--main_process_port",
            "0",
        ]
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}
        subprocess.run(
            [*command, str(script), str(tmp_path), "theirs"], cwd=ROOT, env=environment, check=True, timeout=120
        )
        ours, theirs = reports(tmp_path, "ours"), reports(tmp_path, "theirs")
        shared = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "OMP_NUM_THREADS")
        for mine, other in zip(ours, theirs, strict=True):
            names = {name for name in {*mine, *other} if name.startswith("ACCELERATE_")}
            assert {"ACCELERATE_MIXED_PRECISION"} < names
            assert {name: mine.get(name) for name in (*names, *shared)} == {
                name: other.get(name) for name in (*names, *shared)
            }
            assert mine["OWN"] == "7" and mine["RAY_ADDRESS"] == address
            assert mine["MASTER_ADDR"] == address.partition(":")[0] and mine["MASTER_PORT"].isdecimal()
        assert ours[0]["MASTER_PORT"] == ours[1]["MASTER_PORT"]


class TestEnds:
    pytestmark = needs_ray

    @staticmethod
    def logged(folder: Path) -> list[list[str]]:
        log = folder / "log"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def assert_gone(self, folder: Path) -> None:
        pids = [int(each[2]) for each in self.logged(folder) if each[0] == "began"]
        assert len(pids) == 2
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

    def start(self, address: str, folder: Path, *words: str, begun: int = 2) -> subprocess.Popen[str]:
        """A process on each node, so many of which have begun."""
        job = launch(address, "--cpus-per-process", "2", write(folder, WAIT), folder, *words)
        wait_for(lambda: len(self.logged(folder)) >= begun or job.poll() is not None, timeout_s=60)
        return job

    @pytest.mark.parametrize(("how", "code"), [("fail", 3), ("crash", 128 + signal.SIGSEGV)])
    def test_one_that_fails_ends_the_others_with_its_code(
        self, address: str, tmp_path: Path, how: str, code: int
    ) -> None:
        job = self.start(address, tmp_path, how)
        output, errors = job.communicate(timeout=400)
        assert job.returncode == code, output + errors
        assert [f"signal-{signal.SIGTERM:d}", "0"] in [each[:2] for each in self.logged(tmp_path)]
        assert re.search(r"^\[1\] ended with exit code ", output, re.MULTILINE)
        self.assert_gone(tmp_path)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_reaches_all(self, address: str, tmp_path: Path, number: int, code: int) -> None:
        job = self.start(address, tmp_path)
        job.send_signal(number)
        output, errors = job.communicate(timeout=400)
        assert job.returncode == code, output + errors
        found = sorted(each[:2] for each in self.logged(tmp_path) if each[0] != "began")
        assert found == [[f"signal-{number:d}", "0"], [f"signal-{number:d}", "1"]]
        self.assert_gone(tmp_path)

    @pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
    def test_a_signal_before_the_last_is_started_reaches_those_that_are(
        self, address: str, tmp_path: Path, number: int, code: int
    ) -> None:
        job = self.start(address, tmp_path, begun=1)
        job.send_signal(number)
        output, errors = job.communicate(timeout=400)
        assert job.returncode == code, output + errors
        logged = self.logged(tmp_path)
        assert [f"signal-{number:d}", logged[0][1]] in [each[:2] for each in logged]
        wait_for(lambda: not any(Path(f"/proc/{each[2]}").exists() for each in logged))

    def test_nothing_outlives_a_launcher_that_is_killed(self, address: str, tmp_path: Path) -> None:
        job = self.start(address, tmp_path)
        job.kill()
        job.communicate(timeout=400)
        self.assert_gone(tmp_path)


class TestRuns:
    pytestmark = needs_ray

    def test_a_cluster_without_room_is_one_sentence(self, address: str, tmp_path: Path) -> None:
        job = launch(address, "--timeout-s", "2", write(tmp_path, REPORT), tmp_path, "none")
        _, errors = job.communicate(timeout=120)
        (line,) = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert job.returncode == 2 and "'GPU': 1" in line and "2 s" in line

    @pytest.mark.parametrize("file", [DDP, ZERO3])
    def test_a_run_trains_in_two_processes_with_workers_on_the_cluster(
        self, address: str, tmp_path: Path, file: str
    ) -> None:
        words: list[Any] = ["rollout.workers=ray", "rollout.ray.actors=1", "train.steps=1", "train.warmup_steps=0"]
        words += ["rollout.groups_per_step=2", "rollout.group_size=4", "data.max_eval_tasks=2", "run.device=cpu"]
        words += [f"run.output_dir={tmp_path}", "run.name=two"]
        train = ["agent_rl/scripts/train_math_agent.py", "--config", "configs/hello.yaml", *words]
        job = launch(address, "--cpus-per-process", "1", *train, file=file)
        output, errors = job.communicate(timeout=250)
        assert job.returncode == 0, output + errors
        rows = [json.loads(line) for line in (tmp_path / "two/metrics.jsonl").read_text().splitlines()]
        (step,) = [row for row in rows if "reward/mean" in row]
        assert step["workers/lost_episodes"] == 0.0
        assert "step 1/1" in output
