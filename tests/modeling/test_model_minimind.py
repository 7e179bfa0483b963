"""The network against Transformers' Qwen3, padding, initialisation, and the checkpoint folder with its refusals."""

import json
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from agent_rl.errors import CheckpointError
from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM, RMSNorm, fused_attention

PROMPT = [[5, 9, 2, 40, 41, 7], [1, 1, 30, 3, 62, 8]]


def tiny_model(*, tied: bool = True, seed: int = 0) -> MiniMindForCausalLM:
    """A model whose weights are large enough that attention matters to the logits."""
    torch.manual_seed(seed)
    config = MiniMindConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=10,
        intermediate_size=48,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        eos_token_id=2,
    )
    model = MiniMindForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("tied", [True, False])
def test_logits_equal_those_of_transformers_on_the_folder_we_write(tmp_path: Path, tied: bool) -> None:
    from transformers import Qwen3ForCausalLM

    model = tiny_model(tied=tied)
    model.save_pretrained(tmp_path)
    theirs = Qwen3ForCausalLM.from_pretrained(tmp_path)
    token_ids = torch.tensor(PROMPT)
    assert theirs.config.tie_word_embeddings is tied
    assert theirs.config.rope_parameters["rope_theta"] == 1e6
    assert (theirs(token_ids).logits - model(token_ids)).abs().max() < 1e-5


@pytest.mark.parametrize("tied", [True, False])
def test_a_folder_written_by_transformers_gives_the_same_logits(tmp_path: Path, tied: bool) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    rest = {"num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 40, "tie_word_embeddings": tied}
    theirs = Qwen3ForCausalLM(Qwen3Config(**sizes, **rest, initializer_range=0.3))
    theirs.save_pretrained(tmp_path)
    ours = MiniMindForCausalLM.from_pretrained(tmp_path)
    token_ids = torch.tensor(PROMPT)
    assert (theirs(token_ids).logits - ours(token_ids)).abs().max() < 1e-5


def test_parameter_names_are_those_of_public_minimind() -> None:
    block = [f"self_attn.{name}.weight" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")]
    block += [f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")]
    block += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    expected = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    expected |= {f"model.layers.{layer}.{name}" for layer in (0, 1) for name in block}
    assert set(tiny_model().state_dict()) == expected


def test_tied_weights_count_once_and_are_stored_once(tmp_path: Path) -> None:
    tied, untied = tiny_model(tied=True), tiny_model(tied=False)
    assert untied.num_parameters - tied.num_parameters == 64 * 32
    tied.save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_padding_on_the_right_changes_nothing_before_it() -> None:
    model = tiny_model()
    alone = model(torch.tensor([[5, 9, 2]]))
    padded = model(torch.tensor([[5, 9, 2, 0, 0], [7, 7, 7, 7, 7]]))
    torch.testing.assert_close(padded[0, :3], alone[0], atol=1e-5, rtol=0)


def test_padding_on_the_left_needs_the_mask_and_the_positions() -> None:
    model = tiny_model()
    alone = model.hidden_states(torch.tensor([[5, 9, 2]]))
    token_ids, mask = torch.tensor([[0, 0, 5, 9, 2]]), torch.tensor([[0, 0, 1, 1, 1]])
    padded = model.hidden_states(token_ids, position_ids=torch.tensor([[0, 0, 0, 1, 2]]), attention_mask=mask)
    torch.testing.assert_close(padded[0, 2:], alone[0], atol=1e-5, rtol=0)
    assert torch.isfinite(padded).all()
    assert (model.hidden_states(token_ids)[0, 2:] - alone[0]).abs().max() > 1e-2


def test_rms_norm_of_3_4_divides_by_the_root_mean_square() -> None:
    norm = RMSNorm(2, eps=0.0)
    root_mean_square = math.sqrt((9 + 16) / 2)
    torch.testing.assert_close(norm(torch.tensor([3.0, 4.0])), torch.tensor([3.0, 4.0]) / root_mean_square)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_cpu_learns_through_attention_in_float32(enabled: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 5, 8).bfloat16().requires_grad_() for heads in (4, 2, 2))
    wide = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, enable_gqa=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
        assert torch.equal(fused_attention(q, k, v, None), wide.bfloat16())
        half = fused_attention(q.detach(), k.detach(), v.detach(), None)
    assert half.dtype == torch.bfloat16 and not torch.equal(half, wide.bfloat16())


def test_every_parameter_gets_a_gradient_under_bfloat16_autocast() -> None:
    model = tiny_model()
    token_ids = torch.tensor(PROMPT)
    exact = model(token_ids)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = model(token_ids)
        rounded.float().logsumexp(-1).sum().backward()
    assert (rounded.float() - exact).abs().max() < 0.2 * exact.abs().max()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_weights_start_at_002_and_residual_ones_smaller_by_the_depth() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 512, "vocab_size": 512}
    layer = MiniMindForCausalLM(MiniMindConfig(**sizes)).model.layers[3]
    assert layer.self_attn.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.self_attn.o_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert layer.mlp.down_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)


