"""The templates for Slurm and Kubernetes: what they start is taken by the real parsers, and ends as it should."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import typer
import yaml
from accelerate.commands.launch import launch_command_parser
from commands import ROOT
from waiting import wait_for

from agent_rl.config import Config, load_config
from agent_rl.scripts import cli
from agent_rl.scripts.common import make_app
from agent_rl.scripts.train import train_command

SLURM = ROOT / "scripts/slurm/train_grpo.sh"
NODES = ["gpu1", "gpu2", "gpu3"]
FAKE_SRUN = """#!{python}
# Runs each task of a step at once, here, as the node of that place in --nodelist.
import os, signal, subprocess, sys
words = sys.argv[1:]
options = dict(word[2:].split("=") for word in words if word.startswith("--") and words.index(word) < 5)
command = words[len(options):]
nodes = options["nodelist"].split(",")
assert int(options["nodes"]) == int(options["ntasks"]) == len(nodes), options
tasks = [
    subprocess.Popen(command, env={{**os.environ, "SLURM_PROCID": str(rank), "FAKE_NODE": node}})
    for rank, node in enumerate(nodes)
]
def pass_on(number, _frame):
    for task in tasks:
        task.send_signal(number)
signal.signal(signal.SIGTERM, pass_on)
sys.exit(max(abs(task.wait()) for task in tasks))
"""
FAKE_PYTHON = """#!{python}
# Records how it is called on which node; serves and trains until it is told to end, or ends with a code.
import json, os, signal, sys, time
words = sys.argv[1:]
if words[0] == "-c": os.execv({python!r}, [{python!r}, *words])
what = "serve" if "serve-vllm" in words else "train"
signal.signal(signal.SIGTERM, lambda *_: (record(event="ended"), os._exit(0)))
def record(**facts):
    with open({log!r}, "a") as log:
        log.write(json.dumps({{"what": what, "node": os.environ["FAKE_NODE"], **facts}}) + "\\n")
record(event="began", words=words, key=os.environ["AGENT_RL_VLLM_KEY"])
code = os.environ.get("CODE_OF_" + what.upper())
while code is None: time.sleep(0.05)
others = int(os.environ["NUM_BEGUN"])
while len(open({log!r}).readlines()) < others: time.sleep(0.02)
sys.exit(int(code))
"""


def write_program(path: Path, text: str, **values: str) -> Path:
    path.write_text(text.format(python=sys.executable, **values))
    path.chmod(0o755)
    return path


def slurm_job(folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """What sbatch would start on the first node."""
    (folder / "bin").mkdir()
    write_program(folder / "bin/srun", FAKE_SRUN)
    write_program(folder / "bin/scontrol", "#!/bin/sh\nprintf '%s\\n' " + " ".join(NODES) + "\n")
    python = write_program(folder / "python", FAKE_PYTHON, log=str(folder / "log"))
    given = {"SLURM_SUBMIT_DIR": str(ROOT), "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "gpu[1-3]", "NUM_BEGUN": "3"}
    path = f"{folder}/bin:{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", str(SLURM), *arguments],
        env=os.environ | given | {"PATH": path, "PYTHON": str(python)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(folder: Path) -> list[dict[str, Any]]:
    log = folder / "log"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def served(words: list[str]) -> dict[str, Any]:
    """The options of `serve-vllm` as its real parser reads them."""
    assert words[:3] == ["-m", "agent_rl.scripts.cli", "serve-vllm"]
    group = typer.main.get_command(cli.app)
    command = group.get_command(click.Context(group), "serve-vllm")
    return command.make_context("serve-vllm", words[3:]).params


def trained(words: list[str]) -> tuple[Any, Config]:
    """The options of `accelerate launch`, and the configuration that its script would load."""
    assert words[:2] == ["-m", "accelerate.commands.launch"]
    launch = launch_command_parser().parse_args(words[2:])
    assert (ROOT / launch.config_file).is_file() and (ROOT / launch.training_script).is_file()
    command = typer.main.get_command(make_app(train_command, "train"))
    given = command.make_context("train", launch.training_script_args).params
    return launch, load_config(ROOT / given["config"], given["overrides"])


def test_the_job_serves_on_the_first_nodes_and_trains_on_the_others(tmp_path: Path) -> None:
    job = slurm_job(tmp_path, "train.steps=3", CODE_OF_TRAIN="0", ROUTER="http://router:80")
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 0, output
    began = {each["node"]: each for each in records(tmp_path) if each["event"] == "began"}
    assert {node: each["what"] for node, each in began.items()} == {"gpu1": "serve", "gpu2": "train", "gpu3": "train"}
    serve = served(began["gpu1"]["words"])
    assert (serve["num_servers"], serve["tensor_parallel"], serve["host"], serve["port"]) == (4, 2, "0.0.0.0", 8000)
    assert serve["log_dir"] == Path("runs/slurm_7/servers_0")
    ranks = []
    for node in ("gpu2", "gpu3"):
        launch, config = trained(began[node]["words"])
        ranks.append(launch.machine_rank)
        assert (launch.num_machines, launch.num_processes) == (2, 16)
        assert (launch.main_process_ip, launch.main_process_port) == ("gpu2", 29500)
        assert config.vllm.servers == tuple(f"http://gpu1:{port}" for port in (8000, 8001, 8002, 8003))
        assert config.vllm.router == "http://router:80" and config.vllm.weight_folder is None
        assert (config.train.steps, config.checkpoint.resume) == (3, "auto")
        assert serve["model"] == config.model.path and serve["max_context"] == config.policy.max_context
        assert serve["dtype"] == config.model.dtype
    assert ranks == [0, 1]
    (key,) = {each["key"] for each in began.values()}
    assert len(key) == 64
    assert {"what": "serve", "node": "gpu1", "event": "ended"} in records(tmp_path)


def test_the_exit_code_is_the_trainings_and_the_servers_end_with_it(tmp_path: Path) -> None:
    job = slurm_job(tmp_path, CODE_OF_TRAIN="3")
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 3, output
    assert records(tmp_path)[-1] == {"what": "serve", "node": "gpu1", "event": "ended"}


def test_servers_that_end_first_end_the_training(tmp_path: Path) -> None:
    job = slurm_job(tmp_path, CODE_OF_SERVE="5", SERVER_NODES="2")
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 5 and "servers ended" in output
    assert records(tmp_path)[-1] == {"what": "train", "node": "gpu3", "event": "ended"}


def test_the_end_of_the_jobs_time_reaches_all(tmp_path: Path) -> None:
    job = slurm_job(tmp_path)
    wait_for(lambda: len(records(tmp_path)) == 3, timeout_s=60)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=400)
    assert job.returncode == 143
    assert sorted(each["node"] for each in records(tmp_path) if each["event"] == "ended") == NODES


@pytest.mark.parametrize("wrong", [{"SERVER_NODES": "3"}, {"TENSOR_PARALLEL": "16"}])
def test_nodes_that_do_not_suffice_are_an_error_before_anything_starts(tmp_path: Path, wrong: dict[str, str]) -> None:
    job = slurm_job(tmp_path, **wrong)
    output, _ = job.communicate(timeout=400)
    assert job.returncode == 2 and output.startswith("error: 3 nodes")
    assert records(tmp_path) == []


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The objects of a manifest by their kind."""
    text = (ROOT / "configs/kubernetes" / name).read_text(encoding="utf-8")
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (one,) = workload["spec"]["template"]["spec"]["containers"]
    return one


