"""Writes what monitoring has from tables: names of metrics, Grafana's dashboards, the names in docs/MONITORING.md.

    .venv/bin/python scripts/make_monitoring.py

`tests/monitoring/test_dashboards.py` fails while a file is not what this writes, and asks a Prometheus every query. Not
here: rules of alerts, which are written by hand in deploy/prometheus/rules/.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.monitoring.exporter import EXPORTER_GAUGES
from agent_rl.monitoring.names import PREFIX, as_json, read_table
from agent_rl.monitoring.run_series import GAUGES, RUN_COUNTERS

ROOT = Path(__file__).resolve().parents[1]
RUN, SERVICE = 'run=~"$run"', 'instance=~"$instance"'
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 24
"""Of a panel, and of the page, on Grafana's grid."""


@dataclass(frozen=True)
class Panel:
    """One picture: a unit of Grafana's, and queries by the text of their legends."""

    title: str
    unit: str
    queries: dict[str, str]
    kind: str = "timeseries"


def of_run(names: str) -> dict[str, str]:
    """`mean=reward_mean max=reward_max`, legends and families without their prefix, for every chosen run."""
    pairs = [pair.rpartition("=")[::2] for pair in names.split()]
    return {f"{{{{run}}}} {word.replace('_', ' ')}".strip(): f"agent_rl_{name}{{{RUN}}}" for word, name in pairs}


def since(what: str) -> dict[str, str]:
    return {"{{run}}": f"time() - agent_rl_{what}_timestamp_seconds{{{RUN}}}"}


def rate_of(counter: str, by: str, labels: str = "") -> str:
    return f"sum by ({by}) (rate({counter}{{{SERVICE}{labels}}}[5m]))"


def share(counter: str, part: str, of: str, window: str) -> str:
    """The part of a counter with some labels in that with others."""
    found, whole = (f"sum(increase({counter}{{{SERVICE}{labels}}}[{window}]))" for labels in (part, of))
    return f"{found} / ({whole} > 0)"


def quantile(share_of: float, histogram: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share_of}, sum by ({labels}) (rate({histogram}_bucket{{{SERVICE}}}[5m])))"


