"""A run with an environment or rows given in Python says so, and nothing takes another environment for it."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import make_trainer
from commands import one_line_error, run_here
from fakes import LETTER_TASKS, LetterEnv, ScriptedPolicy, save_tiny_model, tiny_config

from agent_rl.core.evaluation import evaluate_policy
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.errors import CheckpointError, DataError
from agent_rl.reports.run.data import read_run

OWN_ENV = Path(__file__).parents[3] / "examples" / "environment" / "own_env.py"


class OtherEnv(LetterEnv):
    """Another name is another environment."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step with an environment and rows given in Python, over a configuration of NAT tasks."""
    folder = tmp_path_factory.mktemp("run")
    save_tiny_model(folder / "model")
    with make_trainer(folder, train={"steps": 1}, tools={"use": ["calculator"]}) as trainer:
        trainer.train()
    return folder


def recorded(folder: Path, name: str = "tiny") -> dict[str, Any]:
    return yaml.safe_load((folder / f"runs/{name}/config.yaml").read_text())


def test_the_configuration_of_the_run_says_what_was_used(folder: Path) -> None:
    config = recorded(folder)
    assert config["env"]["name"] == "python:fakes:LetterEnv"
    assert config["data"]["train_path"].startswith("python:4 rows, sha256 ")
    assert config["data"]["eval_path"] == config["data"]["train_path"]
    assert config["tools"]["use"] == []
    assert read_run(folder / "runs/tiny").settings["env.name"] == "python:fakes:LetterEnv"


def test_eval_with_the_configuration_of_the_run_refuses_instead_of_evaluating_another(folder: Path) -> None:
    run, output = folder / "runs/tiny", folder / "eval"
    command = ("eval", "--config", run / "config.yaml", "--checkpoint", run / "checkpoints/step_00001")
    line = one_line_error(run_here(*command, "--output-dir", output))
    assert "env.name = 'python:fakes:LetterEnv'" in line
    assert "given in Python" in line
    line = one_line_error(run_here(*command, "--output-dir", output, "env.name=fakes:LetterEnv"))
    assert "data.eval_path = 'python:4 rows" in line
    assert not list(output.rglob("episodes.jsonl"))


def test_eval_on_named_tasks_in_the_named_environment_works(folder: Path) -> None:
    run, output = folder / "runs/tiny", folder / "eval_named"
    tasks = folder / "tasks.jsonl"
    tasks.write_text('{"task_id": "a", "question": "p"}\n')
    words = ("eval", "--config", run / "config.yaml", "--checkpoint", run / "checkpoints/step_00001")
    done = run_here(*words, "--output-dir", output, "--tasks", tasks, "env.name=fakes:LetterEnv")
    assert done.returncode == 0, done.stderr
    assert "note: the run of" in done.stdout  # its name for the environment is another


def test_resuming_in_another_environment_is_refused_and_in_the_same_one_it_works(folder: Path) -> None:
    for resume in ("auto", str(folder / "runs/tiny/checkpoints/step_00001")):
        config = {"train": {"steps": 1}, "checkpoint": {"resume": resume}}
        with pytest.raises(CheckpointError, match=r"in the environment 'python:fakes:LetterEnv', and this run"):
            make_trainer(folder, env=OtherEnv, **config)
    branch = str(folder / "runs/tiny/checkpoints/step_00001")
    with pytest.raises(CheckpointError, match="in the environment"):
        make_trainer(folder, env=OtherEnv, run={"name": "branch"}, checkpoint={"resume": branch})
    with make_trainer(folder, train={"steps": 1}, checkpoint={"resume": "auto"}) as trainer:
        assert trainer.step == 1


def test_other_rows_are_named_when_a_run_is_resumed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "question": "e"} for row in LETTER_TASKS]
    options = {"train": {"steps": 1}, "checkpoint": {"resume": "auto"}}
    with make_trainer(folder, tasks=rows, **options) as trainer:
        trainer.train()
    said = capsys.readouterr().out
    assert "Settings changed since the last start: data.train_path python:4 rows" in said
    make_trainer(folder, **options).train()


def test_a_run_named_by_its_configuration_is_recorded_as_it_is(folder: Path, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"task_id": "{n}", "question": "p"}}\n' for n in range(4)))
    config = tiny_config(
        folder,
        run={"name": "named"},
        env={"name": f"{OWN_ENV}:ManyCalls"},
        data={"train_path": str(tasks), "eval_path": None},
        train={"steps": 1},
    )
    with GRPOTrainer.from_config(config) as trainer:
        trainer.train()
    assert recorded(folder, "named")["env"]["name"] == f"{OWN_ENV}:ManyCalls"
    assert recorded(folder, "named")["data"]["train_path"] == str(tasks)


def test_a_policy_is_evaluated_in_an_environment_and_on_rows_given_in_python(folder: Path) -> None:
    rows = [{"task_id": "a", "question": "p"}, {"task_id": "b", "question": "p"}]
    result, episodes = evaluate_policy(
        tiny_config(folder), ScriptedPolicy(lambda *_: "aa"), env_factory=LetterEnv, tasks=rows
    )
    assert (result.num_scored, result.num_successes, len(episodes)) == (2, 2, 2)
    with pytest.raises(DataError, match="tasks"):
        evaluate_policy(tiny_config(folder), ScriptedPolicy(["a"]), env_factory=LetterEnv, tasks=[])
