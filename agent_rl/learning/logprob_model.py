"""Log-probs, entropies, values and KLs of trained tokens, computed from a flat micro-batch by one module.

`LogprobModel` has one `forward`, so that it can be wrapped whole by whatever spreads a model over processes. Hidden
states are computed for all tokens, logits for trained ones only. Without gradient it computes a frozen reference.
`FlatModel` runs any model on a flat micro-batch: MiniMind, a Hugging Face causal LM, adapters.
Not here: the loss, where the ids come from, generation.
"""

import copy
import logging
import math
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_rl.algorithms.logit_kernels import has_kernels
from agent_rl.algorithms.logprobs import Head, TokenScores, head_scores, token_scores
from agent_rl.config import Config
from agent_rl.distributed.sequence import SequenceGroup, check_heads
from agent_rl.errors import ConfigError
from agent_rl.modeling.hf_causal_lm import CausalParts, head_shapes, split_causal_lm
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.modeling.onednn import ROW_MULTIPLE, exchange_linear_layers, num_spare_rows
from agent_rl.modeling.packed_attention import PackedLayout
from agent_rl.modeling.sharding import full_shape, is_split
from agent_rl.records import Batch, Segment

LOGITS_AT_A_TIME = 2**24
"""Logits in one chunk on a CPU, as float32 64 MiB; the backward pass holds a few times as much."""

_LOGGER = logging.getLogger(__name__)


@cache
def _say_padded(name: str, problem: str) -> None:
    _LOGGER.warning("%s does not run without padding (%s): its samples are padded to one length", name, problem)


def logits_at_a_time(device_type: str, *, in_place: bool = False) -> int:
    """Logits in one chunk; on a GPU 4 times as many as on a CPU, 16 times if their gradient takes their place."""
    return LOGITS_AT_A_TIME * (1 if device_type == "cpu" else 16 if in_place else 4)


class Scores(NamedTuple):
    """Of the batch's trained tokens, in its order; float32 [N]."""

    logprobs: Tensor
    """Log-prob of the id given all before it."""
    entropies: Tensor
    """Entropy in nats of the distribution of the id."""
    values: Tensor | None
    """The critic's value of the state before the id; None without a critic."""
    full_kl: Tensor | None
    """KL in nats to the reference over the whole vocabulary; None without a reference."""


