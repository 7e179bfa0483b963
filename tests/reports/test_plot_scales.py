"""Plots of alike quantities on one page have one scale, and the others their own."""

import json
from pathlib import Path

import yaml

from agent_rl.reports.run.curves import PANELS, Panel, env_panels, plot, share_scales
from agent_rl.reports.run.data import read_run
from agent_rl.reports.run.page import run_page
from agent_rl.reports.run.report import make_report

METRICS = {
    "reward/mean": 2.0,
    "success/mean": 0.5,
    "rollout/tokens_mean": 40.0,
    "env/easy/success/mean": 0.9,
    "env/hard/success/mean": 0.1,
    "env/easy/rollout/tokens_mean": 20.0,
    "env/hard/rollout/tokens_mean": 300.0,
}


def write_run(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"run": {"name": "small"}}), encoding="utf-8")
    rows = [{"step": step, **{name: value + 0.01 * step for name, value in METRICS.items()}} for step in range(1, 5)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_alike_quantities_share_limits_and_others_do_not(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    chosen = [*PANELS["Reward and success"], PANELS["Episodes"][0], *env_panels(run.metrics)]
    plots = {panel.title: (panel, plot(panel, run)) for panel in chosen}
    own = {title: figure.axes[0].get_ylim() for title, (_, figure) in plots.items()}
    share_scales(plots.values())
    limits = {title: figure.axes[0].get_ylim() for title, (_, figure) in plots.items()}
    assert limits["Success"] == limits["Success by environment"]
    assert limits["Success"][0] < 0.11 and limits["Success"][1] > 0.94
    assert limits["Generated tokens"] == limits["Generated tokens by environment"]
    assert limits["Generated tokens"][1] > 300
    assert limits["Mean reward"] == own["Mean reward"]


def test_a_panel_without_alike_ones_keeps_its_limits(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run"))
    figures = [plot(Panel(name, "", {name: ""}), run) for name in ("success/mean", "rollout/tokens_mean")]
    before = [figure.axes[0].get_ylim() for figure in figures]
    share_scales([(Panel("a", "", {}), figures[0]), (Panel("b", "", {}), figures[1])])
    assert [figure.axes[0].get_ylim() for figure in figures] == before
    assert run_page(make_report(run)).count("<figure>") == 5
