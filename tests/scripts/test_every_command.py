"""Environments in every command, as a person types them: the template, a file of one's own, a module in a folder."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from commands import ROOT, one_line_error, run_here

from agent_rl.scripts import cli

SHORT = ["train.steps=1", "rollout.groups_per_step=2", "rollout.group_size=4", "train.warmup_steps=0", "run.device=cpu"]
OWN_ENV = ["--config", "configs/math_grpo.yaml", "env.name=examples/environment/own_env.py:ManyCalls", "tools.use=[]"]
HELLO = ["--config", "configs/hello.yaml"]

MY_ENV = """
from agent_rl import AgentEnv, EnvFactory, Message, StepResult
from my_words import right

class MyEnv(AgentEnv):
    def __init__(self, bonus: float, seed: int = 0):
        self.bonus, self.seed = bonus, seed

    def reset(self, task):
        self.answer = task["answer"]
        return [Message.user(task["question"])]

    def step(self, message):
        return StepResult(reward=self.bonus * right(message.content, self.answer), terminated=True)

ready = EnvFactory(lambda: MyEnv(1.0))
number = 5

class Helper:
    pass

def make(options, seed):
    return EnvFactory(lambda: MyEnv(options["bonus"], seed))
"""


def output_of(*words: str | Path) -> str:
    done = run_here(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join(done.stdout.split())


def error_of(*words: str | Path) -> str:
    return one_line_error(run_here(*words))


def train(*words: str | Path) -> None:
    """`agent-rl train` as a person types it, in a process of its own."""
    command = [sys.executable, "-m", "agent_rl.scripts.cli", "train", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def page_of(run: Path) -> str:
    """What `agent-rl view` serves of a run."""
    command = [sys.executable, "-m", "agent_rl.scripts.cli", "view", str(run), "--no-browser"]
    viewer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        address = next(word for word in viewer.stdout.readline().split() if word.startswith("http"))
        return urllib.request.urlopen(address, timeout=20).read().decode()
    finally:
        viewer.send_signal(signal.SIGINT)
        assert viewer.wait(timeout=20) == 130


def check_commands(config: list[str], folder: Path) -> None:
    """train, view, report, eval and preflight with one configuration."""
    here = [f"run.output_dir={folder}", "run.name=own", "data.max_eval_tasks=2"]
    assert "nothing was trained" in output_of("train", *config, "--preview-tasks", "1", *here)
    train(*config, *SHORT, *here, "log.samples_every=1")
    run = folder / "own"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["reward/mean"] >= 0.0 for line in lines if "reward/mean" in line] == [True]
    assert "<html" in page_of(run)
    output_of("report", run)
    assert (run / "report.html").is_file()
    output_of("eval", "--config", run / "config.yaml", "--output-dir", folder / "eval", *config[2:])
    assert list((folder / "eval").glob("*.html"))
    name = next((word.split("=")[1] for word in config if word.startswith("env.name=")), "hello")
    assert f"ok environment {name}" in output_of("preflight", *config, *here)


def test_the_template_works_in_every_command(tmp_path: Path) -> None:
    check_commands(HELLO, tmp_path)
    tasks = ROOT / "dataset/hello_tasks/eval.jsonl"
    assert output_of("check-data", *HELLO, tasks).count("32 of 32 (100.0 %)") == 4
    (tmp_path / "bad.jsonl").write_text('{"task_id": "1", "question": "2 + 3?", "answer": 5}\n')
    assert all(part in error_of("check-data", *HELLO, tmp_path / "bad.jsonl") for part in ("bad.jsonl", "answer", "5"))
    assert "calculator" in error_of("train", *HELLO, "tools.use=[]", "--preview-tasks", "1")


def test_an_environment_of_ones_own_works_in_every_command_by_the_path_of_its_file(tmp_path: Path) -> None:
    check_commands(OWN_ENV, tmp_path)
    tasks = "dataset/math_tasks/eval.jsonl"
    shutil.copy(ROOT / "configs/math_grpo.yaml", tmp_path / "own.yaml")
    text = (tmp_path / "own.yaml").read_text().replace("math_qa", "examples/environment/own_env.py:ManyCalls")
    (tmp_path / "own.yaml").write_text(text.replace("use: [calculator]", "use: []"))
    assert "has no solutions" in error_of("check-data", "--config", tmp_path / "own.yaml", tasks)
    for command in ("sft", "prepare-tasks"):
        line = error_of(
            command, "--domain", "examples/environment/own_env.py:ManyCalls", "--output-dir", tmp_path / "none"
        )
        assert "--domain examples/environment/own_env.py:ManyCalls" in line


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with a user's own modules and a configuration."""
    (tmp_path / "my_env.py").write_text(MY_ENV)
    (tmp_path / "my_words.py").write_text("def right(reply, answer):\n    return reply == answer\n")
    text = (ROOT / "configs/hello.yaml").read_text().replace("[calculator]", "[]")
    for folder in ("dataset", "model"):
        text = text.replace(f": {folder}/", f": {ROOT}/{folder}/")
    (tmp_path / "my.yaml").write_text(text)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_env", "my_words"):
        sys.modules.pop(name, None)


