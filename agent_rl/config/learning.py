"""The sections about how a policy learns: credit, loss, critic, optimizer. Not here: what `algorithms/` computes."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from agent_rl.config.base import Fraction, Positive, Section
from agent_rl.config.functions import options_for, unread_keys
from agent_rl.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES

NonNegative = Annotated[float, Field(ge=0.0)]
AboveZero = Annotated[float, Field(gt=0.0)]
BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]


class KLConfig(Section):
    """A pull towards the model that the run started from."""

    coef: NonNegative = 0.0
    """Weight of the penalty; 0 needs no reference model. With adapters `model.path` has to be a whole model."""
    kind: Literal["k1", "abs", "k2", "k3", "full", "kl", "mse", "low_var_kl"] = "k3"
    """Estimate of the divergence; `kl`, `mse` and `low_var_kl` are other names of k1, k2 and k3, `full` is exact."""
    place: Literal["loss", "reward"] = "loss"
    """`loss` adds it to the loss of every trained token, `reward` subtracts it from the token's reward."""
    target: AboveZero | None = None
    """Divergence per token that an adaptive coefficient steers to; null keeps `coef` fixed."""
    horizon: Positive = 10_000
    """Episodes over which the adaptive coefficient would change by a fifth at most."""

    def keys_without_effect(self) -> Mapping[str, str]:
        if self.coef == 0.0:
            return dict.fromkeys(("kind", "place", "target", "horizon"), "with coef 0")
        return {"horizon": "without a target"} if self.target is None else {}

    @model_validator(mode="after")
    def _check_gradient(self) -> "KLConfig":
        if self.coef and self.place == "loss" and self.kind in ("k1", "kl"):
            raise ValueError(
                f"kind {self.kind!r} in the loss pulls towards nothing (its expected gradient is 0); use k2, k3 or "
                "full, or place 'reward'"
            )
        return self


class CorrectionConfig(Section):
    """Weights that correct for a sampler whose probabilities are not quite the trainer's."""

    kind: Literal["none", "token_tis", "token_mask", "sequence_tis", "sequence_mask", "geometric_mask"] = "none"
    """`*_tis` cut a weight off at `high`, `*_mask` set it to 0 outside `low` to `high`; `sequence_*` take the product
    over a sample's trained tokens, `geometric_mask` the geometric mean."""
    low: NonNegative = 0.5
    """Least ratio trainer / sampler that counts."""
    high: AboveZero = 2.0
    """Largest ratio trainer / sampler that counts."""

    def keys_without_effect(self) -> Mapping[str, str]:
        if self.kind == "none":
            return dict.fromkeys(("low", "high"), "with kind 'none'")
        return {"low": f"with kind {self.kind!r}, which has no lower end"} if self.kind.endswith("_tis") else {}

    @model_validator(mode="after")
    def _check_range(self) -> "CorrectionConfig":
        if self.kind.endswith("_mask") and not self.low < 1.0 < self.high:
            raise ValueError(f"low {self.low} to high {self.high} leaves out 1, where trainer and sampler agree")
        return self


class OverlongConfig(Section):
    """A penalty that grows over the last tokens before a length (DAPO)."""

    buffer: Annotated[int, Field(ge=0)] = 0
    """Tokens over which the penalty grows from 0 to `weight`; 0 is no penalty."""
    max_tokens: Positive = 1024
    """Sampled tokens of an episode from which on it is full."""
    weight: AboveZero = 1.0
    """Largest penalty, subtracted from the episode's reward."""

    def keys_without_effect(self) -> Mapping[str, str]:
        return {} if self.buffer else dict.fromkeys(("max_tokens", "weight"), "with buffer 0")

    @model_validator(mode="after")
    def _check_buffer(self) -> "OverlongConfig":
        if self.buffer > self.max_tokens:
            raise ValueError(f"buffer {self.buffer} is longer than max_tokens {self.max_tokens}")
        return self


