"""One step of learning: no metric of it depends on how it is cut, and every option has its effect."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import save_tiny_model, tiny_config
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from tiny_models import tiny_gemma4
from transformers import AutoModelForCausalLM, MambaConfig
from updates import learn, make_step, make_updater

from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.learning.logprob_model import LogprobModel, Scores
from agent_rl.learning.objective import Objective
from agent_rl.learning.packing import plan_micro_batches
from agent_rl.learning.samples import collect_samples
from agent_rl.learning.step_stats import Throughput
from agent_rl.modeling.minimind_weights import WEIGHTS_FILE
from agent_rl.records import Batch, TrajectoryGroup
from agent_rl.registry import ADVANTAGE_ESTIMATORS
from agent_rl.telemetry.flops import count_matmul_weights

COUNTS = ("batch/num_micro_batches", "batch/num_computed_tokens")
"""Metrics that say how a step was cut."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models in float64: Adam divides by small gradients, so a step makes much of their rounding."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(("model", "reference")):
        weights = save_tiny_model(folder / name, seed=seed) / WEIGHTS_FILE
        save_file({key: value.double() for key, value in load_file(weights).items()}, weights, {"format": "pt"})
    return folder


def assert_same_metrics(first: list[dict[str, float]], second: list[dict[str, float]]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - set(COUNTS):
            assert one[name] == pytest.approx(other[name], rel=2e-4, abs=2e-6, nan_ok=True), name


OPTIONS = {
    "advantage": [*ADVANTAGE_ESTIMATORS.builtin],
    "loss": [
        {},
        {"ratio_level": "sequence", "clip_low": 0.01, "clip_high": 0.01},
        {"dual_clip": 1.5},
        {"loss": "cispo"},
    ],
    "kl": [{}]
    + [{"coef": 0.2, "kind": kind, "place": "loss"} for kind in ("abs", "k2", "k3", "full")]
    + [{"coef": 0.2, "kind": kind, "place": "reward"} for kind in ("k1", "abs", "k2", "k3", "full")]
    + [{"coef": 0.2, "target": 0.1, "horizon": 10}],
    "correction": [{}, {"kind": "token_tis"}, {"kind": "sequence_tis", "high": 1.5}]
    + [{"kind": kind, "low": 0.8, "high": 1.3} for kind in ("token_mask", "sequence_mask", "geometric_mask")],
    "aggregation": ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"],
    "entropy_coef": [0.0, 0.01],
    "mask_truncated": [False, True],
    "overlong": [{}, {"buffer": 4, "max_tokens": 8}],
    "train": [{}, {"epochs": 2}, {"minibatches": 2}, {"epochs": 2, "minibatches": 3}],
}


def sections_of(options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    algorithm = {
        key: options[key]
        for key in ("advantage", "kl", "correction", "aggregation", "entropy_coef", "mask_truncated", "overlong")
    }
    if options["advantage"] == "gdpo":
        algorithm["part_weights"] = {"a": 1.0, "b": 0.5}
    return {"algorithm": algorithm | options["loss"], "train": options["train"]}


@pytest.mark.timeout(400)
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
@given(options=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in OPTIONS.items()}))
def test_no_metric_depends_on_the_micro_batches_whatever_the_algorithm(folder: Path, options: dict[str, Any]) -> None:
    sections = sections_of(options)
    try:
        tiny_config(folder, **sections)
    except (ConfigError, ValidationError):
        assume(False)
    if options["advantage"] == "gdpo":
        assume(options["kl"].get("place") != "reward")
    results = []
    for max_tokens, share in ((1, True), (40, True), (8192, True), (40, False)):
        train = sections["train"] | {"micro_batch_tokens": max_tokens, "share_prefixes": share}
        results.append(learn(folder, sections | {"train": train}, num_steps=2))
    for other in results[1:]:
        assert_same_metrics(results[0], other)
    assert results[2][0]["batch/num_computed_tokens"] < results[3][0]["batch/num_computed_tokens"]
    assert results[0][0]["optim/skipped"] == 0.0
    assert results[0][0]["batch/num_micro_batches"] > results[2][0]["batch/num_micro_batches"]