def words_of(workload: dict[str, Any], **environment: str) -> list[str]:
    """What its container runs after `python`, with variables in their places."""
    one = container(workload)
    names = {each["name"] for each in one["env"]}
    words = [*one["command"], *one["args"]]
    assert words[0] == "python" and set(environment) <= names
    used = {name for word in words for name in re.findall(r"\$\((\w+)\)", word)}
    assert used == set(environment)
    return [re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word) for word in words[1:]]


def test_the_manifests_start_what_the_real_parsers_take_and_fit_each_other() -> None:
    servers, training = documents("vllm_servers.yaml"), documents("training.yaml")
    stateful, job = servers["StatefulSet"], training["Job"]
    serve = served(words_of(stateful))
    launch, config = trained(words_of(job, MACHINE_RANK="1"))
    name, service = stateful["metadata"]["name"], stateful["spec"]["serviceName"]
    assert service == servers["Service"]["metadata"]["name"]
    expected = [f"http://{name}-{index}.{service}:{serve['port']}" for index in range(stateful["spec"]["replicas"])]
    assert list(config.vllm.servers) == expected
    assert serve["model"] == config.model.path and serve["dtype"] == config.model.dtype
    assert serve["max_context"] == config.policy.max_context
    assert serve["tensor_parallel"] == container(stateful)["resources"]["limits"]["nvidia.com/gpu"]
    assert serve["host"] == "0.0.0.0" and serve["num_servers"] == 1
    num_machines, gpus = job["spec"]["completions"], container(job)["resources"]["limits"]["nvidia.com/gpu"]
    assert (launch.num_machines, launch.num_processes) == (num_machines, num_machines * gpus)
    assert job["spec"]["parallelism"] == num_machines and launch.machine_rank == 1
    host = f"{job['metadata']['name']}-0.{job['spec']['template']['spec']['subdomain']}"
    assert launch.main_process_ip == host
    assert training["Service"]["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    assert training["Service"]["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert labels == servers["Service"]["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"]


def test_all_pods_share_key_and_runs() -> None:
    found = []
    for workload in (documents("vllm_servers.yaml")["StatefulSet"], documents("training.yaml")["Job"]):
        one = container(workload)
        key = next(each["valueFrom"] for each in one["env"] if each["name"] == "AGENT_RL_VLLM_KEY")
        mounts = {each["name"]: each["mountPath"] for each in one["volumeMounts"]}
        volumes = {each["name"]: each for each in workload["spec"]["template"]["spec"]["volumes"]}
        assert mounts["runs"] == f"{one['workingDir']}/runs" and set(mounts) == set(volumes)
        found.append((key, one["image"], volumes["runs"]))
    assert found[0] == found[1]
