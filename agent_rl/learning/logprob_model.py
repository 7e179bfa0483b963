"""What the trainer needs to know of drawn tokens, as one module: log-probs, entropies, values, KLs to a reference.

Being one module with one `forward`, it can be wrapped whole by whatever spreads a model over processes. Hidden states
are computed for all tokens of a flat micro-batch, logits for trained ones only. Without gradient it is what scores a
frozen reference. Not here: the loss, where the ids come from, generation.
"""

import copy
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_rl.algorithms.logprobs import Head, token_scores
from agent_rl.config import Config
from agent_rl.errors import ConfigError
from agent_rl.learning.critic import Critic, ValueHead
from agent_rl.learning.flat_model import FlatModel
from agent_rl.modeling.sharding import is_split
from agent_rl.records import Batch

LOGITS_AT_A_TIME = 2**24
"""Logits in one chunk on a CPU, as float32 64 MiB; the backward pass holds a few times as much."""


def logits_at_a_time(device_type: str) -> int:
    """Logits in one chunk; on a GPU four times as many as on a CPU."""
    return LOGITS_AT_A_TIME * (1 if device_type == "cpu" else 4)


class Scores(NamedTuple):
    """Of the batch's trained tokens, in its order; float32 [N]."""

    logprobs: Tensor
    """Log-prob of the id given all before it."""
    entropies: Tensor
    """Entropy in nats of what the id was drawn from."""
    values: Tensor | None
    """What the critic says of the state before the id; None without a critic."""
    full_kl: Tensor | None
    """KL in nats to the reference over the whole vocabulary; None without a reference."""


class LogprobModel(nn.Module):
    """`LogprobModel(model, temperature=1.0)(batch).logprobs`; holds the model's own weights."""

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        critic: ValueHead | Critic | None = None,
        entropy_gradient: bool = False,
        packed: bool | None = None,
    ) -> None:
        """A `ValueHead` reads the policy's hidden states, a `Critic` has a model of its own.

        `packed` as in `FlatModel`. ConfigError for a model whose logits are not those of a head on its backbone.
        """
        super().__init__()
        self.model = model
        self.critic = critic
        self._flat = FlatModel(model, packed=packed)
        self._temperature = temperature
        self._entropy_gradient = entropy_gradient

    @property
    def is_packed(self) -> bool:
        """Whether micro-batches run flat; if not, they should be planned for padded rows."""
        return self._flat.is_packed

    @property
    def backbone(self) -> nn.Module:
        """What computes the policy's hidden states."""
        return self._flat.backbone

    @property
    def head(self) -> nn.Module:
        """What makes logits of them."""
        return self._flat.head

    def forward(self, batch: Batch, ref: tuple[Tensor, Head] | None = None) -> Scores:
        """Scores of the batch's trained tokens; all tensors of the batch are on the model's device.

        The entropy carries a gradient only when asked for at construction. `ref` is what `rows` of a reference gave; it
        is read at this scorer's temperature. All ranks call the head equally often, whatever their share of trained
        tokens, because sharded weights are gathered by all at once; with none, gradients are 0 and not absent.
        """
        num_trained = len(batch.targets)
        most_rows = max(1, logits_at_a_time(batch.token_ids.device.type) // self._flat.vocab_size)
        num_calls = max(1, math.ceil(batch.most_trained / most_rows))
        chunk_size = max(1, math.ceil(num_trained / num_calls))
        chunk_size += self._flat.num_spare_rows(chunk_size)
        # Rows up to whole chunks: copies of the first token, cut off again below.
        num_extra = num_calls * chunk_size - num_trained
        hidden_Nd = self._flat.hidden_states(batch)[F.pad(batch.sources, (0, num_extra))]
        scores = token_scores(
            hidden_Nd,
            self._flat.logits,
            F.pad(batch.targets, (0, num_extra)),
            temperature=self._temperature,
            chunk_size=chunk_size,
            entropy_gradient=self._entropy_gradient,
            ref=None if ref is None else (F.pad(ref[0], (0, 0, 0, num_extra)), ref[1]),
        )
        values = None
        if self.critic is not None:
            values = self.critic(hidden_Nd[:num_trained] if isinstance(self.critic, ValueHead) else batch)
        return Scores(
            scores.logprobs[:num_trained],
            scores.entropies[:num_trained],
            values,
            None if ref is None else scores.full_kl[:num_trained],
        )

    @torch.no_grad()
    def rows(self, batch: Batch) -> tuple[Tensor, Head]:
        """As a reference: hidden states [N, d] from which the trained tokens were predicted, and the head for them."""
        return self._flat.hidden_states(batch)[batch.sources], self._flat.logits


def make_scorer(model: nn.Module, config: Config) -> LogprobModel:
    """The scorer that a configuration asks for, with a critic where its estimator needs values.

    ConfigError when the critic should be a copy of a model that is split.
    """
    critic: ValueHead | Critic | None = None
    if config.algorithm.advantage == "gae":
        is_own = config.critic.backbone == "own"
        if is_own and is_split(model):
            raise ConfigError(
                "critic.backbone = 'own' copies the model, which was loaded as shards (policy.type 'vllm' with ZeRO-3) "
                "and cannot be copied; use 'shared', or ZeRO-2"
            )
        critic = Critic(copy.deepcopy(model)) if is_own else ValueHead(FlatModel(model).hidden_size)
    return LogprobModel(
        model,
        temperature=config.policy.temperature,
        critic=critic,
        entropy_gradient=config.algorithm.entropy_coef != 0,
    )
