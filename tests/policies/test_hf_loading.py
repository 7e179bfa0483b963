"""Reading a Hugging Face model: what cannot be trained is refused in one sentence with the remedy."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from safetensors.torch import load_file, save_file
from tiny_models import save_tiny_causal_lm
from transformers import AutoModelForCausalLM, DbrxConfig, PhimoeConfig

from agent_rl.config import LoraConfig
from agent_rl.errors import CheckpointError, UserError
from agent_rl.policies.hf_loading import load_config
from agent_rl.policies.hf_policy import HuggingFacePolicy


def load(folder: Path, **settings: Any) -> HuggingFacePolicy:
    policy = HuggingFacePolicy.from_pretrained(folder, **({"max_context": 64} | settings))
    policy.close()
    return policy


def refuse(words: str, folder: Path | str, **settings: Any) -> None:
    with pytest.raises(UserError, match=words) as caught:
        load(folder, **settings)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_and_a_name_that_no_hub_answers_for_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refuse(r"model\.path = '.*/none': no such folder; give a model folder or a hub name", tmp_path / "none")
    refuse("'./nowhere': no such folder", "./nowhere")
    refuse(
        r"model\.path = 'no-one/nothing' is not a folder .* from the Hugging Face Hub \(.+\); ",
        "no-one/nothing",
    )
    file = tmp_path / "model.pth"
    file.write_text("")
    monkeypatch.chdir(tmp_path)
    refuse(r"'model\.pth': is a file; give the folder", "model.pth")
    refuse(rf"model\.pth': is a file; give .* {tmp_path}$", file)


def test_a_folder_of_models_names_the_whole_ones_and_those_of_a_run(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path / "whole")
    save_tiny_causal_lm(tmp_path / "bare")
    (tmp_path / "bare/tokenizer.json").unlink()
    save_tiny_causal_lm(tmp_path / "run/checkpoints/step_00002/model")
    with pytest.raises(UserError, match=f"such as {tmp_path}/whole$"):
        load(tmp_path)
    for folder in ("run", "run/checkpoints/step_00002"):
        with pytest.raises(UserError, match=f"such as {tmp_path}/run/checkpoints/step_00002/model$"):
            load(tmp_path / folder)


def test_a_folder_without_a_tokenizer_or_with_anothers_is_refused(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path / "small", vocab_size=19)
    refuse("the model has 19 ids, but the tokenizer has 20 ids: they do not belong together", tmp_path / "small")
    save_tiny_causal_lm(tmp_path / "bare")
    (tmp_path / "bare/tokenizer.json").unlink()
    refuse(r"tokenizer\.json does not exist: give the folder of a model with its tokenizer", tmp_path / "bare")


def test_an_added_token_beyond_the_model_is_refused_where_the_template_writes_it(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path)
    path = tmp_path / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["added_tokens"].append(raw["added_tokens"][0] | {"id": 20, "content": "<image>"})
    path.write_text(json.dumps(raw))
    load(tmp_path)
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text() + "{{- '<image>' if false }}")
    refuse("the model has 20 ids, but the tokenizer has an id beyond them for '<image>'", tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "t5"}, "has model_type 't5', which is no decoder-only language model"),
        ({"model_type": "bart"}, "has model_type 'bart', which is no decoder-only language model"),
        ({"model_type": "vit"}, "has model_type 'vit', which is no decoder-only language model"),
        ({"model_type": "nonsense"}, r"cannot be read as a causal language model \(.*`nonsense`"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, r"cannot be read .*custom code"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "is quantised, so it cannot be trained"),
        ({"hidden_size": "wide"}, "hidden_size = 'wide', expected a size"),
        ({"intermediate_size": 40}, r"6 weights are missing or of another shape .*, first model\.layers\.0\.mlp"),
        ({"num_hidden_layers": 3}, r"9 weights are missing or of another shape .*, first model\.layers\.2\.input"),
    ],
)
def test_a_foreign_config_is_one_sentence(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    path = save_tiny_causal_lm(tmp_path) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    refuse(words, tmp_path)


def test_dropout_of_a_config_inside_the_config_is_switched_off(tmp_path: Path) -> None:
    DbrxConfig(resid_pdrop=0.5, attn_config={"attn_pdrop": 0.25}).save_pretrained(tmp_path)
    config = load_config(str(tmp_path))
    assert (config.resid_pdrop, config.attn_config.attn_pdrop) == (0.0, 0.0)


def test_a_model_that_picks_experts_at_random_in_training_is_refused(tmp_path: Path) -> None:
    PhimoeConfig(num_hidden_layers=1).save_pretrained(tmp_path / "random")
    with pytest.raises(CheckpointError, match=r"random has router_jitter_noise = 0\.01"):
        load_config(str(tmp_path / "random"))
    PhimoeConfig(num_hidden_layers=1, router_jitter_noise=0.0).save_pretrained(tmp_path / "fixed")
    assert load_config(str(tmp_path / "fixed")).router_jitter_noise == 0.0


def test_torn_and_missing_weights_are_one_sentence(tmp_path: Path) -> None:
    path = save_tiny_causal_lm(tmp_path) / "model.safetensors"
    weights = load_file(path)
    save_file({key: value for key, value in weights.items() if "lm_head" not in key}, path, metadata={"format": "pt"})
    refuse(r"1 weights are missing .*, first lm_head\.weight; give a complete causal language model", tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    refuse(r"claims 2 layers .* and the files hold 100 bytes", tmp_path)
    path.write_bytes(bytes(100_000))
    refuse(r"cannot be read as a causal language model \(Error while deserializing header", tmp_path)
    path.unlink()
    refuse(r"cannot be read as a causal language model \(Error no file named model\.safetensors", tmp_path)


def test_settings_that_the_model_or_the_machine_does_not_take_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny_causal_lm(tmp_path)
    refuse(r"policy\.max_context = 129: the model in .* was made for 128 tokens", tmp_path, max_context=129)
    refuse(
        r"model\.lora\.target_modules = \['query'\]: LlamaForCausalLM has no linear layers of these names",
        tmp_path,
        lora=LoraConfig(rank=2, target_modules=("query",)),
    )
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: False)
    refuse(
        r"model\.attention = 'flash_attention_2' needs a GPU and the flash-attn package; install it or set",
        tmp_path,
        attention="flash_attention_2",
    )


def test_a_generation_config_that_cannot_be_written_does_not_stop_a_checkpoint(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    (tmp_path / "model/generation_config.json").write_text('{"do_sample": false, "temperature": 0.6, "top_p": 0.9}')
    with pytest.raises(ValueError, match="GenerationConfig is invalid"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "model").save_pretrained(tmp_path / "refused")
    load(tmp_path / "model").save_pretrained(tmp_path / "again")
    assert (tmp_path / "again/model.safetensors").is_file()


def test_a_model_that_looks_ahead_is_refused(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path, "Bert", scale=30.0)
    refuse("BertLMHeadModel looks at later tokens", tmp_path)
