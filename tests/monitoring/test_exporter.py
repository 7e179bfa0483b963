"""`agent-rl metrics`: all that docs/metrics.md lists, of all runs, in Prometheus' format, cheaply."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from commands import one_line_error, run_here
from cpu_time import cpu_s
from prometheus_client.parser import text_string_to_metric_families
from prometheus_programs import ROOT, run_tool
from run_folders import WrittenRun, write_full_run

from agent_rl.monitoring.exporter import EXPORTER_GAUGES, MetricsServer, RunsCollector
from agent_rl.monitoring.names import documented_metrics
from agent_rl.monitoring.run_series import GAUGES, RUN_COUNTERS

SLOWEST_LOOK_S = 1.0
"""Of a run of 100 000 rows that has not grown; it takes a few milliseconds."""


def scrape(folder: Path) -> str:
    with MetricsServer(RunsCollector(folder), address="127.0.0.1", port=0) as server:
        return httpx.get(server.address, timeout=60.0).text


def families(text: str) -> dict[str, list]:
    return {family.name: family.samples for family in text_string_to_metric_families(text)}


def test_every_row_of_the_table_and_every_family_beside_it_is_exported(tmp_path: Path) -> None:
    write_full_run(tmp_path / "full")
    found = families(scrape(tmp_path))
    documented = {row.exported_name for row in documented_metrics()}
    beside = {f"agent_rl_{name}" for name in (*GAUGES, *RUN_COUNTERS, *EXPORTER_GAUGES)}
    assert set(found) == documented | beside | {"agent_rl_other_metric"}
    labels = {name: samples[0].labels for name, samples in found.items()}
    assert [row.name for row in documented_metrics() if set(row.labels) - set(labels[row.exported_name])] == []


@pytest.mark.monitoring
def test_promtool_has_nothing_to_say_about_the_names(tmp_path: Path) -> None:
    write_full_run(tmp_path / "full")
    done = run_tool("promtool", "check", "metrics", text=scrape(tmp_path))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_folder_of_runs_is_read_by_name_and_a_run_by_itself(tmp_path: Path) -> None:
    for name in ("one", "two"):
        WrittenRun(tmp_path / name).row(1, time=1.0, **{"reward/mean": 0.5})
    (tmp_path / "no_run").mkdir()
    WrittenRun(tmp_path / "one.unfinished-1").row(0, time=1.0)
    found = families(scrape(tmp_path))
    assert [sample.labels["run"] for sample in found["agent_rl_reward_mean"]] == ["one", "two"]
    assert found["agent_rl_runs"][0].value == 2.0
    found = families(scrape(tmp_path / "one"))
    assert [sample.labels["run"] for sample in found["agent_rl_reward_mean"]] == ["one"]


def test_names_with_any_characters_are_labels_and_nothing_else(tmp_path: Path) -> None:
    hostile = 'a"} 1\nagent_rl_reward_mean{run="b\\'
    folder = tmp_path / hostile.replace("\n", "\\n")
    WrittenRun(folder).row(1, time=1.0, **{"reward/mean": 0.5, f"reward_parts/{hostile}/mean": 0.25, hostile: 2.0})
    found = families(scrape(tmp_path))
    assert [(sample.labels["run"], sample.value) for sample in found["agent_rl_reward_mean"]] == [(folder.name, 0.5)]
    assert [sample.labels["name"] for sample in found["agent_rl_other_metric"]] != []


def test_a_link_to_a_run_and_a_name_that_is_no_text_leave_the_others_readable(tmp_path: Path) -> None:
    WrittenRun(tmp_path / "run").row(1, time=1.0, **{"reward/mean": 0.5, "\ud800": 1.0})
    (tmp_path / "latest").symlink_to("run")
    strange = tmp_path / os.fsdecode(b"caf\xe9")
    WrittenRun(strange).row(1, time=1.0, **{"reward/mean": 0.25})
    found = families(scrape(tmp_path))
    names = [sample.labels["run"] for sample in found["agent_rl_reward_mean"]]
    assert len(names) == len(set(names)) == 3 and {"run", "latest"} < set(names)


def test_a_later_run_in_a_folder_of_the_same_name_counts_from_0(tmp_path: Path) -> None:
    collector = RunsCollector(tmp_path)

    def steps() -> list[float]:
        found = [family for family in collector.collect() if family.name == "agent_rl_train_steps"]
        return [sample.value for family in found for sample in family.samples]

    for numbers, expected in (((1, 2, 3), [3.0]), ((), []), ((1,), [1.0])):
        for step in numbers:
            WrittenRun(tmp_path / "run").row(step, time=float(step))
        assert steps() == expected
        if len(numbers) == 3:
            shutil.rmtree(tmp_path / "run")


def test_a_counter_does_not_fall_when_a_run_continues_from_an_earlier_step(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    for step in (1, 2, 3):
        run.row(step, time=float(step))
    collector = RunsCollector(tmp_path)

    def steps() -> float:
        (family,) = (family for family in collector.collect() if family.name == "agent_rl_train_steps")
        return family.samples[0].value

    assert steps() == 3.0
    lines = (run.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run.folder / "metrics.jsonl").write_text(lines[0])
    assert steps() == 3.0
    for step in (2, 3, 4):
        run.row(step, time=10.0 + step)
    assert steps() == 4.0


@pytest.mark.parametrize("is_of_all", [True, False], ids=["the folder of runs", "the run"])
def test_a_counter_does_not_fall_when_a_folder_could_not_be_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_of_all: bool
) -> None:
    runs = {name: WrittenRun(tmp_path / name) for name in ("other", "run")}
    for name, run in runs.items():
        for step in (1, 2, 3):
            run.row(step, time=float(step), **{"reward/mean": float(name == "run")})
    collector = RunsCollector(tmp_path)

    def steps() -> dict[str, float]:
        found = [family for family in collector.collect() if family.name == "agent_rl_train_steps"]
        return {sample.labels["run"]: sample.value for family in found for sample in family.samples}

    def fail(_path: Path) -> Any:
        raise OSError(errno.EIO, "Input/output error")

    assert steps() == {"other": 3.0, "run": 3.0}
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run/metrics.jsonl").write_text(lines[0])
    with monkeypatch.context() as patched:
        if is_of_all:
            patched.setattr(Path, "iterdir", fail)
        else:
            real = Path.is_file
            patched.setattr(Path, "is_file", lambda path: (fail if path.parent.name == "run" else real)(path))
        assert steps() == ({} if is_of_all else {"other": 3.0, "run": 3.0})
    assert steps() == {"other": 3.0, "run": 3.0}


def test_many_rows_cost_nothing_twice(tmp_path: Path) -> None:
    write_full_run(tmp_path / "full")
    path = tmp_path / "full/metrics.jsonl"
    row = path.read_text().splitlines(keepends=True)[-1]
    with path.open("a") as file:
        file.writelines(row for _ in range(20_000))
    collector = RunsCollector(tmp_path)
    list(collector.collect())
    read_before = _bytes_read()
    assert cpu_s(lambda: list(collector.collect()), SLOWEST_LOOK_S) < SLOWEST_LOOK_S
    assert _bytes_read() - read_before < path.stat().st_size / 100


def _bytes_read() -> int:
    """By this process so far, from any file."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run")
    run.row(1, time=1.0, **{"reward/mean": 0.5})
    run.event("end", 1, time=2.0, reason="finished")
    words = ["metrics", str(tmp_path), "--port", "0", "--log-format", "json"]
    command = [sys.executable, "-m", "agent_rl.scripts.cli", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = re.search(r"http://\S+", process.stdout.readline())[0]
        assert 'agent_rl_reward_mean{run="run"} 0.5' in httpx.get(address, timeout=30.0).text
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=400)
        assert process.returncode == 0
        assert [(row["run"], row["state"]) for row in map(json.loads, log.splitlines())] == [("run", "ended")]
    finally:
        process.kill()
        process.communicate()


def test_what_a_user_gets_wrong_is_one_sentence(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in one_line_error(run_here("metrics", tmp_path / "none"))
    with MetricsServer(RunsCollector(tmp_path), address="127.0.0.1", port=0) as server:
        port = server.address.rpartition(":")[2].partition("/")[0]
        assert port in one_line_error(run_here("metrics", tmp_path, "--port", port))


def test_without_the_package_the_command_names_the_requirement_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("agent_rl.monitoring.exporter.find_spec", lambda name: None)
    assert "requirements-monitoring.txt" in one_line_error(run_here("metrics", tmp_path))


def test_nothing_of_a_trainer_is_imported() -> None:
    code = "import sys, agent_rl.monitoring.exporter; print('torch' in sys.modules, 'transformers' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout.split() == ["False", "False"]
