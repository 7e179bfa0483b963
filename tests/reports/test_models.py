"""One command for several models: every checkpoint of a run, models side by side, what is kept and what is refused."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import one_line_error, run_here
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config

from agent_rl.agent.messages import Message
from agent_rl.config import load_config
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.data.tasks import write_tasks
from agent_rl.envs.base import EnvFactory, Task
from agent_rl.envs.registry import register_env
from agent_rl.errors import CheckpointError, ConfigError, DataError
from agent_rl.policies.model_source import ModelSource
from agent_rl.reports.episodes import read_eval_file
from agent_rl.reports.evaluation import EvaluationFolder
from agent_rl.reports.models import EvaluatedModel, labels_of, model_plots
from agent_rl.scripts.evaluate_model import main


class OnceInterruptedEnv(LetterEnv):
    """Ctrl-C in the sixth episode: the second of the second model."""

    num_started = 0

    def reset(self, task: Task) -> list[Message]:
        OnceInterruptedEnv.num_started += 1
        if OnceInterruptedEnv.num_started == 6:
            raise KeyboardInterrupt
        return super().reset(task)


class CountedFactory(EnvFactory):
    num_started = 0

    def start(self) -> None:
        CountedFactory.num_started += 1


register_env("counted_letters")(lambda _options, _seed: CountedFactory(LetterEnv))
register_env("once_interrupted_letters")(lambda _options, _seed: EnvFactory(OnceInterruptedEnv))


def write_config(folder: Path, *, env: str = "counted_letters", **sections: dict[str, Any]) -> Path:
    save_tiny_model(folder / "model")
    write_tasks(folder / "tasks.jsonl", LETTER_TASKS)
    data = {"train_path": str(folder / "tasks.jsonl"), "eval_path": str(folder / "tasks.jsonl")}
    config = tiny_config(folder, data=data, env={"name": env}, **sections)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    return folder / "config.yaml"


def train(config: Path) -> Path:
    """The folder of a run of three steps, evaluated and saved after each."""
    with GRPOTrainer.from_config(load_config(config)) as trainer:
        trainer.train()
    return config.parent / "runs/tiny"


EVERY_STEP: dict[str, dict[str, Any]] = {
    "train": {"steps": 3, "learning_rate": 3e-2, "warmup_steps": 0},
    "eval": {"every": 1, "temperatures": [1.0]},
    "checkpoint": {"every": 1, "keep": 3},
}


def models_of(output: Path) -> dict[str, Any]:
    return json.loads((output / "models.json").read_text(encoding="utf-8"))


def test_every_checkpoint_gets_the_figures_that_its_run_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, output = write_config(tmp_path, **EVERY_STEP), tmp_path / "out"
    run = train(config)
    CountedFactory.num_started = 0
    main(config, output, checkpoint=[str(run)], every_checkpoint=True, temperature=1.0)
    assert CountedFactory.num_started == 1  # the environment serves all of them
    content = models_of(output)
    assert [(each["model"], each["step"], each["run"]) for each in content["models"]] == [
        (f"step_0000{step}", step, "tiny") for step in (1, 2, 3)
    ]
    for step, each in enumerate(content["models"], start=1):
        logged = read_eval_file(run / f"eval/step_0000{step}_t1.json")
        own = EvaluationFolder(output / f"models/step_0000{step}")
        assert [e.messages for e in own.episodes()] == [e.messages for e in logged]
        assert each["summary"]["reward"]["mean"] == sum(e.reward or 0.0 for e in logged) / 4
        assert (own.path / "report.html").is_file()
    assert len({each["sha256"] for each in content["models"]}) == 3
    with (output / "models.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [float(row["low"]) for row in rows] == [m["summary"]["success"]["low"] for m in content["models"]]
    assert {path.name for path in (output / "plots").iterdir()} == {"models_success.png", "models_reward.png"}
    page = (output / "models.html").read_text(encoding="utf-8")
    assert 'href="models/step_00002/report.html"' in page and page.count("data:image/svg") == 2
    printed = capsys.readouterr().out
    assert max(len(line) for line in printed.splitlines() if "step_0000" in line and "  " in line) <= 80
    # The folder of the checkpoints is as good a name, and nothing is evaluated again.
    main(config, output, checkpoint=[str(run / "checkpoints")], every_checkpoint=True, temperature=1.0)
    assert capsys.readouterr().out.count("all 4 episodes were run before") == 3


def test_models_are_set_side_by_side_and_against_a_baseline(tmp_path: Path) -> None:
    config, output = write_config(tmp_path), tmp_path / "out"
    others = [str(save_tiny_model(tmp_path / name / "tiny", seed=seed)) for seed, name in ((1, "a"), (2, "b"))]
    main(config, output, checkpoint=others, baseline=str(tmp_path / "model"), samples=2, temperature=1.0)
    content = models_of(output)
    assert [each["model"] for each in content["models"]] == ["a-tiny", "b-tiny"]
    assert [each["step"] for each in content["models"]] == [None, None]
    assert all(each["comparison"]["num_episodes"] == 8 for each in content["models"])
    assert (content["baseline_name"], content["baseline"]["num_episodes"]) == (str(tmp_path / "model"), 8)
    assert len((output / "baseline/episodes.jsonl").read_text(encoding="utf-8").splitlines()) == 8
    # A model alone has the same figures.
    main(config, tmp_path / "alone", checkpoint=others[1:], samples=2, temperature=1.0)
    alone = json.loads((tmp_path / "alone/report.json").read_text(encoding="utf-8"))
    assert alone["summary"]["reward"] == content["models"][1]["summary"]["reward"]
    assert not (tmp_path / "alone/models.json").exists()


def test_each_run_has_a_line_of_its_own_and_a_model_without_steps_a_horizontal_one(tmp_path: Path) -> None:
    config = write_config(tmp_path, **EVERY_STEP | {"checkpoint": {"every": 2, "keep": 3}})
    run, copy = train(config), tmp_path / "copies/tiny"
    shutil.copytree(run, copy)
    output = tmp_path / "out"
    main(config, output, checkpoint=[str(run), str(copy)], every_checkpoint=True, baseline=str(tmp_path / "model"))
    content = models_of(output)
    assert [(each["model"], each["step"]) for each in content["models"]] == [
        ("runs-tiny-step_00002", 2), ("runs-tiny-step_00003", 3),
        ("copies-tiny-step_00002", 2), ("copies-tiny-step_00003", 3),
    ]  # fmt: skip
    models = [
        EvaluatedModel(
            label=each["model"],
            source=ModelSource.find(load_config(config), each["name"]),
            report={**content, "summary": each["summary"]},
            episodes=(),
        )
        for each in content["models"]
    ]
    for figure, _ in model_plots(models, "first", content["baseline"]).values():
        (axes,) = figure.axes
        assert sorted(axes.get_legend_handles_labels()[1]) == sorted(["baseline", str(run), str(copy)])


def test_ctrl_c_keeps_the_models_that_have_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_config(tmp_path, env="once_interrupted_letters", rollout={"async_workers": 0})
    models, output = [str(save_tiny_model(tmp_path / name, seed=1)) for name in ("one", "two")], tmp_path / "out"
    OnceInterruptedEnv.num_started = 0
    with pytest.raises(KeyboardInterrupt):
        main(config, output, checkpoint=models)
    printed = capsys.readouterr().out
    assert "one" in printed.partition("Solved %")[2] and "the same command continues" in printed
    content = models_of(output)
    assert ([each["model"] for each in content["models"]], content["num_models"]) == (["one"], 2)
    main(config, output, checkpoint=models)
    assert "all 4 episodes were run before" in capsys.readouterr().out
    assert [each["model"] for each in models_of(output)["models"]] == ["one", "two"]


def test_models_have_the_shortest_names_that_tell_them_apart() -> None:
    assert labels_of(["runs/a/checkpoints/step_00010", "runs/a/checkpoints/step_00020"]) == ["step_00010", "step_00020"]
    assert labels_of(["a/checkpoints/step_1", "b/checkpoints/step_1"]) == ["a-step_1", "b-step_1"]
    assert labels_of(["openai:me/small@http://127.0.0.1:8000/v1", "model/tiny"]) == ["small", "tiny"]
    assert labels_of([".", "tests"])[1] == "tests"
    assert labels_of(["x y", "x/y"]) == ["x-y", "y"]


@pytest.mark.parametrize(
    ("options", "kind", "found"),
    [
        ({"every_checkpoint": True}, ConfigError, "--checkpoint RUN"),
        ({"every_checkpoint": True, "checkpoint": ["nowhere"]}, CheckpointError, "nowhere: no such folder"),
        ({"every_checkpoint": True, "checkpoint": ["openai:m"]}, CheckpointError, "openai:m: no such folder"),
        ({"every_checkpoint": True, "checkpoint": ["MODEL"]}, CheckpointError, "model holds no checkpoints"),
        ({"checkpoint": ["MODEL", "MODEL/../model"]}, ConfigError, "names .*model twice"),
        ({"checkpoint": ["MODEL", "nowhere"]}, CheckpointError, "nowhere"),
        ({"checkpoint": ["MODEL", "other"], "served": True}, ConfigError, "--served .* not 2"),
        ({"checkpoint": ["MODEL"], "every_checkpoint": True, "compare": Path("nowhere")}, CheckpointError, "holds no"),
        ({"checkpoint": ["MODEL", "OTHER"], "compare": Path("nowhere")}, DataError, "nowhere is no evaluation"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_episode(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], found: str
) -> None:
    config = write_config(tmp_path)
    save_tiny_model(tmp_path / "other", seed=1)
    places = {"MODEL": str(tmp_path / "model"), "OTHER": str(tmp_path / "other")}
    given = [name.replace("MODEL", places["MODEL"]) for name in options.pop("checkpoint", [])]
    given = [places.get(name, name) for name in given]
    with pytest.raises(kind, match=found):
        main(config, tmp_path / "out", checkpoint=given or None, **options)
    assert not list((tmp_path / "out").rglob("episodes.jsonl"))


def test_the_option_is_given_once_for_each_model(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    other = save_tiny_model(tmp_path / "other", seed=1)
    words = ["eval", "--config", config, "--output-dir", tmp_path / "out", "--checkpoint", tmp_path / "model"]
    done = run_here(*words, "--checkpoint", other, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [each["model"] for each in models_of(tmp_path / "out")["models"]] == ["model", "other"]
    assert "--checkpoint RUN" in one_line_error(run_here(*words[:5], "--every-checkpoint", folder=tmp_path))


def test_the_folder_of_a_run_is_no_place_for_a_table(tmp_path: Path) -> None:
    config = write_config(tmp_path)
    save_tiny_model(tmp_path / "other", seed=1)
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    with pytest.raises(ConfigError, match="is the folder of a run; name another --output-dir"):
        main(config, tmp_path / "run", checkpoint=[str(tmp_path / "model"), str(tmp_path / "other")])
