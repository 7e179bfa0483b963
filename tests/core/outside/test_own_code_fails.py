"""What a person sees when code of their own raises: the line, the traceback, and a run that lost nothing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import run_program
from commands import one_line_error, run_here
from fakes import save_tiny_model, tiny_config

SCRIPT = """
import sys
from fakes import LETTER_TASKS, tiny_config
from agent_rl import AgentEnv, GRPOTrainer, Message, StepResult
from pathlib import Path

def look_up(words):
    return words["oops"]

class OwnEnv(AgentEnv):
    episodes = 0

    def reset(self, task):
        OwnEnv.episodes += 1
        if OwnEnv.episodes > int(sys.argv[1]):
            look_up({})
        return [Message.user(task["question"])]

    def step(self, message):
        return StepResult(reward=float(OwnEnv.episodes % 2), terminated=True)

if __name__ == "__main__":
    config = tiny_config(
        Path(sys.argv[2]), train={"steps": 3}, checkpoint={"every": 0},
        rollout={"group_size": 2, "groups_per_step": 2, "async_workers": 0},
    )
    with GRPOTrainer.from_config(config, env_factory=OwnEnv, train_tasks=LETTER_TASKS) as trainer:
        trainer.train()
"""
LINE_OF_THE_BUG = 1 + SCRIPT.split("\n").index('    return words["oops"]')


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    save_tiny_model(folder / "model")
    (folder / "own_env.py").write_text(SCRIPT)
    return folder


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def script(folder: Path, tmp_path: Path, first_bad: int) -> Any:
    (tmp_path / "model").symlink_to(folder / "model")
    support = str(Path(__file__).parents[2] / "support")
    root = str(Path(__file__).parents[3])
    return run_program(
        folder / "own_env.py", str(first_bad), tmp_path, PYTHONPATH=f"{root}:{support}:{':'.join(sys.path)}"
    )


def test_a_bug_in_an_own_environment_is_told_with_its_line_and_its_traceback(model: Path, tmp_path: Path) -> None:
    done = script(model, tmp_path, 0)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert f"KeyError: 'oops' at {model}/own_env.py:{LINE_OF_THE_BUG} in look_up" in last
    assert "EpisodesFailedError" in last
    assert "sandbox" not in last.lower()
    (row,) = rows_of(tmp_path / "runs/tiny/errors.jsonl")
    assert (row["count"], row["source"], row["place"]) == (
        4,
        "environment",
        f"{model}/own_env.py:{LINE_OF_THE_BUG} in look_up",
    )
    assert row["traceback"].startswith("Traceback (most recent call last)")
    assert 'return words["oops"]' in row["traceback"]


def test_a_bug_that_comes_later_ends_the_run_with_the_last_whole_step_saved(model: Path, tmp_path: Path) -> None:
    done = script(model, tmp_path, 8)  # two steps of four episodes
    run = tmp_path / "runs/tiny"
    assert done.returncode == 1
    assert "The checkpoint of step 2 is saved" in done.stdout
    assert (run / "checkpoints/step_00002/model/model.safetensors").is_file()
    assert [row["step"] for row in rows_of(run / "metrics.jsonl")] == [1, 2]
    assert rows_of(run / "events.jsonl")[-1]["facts"]["reason"] == "failed"


def test_some_bad_episodes_are_dropped_and_the_rest_trains(model: Path, tmp_path: Path) -> None:
    done = script(model, tmp_path, 10)  # two episodes of the third step are left
    assert done.returncode == 0, done.stderr
    told = next(line for line in done.stdout.splitlines() if "dropped" in line)
    assert told.startswith("step 3: 2 of 4 episodes dropped by environment errors, first: KeyError: 'oops' at ")
    (row,) = rows_of(tmp_path / "runs/tiny/errors.jsonl")
    assert (row["count"], row["first_step"], row["last_step"]) == (2, 3, 3)


AGENT = """
def helper(task):
    return task["nothing"]

def agent(task, base_url, api_key):
    return helper(task)
"""


@pytest.mark.parametrize("num_tasks", [2, 16])
def test_a_bug_in_an_own_agent_is_told_with_its_line_and_its_traceback(
    model: Path, tmp_path: Path, num_tasks: int
) -> None:
    """Few episodes end the run by all failing, many by the agent's failing alike."""
    (tmp_path / "model").symlink_to(model / "model")
    (tmp_path / "my_agent.py").write_text(AGENT)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(f'{{"task_id": "{n}"}}\n' for n in range(num_tasks)))
    config = tiny_config(
        tmp_path,
        env={"name": "external", "options": {"agent": f"{tmp_path}/my_agent.py:agent"}},
        data={"train_path": str(tasks), "eval_path": None},
        rollout={"group_size": 2, "groups_per_step": num_tasks, "async_workers": 0},
    )
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    line = one_line_error(run_here("train", "--config", tmp_path / "config.yaml"))
    assert f"KeyError: 'nothing' at {tmp_path}/my_agent.py:3 in helper" in line
    assert "sandbox" not in line
    (row,) = rows_of(tmp_path / "runs/tiny/errors.jsonl")
    assert row["place"] == f"{tmp_path}/my_agent.py:3 in helper"
    assert 'return task["nothing"]' in row["traceback"]