def preview(folder: Path, *words: str, config: str = "my.yaml") -> subprocess.CompletedProcess[str]:
    return run_here("train", "--config", config, *words, "--preview-tasks", "1", folder=folder)


@pytest.mark.parametrize("words", [
    ["env.name=my_env:MyEnv", "env.options.bonus=0.5"],
    ["env.name=my_env.py:MyEnv", "env.options.bonus=0.5"],
    ["env.name=my_env:make", "env.options.bonus=0.5"],
    ["env.name=my_env:ready"],
])  # fmt: skip
def test_modules_in_the_current_folder_are_found(project: Path, words: list[str]) -> None:
    assert "Finn buys 3 books" in preview(project, *words).stdout


def test_modules_beside_the_configuration_are_found_from_anywhere(project: Path) -> None:
    (project / "elsewhere").mkdir()
    done = preview(project / "elsewhere", "env.name=my_env:ready", config="../my.yaml")
    assert "Finn buys 3 books" in done.stdout


@pytest.mark.parametrize(("words", "parts"), [
    (["env.name=my_envs:MyEnv"], ["my_envs"]),
    (["env.name=my_env:MyEnvs"], ["my_env:MyEnvs", "MyEnv"]),
    (["env.name=nowhere/my_env.py:MyEnv"], ["nowhere/my_env.py"]),
    (["env.name=my_env:number"], ["my_env:number", "5", "EnvFactory"]),
    (["env.name=my_env:Helper"], ["my_env:Helper", "EnvFactory"]),
    (["env.name=my_env"], ["my_env", "hello"]),
    (["env.name=my_env:MyEnv"], ["env.options.bonus", "MyEnv"]),
    (["env.name=my_env:MyEnv", "env.options.bonuses=1"], ["env.options.bonuses", "'bonus'"]),
    (["env.name=my_env:ready", "env.options.bonus=1"], ["env.options.bonus"]),
    (["env.name=my_env:ready", "tools.use=[calculator]"], ["MyEnv", "ToolEnv"]),
])  # fmt: skip
def test_a_mistake_in_the_path_or_the_options_is_one_line(project: Path, words: list[str], parts: list[str]) -> None:
    line = one_line_error(preview(project, *words))
    assert all(part in line for part in parts)


@pytest.mark.parametrize("line", ["import no_such_package", "class Broken:\n    size = 1 / 0", "def broken(:"])
def test_a_bug_in_ones_own_module_is_one_line_with_its_place(project: Path, line: str) -> None:
    text = f"{MY_ENV}\n{line}"
    (project / "my_env.py").write_text(text)
    assert f"my_env.py:{len(text.splitlines())}" in one_line_error(preview(project, "env.name=my_env:ready"))


@pytest.mark.parametrize(
    "words",
    [[], ["train"], ["sft"], ["sft", "--data", "x"], ["config", "show"], ["serve"], ["nat", "plan"]],
    ids=" ".join,
)
def test_help_has_a_short_option_everywhere(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for option in ("-h", "--help"):
        with pytest.raises(SystemExit) as ended:
            cli.app([*words, option], prog_name="agent-rl")
        texts.append(capsys.readouterr().out)
        assert ended.value.code in (0, None)
    assert texts[0] == texts[1] and "Usage" in texts[0] and "-h" in texts[0]


@pytest.mark.parametrize("name", cli.EXAMPLES)
def test_the_example_below_the_options_of_a_command_is_one_it_takes(name: str) -> None:
    words = cli.EXAMPLES[name].split()
    command = typer.main.get_command(cli.app).commands[name]
    assert words[:2] == ["agent-rl", name] and command.make_context(name, words[2:]).params
