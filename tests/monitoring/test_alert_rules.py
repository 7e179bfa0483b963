"""Every alert fires and is over in a unit test of promtool, says what to do, and asks for metrics that exist."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_programs import ROOT, run_tool

from agent_rl.envs.nat.create import settings
from agent_rl.monitoring.exporter import EXPORTER_GAUGES
from agent_rl.monitoring.names import documented_metrics
from agent_rl.monitoring.run_series import GAUGES, RUN_COUNTERS
from agent_rl.telemetry.alarms import DEFAULT_ALARMS

DEPLOY = ROOT / "deploy"
GROUPS = ("training", "service")
PAGE = (ROOT / "docs/MONITORING.md").read_text(encoding="utf-8")


def rules(name: str) -> list[dict]:
    read = yaml.safe_load((DEPLOY / f"prometheus/rules/{name}.yml").read_text())
    return [rule for group in read["groups"] for rule in group["rules"]]


ALERTS = {rule["alert"]: rule for name in GROUPS for rule in rules(name) if "alert" in rule}


@pytest.mark.monitoring
def test_prometheus_and_alertmanager_take_the_configurations() -> None:
    done = run_tool("promtool", "check", "config", DEPLOY / "prometheus/prometheus.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout
    done = run_tool("amtool", "check-config", DEPLOY / "alertmanager.yml")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.monitoring
@pytest.mark.parametrize("name", GROUPS)
def test_the_unit_tests_of_the_rules_pass_and_can_fail(name: str, tmp_path: Path) -> None:
    tests = DEPLOY / f"prometheus/tests/{name}.yml"
    done = run_tool("promtool", "test", "rules", tests)
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = yaml.safe_load(tests.read_text())
    wrong["rule_files"] = [str(DEPLOY / f"prometheus/rules/{name}.yml")]
    for test in wrong["tests"]:
        for case in test["alert_rule_test"]:
            case["exp_alerts"] = []
    (tmp_path / "wrong.yml").write_text(yaml.safe_dump(wrong))
    done = run_tool("promtool", "test", "rules", tmp_path / "wrong.yml")
    assert done.returncode == 1
    reported = done.stdout + done.stderr
    assert [alert for alert in (rule.get("alert") for rule in rules(name)) if alert and alert not in reported] == []


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_test_in_which_it_fires_and_is_over(alert: str) -> None:
    cases = [
        case
        for name in GROUPS
        for test in yaml.safe_load((DEPLOY / f"prometheus/tests/{name}.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["alertname"] == alert
    ]
    assert [bool(case["exp_alerts"]) for case in cases][-2:] == [True, False]


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_severity_a_sentence_and_a_place_in_the_page(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/MONITORING.md#{alert.lower()}"
    (told,) = re.findall(rf"^### {alert}\n\n(.+?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert len(told.split()) > 12


def test_the_page_tells_of_no_other_alert() -> None:
    assert set(re.findall(r"^### (AgentRL\w+)$", PAGE, re.MULTILINE)) == set(ALERTS)


def test_alerts_about_runs_ask_for_metrics_that_are_exported_and_repeat_no_rule_over_steps() -> None:
    exported = {row.exported_name for row in documented_metrics()}
    exported |= {f"agent_rl_{name}" for name in (*GAUGES, *EXPORTER_GAUGES)}
    exported |= {f"agent_rl_{name}_total" for name in RUN_COUNTERS}
    asked = {name for rule in rules("training") for name in re.findall(r"agent_rl_\w+", rule["expr"])}
    assert asked - exported == set()
    watched = {rule.metric for rule in DEFAULT_ALARMS}
    assert {row.exported_name for row in documented_metrics() if row.name in watched} & asked == set()


def test_limits_of_the_service_in_the_rules_are_those_of_its_defaults() -> None:
    if not hasattr(settings, "ServiceConfig"):
        pytest.skip("the service is not installed")
    (waiting,) = re.findall(r"> (\d+)$", ALERTS["AgentRLQueueFull"]["expr"])
    (seconds,) = re.findall(r"> (\d+)$", ALERTS["AgentRLJobsSlow"]["expr"])
    assert int(waiting) == int(0.8 * settings.ServiceConfig().max_queue)
    assert float(seconds) == 0.8 * settings.CreationConfig().deadline_s