class FlatModel:
    """`FlatModel(model).hidden_rows(batch)`; holds the model, is none, so that names of weights stay the model's."""

    def __init__(
        self,
        model: nn.Module,
        *,
        packed: bool | None = None,
        sequence: SequenceGroup | None = None,
        head_dtype: torch.dtype | None = None,
    ) -> None:
        """`packed` None: flat where the model can; False: always padded rows. `sequence`: who shares a micro-batch.

        `head_dtype` is the number format of the head's products; None: that of the rest. ConfigError for a model whose
        logits are not those of a head on its backbone, or that cannot run flat, or have its own format, but must.
        Whether a model can is tried with four tokens unless its weights are shards.
        """
        self.sequence, self._head_dtype = sequence, head_dtype
        self._parts: CausalParts | None = None
        if isinstance(model, MiniMindForCausalLM):
            self._minimind, self.backbone, self.head = model, model.model, model.lm_head
            can = True
        else:
            from agent_rl.modeling.hf_layers import exchange_layers
            from agent_rl.modeling.hf_packed_attention import can_pack

            self._parts = split_causal_lm(model)
            self.backbone, self.head = self._parts.backbone, self._parts.head
            can = can_pack(self._parts.model)
            exchange_layers(self.backbone)
        if sequence is not None:
            packed = True
            shape = model.config if self._parts is None else self._parts.model.config.get_text_config()
            for heads in set(head_shapes(shape)):
                check_heads(sequence.size, num_heads=heads.num_heads, num_kv_heads=heads.num_kv_heads)
        name = type(model if self._parts is None else self._parts.model).__name__
        if packed and not can:
            wanted = "train.sequence_parallel" if sequence is not None else "packed=True"
            raise ConfigError(f"{name} cannot run without padding; leave out {wanted}")
        self.is_packed = can if packed is None else packed
        """False: a micro-batch costs its rows padded to the longest, nothing is shared; plan for that."""
        if self.is_packed and self._parts is not None:
            from agent_rl.modeling.hf_packed_attention import enable_packing

            # A pass through shards is collective, and one of a shared micro-batch too.
            is_tried = sequence is None and not is_split(self._parts.model)
            if problem := enable_packing(self._parts, is_tried=is_tried):
                if packed:
                    raise ConfigError(f"{name} cannot run without padding ({problem}); leave out packed=True")
                _say_padded(name, problem)
                self.is_packed = False
        exchange_linear_layers(model)
        self.vocab_size, self.hidden_size = full_shape(self.head.weight)
        softcap = None if self._parts is None else self._parts.softcap
        self._is_linear = isinstance(self.head, nn.Linear) and softcap is None
        if head_dtype is not None and not self._is_linear:
            raise ConfigError("model.head_dtype: the output layer of this model is no plain linear one; leave it out")

    @property
    def scores_in_one_call(self) -> bool:
        """Whether `scores` calls the head's module once, however many rows there are.

        On a CPU only where weights are shards: every call gathers them, and DeepSpeed fetches ahead only as long as
        calls come in the same order. Without shards the chunks of `token_scores` are faster there (`onednn.py`).
        """
        weight = self.head.weight
        is_better = weight.device.type != "cpu" or hasattr(weight, "ds_shape") or self._head_dtype is not None
        return self._is_linear and is_better

    @property
    def scores_in_place(self) -> bool:
        """Whether `scores` needs no more of a chunk's logits than themselves (`algorithms/logit_kernels.py`)."""
        return self.scores_in_one_call and has_kernels(self.head.weight.device)

    def scores(self, hidden_rows: Tensor, targets: Tensor, **options: Any) -> TokenScores:
        """`token_scores` of these rows by the model's own head; `options` are those of `head_scores`."""
        is_one_chunk = len(targets) <= options["chunk_size"] and self._head_dtype is None
        if not self.scores_in_one_call or (is_one_chunk and not self.scores_in_place):
            return token_scores(hidden_rows, self.logits, targets, **options)

        def forward(hidden: Tensor) -> TokenScores:
            weight, bias = self.head.weight, self.head.bias
            return head_scores(hidden, weight, bias, targets, dtype=self._head_dtype, **options)

        # Through the module's own call, around which DeepSpeed gathers its weights.
        own = vars(self.head).get("forward")
        self.head.forward = forward
        try:
            return self.head(hidden_rows)
        finally:
            del self.head.forward
            if own is not None:
                self.head.forward = own

    def hidden_rows(self, batch: Batch) -> tuple[Tensor, Tensor, list[int]]:
        """The normalised last hidden states [P, d] of the batch's sources, and their targets.

        Where processes share the batch, of the sources in this one's part; the last list is how many each process has.
        """
        sources, targets = batch.sources, batch.targets
        if self.sequence is None:
            return self._hidden_states(batch)[sources], targets, [len(targets)]
        num_tokens = len(batch.token_ids) + self._num_spare(len(batch.token_ids))
        ends = torch.tensor([self.sequence.span(num_tokens, rank)[1] for rank in range(self.sequence.size)])
        # Sources are in order.
        places = [0, *torch.searchsorted(sources, ends.to(sources.device)).tolist()]
        own = slice(*places[self.sequence.rank : self.sequence.rank + 2])
        first, _ = self.sequence.span(num_tokens)
        counts = [end - start for start, end in pairwise(places)]
        return self._hidden_states(batch)[sources[own] - first], targets[own], counts

    def gathered(self, columns: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Columns of `hidden_rows`' rows as those of the whole batch."""
        if self.sequence is None:
            return list(columns)
        return list(self.sequence.gather(torch.stack(list(columns), dim=1), counts).unbind(dim=1))

    def _hidden_states(self, batch: Batch) -> Tensor:
        """Of every token [T, d], or of those of this process's part."""
        if not self.is_packed:
            tokens_SL, place_T = PackedLayout(batch.segments).padded(batch.token_ids.device)
            return self._rows(batch.token_ids[tokens_SL]).flatten(0, 1)[place_T]
        ids, positions, segments = batch.token_ids, batch.position_ids, batch.segments
        if num_spare := self._num_spare(len(ids)):
            # A segment that is never read; its positions begin at 0 like any other's.
            ids = F.pad(ids, (0, num_spare))
            positions = torch.cat([positions, torch.arange(num_spare, device=positions.device)])
            segments = (*segments, Segment(len(batch.token_ids), num_spare))
        if self.sequence is not None:
            own = slice(*self.sequence.span(len(ids)))
            ids, positions = ids[own], positions[own]
        return self._packed(ids, positions, PackedLayout(segments, self.sequence))

    def _num_spare(self, num_tokens: int) -> int:
        if self.sequence is not None:
            return -num_tokens % self.sequence.size
        return self.num_spare_rows(num_tokens)

    def num_spare_rows(self, num_rows: int) -> int:
        """How many rows to add to so many, for fast products of the model's layers; never more than a quarter."""
        weight = self.head.weight
        return num_spare_rows(num_rows, weight.device, weight.dtype) if num_rows >= 4 * ROW_MULTIPLE else 0

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [..., V] of hidden states [..., d]."""
        if self._head_dtype is not None:
            weight, bias = self.head.weight.to(self._head_dtype), self.head.bias
            with torch.autocast(hidden.device.type, enabled=False):
                return F.linear(hidden.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))
        return self.head(hidden) if self._parts is None else self._parts.logits(hidden)

    def _packed(self, ids_T: Tensor, positions_T: Tensor, layout: PackedLayout) -> Tensor:
        if self._parts is None:
            return self._minimind.hidden_states(ids_T[None], positions_T[None], layout=layout)[0]
        from agent_rl.modeling.hf_packed_attention import packed_hidden_states

        return packed_hidden_states(self._parts, ids_T, positions_T, layout)

    def _rows(self, token_ids_SL: Tensor) -> Tensor:
        """[S, L, d]. No mask is needed: causal attention never looks at padding on the right."""
        if self._parts is None:
            return self._minimind.hidden_states(token_ids_SL)
        return self._parts.backbone(input_ids=token_ids_SL, use_cache=False).last_hidden_state


class ValueHead(nn.Module):
    """`ValueHead(256)(hidden_Nd)`; gives 0 until it is trained, so that a fresh critic changes no advantage."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(hidden_size, 1)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, hidden_Nd: Tensor) -> Tensor:
        """Values, float32 [N], computed in the precision of the head's weights whatever autocast is."""
        weight = self.linear.weight
        with torch.autocast(weight.device.type, enabled=False):
            return self.linear(hidden_Nd.to(weight.dtype))[:, 0].float()


class Critic(nn.Module):
    """A value head on a model of its own, as a rule a copy of the policy: `Critic(model)(batch)`."""

    def __init__(self, model: nn.Module, *, packed: bool | None = None, sequence: SequenceGroup | None = None) -> None:
        """Takes the model over; its output head is frozen unless its weights are the embedding's as well."""
        super().__init__()
        self.model = model
        self._flat = FlatModel(model, packed=packed, sequence=sequence)
        self.value_head = ValueHead(self._flat.hidden_size).to(self._flat.head.weight.device)
        used = {id(parameter) for parameter in self._flat.backbone.parameters()}
        for parameter in self._flat.head.parameters():
            parameter.requires_grad_(parameter.requires_grad and id(parameter) in used)

    def forward(self, batch: Batch) -> Tensor:
        """Values of the batch's trained tokens, float32 [N]."""
        hidden, _, counts = self._flat.hidden_rows(batch)
        (values,) = self._flat.gathered([self.value_head(hidden)], counts)
        return values[batch.predictions]


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
        sequence: SequenceGroup | None = None,
        head_dtype: torch.dtype | None = None,
    ) -> None:
        """A `ValueHead` reads the policy's hidden states, a `Critic` has a model of its own.

        `packed`, `sequence` and `head_dtype` as in `FlatModel`. ConfigError for a model whose logits are not those of a
        head on its backbone.
        """
        super().__init__()
        self.model = model
        self.critic = critic
        self._flat = FlatModel(model, packed=packed, sequence=sequence, head_dtype=head_dtype)
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

        The entropy carries a gradient only when requested at construction. `ref` is what `rows` of a reference gave; it
        is read at this scorer's temperature. Where its weights are shards, all ranks call the head equally often in
        every micro-batch, whatever their share of trained tokens; with none, gradients are 0 and not absent.
        """
        hidden_Pd, targets, counts = self._flat.hidden_rows(batch)
        num_predicted = len(targets)
        in_place = ref is None and self._flat.scores_in_place
        most_rows = max(1, logits_at_a_time(hidden_Pd.device.type, in_place=in_place) // self._flat.vocab_size)
        # Every call of a head that is not computed in one gathers its shards.
        is_gathered = hasattr(self._flat.head.weight, "ds_shape") and (ref or not self._flat.scores_in_one_call)
        num_calls = max(1, math.ceil((batch.most_trained if is_gathered else num_predicted) / most_rows))
        chunk_size = max(1, math.ceil(num_predicted / num_calls))
        chunk_size += self._flat.num_spare_rows(chunk_size)
        # Up to whole chunks by rows that are never read below.
        padding = (0, 0, 0, num_calls * chunk_size - num_predicted)
        options = {
            "temperature": self._temperature,
            "chunk_size": chunk_size,
            "entropy_gradient": self._entropy_gradient,
        }
        rows, targets = F.pad(hidden_Pd, padding), F.pad(targets, padding[2:])
        if ref is None:
            scores = self._flat.scores(rows, targets, **options)
        else:
            padded = (F.pad(ref[0], padding), ref[1])
            scores = token_scores(rows, self._flat.logits, targets, ref=padded, **options)
        columns = {name: column[:num_predicted] for name, column in scores._asdict().items() if column is not None}
        if isinstance(self.critic, ValueHead):
            columns["values"] = self.critic(hidden_Pd)
        whole = dict(zip(columns, self._flat.gathered(list(columns.values()), counts), strict=True))
        found = {name: column[batch.predictions] for name, column in whole.items()}
        if isinstance(self.critic, Critic):
            found["values"] = self.critic(batch)
        return Scores(found["logprobs"], found["entropies"], found.get("values"), found.get("full_kl"))

    @torch.no_grad()
    def states_and_head(self, batch: Batch) -> tuple[Tensor, Head]:
        """As a reference: hidden states [P, d] of the batch's predictions (`hidden_rows`), and the head for them."""
        return self._flat.hidden_rows(batch)[0], self._flat.logits


def head_dtype_of(config: Config) -> torch.dtype | None:
    return None if config.model.head_dtype is None else getattr(torch, config.model.head_dtype)


def make_logprob_model(model: nn.Module, config: Config, sequence: SequenceGroup | None = None) -> LogprobModel:
    """The configured scorer, with a critic where its estimator needs values.

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
        critic = Critic(copy.deepcopy(model), sequence=sequence) if is_own else ValueHead(FlatModel(model).hidden_size)
    return LogprobModel(
        model,
        temperature=config.policy.temperature,
        critic=critic,
        entropy_gradient=config.algorithm.entropy_coef != 0,
        sequence=sequence,
        head_dtype=head_dtype_of(config),
    )
