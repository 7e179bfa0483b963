"""The files of deploy/ fit each other and the program: paths, ports, commands, versions. No container is started."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import agent_rl
from agent_rl.envs.nat.create.settings import ServeConfig, load_serve_config
from agent_rl.scripts import cli

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
UNIT = (DEPLOY / "agent-rl.service").read_text(encoding="utf-8")
PINNED = r"[\w./-]+:v?\d+(\.\d+)+(-[\w-]+)?"


def instructions(word: str) -> list[str]:
    return re.findall(rf"^{word} (.+)$", DOCKERFILE, re.MULTILINE)


def read_as_serve(words: list[str]) -> ServeConfig:
    """What `agent-rl serve` would read of its words."""
    assert words[:2] == ["serve", "--config"]
    return load_serve_config(ROOT / words[2].removeprefix("/opt/agent_rl/"), words[3:])


def options_of(name: str) -> set[str]:
    command = typer.main.get_command(cli.app).commands[name]
    return {option for parameter in command.params for option in parameter.opts}


def mounts() -> Iterator[tuple[str, str]]:
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            source, target = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", volume).removesuffix(":ro").split(":")
            yield source, target


def test_every_image_is_of_one_version() -> None:
    images = {name: service["image"] for name, service in SERVICES.items()}
    assert [name for name, image in images.items() if not re.fullmatch(PINNED, image)] == []
    own = {"trainer", "judge"}
    bases = [line.split(" AS ")[0] for line in instructions("FROM")]
    assert [base for base in bases if base not in own and not re.fullmatch(PINNED, base)] == []
    assert {images[name].partition(":")[2] for name in ("service", "runs", "vllm")} == {agent_rl.__version__}


def test_every_mount_is_a_file_here_or_a_volume() -> None:
    for source, _ in mounts():
        if source.startswith("."):
            assert (DEPLOY / source).exists() or source == "../runs", source
        else:
            assert source in COMPOSE["volumes"], source
    kept = dict(mounts())
    assert kept["./grafana/dashboards"] in (DEPLOY / "grafana/provisioning/dashboards/agent_rl.yml").read_text()
    assert {"--config.file=/etc/prometheus/prometheus.yml"} <= set(SERVICES["prometheus"]["command"])
    assert (DEPLOY / "prometheus/prometheus.yml").is_file()


def test_what_is_built_is_in_the_dockerfile() -> None:
    targets = {line.split(" AS ")[1] for line in instructions("FROM")}
    for service in SERVICES.values():
        if build := service.get("build"):
            assert build["target"] in targets
            assert (DEPLOY / build["context"]).resolve() == ROOT
            assert (ROOT / build["dockerfile"]).is_file()
    assert [name for name in re.findall(r"requirements[\w-]*\.txt", DOCKERFILE) if not (ROOT / name).is_file()] == []
    assert set(instructions("ARG")[0].split("=")[:1]) == set(SERVICES["service"]["build"]["args"])


def test_the_commands_are_those_of_the_program() -> None:
    served = read_as_serve(yaml.safe_load(instructions("CMD")[-1]))
    assert served.service.store in [target for _, target in mounts()]
    name, folder = SERVICES["runs"]["command"]
    assert name in typer.main.get_command(cli.app).commands and folder in [target for _, target in mounts()]
    words = SERVICES["vllm"]["command"]
    assert {word for word in words if word.startswith("--")} <= options_of("serve-vllm")


def test_the_ports_are_the_same_everywhere() -> None:
    service = load_serve_config(ROOT / "configs/serve.yaml").service
    prometheus = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    targets = {each["job_name"]: each["static_configs"][0]["targets"] for each in prometheus["scrape_configs"]}
    assert targets["agent_rl_service"] == [f"127.0.0.1:{service.metrics_port}"]
    (default,) = [
        each.default for each in typer.main.get_command(cli.app).commands["metrics"].params if each.name == "port"
    ]
    assert targets["agent_rl_runs"] == [f"127.0.0.1:{default}"]
    (managers,) = prometheus["alerting"]["alertmanagers"][0]["static_configs"]
    assert f"--web.listen-address={managers['targets'][0]}" in SERVICES["alertmanager"]["command"]
    (source,) = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert f"--web.listen-address={source['url'].removeprefix('http://')}" in SERVICES["prometheus"]["command"]
    assert instructions("EXPOSE") == [f"{service.port} {service.metrics_port}"]
    assert f"127.0.0.1:{service.port}/readyz" in DOCKERFILE


def test_nothing_listens_where_others_reach_it() -> None:
    for name, service in SERVICES.items():
        assert service["network_mode"] == "host" and "ports" not in service
        listens = [word for word in service.get("command", ()) if "listen-address" in word]
        assert all(word.endswith("=") or "=127.0.0.1:" in word for word in listens), name
    assert SERVICES["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"
    for name in ("service", "runs"):
        assert SERVICES[name]["read_only"] and SERVICES[name]["cap_drop"] == ["ALL"]


def test_the_image_holds_what_the_program_needs(tmp_path: Path) -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert lines[1] == "*"
    for pattern in (line[1:] for line in lines if line.startswith("!")):
        found = list(ROOT.glob(pattern))
        assert found, pattern
        for path in found:
            (tmp_path / path.name).symlink_to(path)
    named = re.findall(r'"((?:README|requirements)[\w.-]*)"', (ROOT / "pyproject.toml").read_text())
    assert [name for name in named if not (tmp_path / name).exists()] == []
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "agent_rl.scripts.cli", "serve", "--help"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    assert load_serve_config(tmp_path / "configs/serve.yaml").model.path == "model/nat_minimind_grpo"


def test_the_unit_starts_the_service_and_gives_it_time_to_end() -> None:
    (started,) = re.findall(r"^ExecStart=/opt/agent_rl/\.venv/bin/agent-rl (.+)$", UNIT, re.MULTILINE)
    service = read_as_serve(shlex.split(started)).service
    state = re.search(r"^StateDirectory=(.+)$", UNIT, re.MULTILINE)[1]
    assert service.store == f"/var/lib/{state}"
    assert float(re.search(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[1]) > service.drain_s
    assert SERVICES["service"]["stop_grace_period"] == "60s"
    assert "RestartPreventExitStatus=2\n" in UNIT  # that of a mistake in the configuration


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "agent-rl.service"
    unit.write_text(UNIT.replace("/opt/agent_rl/.venv/bin/agent-rl ", f"{shutil.which('true')} "))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=400, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="needs docker-compose")
def test_compose_takes_the_file() -> None:
    command = ["docker-compose", "-f", str(DEPLOY / "compose.yaml"), "config"]
    known = {**os.environ, "GRAFANA_PASSWORD": "secret"}
    done = subprocess.run(command, env=known, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(SERVICES)
    refused = subprocess.run(
        command,
        env={key: value for key, value in os.environ.items() if key != "GRAFANA_PASSWORD"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert refused.returncode != 0 and "GRAFANA_PASSWORD" in refused.stderr
