"""`agent-rl create` and `run` as a person types them, with the shipped model: from a row, from words, and Ctrl-C."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server, error
from checkout import PageFolder
from commands import one_line_error, run_here
from created_agents import outline, planned

from agent_rl.data.tasks import read_tasks
from agent_rl.envs.nat.create.creator import AgentCreator
from agent_rl.envs.nat.create.running import read_package
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.policies.model_source import ModelSource

ROOT = Path(__file__).resolve().parents[4]
VAL = ROOT / "dataset/nat_tasks/starter/val.jsonl"
GENERALISATION = ROOT / "dataset/nat_tasks/starter/test_generalisation.jsonl"
PAGE = (ROOT / "docs/create.md").read_text(encoding="utf-8")
PLANNED = read_tasks(VAL)[0]["tools"][0]["rules"]
"""Of a converter, as a planner would find them."""


def first_row(folder: Path) -> Path:
    path = folder / "task.json"
    path.write_text(VAL.read_text(encoding="utf-8").splitlines()[0])
    return path


@contextlib.contextmanager
def started(folder: Path, *words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own; killed at the end, should it still run."""
    command = [sys.executable, "-m", "agent_rl.scripts.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_row_becomes_an_agent_on_disk(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    done = run_here("create", "--spec", first_row(tmp_path), "--output-dir", folder, "--zip", "--wheel")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1] == "accepted"
    assert (folder / "PROVENANCE.json").is_file() and folder.with_name("mine.zip").is_file()
    record = json.loads((folder / "PROVENANCE.json").read_text())
    source = ModelSource.find(_shipped_config(), None)
    assert record["provenance"]["model"]["sha256"] == source.digest()
    again = run_here("create", "--spec", first_row(tmp_path), "--output-dir", folder)
    assert "is not empty" in one_line_error(again)


def _shipped_config() -> Any:
    from agent_rl.envs.nat.create.settings import load_serve_config

    return load_serve_config(ROOT / "configs/serve.yaml").run_config


def test_words_become_an_agent_by_a_scripted_planner_and_json_is_all_there_is(tmp_path: Path) -> None:
    with chat_server(outline("direct", "unit_converter"), planned(PLANNED, name="size_tool")) as server:
        words = ["create", "bytes, kB and MB, two decimals", "--output-dir", tmp_path / "mine", "--json", "-"]
        done = run_here(*words, "planner.source=openai", "planner.model=m", f"planner.base_url={server.url}")
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads(done.stdout)
    assert (record["state"], record["request"]) == ("accepted", "bytes, kB and MB, two decimals")
    assert record["saved"] == {"folder": str(tmp_path / "mine")}
    assert record["plan"]["tools"][0]["rules"]["units"] == PLANNED["units"]
    assert "size_tool" not in record["plan"]["request"]  # the small model copies names like those it learned alone


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["create"], "nothing was asked for"),
        (["create", "x", "--spec", "no_such.json"], "no_such.json"),
        (["create", "x", "--candidates", "0"], "candidates"),
        (["create", "x", "creation.candidate=3"], "creation.candidate"),
        (["create", "x", "--checkpoint", "no/such/model", "--spec", VAL], "not one JSON value"),
        (["run", "no_such_folder"], "no such folder"),
    ],
)
def test_misuse_is_one_line(words: list[Any], word: str) -> None:
    done = run_here(*words)
    assert done.returncode == 2
    assert word in done.stderr


def test_what_is_refused_ends_with_2_and_writes_nothing(tmp_path: Path) -> None:
    done = run_here("create", "km to m", "--output-dir", tmp_path / "mine")
    assert done.returncode == 2
    assert done.stderr.startswith("refused: there is no planner") and done.stderr.count("\n") == 1
    with chat_server(error(401, "who are you")) as server:
        words = ["planner.source=openai", "planner.model=m", f"planner.base_url={server.url}"]
        done = run_here("create", "km to m", "--output-dir", tmp_path / "mine", *words, "--json", "-")
    assert done.returncode == 2
    assert json.loads(done.stdout)["state"] == "refused"
    assert "401: who are you" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_and_ends_with_130(tmp_path: Path) -> None:
    row = first_row(tmp_path)
    for seconds in (3.0, 6.0, 9.0, 12.0):
        with started(ROOT, "create", "--spec", row, "--output-dir", tmp_path / "mine") as process:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
                assert process.wait(60) in (130, -signal.SIGINT)  # the latter while Python still imports
                left = set(os.listdir(tmp_path)) - {"task.json"}
                assert left <= {"mine"}
                if left:  # it came after the agent was put in place, which is then whole
                    assert read_package(tmp_path / "mine")[1]["state"] == "accepted"
            shutil.rmtree(tmp_path / "mine", ignore_errors=True)


@pytest.mark.long
def test_the_shipped_model_writes_most_held_out_agents_and_none_is_accepted_wrongly() -> None:
    rows = read_tasks(VAL)[:24] + read_tasks(GENERALISATION)[:8]
    with AgentCreator.open(ROOT / "configs/serve.yaml") as creator:
        made = [creator.create(spec=row) for row in rows]
        states = [each.state for each in made]
        wrong = [
            row["task_id"]
            for row, each in zip(rows, made, strict=True)
            if each.state == "accepted"
            and not check_project(creator.toolkit, parse_spec(row, "row"), each.files, seed=99).complete
        ]
    assert states[:24].count("accepted") >= 22
    assert set(states) <= {"accepted", "rejected"}
    assert wrong == []


# ---------------------------------------------------------------- docs/create.md


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.long
def test_the_commands_of_the_page_run(tmp_path: Path) -> None:
    shell = partial(PageFolder(tmp_path).run, timeout_s=110)
    by_row, by_words, serve, curl = blocks("bash")
    assert "complete" in shell(by_row)
    answers = [outline("direct", "unit_converter"), planned(PLANNED, name="size_tool")]
    with chat_server(*answers, *answers) as server:
        assert "accepted" in shell(by_words.replace("http://127.0.0.1:8000/v1", server.url))
    for line in serve.strip().splitlines():
        with started(tmp_path, *line.split()[1:]) as process:
            shown = [process.stdout.readline() for _ in range(3)]
            assert "serving" in shown[2], shown
            if "--mcp" not in line:
                assert json.loads(shell(curl)) == {"value": "5"}
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
    (python,) = blocks("python")
    program = f"from pathlib import Path\n{python}"
    (tmp_path / "try.py").write_text(program)
    done = shell(f"PYTHONPATH={ROOT} {sys.executable} try.py")
    assert "accepted" in done
    assert (tmp_path / "my_python_agent.zip").is_file()


@pytest.mark.slow
def test_many_requests_at_once_are_batched_by_the_shipped_model() -> None:
    rows = read_tasks(VAL)[:6]
    with AgentCreator.open(ROOT / "configs/serve.yaml") as creator:
        states: list[str] = []
        threads = [
            threading.Thread(target=lambda row=row: states.append(creator.create(spec=row, candidates=1).state))
            for row in rows
        ]
        start_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(states) == 6 and states.count("accepted") >= 5
    assert time.monotonic() - start_s < 100
