"""Running services on a scripted model and the real toolkit, and what their clients do."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from created_agents import ANY, Script, creator, reference

from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.planning import RequestPlanner
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.service import keys
from agent_rl.envs.nat.service.service import AgentService
from agent_rl.envs.nat.spec import NATSpec


class Client:
    """HTTP against one service."""

    def __init__(self, service: AgentService, secret: str | None = None) -> None:
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        self.http = httpx.Client(base_url=service.address, headers=headers, timeout=60.0)
        self.service = service

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.http.get(path, headers=headers)

    def made(self, **body: Any) -> dict[str, Any]:
        """A job that has ended."""
        answer = self.post("/v1/agents", body, Prefer="wait=60")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def begun(self, **body: Any) -> str:
        answer = self.post("/v1/agents", body)
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    def job(self, job_id: str) -> dict[str, Any]:
        return self.get(f"/v1/agents/{job_id}").json()

    def ended(self, job_id: str, timeout_s: float = 60.0) -> dict[str, Any]:
        wait_until(lambda: self.job(job_id)["ended_at"], timeout_s)
        return self.job(job_id)

    def events(self, job_id: str, after: int = 0) -> list[tuple[int, str, dict[str, Any]]]:
        """All of them until the stream ends."""
        headers = {"Last-Event-ID": str(after)} if after else {}
        return read_events(self.http.get(f"/v1/agents/{job_id}/events", headers=headers).text)

    def metric(self, name: str, **labels: str) -> float:
        """Of the service; 0 where the series is not there."""
        return self.service.metrics.registry.get_sample_value(name, labels) or 0.0


def read_events(text: str) -> list[tuple[int, str, dict[str, Any]]]:
    found = []
    for part in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
        if "data" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def wait_until(condition: Callable[[], Any], timeout_s: float = 60.0) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.02)


def scripted_creator(
    toolkit: NatToolkit,
    folder: Path,
    script: Script | Sequence[str],
    *,
    planner: RequestPlanner | None = None,
    service: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> AgentCreator:
    """A creator whose service keeps its store in `folder`."""
    kept = {"port": 0, "metrics_port": None, "store": str(folder / "store"), **(service or {})}
    return creator(toolkit, script, planner=planner, service=kept, writes=sections.pop("writes", ANY), **sections)


@contextmanager
def service_of(making: AgentCreator, **options: Any) -> Iterator[Client]:
    with AgentService(making, **options) as service:
        client = Client(service)
        try:
            yield client
        finally:
            client.http.close()


@contextmanager
def serving(toolkit: NatToolkit, folder: Path, script: Script | Sequence[str], **options: Any) -> Iterator[Client]:
    """A service without keys, and its client."""
    with service_of(scripted_creator(toolkit, folder, script, **options)) as client:
        yield client


def reference_writer(spec: NATSpec) -> Script:
    """A model that writes the reference project of this plan."""
    text = reference(spec)
    return lambda _turn, _sampling: text


class HeldScript:
    """A model that waits until it may go on."""

    def __init__(self, text: str) -> None:
        self.may_go_on, self.num_asked = threading.Event(), 0
        self._text = text

    def __call__(self, _turn: int, sampling: Any) -> str:
        if sampling.max_new_tokens == 1:  # somebody asks whether it is ready
            return "yes"
        self.num_asked += 1
        assert self.may_go_on.wait(60)
        return self._text


def new_key(folder: Path, name: str, *scopes: str, per_hour: int = 1000) -> str:
    path = folder / "store/keys.toml"
    return keys.add_key(path, name, scopes=scopes or keys.SCOPES[:-1], per_hour=per_hour)
