"""Runs in several environments: what they write, exact resume, and the report on them."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import one_line_error, run_here
from fakes import LetterEnv, save_tiny_model, tiny_config
from run_outcomes import lasting_metrics, outcome

from agent_rl.config import Config, load_config
from agent_rl.core.run.record import check_same_environment
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import EnvFactory, StepResult
from agent_rl.envs.mixture import MixtureFactory, MixtureMember
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.reports.run.data import read_run
from agent_rl.reports.run.page import run_page
from agent_rl.reports.run.report import as_data, facts, make_report

TASKS = [
    {"task_id": f"{env}{i}", "env": env, "question": "post"[: i + 1]}
    for env in ("letters", "lengths")
    for i in range(3)
]


class LengthEnv(LetterEnv):
    """Rewards long replies, and reports no success."""

    def step(self, message: Any) -> StepResult:
        return StepResult(reward=min(1.0, len(message.content) / 20), terminated=True)


def mixture() -> MixtureFactory:
    return MixtureFactory(
        {
            "letters": MixtureMember(factory=EnvFactory(LetterEnv), weight=2.0),
            "lengths": MixtureMember(factory=EnvFactory(LengthEnv)),
        }
    )


def config_of(folder: Path, name: str, **rollout: Any) -> Config:
    return tiny_config(
        folder,
        run={"name": name},
        rollout={"groups_per_step": 3, "async_workers": 0, **rollout},
        train={"steps": 3},
        eval={"temperatures": [0.0]},
        checkpoint={"every": 1, "resume": "auto"},
    )


def train(config: Config, *, stop_after: int | None = None) -> None:
    def stop(step: int, _metrics: Any) -> None:
        if step == stop_after:
            raise KeyboardInterrupt

    with GRPOTrainer.from_config(config, env_factory=mixture(), train_tasks=TASKS, eval_tasks=TASKS) as trainer:
        trainer.train(on_step=stop)


@pytest.mark.parametrize("rollout", [{}, {"max_attempts": 3}], ids=["one attempt", "three attempts"])
def test_a_stopped_and_resumed_run_is_the_same_run(tmp_path: Path, rollout: dict[str, Any]) -> None:
    save_tiny_model(tmp_path / "model")
    train(config_of(tmp_path, "straight", **rollout))
    with pytest.raises(KeyboardInterrupt):
        train(config_of(tmp_path, "stopped", **rollout), stop_after=1)
    train(config_of(tmp_path, "stopped", **rollout))
    straight, stopped = tmp_path / "runs/straight", tmp_path / "runs/stopped"
    assert outcome(straight, 3) == outcome(stopped, 3)
    step = next(row for row in lasting_metrics(straight) if row["step"] == 1)
    if not rollout:
        assert (step["env/letters/rollout/num_episodes"], step["env/lengths/rollout/num_episodes"]) == (16, 8)


def test_the_report_shows_the_environments_apart(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    train(config_of(tmp_path, "run"))
    report = make_report(read_run(tmp_path / "runs/run"))
    (held_out,) = as_data(report)["held_out"]
    assert held_out["after"]["num_scored"] == 6
    assert {name: each["after"]["num_scored"] for name, each in held_out["by_env"].items()} == {
        "letters": 3,
        "lengths": 3,
    }
    page = run_page(report)
    assert "Mean reward by environment" in page and "Success by environment" in page


SETTINGS = """
run: {name: mix, output_dir: OUT, device: cpu}
model: {path: model/math_minimind}
policy: {max_new_tokens: 24, max_context: 256, max_batch_size: 16}
env:
  name: mixture
  options:
    environments:
      math:
        name: math_qa
        weight: 2
        tools: [calculator]
        train_path: dataset/math_tasks/train.jsonl
        eval_path: dataset/math_tasks/eval.jsonl
      search:
        name: search_qa
        tools: {use: [search], search: {mode: corpus, corpus_path: dataset/search_tasks/corpus.jsonl}}
        train_path: dataset/search_tasks/train.jsonl
        eval_path: dataset/search_tasks/eval.jsonl
