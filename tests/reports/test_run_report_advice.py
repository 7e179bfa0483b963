"""Recommendations together: none against another, and every named key can be changed in that run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_run_report_rules import CASES, HELD_OUT, evidence_of, recommended

from agent_rl.config import load_config
from agent_rl.errors import ConfigError
from agent_rl.reports.run.data import flatten
from agent_rl.reports.run.evidence import HeldOut, Recommendation
from agent_rl.reports.run.recommendations import recommend, without_contradictions

FLAT = {"reward/mean": [0.2, 0.4] * 30}


@pytest.mark.parametrize(
    "why",
    [
        {"policy/entropy": [0.3] * 40 + [0.004] * 20},
        {"loss/clip_frac": [0.3] * 60},
        {"rollout/tool_calls_per_turn": [0.9] * 40 + [0.05] * 20},
        {"optim/grad_norm": [0.2] * 57 + [5.0, 8.0, 6.0]},
        {"mismatch/k3": [0.02] * 60},
        {"success/mean": [0.95] * 60},
    ],
)
def test_a_higher_learning_rate_is_not_advised_where_something_else_explains_a_flat_reward(why):
    assert "no progress" in recommended(FLAT)
    assert "no progress" not in recommended(FLAT | why)


def test_more_steps_are_not_advised_where_held_out_tasks_fall_behind():
    rising = {
        "reward/mean": [0.2 + 0.01 * step for step in range(60)],
        "success/mean": [0.2 + 0.01 * step for step in range(60)],
    }
    held_out = (HeldOut(0, 40, 200), HeldOut(60, 44, 200))
    assert list(recommended(rising, held_out=held_out)) == ["held-out behind training"]


def test_a_budget_is_not_raised_and_lowered_at_once():
    slow = {"time/rollout_s": [14.0] * 60, "time/update_s": [1.0] * 60, "time/episode_s_mean": [2.0] * 60}
    both = recommended(slow | {"rollout/truncated_share": [0.3] * 60, "rollout/stop/max_turns": [0.3] * 60})
    assert both["cut off"].keys["rollout.max_turns"] == "raise"
    assert both["slow rollouts"].keys == {"rollout.episode_timeout_s": "lower"}


def test_a_later_recommendation_gives_way_to_an_earlier_one():
    def one(rule, **keys):
        return Recommendation(rule=rule, severity="hint", figure="", advice="", keys=keys)

    first = one("first", a="lower", b="set")
    second, third = one("second", c="raise", a="raise", b="set"), one("third", a="raise", d="raise")
    assert without_contradictions([first, second, third]) == [first, one("second", c="raise", b="set")]


BEHIND = (HeldOut(0, 40, 200), HeldOut(60, 44, 200))


@given(st.lists(st.sampled_from(CASES), min_size=1, max_size=4), st.sampled_from([HELD_OUT, BEHIND]))
def test_no_two_recommendations_turn_one_key_against_each_other(cases, held_out):
    """Runs with several cases of the rules' tests at once."""
    metrics = {name: values for changed, _, _ in cases for name, values in changed.items()}
    found = recommended(metrics, held_out=held_out).values()
    turned = {(key, turn) for each in found for key, turn in each.keys.items()}
    assert not {key for key, turn in turned if turn == "raise"} & {key for key, turn in turned if turn == "lower"}


SETS: dict[str, Any] = {
    "model.dtype": "float32",
    "train.autocast": "bfloat16",
    "algorithm.correction.kind": "token_tis",
    "algorithm.aggregation": "seq_mean_token_sum",
    "algorithm.overlong.max_tokens": 4096,
    "data.curriculum.mode": "success",
    "data.curriculum.stages": "[{until_step: 10, max_level: 1}]",
}
"""Values for keys that are neither raised nor lowered."""
FREE = ("env.options", "tools.use", "model.path", "agent.type", "data.train_path", "checkpoint.resume", "log.alarms")
"""Keys that hold names and paths: the right value depends on the run."""
CHANGES = [
    {},
    {"policy.type": "vllm"},
    {"policy.type": "vllm", "vllm.servers": "[http://127.0.0.1:8000]"},
    {"policy.type": "vllm", "algorithm.correction.kind": "token_tis", "rollout.max_staleness": 1},
    {"algorithm.advantage": "reinforce_plus_plus"},
    {"algorithm.aggregation": "seq_mean_token_mean", "algorithm.overlong.buffer": 64},
    {"data.curriculum.mode": "success", "train.schedule": "constant"},
    {"data.curriculum.mode": "stages", "data.curriculum.stages": SETS["data.curriculum.stages"]},
    {"train.epochs": 2, "train.minibatches": 2, "train.autocast": "bfloat16", "model.dtype": "bfloat16"},
    {"rollout.max_attempts": 3, "eval.every": 10, "rollout.async_workers": 4, "policy.max_batch_size": 4},
]


def turned(now: Any, turn: str, key: str) -> Any:
    """Another value for a key: twice or half of it, and a whole number where it is one; a share stays below 1."""
    if turn == "set":
        return SETS[key] if SETS[key] != now else "none"
    if turn == "raise":
        return (1 + now) / 2 if key == "data.curriculum.threshold" else 2 * now or 1
    return now // 2 if isinstance(now, int) else now / 2


def recommendations(settings: dict[str, Any]) -> list[Recommendation]:
    """All recommendations for the cases of the rules' tests and for held-out tasks that fall behind, each once."""
    behind = {"success/mean": [0.3] * 30 + [0.6] * 30}, BEHIND
    cases = [*((changed, HELD_OUT) for changed, _, _ in CASES), behind]
    found = [
        each
        for changed, held_out in cases
        for each in recommend(evidence_of(changed, held_out=held_out, settings=settings))
    ]
    return list({(each.rule, *each.keys.items()): each for each in found}.values())


BASE = """
data: {train_path: train.jsonl, eval_path: eval.jsonl}
model: {path: model/nat_minimind}
env: {name: nat_agent_creation, options: {checkers: 2}}
rollout: {group_size: 8, groups_per_step: 12}
train: {steps: 60, learning_rate: 2.0e-4}
"""
"""Unset keys are not in it: with a correction and one update a step, for one, a clip would be refused."""


def load(folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run with these values, flat. ConfigError where one of them has no effect."""
    (folder / "config.yaml").write_text(BASE, encoding="utf-8")
    config = load_config(folder / "config.yaml", [f"{key}={value}" for key, value in values.items()])
    return flatten(config.model_dump(mode="json"))


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: " ".join(changes) or "defaults")
def test_every_recommended_key_is_accepted_and_changes_something(tmp_path: Path, changes: dict[str, Any]) -> None:
    settings = load(tmp_path, changes)
    found = recommendations(settings)
    assert len(found) > 15
    for each in found:
        keys = {key: turn for key, turn in each.keys.items() if key not in FREE}
        new = {key: turned(settings.get(key), turn, key) for key, turn in keys.items()}
        assert [key for key, value in new.items() if settings.get(key) == value] == [], each.rule
        load(tmp_path, changes | new)


def test_a_key_without_effect_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rollout\.max_attempts has no effect"):
        load(tmp_path, {"algorithm.advantage": "reinforce_plus_plus", "rollout.max_attempts": 2})
