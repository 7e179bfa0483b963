"""Log-probs of the tokens a model drew, as one module: MiniMind or a Hugging Face causal LM behind one `forward`.

Being one module, it can be wrapped whole by whatever spreads a model over processes. Hidden states are computed for
all positions, logits for trained ones only. Not here: the loss, where the ids come from, generation.
"""

from torch import Tensor, nn

from agent_rl.algorithms.losses import chunked_logprobs
from model.hf_causal_lm import split_causal_lm
from model.model_minimind import MiniMindForCausalLM

_LOGITS_AT_A_TIME = 2**26
"""Logits held at the same time, as float32 256 MiB."""


class TokenScorer(nn.Module):
    """`logprobs_N, entropies_N = TokenScorer(model, temperature=1.0)(token_ids_BT, mask_BT)`; holds the model's own
    weights."""

    def __init__(self, model: nn.Module, *, temperature: float) -> None:
        """ConfigError for a model whose logits are not those of a head on its backbone."""
        super().__init__()
        self.model = model
        self._temperature = temperature
        self._parts = None if isinstance(model, MiniMindForCausalLM) else split_causal_lm(model)
        vocab_size = self._parts.vocab_size if self._parts else model.config.vocab_size
        self._chunk_size = max(1, _LOGITS_AT_A_TIME // vocab_size)

    def forward(self, token_ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Log-prob of every masked id given those before it, and entropy in nats of what it was drawn from.

        Ids are padded on the right; `mask_BT` is true on the ids that count, never in column 0. Both results are
        float32 [N], rows of the batch one after the other; the entropy carries no gradient.
        """
        # Position t predicts id t + 1.
        wanted_BT, targets_BT = mask_BT[:, 1:].bool(), token_ids_BT[:, 1:]
        return chunked_logprobs(
            self._hidden_states(token_ids_BT[:, :-1])[wanted_BT],
            self.model.logits if self._parts is None else self._parts.logits,
            targets_BT[wanted_BT],
            temperature=self._temperature,
            chunk_size=self._chunk_size,
        )

    def _hidden_states(self, token_ids_BT: Tensor) -> Tensor:
        """[B, T, d]. No mask is needed: causal attention never looks at padding on the right."""
        if self._parts is None:
            return self.model.hidden_states(token_ids_BT)
        return self._parts.backbone(input_ids=token_ids_BT, use_cache=False).last_hidden_state
