"""Give a MiniMind another vocabulary: the layers stay, embeddings are made from those it has.

A token that both vocabularies have keeps its embedding; any other starts as the mean of the tokens that the old
tokenizer cuts its text into (Gee et al. 2022, "Fast Vocabulary Transfer for Language Model Compression").
Does not: train; the model has to be trained on before it is of use.
"""

from dataclasses import replace

import torch
from tokenizers import models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent_rl.errors import ConfigError
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.modeling.minimind_weights import EMBEDDING_KEY, HEAD_KEY


def check_vocabulary(old: PreTrainedTokenizerFast, where: str) -> None:
    """ConfigError for a tokenizer whose tokens are not made of bytes, so that a new token might have no parts."""
    backend = getattr(old, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.model, models.BPE) or _lacks_bytes(old):
        raise ConfigError(
            f"the tokenizer of {where} is no byte-level BPE, whose embeddings could be given to another; keep it"
        )


def _lacks_bytes(old: PreTrainedTokenizerFast) -> bool:
    return not set(pre_tokenizers.ByteLevel.alphabet()) <= old.get_vocab().keys()


@torch.no_grad()
def with_vocabulary(
    model: MiniMindForCausalLM, old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast, *, min_positions: int
) -> MiniMindForCausalLM:
    """A new model with the layers of `model`, for the ids of the byte-level BPE `new`; `old` is the model's own. Its
    window is at least `min_positions` tokens: rotary positions have no weights."""
    positions = max(model.config.max_position_embeddings, min_positions)
    config = replace(model.config, vocab_size=len(new), max_position_embeddings=positions)
    made = MiniMindForCausalLM(config).to(device=model.device, dtype=model.dtype)
    state, pieces = model.state_dict(), _pieces(old, new)
    for name in (EMBEDDING_KEY, HEAD_KEY):
        state[name] = torch.stack([state[name][ids].mean(0) for ids in pieces])
    made.load_state_dict(state)
    return made


def _pieces(old: PreTrainedTokenizerFast, new: PreTrainedTokenizerFast) -> list[list[int]]:
    """For each id of `new` the ids of `old` that stand for the same bytes."""
    known, bpe = old.get_vocab(), old.backend_tokenizer.model
    tokens = new.convert_ids_to_tokens(list(range(len(new))))
    return [[known[token]] if token in known else [piece.id for piece in bpe.tokenize(token)] for token in tokens]