data: {max_eval_tasks: 4}
rollout: {group_size: 2, groups_per_step: 3, async_workers: 0, max_turns: 2}
train: {steps: 2, learning_rate: 1.0e-5}
eval: {temperatures: [0.0]}
log: {trackers: [], progress: false, samples_every: 1}
checkpoint: {every: 1, resume: auto}
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "mix.yaml"
    path.write_text(SETTINGS.replace("OUT", str(tmp_path / "runs")))
    return path


def command(*words: str | Path) -> str:
    done = run_here(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_preview_shows_every_environment_with_its_prompt_and_tools(settings: Path) -> None:
    shown = command("train", "--config", settings, "--preview-tasks", "2")
    math, search = shown.split("search/search-train")
    assert "math/math-train" in math and "tools: calculator" in math and "Call search" not in math
    assert "Call search" in search and "tools: search" in search


def test_files_shipped_with_the_package_are_found_from_any_folder(
    settings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(settings)
    members = config.env.options["environments"]
    assert Path(members["math"]["train_path"]).is_absolute()
    assert Path(members["search"]["tools"]["search"]["corpus_path"]).is_file()


def test_a_checkpoint_of_another_environment_under_the_same_name_is_refused(settings: Path, tmp_path: Path) -> None:
    config = load_config(settings)
    checkpoint = tmp_path / "runs/mix/checkpoints/step_00001"
    checkpoint.mkdir(parents=True)
    (tmp_path / "runs/mix/config.yaml").write_text(config.to_yaml())
    check_same_environment(config, checkpoint)
    other = load_config(settings, ["env.options.environments.math.name=hello"])
    with pytest.raises(CheckpointError, match=r"'math_qa', and this run is in 'hello' \(env.options.environments.math"):
        check_same_environment(other, checkpoint)


def test_a_name_that_is_there_twice_is_refused(settings: Path) -> None:
    settings.write_text(settings.read_text().replace("      search:\n", "      math:\n"))
    assert "math" in one_line_error(run_here("train", "--config", settings))


def test_an_alarm_may_watch_an_environment_but_no_evaluation_of_it(settings: Path) -> None:
    watched = "log.alarms=[{metric: env/math/%s, below: 0.1}]"
    assert load_config(settings, [watched % "success/mean"]).log.alarms[0].below == 0.1
    with pytest.raises(ConfigError, match="alarms watch training steps"):
        load_config(settings, [watched % "eval/t0/success"])


@pytest.mark.slow
def test_math_and_search_in_one_run_stopped_evaluated_and_reported(settings: Path, tmp_path: Path) -> None:
    command("train", "--config", settings, "run.name=straight")
    with pytest.raises(KeyboardInterrupt):
        config = load_config(settings, ["run.name=stopped"])
        with GRPOTrainer.from_config(config) as trainer:
            trainer.train(on_step=_stop_at_once)
    command("train", "--config", settings, "run.name=stopped")
    run = tmp_path / "runs/straight"
    told = outcome(run, 2)
    assert told == outcome(tmp_path / "runs/stopped", 2)
    for step in (1, 2):
        tasks = [episode["task_id"] for episode in told["samples"][f"step_0000{step}.jsonl.gz"]]
        assert [task.partition("/")[0] for task in tasks] == ["math"] * 2 + ["search"] * 2 + ["math"] * 2
    last = lasting_metrics(run)[-1]
    assert last["env/math/eval/t0/num_scored"] == last["env/search/eval/t0/num_scored"] == 2.0
    model, output = run / "checkpoints/step_00002", tmp_path / "eval"
    command("eval", "--config", run / "config.yaml", "--checkpoint", model, "--output-dir", output)
    by = json.loads((tmp_path / "eval/report.json").read_text())["summary"]["by"]["env"]
    assert {name: each["num_tasks"] for name, each in by.items()} == {"math": 2, "search": 2}
    about = dict(facts(read_run(run)))
    assert about["Environment math"].startswith("math_qa, weight 2, trained on dataset/math_tasks/train.jsonl")


def _stop_at_once(_step: int, _metrics: Any) -> None:
    raise KeyboardInterrupt
