"""Another vocabulary for a model: which embeddings it has, and that nothing else changes."""

import pytest
import torch

from agent_rl.agent.phrase_bpe import as_pretrained, train_phrase_bpe
from agent_rl.errors import ConfigError
from agent_rl.learning.new_vocabulary import check_vocabulary, with_vocabulary
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM

OLD = as_pretrained(train_phrase_bpe(["amber frost amber frost", "frost amber"] * 4, min_document_share=0.9))
NEW = as_pretrained(train_phrase_bpe(["amber kelp kelp", "kelp amber ü ü ü"] * 4, min_document_share=0.9))


def model(vocab_size: int, is_tied: bool) -> MiniMindForCausalLM:
    torch.manual_seed(0)
    config = MiniMindConfig(
        vocab_size=vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=24,
        max_position_embeddings=32,
        tie_word_embeddings=is_tied,
    )
    return MiniMindForCausalLM(config)


@pytest.mark.parametrize("is_tied", [True, False])
def test_a_known_token_keeps_its_embedding_and_another_is_the_mean_of_its_parts(is_tied: bool) -> None:
    before = model(len(OLD), is_tied)
    after = with_vocabulary(before, OLD, NEW, min_positions=64)
    assert (after.config.vocab_size, after.config.max_position_embeddings) == (len(NEW), 64)
    for old, new in (
        (before.model.embed_tokens.weight, after.model.embed_tokens.weight),
        (before.lm_head.weight, after.lm_head.weight),
    ):
        assert new.shape == (len(NEW), 16) and new.requires_grad
        for known in ("<|im_end|>", "<tool_call>", "a", "amber"):
            assert torch.equal(new[NEW.get_vocab()[known]], old[OLD.get_vocab()[known]]), known
        parts = [OLD.get_vocab()[part] for part in ("k", "e", "l", "p")]
        assert torch.equal(new[NEW.get_vocab()["kelp"]], old[parts].mean(0))
    assert (after.lm_head.weight is after.model.embed_tokens.weight) == is_tied


def test_a_window_never_gets_smaller() -> None:
    after = with_vocabulary(model(len(OLD), is_tied=True), OLD, NEW, min_positions=8)
    assert after.config.max_position_embeddings == 32


def test_the_layers_stay_and_a_text_of_known_tokens_has_the_same_hidden_states() -> None:
    before = model(len(OLD), is_tied=True)
    after = with_vocabulary(before, OLD, NEW, min_positions=64)
    layers = [name for name, _ in before.named_parameters() if "layers" in name]
    assert layers and all(torch.equal(before.state_dict()[name], after.state_dict()[name]) for name in layers)
    known = ["amber", "<tool_call>", "a", "m"]
    states = [
        each.hidden_states(torch.tensor([[tokenizer.get_vocab()[token] for token in known]]))
        for each, tokenizer in ((before, OLD), (after, NEW))
    ]
    torch.testing.assert_close(*states)


def test_a_tokenizer_without_all_bytes_is_refused() -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    check_vocabulary(OLD, "old")
    words = Tokenizer(models.WordLevel({"amber": 0, "?": 1}, unk_token="?"))
    few_bytes = Tokenizer(models.BPE(vocab={"a": 0, "m": 1}, merges=[]))
    for backend in (words, few_bytes):
        with pytest.raises(ConfigError, match="the tokenizer of here is no byte-level BPE"):
            check_vocabulary(PreTrainedTokenizerFast(tokenizer_object=backend), "here")
