"""Hidden states of a flat micro-batch, whatever the model is: MiniMind, a Hugging Face causal LM, adapters.

A model whose attention can be exchanged runs flat: no layer sees padding, a common prompt is computed once. Others get
the same batch as right-padded rows with prompts repeated; what comes out is the same. Not here: logits of ids, losses.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent_rl.errors import ConfigError
from agent_rl.modeling.hf_causal_lm import CausalParts, split_causal_lm
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.modeling.onednn import ROW_MULTIPLE, exchange_linear_layers, num_spare_rows
from agent_rl.modeling.packed_attention import PackedLayout
from agent_rl.modeling.sharding import full_shape
from agent_rl.records import Batch, Segment


class FlatModel:
    """`FlatModel(model).hidden_states(batch)`; holds the model, is none, so that names of weights stay the model's."""

    def __init__(self, model: nn.Module, *, packed: bool | None = None) -> None:
        """`packed` None: flat where the model can; False: always padded rows.

        ConfigError for a model whose logits are not those of a head on its backbone, or that cannot run flat but must.
        """
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
        if packed and not can:
            raise ConfigError(f"{type(self._parts.model).__name__} cannot run without padding; leave out packed=True")
        self.is_packed = can if packed is None else packed
        """False: a micro-batch costs its rows padded to the longest, prompts not shared; plan for that."""
        if self.is_packed and self._parts is not None:
            from agent_rl.modeling.hf_packed_attention import enable_packing

            enable_packing(self._parts.model)
        exchange_linear_layers(model)
        self.vocab_size, self.hidden_size = full_shape(self.head.weight)

    def hidden_states(self, batch: Batch) -> Tensor:
        """The normalised last hidden state of every token, [T, d]."""
        if not self.is_packed:
            tokens_SL, place_T = PackedLayout(batch.segments).padded(batch.token_ids.device)
            return self._rows(batch.token_ids[tokens_SL]).flatten(0, 1)[place_T]
        ids, positions, segments = batch.token_ids, batch.position_ids, batch.segments
        if num_spare := self.num_spare_rows(len(ids)):
            # A segment that nobody reads; its positions begin at 0 like any other's.
            ids = F.pad(ids, (0, num_spare))
            positions = torch.cat([positions, torch.arange(num_spare, device=positions.device)])
            segments = (*segments, Segment(len(batch.token_ids), num_spare))
        return self._packed(ids, positions, PackedLayout(segments))[: len(batch.token_ids)]

    def num_spare_rows(self, num_rows: int) -> int:
        """How many rows to add to so many, for fast products of the model's layers; never more than a quarter."""
        weight = self.head.weight
        return num_spare_rows(num_rows, weight.device, weight.dtype) if num_rows >= 4 * ROW_MULTIPLE else 0

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits [..., V] of hidden states [..., d]."""
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
