"""The same losses and gradient norms from one process and from several, with every way of spreading a model.

Several processes compute common prefixes once, the one does not.
"""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from distributed.ranks import start_ranks
from distributed.trace_run import count_traces
from fakes import save_tiny_model
from test_update import assert_same_metrics
from tiny_models import save_tiny_causal_lm
from updates import REPORT, report

SETTINGS = {"overlap_comm": False, "reduce_bucket_size": 5000, "stage3_param_persistence_threshold": 0}
"""Buckets smaller than the model, and every weight sharded."""

ALGORITHMS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "everything": {
        "algorithm": {
            "advantage": "gae",
            "kl": {"coef": 0.1, "kind": "k3", "target": 0.1, "horizon": 10},
            "correction": {"kind": "token_tis"},
            "entropy_coef": 0.01,
        },
        "critic": {"learning_rate": 1e-3},
        "train": {"epochs": 2, "minibatches": 2},
    },
}
ADAPTERS = {
    "policy": {"type": "huggingface"},
    "model": {"lora": {"rank": 4}},
    "algorithm": {"kl": {"coef": 0.1}},
    "train": {"epochs": 2},
}
"""The reference is the model without them, read through the trained module's own weights."""
SHARDS = {
    "policy": {"type": "vllm"},
    "algorithm": {"kl": {"coef": 0.1}, "entropy_coef": 0.01},
    "train": {"epochs": 2, "weight_decay": 0.1},
}
"""Model and reference are loaded as shards under ZeRO-3, which no process ever holds whole."""
PARKED = SHARDS | {"train": SHARDS["train"] | {"offload_while_sampling": True}}
WHOLE = {"policy": {"type": "vllm"}, "model": {"gradient_checkpointing": True}}
HALF_ADAPTERS = {
    "policy": {"type": "vllm"},
    "model": {"dtype": "bfloat16", "lora": {"rank": 4}},
    "train": {"autocast": "bfloat16", "learning_rate": 1e-2},
}
"""Adapters are float32 in one process, and bfloat16 with a float32 copy under ZeRO."""
HUGGING_FACE = {
    "adapters": ADAPTERS,
    "shards": SHARDS,
    "parked": PARKED,
    "whole": WHOLE,
    "half adapters": HALF_ADAPTERS,
}
SPREAD = ["ddp", "zero1", "zero2", "zero3"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    save_tiny_model(folder / "model")
    save_tiny_model(folder / "reference", seed=1)
    save_tiny_causal_lm(folder / "hugging_face" / "model")
    return folder


@functools.cache
def metrics_of(
    folder: Path, kind: str, num: int, algorithm: str, max_tokens: int, group_size: int = 3, sharing: int = 1
) -> list[dict[str, float]]:
    """Of rank 0, after a check that all ranks report the same; `sharing` processes share a micro-batch."""
    out = folder / f"{kind}_{num}_{algorithm}_{max_tokens}_{group_size}_{sharing}"
    out.mkdir()
    settings = None
    if kind.startswith("zero"):
        settings = out / "deepspeed.json"
        settings.write_text(json.dumps({"zero_optimization": SETTINGS | {"stage": int(kind[-1])}}))
    sections = HUGGING_FACE.get(algorithm) or ALGORITHMS[algorithm]
    folder = folder / "hugging_face" if algorithm in HUGGING_FACE else folder
    # One process computes every sample alone, several compute trees of their common prefixes.
    train = sections.get("train", {}) | {"micro_batch_tokens": max_tokens, "share_prefixes": kind != "plain"}
    train["sequence_parallel"] = sharing
    ranks = start_ranks(
        report, folder, out, sections | {"train": train}, group_size, folder=out, num=num, deepspeed_config=settings
    )
    codes = ranks.wait(timeout_s=110)
    assert codes == [0] * num, ranks.log(0)
    found = [json.loads((out / f"{rank}_{REPORT}").read_text()) for rank in range(num)]
    assert all(metrics == found[0] for metrics in found)
    return found[0]


@pytest.mark.parametrize("algorithm", [*ALGORITHMS])
@pytest.mark.parametrize("kind", SPREAD)
def test_two_processes_learn_what_one_does(folder: Path, kind: str, algorithm: str) -> None:
    alone = metrics_of(folder, "plain", 1, algorithm, 8192)
    assert_same_metrics(alone, metrics_of(folder, kind, 2, algorithm, 60))
    assert all(step["optim/grad_norm"] > 0 and step["optim/skipped"] == 0 for step in alone)


@pytest.mark.parametrize("kind", ["ddp", "zero3"])
def test_two_processes_learn_adapters_as_one_does(folder: Path, kind: str) -> None:
    alone = metrics_of(folder, "plain", 1, "adapters", 8192)
    assert_same_metrics(alone, metrics_of(folder, kind, 2, "adapters", 60))
    assert alone[0]["loss/kl"] > 0


@pytest.mark.parametrize("kind", ["ddp", "zero2", "zero3"])
def test_models_loaded_as_shards_learn_what_whole_ones_do(folder: Path, kind: str) -> None:
    alone = metrics_of(folder, "plain", 1, "shards", 8192)
    assert_same_metrics(alone, metrics_of(folder, kind, 2, "shards", 60))
    assert alone[-1]["loss/kl"] > 0


def test_chunks_of_logits_leave_the_order_in_which_deepspeed_gathers_weights_as_it_is(folder: Path) -> None:
    """Micro-batches of one to a dozen chunks: their head is called once each, so what comes next is always known."""
    out = folder / "traces"
    out.mkdir()
    (out / "deepspeed.json").write_text(json.dumps({"zero_optimization": SETTINGS | {"stage": 3}}))
    sections = {"policy": {"type": "vllm"}, "model": {"gradient_checkpointing": True}}
    sections["train"] = {"micro_batch_tokens": 15}
    ranks = start_ranks(
        *(count_traces, folder / "hugging_face", out, sections),
        **{"folder": out, "num": 2, "deepspeed_config": out / "deepspeed.json"},
    )
    assert ranks.wait(timeout_s=110) == [0, 0], ranks.log(0)
    found = json.loads((out / "0_traces.json").read_text())
    assert_same_metrics(metrics_of(folder, "plain", 1, "whole", 8192), found["metrics"])
    assert found["counts"].get("forgotten", 0) == 0, found["counts"]
    assert found["counts"]["known"] >= found["counts"]["passes"] - 2 >= 10, found["counts"]


@pytest.mark.parametrize("stage", [2, 3])
def test_adapters_on_a_bfloat16_model_are_sharded_and_learn_as_in_one_process(folder: Path, stage: int) -> None:
    alone = metrics_of(folder, "plain", 1, "half adapters", 8192)
    spread = metrics_of(folder, f"zero{stage}", 2, "half adapters", 60)
    assert alone[0]["optim/grad_norm"] == pytest.approx(spread[0]["optim/grad_norm"], rel=0.005)
    for one, other in zip(alone, spread, strict=True):
        assert one["optim/grad_norm"] == pytest.approx(other["optim/grad_norm"], rel=0.1)
        assert one["policy/entropy"] == pytest.approx(other["policy/entropy"], rel=0.01)


@pytest.mark.parametrize(("kind", "num"), [("plain", 1), ("ddp", 2), ("zero1", 2), ("zero2", 2), ("zero3", 2)])
def test_an_optimizer_that_is_parked_between_updates_learns_the_same(folder: Path, kind: str, num: int) -> None:
    assert_same_metrics(metrics_of(folder, "plain", 1, "shards", 8192), metrics_of(folder, kind, num, "parked", 60))


def test_a_critic_of_its_own_beside_a_model_loaded_as_shards_is_refused(folder: Path) -> None:
    out = folder / "critic_of_shards"
    out.mkdir()
    (out / "deepspeed.json").write_text(json.dumps({"zero_optimization": SETTINGS | {"stage": 3}}))
    sections = SHARDS | {"algorithm": {"advantage": "gae"}, "critic": {"learning_rate": 1e-3}}
    ranks = start_ranks(
        report, folder / "hugging_face", out, sections, folder=out, num=2, deepspeed_config=out / "deepspeed.json"
    )
    assert ranks.wait(timeout_s=60) == [1, 1]
    assert "ConfigError: critic.backbone = 'own' copies the model" in ranks.log(0)


@pytest.mark.parametrize("kind", ["ddp", "zero3"])
def test_large_micro_batches_whose_products_go_to_onednn_change_nothing(folder: Path, kind: str) -> None:
    small = metrics_of(folder, "plain", 1, "grpo", 200, 180)
    large = metrics_of(folder, "plain", 1, "grpo", 8192, 180)
    assert large[0]["batch/num_micro_batches"] == 1 < small[0]["batch/num_micro_batches"]
    assert_same_metrics(small, large)
    assert_same_metrics(small, metrics_of(folder, kind, 2, "grpo", 8192, 180))


@pytest.mark.parametrize(
    ("kind", "algorithm"), [("ddp", "everything"), ("zero3", "everything"), ("ddp", "adapters"), ("zero3", "shards")]
)
def test_two_processes_that_share_every_micro_batch_learn_what_one_does(
    folder: Path, kind: str, algorithm: str
) -> None:
    alone = metrics_of(folder, "plain", 1, algorithm, 8192)
    shared = metrics_of(folder, kind, 2, algorithm, 60, sharing=2)
    assert_same_metrics(alone, shared)
    assert [step["batch/num_loss_tokens"] for step in shared] == [step["batch/num_loss_tokens"] for step in alone]


@pytest.mark.slow
@pytest.mark.parametrize("sharing", [2, 4])
@pytest.mark.parametrize("kind", ["ddp", "zero1", "zero2", "zero3"])
def test_four_processes_that_share_micro_batches_learn_what_one_does(folder: Path, kind: str, sharing: int) -> None:
    """With 4 there are more processes than heads of keys and values, which are repeated."""
    alone = metrics_of(folder, "plain", 1, "shards", 8192)
    assert_same_metrics(alone, metrics_of(folder, kind, 4, "shards", 40, sharing=sharing))


@pytest.mark.slow
@pytest.mark.parametrize("kind", SPREAD)
def test_four_processes_learn_what_one_does(folder: Path, kind: str) -> None:
    alone = metrics_of(folder, "plain", 1, "everything", 8192)
    assert_same_metrics(alone, metrics_of(folder, kind, 4, "everything", 30))
