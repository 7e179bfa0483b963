"""The tokenizer and the model that a warm start on demonstrations begins with.

New ones, those of a folder, or the layers of a folder with another tokenizer, or with its own and more words. Not here:
how merges are found (`agent/phrase_bpe.py`), what becomes of embeddings (`new_vocabulary.py`), training (`sft.py`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast

from agent_rl.agent.chat_format import make_chat_format
from agent_rl.agent.phrase_bpe import as_pretrained, split_blanks_before_names, train_phrase_bpe, with_more_words
from agent_rl.config import AgentType
from agent_rl.envs.demonstrations import Demonstration
from agent_rl.errors import ConfigError, DataError
from agent_rl.learning.new_vocabulary import check_vocabulary, with_vocabulary
from agent_rl.learning.sft import render_conversation
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM
from agent_rl.policies.minimind_policy import load_tokenizer

MAX_POSITIONS = 4096
PHRASE_SHARE_OF_KIND = 0.3
"""A name, an operation or a unit is in up to a quarter of the documents of one family, and has to stay apart."""
PHRASE_DOCUMENTS_OF_KINDS = 1200


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """Options of `train_sft.py` by their names; ConfigError for those that do not go together."""

    agent_type: AgentType
    init_from: Path | None
    new_tokenizer: bool
    more_words: int
    names_apart: bool
    hidden_size: int
    num_layers: int

    def __post_init__(self) -> None:
        """Before minutes are spent on it."""
        if self.new_tokenizer or self.more_words:
            self._check_change()
        if self.init_from and not self.new_tokenizer:
            self._try_options(load_tokenizer(self.init_from))

    def _try_options(self, tokenizer: PreTrainedTokenizerFast) -> None:
        option = f"--more-words {self.more_words}"
        try:
            if self.more_words:
                with_more_words(tokenizer.backend_tokenizer, [], 0)
            option = "--names-apart"
            if self.names_apart:
                split_blanks_before_names(tokenizer.backend_tokenizer)
        except DataError as error:
            raise ConfigError(f"{option} with --init-from {self.init_from}: {error}; leave it out") from None

    def _check_change(self) -> None:
        words = f"--more-words {self.more_words}"
        if not self.init_from:
            option = "--new-tokenizer" if self.new_tokenizer else words
            raise ConfigError(f"{option} without --init-from: a new model has a new tokenizer; leave it out")
        if self.new_tokenizer and self.more_words:
            raise ConfigError(f"{words} and --new-tokenizer, whose words are those of all it reads; leave one out")
        check_vocabulary(load_tokenizer(self.init_from), str(self.init_from))

    def tokenizer(self, shown: Iterable[Demonstration]) -> PreTrainedTokenizerFast:
        """That of `init_from`, as it is or with more words; else a new one. `shown` is read where words are chosen."""
        if self.new_tokenizer or not self.init_from:
            tokenizer = _trained(list(shown), self.agent_type)
        else:
            tokenizer = load_tokenizer(self.init_from)
            if self.more_words:
                texts = _texts(tokenizer, shown, self.agent_type)
                tokenizer = as_pretrained(with_more_words(tokenizer.backend_tokenizer, texts, self.more_words))
        if self.names_apart:
            split_blanks_before_names(tokenizer.backend_tokenizer)
        return tokenizer

    def model(self, tokenizer: PreTrainedTokenizerFast) -> MiniMindForCausalLM:
        """In float32, for the ids of `tokenizer`; a new one has random weights."""
        if not self.init_from:
            return _new_model(len(tokenizer), self.hidden_size, self.num_layers)
        model = MiniMindForCausalLM.from_pretrained(self.init_from, torch.float32)
        if not (self.new_tokenizer or self.more_words):
            return model
        window = MAX_POSITIONS if self.new_tokenizer else model.config.max_position_embeddings
        return with_vocabulary(model, load_tokenizer(self.init_from), tokenizer, min_positions=window)


def _trained(shown: list[Demonstration], agent_type: AgentType) -> PreTrainedTokenizerFast:
    """A tokenizer of the very texts that a model with it will read and write."""
    texts = _texts(as_pretrained(train_phrase_bpe([""])), shown, agent_type)
    if not any(each.kind for each in shown):
        return as_pretrained(train_phrase_bpe(texts))
    options = {"min_document_share": PHRASE_SHARE_OF_KIND, "phrase_documents": PHRASE_DOCUMENTS_OF_KINDS}
    return as_pretrained(train_phrase_bpe(texts, kinds=[each.kind for each in shown], max_vocab_size=6144, **options))


def _texts(tokenizer: PreTrainedTokenizerFast, shown: Iterable[Demonstration], agent_type: AgentType) -> list[str]:
    """Whole conversations as they are read and written."""
    chat = make_chat_format(tokenizer, agent_type)
    rendered = (render_conversation(chat, each.messages, each.turns, each.tools) for each in shown)
    return [tokenizer.decode(each.token_ids) for each in rendered]


def _new_model(vocab_size: int, hidden_size: int, num_layers: int) -> MiniMindForCausalLM:
    config = MiniMindConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=2,
        intermediate_size=hidden_size * 11 // 4,
        max_position_embeddings=MAX_POSITIONS,
        rope_theta=10_000.0,  # conversations are short
    )
    return MiniMindForCausalLM(config)