TRAINING: dict[str, list[Panel]] = {
    "Runs": [
        Panel("State", "none", {"{{run}} {{state}}": f"agent_rl_run_state{{{RUN}}} == 1"}, "stat"),
        Panel("Step", "none", of_run("last_step of=target_steps")),
        Panel("Alarms", "none", {"{{run}} {{metric}}": f"agent_rl_alarm_active{{{RUN}}}"}),
        Panel("What is trained", "none", {"{{run}}": f"agent_rl_run_info{{{RUN}}}"}, "table"),
        Panel("Seconds since the last sign of life", "s", since("run_sign")),
        Panel(
            "Alarms, rollbacks, updates not made",
            "none",
            {
                "{{run}} {{metric}}": f"agent_rl_alarms_total{{{RUN}}}",
                **of_run("rollbacks=rollbacks_total not_finite=nonfinite_updates_total"),
            },
        ),
    ],
    "Learning": [
        Panel("Reward", "none", of_run("mean=reward_mean max=reward_max min=reward_min std=reward_std")),
        Panel("Success in training", "percentunit", of_run("success_mean_ratio")),
        Panel(
            "Success held out",
            "percentunit",
            {
                f"{{{{run}}}} t={{{{temperature}}}}{end}": f"agent_rl_eval_success_ratio{name}{{{RUN}}}"
                for name, end in (("", ""), ("_low", " low"), ("_high", " high"))
            },
        ),
        Panel(
            "Groups",
            "percentunit",
            of_run(
                "no_signal=group_no_signal_ratio mixed=group_mixed_ratio "
                "all_good=group_all_good_ratio all_bad=group_all_bad_ratio"
            ),
        ),
        Panel("Entropy and divergence", "none", of_run("entropy=policy_entropy KL=policy_kl")),
        Panel("Loss and gradient", "none", of_run("loss=loss_policy gradient=optim_grad_norm")),
        Panel(
            "Trainer against sampler", "none", of_run("k3=mismatch_k3 ratio=mismatch_ratio_max ess=mismatch_ess_ratio")
        ),
        Panel("Learning rate", "sci", of_run("optim_learning_rate")),
        Panel("Clipped", "percentunit", of_run("loss_clip_ratio")),
    ],
    "Episodes": [
        Panel("How episodes end", "percentunit", {"{{run}} {{reason}}": f"agent_rl_rollout_stop_ratio{{{RUN}}}"}),
        Panel(
            "Length",
            "none",
            of_run("tokens=rollout_tokens_mean turns=rollout_turns_mean prompt=rollout_prompt_tokens_mean"),
        ),
        Panel(
            "Tools",
            "none",
            of_run(
                "calls_a_turn=rollout_tool_calls_per_turn "
                "errors=rollout_tool_error_ratio unreadable=rollout_parse_error_ratio"
            ),
        ),
        Panel("Cut off", "percentunit", of_run("rollout_truncated_ratio")),
        Panel("Dropped and hacked", "none", of_run("env_errors=env_errors_total hacks=hack_episodes_total")),
        Panel("Episodes and tokens so far", "short", of_run("episodes=episodes_total tokens=generated_tokens_total")),
    ],
    "Speed and machine": [
        Panel(
            "Time of a step",
            "s",
            of_run(
                "all=time_step_seconds rollout=time_rollout_seconds update=time_update_seconds "
                "write=time_write_seconds evaluation=time_eval_seconds"
            ),
        ),
        Panel(
            "Tokens a second", "short", of_run("written=perf_tokens_per_second updated=perf_update_tokens_per_second")
        ),
        Panel("Model FLOPs utilisation", "percentunit", of_run("perf_mfu_ratio")),
        Panel("GPU", "percentunit", of_run("at_work=gpu_utilization_ratio memory=gpu_memory_ratio")),
        Panel("Processors and memory", "percentunit", of_run("processors=host_cpu_ratio memory=host_memory_ratio")),
        Panel("Memory of the main process", "bytes", of_run("host_process_memory_bytes")),
        Panel("Checkpoint: age", "s", since("checkpoint")),
        Panel("Checkpoint: size", "bytes", of_run("checkpoint_bytes")),
        Panel(
            "Room for runs", "bytes", {"free": "agent_rl_runs_disk_free_bytes", "of": "agent_rl_runs_disk_size_bytes"}
        ),
    ],
}
_ACCEPTED, _JUDGED = ', state="accepted"', ', state=~"accepted|rejected"'
_LATE, _COUNTED = ', state=~"failed|expired"', ', state!="cancelled"'
SERVICE_PANELS: dict[str, list[Panel]] = {
    "Jobs": [
        Panel("Jobs that ended", "ops", {"{{state}}": rate_of("agent_rl_jobs_total", "state")}),
        Panel("Jobs under way", "none", {"{{state}}": f"sum by (state) (agent_rl_jobs{{{SERVICE}}})"}),
        Panel(
            "Accepted, of those judged",
            "percentunit",
            {
                "accepted": share("agent_rl_jobs_total", _ACCEPTED, _JUDGED, "1h"),
            },
        ),
        Panel(
            "Time of a job",
            "s",
            {"p50": quantile(0.5, "agent_rl_job_seconds"), "p95": quantile(0.95, "agent_rl_job_seconds")},
        ),
        Panel("Time by stage, p95", "s", {"{{stage}}": quantile(0.95, "agent_rl_stage_seconds", "stage")}),
        Panel(
            "Not in time",
            "percentunit",
            {
                "one hour": share("agent_rl_jobs_total", _LATE, _COUNTED, "1h"),
            },
        ),
    ],
    "Projects": [
        Panel(
            "Projects written", "ops", {"{{round}} {{outcome}}": rate_of("agent_rl_candidates_total", "round, outcome")}
        ),
        Panel("Why projects are rejected", "ops", {"{{stage}}": rate_of("agent_rl_problems_total", "stage")}),
        Panel(
            "Points, median by component",
            "percentunit",
            {"{{component}}": quantile(0.5, "agent_rl_check_share", "component")},
        ),
        Panel(
            "Right at once, right after a repair",
            "ops",
            {
                "at once": f"sum(rate(agent_rl_first_candidate_accepted_total{{{SERVICE}}}[5m]))",
                "repaired": f"sum(rate(agent_rl_repaired_total{{{SERVICE}}}[5m]))",
            },
        ),
        Panel(
            "What users say",
            "none",
            {"{{verdict}} of {{state}}": f"sum by (verdict, state) (agent_rl_feedback_total{{{SERVICE}}})"},
        ),
        Panel(
            "Success by verdict and by users",
            "percentunit",
            {
                "by verdict": share("agent_rl_jobs_total", _ACCEPTED, _JUDGED, "1d"),
                "by users": share("agent_rl_feedback_total", ', verdict="works"', "", "1d"),
            },
        ),
    ],
    "Machinery": [
        Panel("Tokens", "ops", {"{{kind}}": rate_of("agent_rl_tokens_total", "kind")}),
        Panel(
            "Engine",
            "none",
            {
                "in flight": f"agent_rl_engine_in_flight{{{SERVICE}}}",
                "waiting": f"agent_rl_engine_waiting{{{SERVICE}}}",
                "cache slots": f"agent_rl_cache_slots_used{{{SERVICE}}}",
            },
        ),
        Panel("Planner", "ops", {"{{outcome}}": rate_of("agent_rl_planner_requests_total", "outcome")}),
        Panel(
            "Planner: time, p95; tokens",
            "none",
            {
                "seconds": quantile(0.95, "agent_rl_planner_seconds"),
                "{{kind}} tokens a second": rate_of("agent_rl_planner_tokens_total", "kind"),
            },
        ),
        Panel("Runs in the sandbox", "ops", {"{{status}}": rate_of("agent_rl_sandbox_runs_total", "status")}),
        Panel("Sandbox: time, p95", "s", {"p95": quantile(0.95, "agent_rl_sandbox_seconds")}),
        Panel("Incidents", "none", {"{{kind}}": f"sum by (kind) (agent_rl_incidents_total{{{SERVICE}}})"}),
        Panel("Store", "bytes", {"{{instance}}": f"agent_rl_store_bytes{{{SERVICE}}}"}),
        Panel("Model", "none", {"{{name}}": f"agent_rl_model_info{{{SERVICE}}}"}, "table"),
    ],
    "HTTP": [
        Panel("Requests", "reqps", {"{{method}} {{route}}": rate_of("agent_rl_http_requests_total", "method, route")}),
        Panel("Answers", "reqps", {"{{code}}": rate_of("agent_rl_http_requests_total", "code")}),
        Panel("Time of an answer, p95", "s", {"{{route}}": quantile(0.95, "agent_rl_http_request_seconds", "route")}),
        Panel("Beyond a limit", "reqps", {"{{key_name}}": rate_of("agent_rl_rate_limited_total", "key_name")}),
    ],
}


