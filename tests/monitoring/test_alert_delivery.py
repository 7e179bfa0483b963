"""From a run's folder to a web address: exporter, Prometheus with the rules, Alertmanager, webhook."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prometheus_programs import ROOT, alertmanager, prometheus, wait_until
from run_folders import WrittenRun

from agent_rl.monitoring.exporter import MetricsServer, RunsCollector


class Webhook:
    """Keeps what it was told: (status, alert, run)."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for alert in message["alerts"]:
                    labels = alert["labels"]
                    outer.told.append((alert["status"], labels["alertname"], labels.get("run", "")))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/alerts"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    made = Webhook()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.monitoring
def test_an_alarm_of_a_run_reaches_the_webhook_and_so_does_its_end(tmp_path: Path, webhook: Webhook) -> None:
    rule = {"metric": "policy/entropy", "below": 0.5, "steps": 2}
    run = WrittenRun(tmp_path / "runs/mine", {"log": {"alarms": [rule]}})
    run.event("start", 0, time=time.time())
    for step in (1, 2):
        run.row(step, time=time.time(), **{"policy/entropy": 0.1, "time/step_s": 1.0})
    with (
        MetricsServer(RunsCollector(tmp_path / "runs"), address="127.0.0.1", port=0) as server,
        alertmanager(tmp_path / "alertmanager", webhook.url) as receiver,
        prometheus(
            tmp_path / "prometheus",
            {"agent_rl_runs": server.address.removeprefix("http://").removesuffix("/metrics")},
            rules=[ROOT / "deploy/prometheus/rules/training.yml"],
            alertmanager=receiver,
        ),
    ):
        wait_until(lambda: ("firing", "AgentRLStepAlarm", "mine") in webhook.told)
        assert ("resolved", "AgentRLStepAlarm", "mine") not in webhook.told
        run.row(3, time=time.time(), **{"policy/entropy": 0.9, "time/step_s": 1.0})
        wait_until(lambda: ("resolved", "AgentRLStepAlarm", "mine") in webhook.told)
        run.event("end", 3, time=time.time(), reason="failed", error="ValueError: a bug")
        wait_until(lambda: ("firing", "AgentRLRunFailed", "mine") in webhook.told)
    assert {alert for _, alert, _ in webhook.told} == {"AgentRLStepAlarm", "AgentRLRunFailed"}
