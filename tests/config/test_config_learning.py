"""The learning sections: keys that an algorithm does not read and combinations without sense are one sentence."""

import re
from pathlib import Path

import pytest

from agent_rl.config import Config, load_config
from agent_rl.errors import ConfigError

MINIMAL = """data: {train_path: a, eval_path: b}
model: {path: m}
env: {name: nat_agent_creation}
train: {steps: 3, learning_rate: 0.001}
"""
GAE = "algorithm.advantage=gae"


def load(folder: Path, *overrides: str) -> Config:
    path = folder / "c.yaml"
    path.write_text(MINIMAL)
    return load_config(path, overrides)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.gamma=0.9"], "gamma has no effect with advantage 'grpo', only with "),
        (["algorithm.advantage=rloo", "algorithm.scale_by_std=true"], "scale_by_std has no effect with advantage"),
        (["algorithm.advantage=gdpo"], "needs part_weights"),
        (
            [
                "algorithm.advantage=gdpo",
                "algorithm.part_weights={tools: 1}",
                "algorithm.overlong={buffer: 5, max_tokens: 10}",
            ],
            "overlong.buffer has no place",
        ),
        (["algorithm.advantage=maxrl", "algorithm.kl={coef: 0.1, place: reward}"], "kl.place 'reward'"),
        (["algorithm.advantage=maxrl", "algorithm.overlong={buffer: 5, max_tokens: 10}"], "overlong.buffer"),
        (
            ["algorithm.loss=cispo", "algorithm.dual_clip=3"],
            "dual_clip has no effect with loss 'cispo', only with 'ppo",
        ),
        (["algorithm.dual_clip=1"], "algorithm.dual_clip = 1: input should be greater than 1"),
        (["algorithm.kl.kind=k2"], "kind has no effect with coef 0"),
        (["algorithm.kl.coef=0.1", "algorithm.kl.kind=k1"], "kind 'k1' in the loss pulls towards nothing"),
        (["algorithm.kl.coef=0.1", "algorithm.kl.kind=kl"], "kind 'kl' in the loss pulls towards nothing"),
        (["algorithm.kl.coef=0.1", "algorithm.kl.horizon=5"], "horizon has no effect without a target"),
        (["algorithm.correction.high=3"], "high has no effect with kind 'none'"),
        (["algorithm.correction.kind=token_tis", "algorithm.correction.low=0.1"], "which has no lower end"),
        (["algorithm.correction={kind: token_mask, low: 1.1, high: 2.0}"], "leaves out 1"),
        (["algorithm.correction.kind=token_tis", "algorithm.clip_low=0.1"], "where the ratio is always 1"),
        (["algorithm.overlong.weight=2"], "weight has no effect with buffer 0"),
        (["algorithm.overlong={buffer: 20, max_tokens: 10}"], "buffer 20 is longer than max_tokens 10"),
        (["critic.coef=1"], "critic has no effect with algorithm.advantage 'grpo', only with 'gae'"),
        (["train.minibatches=17"], "train.minibatches is 17 but rollout.groups_per_step only 16"),
        (["train.schedule=constant", "train.final_learning_rate=0"], "final_learning_rate has no effect with schedule"),
        (["train.final_learning_rate=1"], "final_learning_rate 1 is above learning_rate 0.001"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(tmp_path: Path, overrides: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        load(tmp_path, *overrides)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [GAE, "algorithm.gamma=0.99", "algorithm.lam=0.9", "critic.backbone=shared"],
        ["algorithm.kl={coef: 0.1, kind: k1, place: reward, target: 0.05, horizon: 100}"],
        ["algorithm.correction.kind=token_tis", "algorithm.clip_low=0.1", "train.epochs=2"],
        ["algorithm.advantage=gdpo", "algorithm.part_weights={tools: 1.0}", "algorithm.loss=cispo"],
        ["algorithm.advantage=my_own", "algorithm.gamma=0.5", "algorithm.loss=my_loss", "algorithm.dual_clip=4"],
    ],
)
def test_what_makes_sense_loads_and_reads_back(tmp_path: Path, overrides: list[str]) -> None:
    config = load(tmp_path, *overrides)
    again = tmp_path / "again.yaml"
    again.write_text(config.to_yaml())
    assert load_config(again) == config
