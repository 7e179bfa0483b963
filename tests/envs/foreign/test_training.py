"""A step of GRPO with a tiny random model in environments of others, from task files and a configuration alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import run_here
from fakes import save_tiny_model, tiny_config
from foreign_fakes import load_fake, load_real
from openenv_server import FakeServer
from waiting import wait_for


def written(folder: Path, name: str, options: dict[str, Any]) -> Path:
    """A configuration whose task files are in the same folder, with a tiny model."""
    save_tiny_model(folder / "model")
    data = {"train_path": str(folder / "train.jsonl"), "eval_path": str(folder / "eval.jsonl")}
    sections = {
        "env": {"name": name, "options": options},
        "data": data,
        "policy": {"max_new_tokens": 16, "max_context": 128, "max_batch_size": 32},
        "rollout": {"max_turns": 3, "group_size": 8, "groups_per_step": 6},
        "train": {"steps": 1, "learning_rate": 3e-3},
        "eval": {"temperatures": [0.0]},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(tiny_config(folder, **sections).model_dump(mode="json")))
    return folder / "run.yaml"


def metrics_of(run: Path) -> dict[str, float]:
    """Of the only step; evaluations have lines of their own."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    (metrics,) = (line for line in lines if "rollout/env_errors" in line)
    return metrics


def prepare_and_train(folder: Path, name: str, options: dict[str, Any]) -> dict[str, float]:
    """The metrics of the step, after the commands that a person types."""
    path = written(folder, name, options)
    files = ("--num-train", "6", "--num-eval", "3", "--output-dir", folder)
    for words in (("prepare-tasks", "--config", path, *files), ("train", "--config", path)):
        done = run_here(*words)
        assert done.returncode == 0, done.stdout + done.stderr
    return metrics_of(folder / "runs/tiny")


@pytest.mark.parametrize(
    "package", [load_fake, pytest.param(load_real, marks=pytest.mark.verifiers)], ids=["fake", "real"]
)
def test_an_environment_of_verifiers_trains_a_step_and_is_evaluated(
    package: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    package("verifiers", request)
    metrics = prepare_and_train(tmp_path, "verifiers", {"id": "vf-reverse", "args": {"num_rows": 10}})
    assert metrics["optim/grad_norm"] > 0.0 and metrics["optim/skipped"] == 0.0
    assert metrics["reward_parts/share/mean"] > 0.0
    assert metrics["reward/mean"] == pytest.approx(
        metrics["reward_parts/exact/mean"] + 0.5 * metrics["reward_parts/share/mean"]
    )
    run = tmp_path / "runs/tiny"
    words = ("eval", "--config", run / "config.yaml", "--output-dir", tmp_path / "evaluated")
    done = run_here(*words, "--checkpoint", run / "checkpoints/step_00001", "--max-tasks", "2")
    assert done.returncode == 0, done.stdout + done.stderr


def test_three_data_sets_of_reasoning_gym_train_a_step(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    load_real("reasoning_gym", request)
    names = ["spell_backward", "letter_counting", "chain_sum"]
    metrics = prepare_and_train(tmp_path, "reasoning_gym", {"dataset": names, "system_prompt": None})
    assert {name for name in names if f"reward_parts/{name}/mean" in metrics} == set(names)
    assert metrics["optim/grad_norm"] > 0.0 and metrics["rollout/env_errors"] == 0.0


def test_a_gymnasium_environment_trains_a_step(tmp_path: Path) -> None:
    metrics = prepare_and_train(tmp_path, "gymnasium", {"make": "foreign_fakes:Letters"})
    assert metrics["optim/grad_norm"] > 0.0 and metrics["rollout/env_errors"] == 0.0


def test_an_environment_behind_a_server_of_openenv_trains_a_step(tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    with FakeServer(max_sessions=8) as server:
        metrics = prepare_and_train(tmp_path, "openenv", {"url": server.url, "timeout_s": 60.0})
        wait_for(lambda: server.num_open == 0)
    assert metrics["rollout/env_errors"] == 0.0 and "reward_parts/step_count/mean" in metrics


def test_a_server_of_openenv_that_is_down_ends_training_in_a_sentence(tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    with FakeServer() as server:
        prepare_and_train(tmp_path, "openenv", {"url": server.url})
    done = run_here("train", "--config", tmp_path / "run.yaml", "run.name=again")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "no server answers there" in done.stderr and server.url in done.stderr


def test_an_environment_of_skyrl_gym_trains_a_step_on_rows_in_its_own_format(tmp_path: Path) -> None:
    pytest.importorskip("skyrl_gym")
    rows = [
        {"prompt": [{"role": "user", "content": "post"}], "reward_spec": {"ground_truth": str(n)}, "env_class": "gsm8k"}
        for n in range(6)
    ]
    path = written(tmp_path, "skyrl_gym", {})
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run_here("train", "--config", path).returncode == 0
    assert metrics_of(tmp_path / "runs/tiny")["rollout/env_errors"] == 0.0


def test_preparing_tasks_needs_an_environment_by_one_of_two_ways(tmp_path: Path) -> None:
    path = written(tmp_path, "skyrl_gym", {"id": "gsm8k"})
    for words in ((), ("--domain", "math", "--config", path)):
        done = run_here("prepare-tasks", "--output-dir", tmp_path / "new", *words)
        assert done.returncode == 2 and "--domain" in done.stderr and not (tmp_path / "new").exists()
    pytest.importorskip("skyrl_gym")
    done = run_here("prepare-tasks", "--output-dir", tmp_path / "new", "--config", path)
    assert done.returncode == 2 and "makes no task files" in done.stderr


def test_the_shipped_example_trains_a_step(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    load_real("reasoning_gym", request)
    save_tiny_model(tmp_path / "model")
    small = ("train.steps=1", "rollout.group_size=2", "rollout.groups_per_step=3", "eval.temperatures=[]")
    tiny = ("policy.type=minimind", "policy.max_new_tokens=4", "policy.max_context=128", "log.progress=false")
    where = (f"model.path={tmp_path / 'model'}", f"run.output_dir={tmp_path}", "run.device=cpu")
    done = run_here("train", "--config", "configs/reasoning_gym.yaml", *small, *tiny, *where)
    assert done.returncode == 0, done.stdout + done.stderr
    assert metrics_of(tmp_path / "reasoning_gym")["rollout/env_errors"] == 0.0
