"""examples/: every folder is copied by `agent-rl init`, and what is not on a page about extending runs here."""

import importlib
import json
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pyarrow.parquet as pq
import pytest
from commands import ROOT, one_line_error, run_here

from agent_rl import __version__
from agent_rl.agent.messages import Message

EXAMPLES = {path.name: path for path in (ROOT / "examples").iterdir() if path.is_dir()}
TINY = ["train.steps=1", "rollout.groups_per_step=2", "rollout.group_size=2", "train.warmup_steps=0"]


def last_step(run: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    step = [row for row in rows if "reward/mean" in row][-1]
    assert step["rollout/env_errors"] == 0.0
    return step


def init(folder: Path, *words: str) -> None:
    done = run_here("init", folder, *words)
    assert done.returncode == 0, done.stderr


def test_the_index_names_every_folder() -> None:
    index = (ROOT / "examples/README.md").read_text(encoding="utf-8")
    assert [name for name in EXAMPLES if f"| `{name}` |" not in index] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_copied_as_it_is(tmp_path: Path, name: str) -> None:
    init(tmp_path / "project", "--example", name)
    copied = {path.name: path.read_bytes() for path in (tmp_path / "project").iterdir()}
    assert copied == {path.name: path.read_bytes() for path in EXAMPLES[name].iterdir() if path.is_file()}
    assert copied


def test_files_are_never_written_over_and_unknown_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert str(tmp_path) in one_line_error(run_here("init", tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert "'judge'" in one_line_error(run_here("init", tmp_path / "new", "--example", "jugde"))
    assert not (tmp_path / "new").exists()


def test_the_version_is_that_of_the_package() -> None:
    assert run_here("--version").stdout.strip() == f"agent_rl {__version__}"


@pytest.fixture
def starter(tmp_path: Path) -> Path:
    """A project of one's own whose task files are made."""
    init(tmp_path / "mine")
    done = run_here("prepare-tasks", "--config", "config.yaml", "--output-dir", "tasks", folder=tmp_path / "mine")
    assert done.returncode == 0, done.stderr
    return tmp_path / "mine"


def test_the_starter_project_passes_its_tests_and_checks(starter: Path) -> None:
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."]
    done = subprocess.run(words, cwd=starter, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    done = run_here("check-data", "--config", "config.yaml", "tasks/train.jsonl", "tasks/eval.jsonl", folder=starter)
    assert done.stdout.count("340 of 340 (100.0 %)") == 4, done.stdout + done.stderr


def test_the_starter_project_trains_a_step(starter: Path) -> None:
    done = run_here("train", "--config", "config.yaml", *TINY, "eval.temperatures=[]", folder=starter)
    assert done.returncode == 0, done.stdout + done.stderr
    assert 0.0 <= last_step(starter / "runs/my_run")["success/mean"] <= 1.0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_starter_project_learns_its_task(starter: Path) -> None:
    done = run_here("train", "--config", "config.yaml", folder=starter)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (starter / "runs/my_run/metrics.jsonl").read_text().splitlines()]
    before, after = (row["eval/t0/success"] for row in rows if "eval/t0/success" in row)
    assert (before, after) == (pytest.approx(0.0, abs=0.2), pytest.approx(1.0, abs=0.2))


def test_the_guessing_game_answers_every_turn_and_trains_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = ["model.path=model/math_minimind", "eval.temperatures=[]", f"run.output_dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["guess.py", *TINY, *small])
    monkeypatch.chdir(ROOT)
    made = runpy.run_path(str(EXAMPLES["multi_turn"] / "guess.py"), run_name="__main__")
    assert last_step(tmp_path / "guess")["rollout/turns_mean"] > 1.0
    game = made["Guess"](max_guesses=3)
    game.reset({"number": 40})
    results = [game.step(Message.assistant(text)) for text in ("50", "It is 30.", "40")]
    assert [[message.content for message in result.messages] for result in results] == [["Lower."], ["Higher."], []]
    assert (results[-1].reward, results[-1].terminated) == (pytest.approx(2 / 3), True)


def test_a_policy_written_by_hand_solves_tasks_in_an_environment_of_skyrl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    skyrl_gym = pytest.importorskip("skyrl_gym", reason="pip install -r requirements-envs.txt")
    skyrl = importlib.import_module("agent_rl.envs.nat.skyrl")
    monkeypatch.setattr(skyrl, "_factories", {})
    monkeypatch.setattr(sys, "argv", ["nat_in_skyrl.py", "2"])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES["skyrl"] / "nat_in_skyrl.py"), run_name="__main__")
    skyrl_gym.envs.registration.deregister(skyrl.ENV_ID)
    for factory in skyrl._factories.values():
        factory.close()
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("reward 2.29, success 1, 2 turns") for line in lines] == [True, True]
    rows = pq.read_table(tmp_path / "skyrl_rows.parquet").to_pylist()
    assert [row["env_class"] for row in rows] == ["nat_agent_creation"] * 2
    assert {"prompt", "spec"} <= set(rows[0])


class Judge(BaseHTTPRequestHandler):
    asked: list[str] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(f"{self.path} {self.headers['Authorization']} {body['model']}")
        reply = json.dumps({"choices": [{"message": {"content": "7 of 10"}}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *words: object) -> None:
        return None


class JudgeServer(ThreadingHTTPServer):
    request_queue_size = 64  # of connections that come at once; five are the default


@pytest.fixture
def judge() -> Iterator[str]:
    server = JudgeServer(("127.0.0.1", 0), Judge)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reply_is_worth_what_the_judge_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: str) -> None:
    for name, value in {"BASE_URL": judge, "MODEL": "small", "API_KEY": "secret"}.items():
        monkeypatch.setenv(f"JUDGE_{name}", value)
    script = tmp_path / "judged.py"
    script.write_bytes((EXAMPLES["judge"] / "judged.py").read_bytes())
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")
    step = last_step(tmp_path / "runs/math_minimind-grpo")
    assert step["reward_parts/judged/mean"] == pytest.approx(0.7)
    assert set(Judge.asked) == {"/v1/chat/completions Bearer secret small"}


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mpl, "rcParams", mpl.rcParams.copy())
    mpl.use("Agg")
    notebook = json.loads((EXAMPLES["notebook"] / "first_run.ipynb").read_text(encoding="utf-8"))
    text = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    for full, small in {"steps = 20\n": "steps = 1\n", "range(3, 20)": "range(3, 5)"}.items():
        assert full in text
        text = text.replace(full, small)
    names: dict[str, Any] = {"__name__": "notebook"}
    exec(compile(text, "first_run.ipynb", "exec"), names)
    assert (len(names["rows"]), len(names["solved"])) == (40, 1)
    assert names["transcript"].is_file()
