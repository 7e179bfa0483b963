"""Backbone and head of a Hugging Face causal LM: together they are the model, or it is refused."""

import peft
import pytest
import torch
from tiny_models import tiny_causal_lm, tiny_gemma4
from transformers import GPT2Config, LlamaConfig, MambaConfig, RwkvConfig

from agent_rl.errors import ConfigError
from agent_rl.modeling.hf_causal_lm import head_shapes, largest_heads, split_causal_lm

IDS = torch.tensor([[5, 9, 2, 40], [7, 7, 1, 63]])


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Qwen3", "Gemma2", "Phi", "GPT2", "Mistral"])
def test_head_of_backbone_is_the_model(name: str) -> None:
    model = tiny_causal_lm(name, scale=100.0)
    parts = split_causal_lm(model)
    expected = model(input_ids=IDS).logits
    torch.testing.assert_close(parts.logits(parts.backbone(input_ids=IDS).last_hidden_state), expected)
    assert parts.vocab_size == expected.shape[-1] == 64
    assert expected.abs().max() > 10.0


def test_a_softcap_is_part_of_the_logits() -> None:
    model = tiny_causal_lm("Gemma2", final_logit_softcapping=3.0, scale=100.0)
    parts = split_causal_lm(model)
    logits = parts.logits(parts.backbone(input_ids=IDS).last_hidden_state)
    torch.testing.assert_close(logits, model(input_ids=IDS).logits)
    assert 2.9 < logits.abs().max() <= 3.0


def test_a_bias_of_the_head_is_part_of_the_logits() -> None:
    model = tiny_causal_lm("Phi", scale=100.0)
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.arange(64.0))
    parts = split_causal_lm(model)
    logits = parts.logits(parts.backbone(input_ids=IDS).last_hidden_state)
    torch.testing.assert_close(logits, model(input_ids=IDS).logits)


def test_adapters_are_in_the_backbone() -> None:
    model = tiny_causal_lm("Llama", scale=100.0)
    before = model(input_ids=IDS).logits
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules="all-linear", init_lora_weights=False))
    parts = split_causal_lm(wrapped)
    logits = parts.logits(parts.backbone(input_ids=IDS).last_hidden_state)
    torch.testing.assert_close(logits, wrapped(input_ids=IDS).logits)
    assert (logits - before).abs().max() > 1.0
    assert parts.model is model


def test_the_mode_of_the_model_stays_as_it_was() -> None:
    model = tiny_causal_lm("Llama", scale=100.0).train()
    split_causal_lm(model)
    assert model.training
    split_causal_lm(model.eval())
    assert not model.training


def test_a_model_whose_logits_are_changed_after_the_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="CohereForCausalLM changes its logits after the output head"):
        split_causal_lm(tiny_causal_lm("Cohere", logit_scale=0.5, scale=100.0))


def test_an_encoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="BertLMHeadModel looks at later tokens"):
        split_causal_lm(tiny_causal_lm("Bert", scale=100.0))


def test_a_model_without_a_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="LlamaModel has no backbone and head of its own"):
        split_causal_lm(tiny_causal_lm("Llama", scale=100.0).model)


# Sizes of heads


def test_heads_are_read_layer_by_layer() -> None:
    config = tiny_gemma4().config
    assert head_shapes(config) == [(4, 2, 8), (4, 1, 16)]
    assert largest_heads(config) == (4, 2, 16)


def test_heads_that_are_not_written_down_follow_from_what_is() -> None:
    assert largest_heads(GPT2Config(n_embd=32, n_layer=2, n_head=4)) == (4, 4, 8)
    assert largest_heads(LlamaConfig(hidden_size=32, num_attention_heads=4, num_key_value_heads=2)) == (4, 2, 8)


@pytest.mark.parametrize("config", [MambaConfig(), RwkvConfig()])
def test_a_model_without_attention_has_no_heads(config: object) -> None:
    assert largest_heads(config) == (0, 0, 0)
