"""docs/metrics.md names every metric that a run writes, and no other."""

import json
import re
from pathlib import Path

import pytest
from fakes import LETTER_TASKS, LetterEnv, save_tiny_model, tiny_config

from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.envs.base import EnvFactory
from agent_rl.telemetry.alarms import DEFAULT_ALARMS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
REQUIRED = ("always", "updates", "evaluations")
"""A row with another word in its last column needs an option or an event, and may be absent."""


def documented() -> dict[str, str]:
    """When each name of the tables is written."""
    tables, _alarms = DOCS.read_text(encoding="utf-8").split("## Alarms")
    rows = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \| ([^|]+) \|$", tables, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a name is documented twice"
    return dict(rows)


def matches(name: str, metric: str) -> bool:
    """`eval/t<temperature>/reward` stands for `eval/t0.7/reward`."""
    return re.fullmatch(re.sub(r"<\w+>", "[^/]+", name), metric) is not None


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names that a tiny run with evaluations and a curriculum writes."""
    folder = tmp_path_factory.mktemp("run")
    save_tiny_model(folder / "model")
    config = tiny_config(
        folder,
        train={"steps": 2},
        eval={"temperatures": [0.0, 0.7]},
        data={"curriculum": {"mode": "success"}},
    )
    tasks = [{**task, "level": 1} for task in LETTER_TASKS]
    with GRPOTrainer.from_config(
        config, env_factory=EnvFactory(LetterEnv), train_tasks=tasks, eval_tasks=tasks
    ) as trainer:
        trainer.train()
    lines = (folder / "runs/tiny/metrics.jsonl").read_text().splitlines()
    return {name for line in lines for name in json.loads(line)} - {"step"}


def test_every_metric_that_is_written_is_documented(written: set[str]) -> None:
    names = documented()
    assert {metric for metric in written if not any(matches(name, metric) for name in names)} == set()


def test_every_metric_that_is_documented_is_written(written: set[str]) -> None:
    required = [name for name, when in documented().items() if when in REQUIRED]
    assert len(required) > 30
    assert [name for name in required if not any(matches(name, metric) for metric in written)] == []


def test_the_default_alarms_watch_documented_metrics_and_are_documented() -> None:
    names, text = documented(), DOCS.read_text(encoding="utf-8")
    for rule in DEFAULT_ALARMS:
        assert rule.metric in names
        limit = f"below {rule.below:g}" if rule.above is None else f"above {rule.above:g}"
        assert re.search(rf"^\| `{rule.metric}` \| {limit}.* \| {rule.steps} steps \|", text, re.MULTILINE), rule