@pytest.mark.parametrize("tied", [True, False])
def test_a_round_trip_keeps_every_bit_and_trains_on(tmp_path: Path, tied: bool) -> None:
    model = tiny_model(tied=tied)
    model.save_pretrained(tmp_path)
    again = MiniMindForCausalLM.from_pretrained(tmp_path)
    assert again.config == model.config
    assert torch.equal(again(torch.tensor(PROMPT)), model(torch.tensor(PROMPT)))
    assert (again.lm_head.weight is again.model.embed_tokens.weight) is tied
    assert all(parameter.requires_grad for parameter in again.parameters())


def test_a_model_can_be_saved_over_the_folder_it_came_from(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    model = MiniMindForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        model.model.norm.weight.fill_(3.0)
    model.save_pretrained(tmp_path)
    assert MiniMindForCausalLM.from_pretrained(tmp_path).model.norm.weight.eq(3.0).all()


def test_dtype_converts_the_weights_and_none_keeps_them(tmp_path: Path) -> None:
    tiny_model().to(torch.bfloat16).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert MiniMindForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16
    assert MiniMindForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).dtype == torch.float32


def test_a_dense_public_minimind_config_is_read(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path)
    public = json.loads((tmp_path / "config.json").read_text())
    del public["rope_parameters"]
    public |= {"model_type": "minimind", "architectures": ["MiniMindForCausalLM"], "use_moe": False, "num_experts": 4}
    public |= {"rope_scaling": None, "inference_rope_scaling": False, "flash_attn": True, "dropout": 0.0}
    (tmp_path / "config.json").write_text(json.dumps(public))
    again = MiniMindForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(torch.tensor(PROMPT)), model(torch.tensor(PROMPT)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mistral"}, "model_type 'mistral'"),
        ({"model_type": "llama"}, "k_norm.weight has .* requests no such tensor"),
        ({"model_type": "qwen3_moe"}, "model_type 'qwen3_moe'"),
        ({"model_type": "minimind", "use_moe": True}, "mixture of experts"),
        ({"attention_bias": True}, "attention_bias"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "rotary scaling"),
        ({"rope_parameters": None, "rope_scaling": {"type": "yarn", "factor": 16}}, "rotary scaling"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"num_key_value_heads": 3}, "impossible network"),
        ({"vocab_size": 65}, r"lm_head.weight has \(64, 32\), but config.json requests \(65, 32\)"),
        ({"num_hidden_layers": 3}, "no such tensor"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    tiny_model(tied=False).save_pretrained(tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(CheckpointError, match=words):
        MiniMindForCausalLM.from_pretrained(tmp_path)


def test_a_config_that_ties_two_different_matrices_is_refused(tmp_path: Path) -> None:
    tiny_model(tied=False).save_pretrained(tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match="ties its embeddings"):
        MiniMindForCausalLM.from_pretrained(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_or_torn_file_is_a_sentence_that_names_it(tmp_path: Path, name: str) -> None:
    tiny_model().save_pretrained(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read"):
        MiniMindForCausalLM.from_pretrained(tmp_path)
    path.unlink()
    with pytest.raises(CheckpointError, match=rf"{name} does not exist"):
        MiniMindForCausalLM.from_pretrained(tmp_path)