def dashboard(uid: str, title: str, label: str, label_query: str, rows: dict[str, list[Panel]]) -> dict[str, Any]:
    """Grafana's JSON: a picker for the data source and for `label`, and the panels in rows."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, shown in rows.items():
        panels.append(_row(len(panels) + 1, row, top))
        top += 1
        for number, panel in enumerate(shown):
            place = {
                "h": _HEIGHT,
                "w": _WIDTH,
                "x": number * _WIDTH % _COLUMNS,
                "y": top + number * _WIDTH // _COLUMNS * _HEIGHT,
            }
            panels.append(_panel(len(panels) + 1, panel, place))
        top += -(-len(shown) * _WIDTH // _COLUMNS) * _HEIGHT
    return {
        "uid": uid,
        "title": title,
        "tags": ["agent_rl"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "15s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [_data_source_picker(), _picker(label, label_query)]},
        "panels": panels,
    }


def _row(number: int, title: str, top: int) -> dict[str, Any]:
    place = {"h": 1, "w": _COLUMNS, "x": 0, "y": top}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + index),
            "datasource": _DATA_SOURCE,
            "expr": query,
            "legendFormat": legend,
            "instant": panel.kind == "table",
            "range": panel.kind != "table",
            "format": "table" if panel.kind == "table" else "time_series",
        }
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": {"textMode": "name"} if panel.kind == "stat" else {},
        "targets": targets,
    }


_DATA_SOURCE = {"type": "prometheus", "uid": "${data_source}"}


def _data_source_picker() -> dict[str, Any]:
    return {"name": "data_source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _picker(label: str, query: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _DATA_SOURCE,
        "query": {"query": query, "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboards() -> dict[str, dict[str, Any]]:
    """By the name of the file."""
    run_query, instance_query = "label_values(agent_rl_run_info, run)", "label_values(agent_rl_model_info, instance)"
    return {
        "training": dashboard("agent_rl_training", "agent_rl: training", "run", run_query, TRAINING),
        "service": dashboard("agent_rl_service", "agent_rl: service", "instance", instance_query, SERVICE_PANELS),
    }


def families_page(page: str) -> str:
    """docs/MONITORING.md with the lists of families between its marks."""
    table = read_table((ROOT / "docs/metrics.md").read_text(encoding="utf-8"))
    rows = [
        f"| `{row.name}` | `{row.exported_name}`{''.join(f' `{label}`' for label in row.labels)} |" for row in table
    ]
    own = [(name, about) for name, about in GAUGES.items()]
    own += [(f"{name}_total", about) for name, about in RUN_COUNTERS.items()]
    others = [f"| `{PREFIX}{name}` | {about} |" for name, about in own]
    others += [f"| `{PREFIX}{name}` | {about} |" for name, about in EXPORTER_GAUGES.items()]
    page = _between(page, "rows", ["| in docs/metrics.md | for Prometheus, with its label |", "| --- | --- |", *rows])
    return _between(page, "others", ["| name | meaning |", "| --- | --- |", *others])


def _between(page: str, mark: str, lines: list[str]) -> str:
    start, end = f"<!-- {mark}: made by scripts/make_monitoring.py -->", f"<!-- end of {mark} -->"
    before, _, rest = page.partition(start)
    _, _, after = rest.partition(end)
    text = "\n".join(lines)
    return f"{before}{start}\n{text}\n{end}{after}"


def written_files() -> dict[Path, str]:
    """Every file with its text."""
    table = read_table((ROOT / "docs/metrics.md").read_text(encoding="utf-8"))
    page = ROOT / "docs/MONITORING.md"
    made = {
        ROOT / f"deploy/grafana/dashboards/{name}.json": json.dumps(each, indent=2) + "\n"
        for name, each in dashboards().items()
    }
    made[ROOT / "agent_rl/monitoring/metric_table.json"] = as_json(table)
    made[page] = families_page(page.read_text(encoding="utf-8"))
    return made


if __name__ == "__main__":
    for path, text in written_files().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(ROOT))
