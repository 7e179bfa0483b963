"""Dashboards are what their script writes, and a real Prometheus has an answer to each of their queries."""

import importlib.util
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from commands import run_here
from prometheus_programs import ROOT, Prometheus, prometheus, wait_until
from run_folders import write_full_run

from agent_rl.monitoring.exporter import EXPORTER_GAUGES, MetricsServer, RunsCollector
from agent_rl.monitoring.names import documented_metrics
from agent_rl.monitoring.run_series import GAUGES, RUN_COUNTERS

DASHBOARDS = ROOT / "deploy/grafana/dashboards"
ABSENT_ON_A_CPU = "agent_rl_gpu_"
"""Families that a run without a GPU has not."""


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_monitoring", ROOT / "scripts/make_monitoring.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def dashboard(name: str) -> dict[str, Any]:
    return json.loads((DASHBOARDS / f"{name}.json").read_text(encoding="utf-8"))


def queries(name: str) -> list[str]:
    """Of all panels, for every run or instance."""
    found = [target["expr"] for panel in dashboard(name)["panels"] for target in panel.get("targets", ())]
    return [re.sub(r"\$(run|instance)", ".*", query) for query in found]


def pickers(name: str) -> list[tuple[str, str]]:
    """Metric and label of every list of values."""
    shown = (each["query"] for each in dashboard(name)["templating"]["list"] if each["type"] == "query")
    return [re.fullmatch(r"label_values\((\w+), (\w+)\)", each["query"]).groups() for each in shown]


def test_the_files_are_what_the_script_writes() -> None:
    stale = [path for path, text in script().written_files().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run scripts/make_monitoring.py"


@pytest.mark.parametrize("name", ["training", "service"])
def test_panels_have_numbers_and_places_of_their_own(name: str) -> None:
    panels = dashboard(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + dx, panel["gridPos"]["y"] + dy)
        for panel in panels
        for dx in range(panel["gridPos"]["w"])
        for dy in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24


def test_grafana_is_told_of_the_data_source_and_of_the_dashboards() -> None:
    source = yaml.safe_load((ROOT / "deploy/grafana/provisioning/datasources/prometheus.yml").read_text())
    assert source["datasources"][0]["type"] == "prometheus"
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/agent_rl.yml").read_text())
    assert provider["providers"][0]["type"] == "file"


def test_queries_about_runs_name_exported_families() -> None:
    exported = {row.exported_name for row in documented_metrics()}
    exported |= {f"agent_rl_{name}" for name in (*GAUGES, *EXPORTER_GAUGES)}
    exported |= {f"agent_rl_{name}_total" for name in RUN_COUNTERS}
    asked = {word for query in queries("training") for word in re.findall(r"agent_rl_\w+", query)}
    assert asked - exported == set()


@pytest.mark.monitoring
def test_prometheus_answers_every_query_about_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    small = ("train.steps=2", "rollout.groups_per_step=2", "rollout.group_size=4", f"run.output_dir={runs}")
    done = run_here("train", "--config", "configs/hello.yaml", *small, "run.device=cpu")
    assert done.returncode == 0, done.stderr
    write_full_run(runs / "full")
    with MetricsServer(RunsCollector(runs), address="127.0.0.1", port=0) as server:
        target = server.address.removeprefix("http://").removesuffix("/metrics")
        with prometheus(tmp_path / "prometheus", {"agent_rl_runs": target}) as asked:
            wait_until(lambda: asked.ask("agent_rl_runs"))
            assert [query for query in queries("training") if not asked.ask(query)] == []
            of_hello = [query.replace('run=~".*"', 'run="hello"') for query in queries("training")]
            silent = [query for query in of_hello if not asked.ask(query)]
            assert [query for query in silent if not query.startswith(ABSENT_ON_A_CPU)] == []
            assert asked.label_values(*pickers("training")[0]) == ["full", "hello"]
            every = {row.exported_name for row in documented_metrics()}
            assert every - set(asked.label_values('{job="agent_rl_runs"}', "__name__")) == set()


class Busy:
    """A service's metrics, in which more has happened whenever they are asked for."""

    def __init__(self) -> None:
        metrics = pytest.importorskip("agent_rl.envs.nat.service.metrics", reason="the service is not installed")
        self.metrics = metrics.ServiceMetrics()
        engine = {"in_flight": 2, "waiting": 1, "cache_slots": 3}
        load = metrics.ServiceLoad(jobs={"queued": 2, "checking": 1}, engine=engine, store_bytes=10)
        self.metrics.watch(lambda: load)
        self.metrics.model({"name": "tiny", "sha256": "0" * 64})

    def text(self) -> bytes:
        about = {"kind": "greedy", "shares": {"static": 1.0}, "seed": 1, "num_prompt_tokens": 5, "num_tokens": 7}
        good = {**about, "verdict": "accepted", "why_ended": "", "lost_stages": []}
        for state in ("accepted", "rejected", "failed"):
            self.metrics.job_ended(state, "given", 3.0)
        self.metrics.stage("check", 1.0)
        self.metrics.candidates([good])
        self.metrics.candidates([{**good, "verdict": "rejected", "lost_stages": ["build"]}, {**good, "kind": "repair"}])
        self.metrics.planned({"status": "made", "num_tokens_in": 3, "num_tokens_out": 4}, 1.0)
        self.metrics.sandbox_run("ok", 0.3)
        self.metrics.feedback("works", "accepted")
        self.metrics.http("/v1/agents", "POST", 202, 0.01)
        self.metrics.rate_limited("somebody")
        self.metrics.incident("restart")
        return self.metrics.text()


@contextmanager
def served(busy: Busy) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = busy.text()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.monitoring
def test_prometheus_answers_every_query_about_the_service(tmp_path: Path) -> None:
    with served(Busy()) as target, prometheus(tmp_path / "prometheus", {"agent_rl_service": target}) as asked:
        assert_answered(asked, queries("service"))
        assert asked.label_values(*pickers("service")[0]) == [target]
        assert_answered(asked, selectors_of_rules())


def test_the_page_lists_every_family_of_the_service() -> None:
    families = Busy().metrics.registry.collect()
    names = {family.name + "_total" * (family.type == "counter") for family in families}
    page = (ROOT / "docs/MONITORING.md").read_text(encoding="utf-8")
    section = page.partition("\n## Service\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(agent_rl_\w+)`", section)) == names


def assert_answered(asked: Prometheus, wanted: list[str]) -> None:
    """Rates need two scrapes, so there is some time for it."""
    left = list(wanted)

    def is_done() -> bool:
        left[:] = [query for query in left if not asked.ask(query)]
        return not left

    try:
        wait_until(is_done, timeout_s=60.0)
    except AssertionError:
        pytest.fail(f"no series: {left}")


def selectors_of_rules() -> list[str]:
    """Every family that an alert about the service asks for."""
    read = yaml.safe_load((ROOT / "deploy/prometheus/rules/service.yml").read_text())
    text = " ".join(rule["expr"] for group in read["groups"] for rule in group["rules"])
    return sorted(set(re.findall(r"agent_rl_\w+(?:_total|_bucket)|agent_rl_jobs(?=\{)", text)))