class AlgorithmConfig(Section):
    advantage: str = "grpo"
    """`grpo`, `rloo`, `remax`, `reinforce_plus_plus`, `reinforce_plus_plus_baseline`, `gdpo`, `gae`, `opo`, `maxrl`,
    `pass_at_k`, the name of a registered estimator, or an import path."""
    credit: Literal["episode", "turn"] = "episode"
    """`episode`: the rewards of all turns are one outcome, which every trained token has its share of; `turn`: what a
    turn before the last earned counts for the tokens of this turn and of those before it alone."""
    turn_weight: NonNegative = 1.0
    """Weight of the rewards of turns beside the outcome, with estimators that compare the episodes of a group."""
    scale_by_std: bool = True
    """Divide group-centred rewards by the group's standard deviation; Dr. GRPO does not."""
    min_std: Annotated[float, Field(ge=0.0)] = 0.0
    """Divide by this where the standard deviation is smaller, in rewards: groups that hardly differ count less."""
    gamma: Fraction = 1.0
    """Discount per trained token."""
    lam: Fraction = 0.95
    """Weight of longer returns in generalised advantage estimation."""
    part_weights: dict[str, float] = Field(default_factory=dict)
    """Reward parts that `gdpo` normalises one by one, with their weights."""
    loss: str = "ppo_clip"
    """`ppo_clip`, `cispo`, the name of a registered loss, or an import path."""
    ratio_level: Literal["token", "sequence"] = "token"
    """Ratio of each token, or one for all trained tokens of a sample, their geometric mean (GSPO)."""
    clip_low: Annotated[float, Field(gt=0.0, le=1.0)] = 0.2
    """Lower clip of the policy ratio."""
    clip_high: AboveZero = 0.28
    """Upper clip of the policy ratio."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = None
    """Bound of the loss of tokens with negative advantage, in advantages; null: none."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"] = (
        "token_mean"
    )
    """How token losses become one number, over the whole step; `_norm` divides by `policy.max_context`."""
    entropy_coef: float = 0.0
    """Weight of an entropy bonus in the loss."""
    kl: KLConfig = KLConfig()
    correction: CorrectionConfig = CorrectionConfig()
    overlong: OverlongConfig = OverlongConfig()
    mask_truncated: bool = False
    """Leave episodes that were cut off out of the loss; their rewards still count in their group."""

    options: dict[str, Any] = Field(default_factory=dict)
    """Further options of the estimator and the loss, by name: `{eps: 1e-4}`; checked against their signatures."""

    def estimator_options(self) -> dict[str, Any]:
        """The options that the estimator gets; ConfigError for an unknown one."""
        return options_for(self, ADVANTAGE_ESTIMATORS, self.advantage)

    def loss_options(self) -> dict[str, Any]:
        """The options that the loss gets; ConfigError for an unknown one."""
        return options_for(self, POLICY_LOSSES, self.loss)

    def keys_to_omit(self) -> Iterable[str]:
        return unread_keys(self)

    def keys_without_effect(self) -> Mapping[str, str]:
        return {} if self.credit == "turn" else {"turn_weight": "with credit 'episode'"}

    @model_validator(mode="after")
    def _check_parts(self) -> "AlgorithmConfig":
        if self.advantage == "gdpo" and not any(self.part_weights.values()):
            raise ValueError("advantage 'gdpo' needs part_weights; add reward parts and weights, {tools: 1.0}")
        if self.advantage == "gdpo" and self.kl.coef and self.kl.place == "reward":
            raise ValueError(
                "advantage 'gdpo' normalises reward parts one by one, where a KL has no place; put the KL into the loss"
            )
        if self.advantage == "gdpo" and self.overlong.buffer:
            raise ValueError(
                "advantage 'gdpo' normalises reward parts one by one, where overlong.buffer has no place; set it to 0, "
                "or choose another advantage"
            )
        if self.advantage == "maxrl" and (penalty := self._reward_penalty()):
            raise ValueError(
                f"advantage 'maxrl' divides by a group's mean reward, which {penalty} can make negative; "
                "choose another advantage, or remove it"
            )
        return self

    def _reward_penalty(self) -> str:
        """The key of what is subtracted from rewards; empty where nothing is."""
        if self.kl.coef and self.kl.place == "reward":
            return "kl.place 'reward'"
        return "overlong.buffer" if self.overlong.buffer else ""


class CriticConfig(Section):
    """The value function of `algorithm.advantage: gae`."""

    backbone: Literal["shared", "own"] = "own"
    """`own` trains a second copy of the model under the value head, `shared` puts the head on the policy's."""
    learning_rate: AboveZero = 1e-5
    """Peak learning rate of the critic; it follows the policy's schedule."""
    coef: AboveZero = 0.5
    """Weight of the value loss beside the policy's."""
    value_clip: AboveZero | None = 0.2
    """How far a value may move in one step and still be pulled further; null: any distance."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """First steps in which only the critic learns."""


class TrainConfig(Section):
    steps: Positive
    """Steps: rollouts, then `epochs * minibatches` optimizer steps."""
    learning_rate: AboveZero
    """Peak learning rate."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """How the learning rate falls to `final_learning_rate` after the warm-up."""
    final_learning_rate: NonNegative = 0.0
    """Learning rate that the last step comes close to."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from 0."""
    epochs: Positive = 1
    """Times that a step's episodes are learned from."""
    minibatches: Positive = 1
    """Parts of a step's episodes, each with an optimizer step of its own."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.99)
    """AdamW moments."""
    weight_decay: NonNegative = 0.0
    """AdamW weight decay."""
    max_grad_norm: AboveZero = 1.0
    """Gradient clipping by total norm, a critic's gradient included."""
    micro_batch_tokens: Positive = 8192
    """Most tokens in one forward and backward pass of one process; a longer sample gets a pass of its own."""
    offload_while_sampling: bool = False
    """Move the optimizer's state to the machine's memory while an engine inside the process samples."""
    sequence_parallel: Positive = 1
    """Processes that share every micro-batch, each with a part of its tokens, for samples too long for one GPU. It
    divides their number and the attention heads."""
    share_prefixes: bool = True
    """Compute once what samples of a micro-batch have in common from their start on."""
    autocast: Literal["none", "bfloat16"] = "none"
    """Number format of matrix products in the trainer's forward and backward."""

    def keys_without_effect(self) -> Mapping[str, str]:
        return {"final_learning_rate": "with schedule 'constant'"} if self.schedule == "constant" else {}

    @model_validator(mode="after")
    def _check_final(self) -> "TrainConfig":
        if self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate {self.final_learning_rate:g} is above learning_rate {self.learning_rate:g}"
            )
        return self
