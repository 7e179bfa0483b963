"""The examples of docs/environments_of_others.md run, and what it says about the packages is so."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import run_here
from fakes import save_tiny_model, tiny_config
from foreign_fakes import load_real
from openenv_server import FakeServer

from agent_rl.envs.foreign import reasoning_gym, skyrl_gym
from agent_rl.envs.foreign.harmless import RUN_AS_PYTHON

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/environments_of_others.md").read_text(encoding="utf-8")


def blocks(heading: str) -> dict[str, str]:
    """The blocks below a heading by language, the last of each."""
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return dict(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))


@pytest.mark.parametrize(
    ("heading", "package"),
    [
        ("Reasoning Gym", "reasoning_gym"),
        pytest.param("verifiers", "verifiers", marks=pytest.mark.verifiers),
        ("Gymnasium", None),
        ("TRL's environment classes", None),
        ("SkyRL's gym", "skyrl_gym"),
    ],
)
def test_an_example_trains_a_step(
    heading: str, package: str | None, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if package is not None:
        load_real(package, request)
    shown = blocks(heading)
    if "python" in shown:
        (name,) = re.findall(r"# (\w+\.py)\n", shown["python"])
        (tmp_path / name).write_text(shown["python"])
        monkeypatch.syspath_prepend(str(tmp_path))
    config = save_tiny_model(tmp_path / "model") / "config.json"
    positions = {"max_position_embeddings": 1024}  # descriptions of tools are long in a tokenizer of letters
    config.write_text(json.dumps(json.loads(config.read_text()) | positions))
    sections: dict[str, Any] = {
        "env": yaml.safe_load(shown["yaml"])["env"],
        "data": {"train_path": str(tmp_path / "train.jsonl"), "eval_path": str(tmp_path / "eval.jsonl")},
        "policy": {"max_new_tokens": 16, "max_context": 1024},
        "train": {"steps": 1, "learning_rate": 1e-3},
    }
    path = tmp_path / "my.yaml"
    path.write_text(yaml.safe_dump(tiny_config(tmp_path, **sections).model_dump(mode="json")))
    if "json" in shown:
        for name in ("train", "eval"):
            (tmp_path / f"{name}.jsonl").write_text(shown["json"])
    else:
        (command,) = re.findall(
            r"^agent-rl (prepare-tasks --config) my\.yaml --output-dir my_tasks", PAGE, re.MULTILINE
        )
        files = ("--output-dir", tmp_path, "--num-train", "8", "--num-eval", "4")
        done = run_here(*command.split(), path, *files, folder=tmp_path)
        assert done.returncode == 0, done.stderr
    done = run_here("train", "--config", path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, (tmp_path / "runs/tiny/metrics.jsonl").read_text().splitlines())
    assert [line["rollout/env_errors"] for line in lines if "rollout/env_errors" in line] == [0.0]


def test_the_example_of_openenv_trains_a_step_with_its_row(tmp_path: Path) -> None:
    pytest.importorskip("websockets")
    shown = blocks("OpenEnv")
    env = yaml.safe_load(shown["yaml"])["env"]
    assert env["options"] == {"url": "http://localhost:8000"}
    save_tiny_model(tmp_path / "model")
    for name in ("train", "eval"):
        (tmp_path / f"{name}.jsonl").write_text(shown["json"])
    with FakeServer() as server:
        sections: dict[str, Any] = {
            "env": {**env, "options": {"url": server.url}},
            "data": {"train_path": str(tmp_path / "train.jsonl"), "eval_path": str(tmp_path / "eval.jsonl")},
            "policy": {"max_new_tokens": 16, "max_context": 128},
            "train": {"steps": 1, "learning_rate": 1e-3},
        }
        path = tmp_path / "my.yaml"
        path.write_text(yaml.safe_dump(tiny_config(tmp_path, **sections).model_dump(mode="json")))
        done = run_here("train", "--config", path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    asked = [message["data"] for message in server.received if message["type"] == "reset"]
    assert asked and all(data == {"difficulty": "hard", "seed": 17} for data in asked)


def test_the_page_names_what_is_refused() -> None:
    section = PAGE.partition("## Reasoning Gym")[2].partition("## verifiers")[0]
    listed = set(re.findall(r"`(\w+)`", section.partition("Nine scorers")[2].partition("They are shown")[0]))
    assert listed - {"eval", "parse_expr"} == set(RUN_AS_PYTHON) and len(RUN_AS_PYTHON) == 9
    for name in (*reasoning_gym._TAKES_ALL, *skyrl_gym._RUNS_CODE):
        assert f"`{name}`" in PAGE


def test_the_page_counts_the_data_sets_of_the_package(request: pytest.FixtureRequest) -> None:
    load_real("reasoning_gym", request)
    from reasoning_gym.factory import DATASETS

    assert f"{len(DATASETS) - 2} of its {len(DATASETS)} data sets work" in PAGE
