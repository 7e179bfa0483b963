"""Prometheus, Alertmanager and their tools as Debian has them, for tests that ask the real ones.

They are taken from PATH, or from `.prometheus/` of the repository, where `make setup-monitoring` unpacks Debian's
packages; without them a test is skipped with one line.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from waiting import free_port, wait_for

ROOT = Path(__file__).resolve().parents[3]
UNPACKED = ROOT / ".prometheus/usr/bin"
START_S = 60.0
"""For hangs: they start in a second."""
_TEMPLATE = Path("/usr/share/prometheus/alertmanager/default.tmpl")
_DEBIAN_NAMES = {"alertmanager": "prometheus-alertmanager"}


def program(name: str) -> str:
    """The path of a program; the test is skipped without it."""
    for each in (name, _DEBIAN_NAMES.get(name, name)):
        if found := shutil.which(each, path=None) or shutil.which(each, path=str(UNPACKED)):
            return found
    pytest.skip(f"{name} is not installed; run make setup-monitoring")


def run_tool(name: str, *words: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """`promtool` or `amtool` with its arguments and standard input."""
    command = [program(name), *map(str, words)]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=400, check=False)


@contextmanager
def started(name: str, *words: str, log: Path, is_ready: Callable[[], bool]) -> Iterator[None]:
    """A program until the block ends; its output is in `log`."""
    with log.open("w") as file:
        process = subprocess.Popen([*_command(name), *words], stdout=file, stderr=subprocess.STDOUT)
    try:

        def is_up() -> bool:
            assert process.poll() is None, log.read_text()
            return is_ready()

        wait_for(is_up, timeout_s=START_S)
        yield
    finally:
        process.terminate()
        process.wait(timeout=START_S)


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False


def _command(name: str) -> list[str]:
    """Debian's Alertmanager looks for its template below /usr/share; unpacked, it is shown its own folder there."""
    path = Path(program(name))
    if name != "alertmanager" or _TEMPLATE.exists() or path.parent != UNPACKED:
        return [str(path)]
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*namespace, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{_TEMPLATE} is missing and no mount can stand in for it; install prometheus-alertmanager")
    shown = f'mount --bind "{UNPACKED.parent}/share" /usr/share && exec "$0" "$@"'
    return [*namespace, "sh", "-c", shown, str(path)]


class Prometheus:
    """A running Prometheus: `prometheus.ask("up")`."""

    def __init__(self, address: str) -> None:
        self.address = address

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series that a query gives now; what is no query fails the test."""
        answer = httpx.get(f"{self.address}/api/v1/query", params={"query": query}, timeout=20.0).json()
        assert answer["status"] == "success", (query, answer)
        return answer["data"]["result"]

    def label_values(self, metric: str, label: str) -> list[str]:
        """As Grafana asks for them: values of a label among the series of a metric."""
        parameters = {"match[]": metric}
        answer = httpx.get(f"{self.address}/api/v1/label/{label}/values", params=parameters, timeout=20.0).json()
        assert answer["status"] == "success", answer
        return answer["data"]


@contextmanager
def prometheus(
    folder: Path,
    targets: dict[str, str],
    *,
    rules: list[Path] | None = None,
    alertmanager: str | None = None,
) -> Iterator[Prometheus]:
    """One that scrapes `targets`, addresses by name of the job, every second."""
    folder.mkdir(parents=True)
    port = free_port()
    config: dict[str, Any] = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(path) for path in rules or ()],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [address]}]} for job, address in targets.items()
        ],
    }
    if alertmanager is not None:
        config["alerting"] = {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    address = f"http://127.0.0.1:{port}"
    with started("prometheus", *words, log=folder / "log", is_ready=lambda: answers(f"{address}/-/ready")):
        yield Prometheus(address)


@contextmanager
def alertmanager(folder: Path, webhook: str) -> Iterator[str]:
    """One with the project's routes, which sends to `webhook` and waits for no group; gives its host and port."""
    folder.mkdir(parents=True)
    config = yaml.safe_load((ROOT / "deploy/alertmanager.yml").read_text())
    for route in (config["route"], *config["route"]["routes"]):
        route |= {"group_wait": "0s", "group_interval": "1s"}
    (receiver,) = config["receivers"]
    receiver["webhook_configs"][0]["url"] = webhook
    (folder / "alertmanager.yml").write_text(json.dumps(config))
    port = free_port()
    words = [
        f"--config.file={folder}/alertmanager.yml",
        f"--storage.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    host = f"127.0.0.1:{port}"
    with started("alertmanager", *words, log=folder / "log", is_ready=lambda: answers(f"http://{host}/-/ready")):
        yield host


def wait_until(is_so: Callable[[], object], timeout_s: float = 100.0) -> None:
    """`wait_for` with pauses, for what a server answers."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.2)