@pytest.mark.parametrize("advantage", ["grpo", "reinforce_plus_plus"])
def test_with_credit_by_turn_no_metric_depends_on_the_micro_batches(folder: Path, advantage: str) -> None:
    """Tokens that samples share are computed once, also where turns give them other advantages."""
    results = []
    for credit, max_tokens, share in (("turn", 40, True), ("turn", 8192, False), ("episode", 8192, False)):
        train = {"micro_batch_tokens": max_tokens, "share_prefixes": share}
        algorithm = {"advantage": advantage, "credit": credit}
        results.append(learn(folder, {"algorithm": algorithm, "train": train}, num_steps=2))
    assert_same_metrics(results[0], results[1])
    assert results[0][0]["optim/grad_norm"] != pytest.approx(results[2][0]["optim/grad_norm"], rel=1e-3)


def unscored(groups: list[TrajectoryGroup]) -> list[TrajectoryGroup]:
    return [
        replace(group, trajectories=tuple(replace(each, reward=None) for each in group.trajectories))
        for group in groups
    ]


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "opo", "reinforce_plus_plus", "gae", "remax"])
@pytest.mark.parametrize("kind", ["k1", "k3", "full"])
@pytest.mark.parametrize("groups", [[], unscored(make_step(0))], ids=["no group", "no score"])
def test_a_step_without_samples_is_skipped_with_a_kl_in_the_reward(
    folder: Path, advantage: str, kind: str, groups: list[TrajectoryGroup]
) -> None:
    kl = {"coef": 0.1, "kind": kind, "place": "reward"}
    updater = make_updater(folder, Backend("cpu"), tiny_config(folder, algorithm={"advantage": advantage, "kl": kl}))
    metrics = updater.update(groups, step=0).metrics
    assert (metrics["optim/skipped"], metrics["batch/num_samples"]) == (1.0, 0.0)


def test_an_idle_micro_batch_gives_a_gradient_of_0_to_every_score_that_has_one(folder: Path) -> None:
    samples = collect_samples(make_step(0)).samples
    _, (idle,) = plan_micro_batches(samples, [0], max_tokens=100, num_ranks=2, skip_zero_advantage=False)
    assert idle.samples == ()
    objective = Objective(tiny_config(folder, algorithm={"advantage": "gae", "entropy_coef": 0.01}))
    logprobs, entropies, values = (torch.zeros(0, requires_grad=True) for _ in range(3))
    scores = Scores(logprobs, entropies, values, full_kl=None)
    loss, parts = objective(scores, [], idle, kl_coef=0.0, is_critic_alone=False)
    assert (loss.item(), parts) == (0.0, {})
    loss.backward()
    assert all(score.grad is not None for score in (logprobs, entropies, values))


class HalfBlindReference:
    """Gives the first sample of a step log-probs that are no numbers."""

    def logprobs(self, batch: Batch) -> torch.Tensor:
        return torch.full((sum(batch.num_trained),), math.nan if 0 in batch.samples else -3.0)


def test_a_kl_that_is_not_finite_leaves_the_coefficient(folder: Path) -> None:
    """The update of the first minibatch is refused, that of the second applied, and the mean over both is NaN."""
    sections = {
        "algorithm": {"kl": {"coef": 0.2, "target": 0.1, "horizon": 100}},
        "train": {"minibatches": 2, "micro_batch_tokens": 1},
    }
    updater = make_updater(folder, Backend("cpu"), tiny_config(folder, **sections))
    updater._reference = HalfBlindReference()
    metrics = updater.update(make_step(0), step=0).metrics
    assert (metrics["optim/nonfinite"], metrics["optim/skipped"]) == (1.0, 0.0)
    assert math.isnan(metrics["loss/kl"])
    assert updater.state_dict()["kl"] == {"coefficient": 0.2}


def tiny_mamba() -> torch.nn.Module:
    return AutoModelForCausalLM.from_config(MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=64))


@pytest.mark.parametrize(("make_model", "width"), [(tiny_gemma4, 4 * 16), (tiny_mamba, 0)])
def test_attention_costs_what_the_largest_heads_say(
    make_model: Callable[[], torch.nn.Module], width: int, tmp_path: Path
) -> None:
    scorer = LogprobModel(make_model(), temperature=1.0)
    cost = Throughput(scorer, tiny_config(tmp_path), Backend("cpu")).attention_cost
    num_weights, _ = count_matmul_weights(scorer.backbone)
    assert cost == 12 * 2 * width / (6 * num_weights)
