"""Public MiniMind's files: `.pth` state dicts and converted folders give its logits, all others a sentence."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from agent_rl.errors import CheckpointError
from agent_rl.modeling.minimind import MiniMindForCausalLM
from agent_rl.modeling.minimind_weights import tokenizer_folder

PROMPT = [[5, 9, 2, 40, 41, 7], [1, 1, 30, 3, 62, 8]]


def public_state(*, new: bool = True, tied: bool = True) -> dict[str, Tensor]:
    """What a trainer of public MiniMind saves: float16, both matrices of a tied head, no rotary tables.

    Two layers of width 32; four query heads of 8 in the newer generation, eight of 4 in the older one.
    """
    generator = torch.Generator().manual_seed(7)

    def matrix(rows: int, columns: int) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * 0.2).half()

    def norm(size: int) -> Tensor:
        return (1 + torch.randn(size, generator=generator) * 0.2).half()

    state = {"model.embed_tokens.weight": matrix(64, 32), "model.norm.weight": norm(32)}
    for layer in ("model.layers.0", "model.layers.1"):
        state |= {f"{layer}.self_attn.{name}_proj.weight": matrix(32, 32) for name in ("q", "o")}
        state |= {f"{layer}.self_attn.{name}_proj.weight": matrix(16, 32) for name in ("k", "v")}
        if new:
            state |= {f"{layer}.self_attn.{name}_norm.weight": norm(8) for name in ("q", "k")}
        state |= {f"{layer}.mlp.{name}_proj.weight": matrix(48, 32) for name in ("gate", "up")}
        state[f"{layer}.mlp.down_proj.weight"] = matrix(32, 48)
        state |= {f"{layer}.{name}_layernorm.weight": norm(32) for name in ("input", "post_attention")}
    state["lm_head.weight"] = state["model.embed_tokens.weight"] if tied else matrix(64, 32)
    return state


def published_logits(state: dict[str, Tensor], token_ids: list[int], *, num_heads: int, eps: float) -> Tensor:
    """Logits [T, vocabulary] by the published formulas, one head at a time, in float64."""
    weights = {name: tensor.double() for name, tensor in state.items()}

    def normed(x: Tensor, name: str) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weights[name] if name in weights else x

    def rotated(x: Tensor) -> Tensor:
        """Pair j of a head, its entries half a head apart, turns as a complex number."""
        half = x.shape[1] // 2
        angles = torch.tensor([[place * 1e6 ** (-j / half) for j in range(half)] for place in range(len(x))]).double()
        turned = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
        return torch.cat((turned.real, turned.imag), dim=1)

    x = weights["model.embed_tokens.weight"][token_ids]
    for layer in ("model.layers.0", "model.layers.1"):
        into = normed(x, f"{layer}.input_layernorm.weight")
        q, k, v = (into @ weights[f"{layer}.self_attn.{name}_proj.weight"].T for name in ("q", "k", "v"))
        head_dim = q.shape[1] // num_heads
        q, k, v = (list(part.split(head_dim, dim=1)) for part in (q, k, v))
        heads = []
        for head, query in enumerate(q):
            shared = head * len(k) // num_heads
            turned = rotated(normed(query, f"{layer}.self_attn.q_norm.weight"))
            key = rotated(normed(k[shared], f"{layer}.self_attn.k_norm.weight"))
            scores = turned @ key.T / math.sqrt(head_dim)
            future = torch.ones_like(scores).triu(1).bool()
            heads.append(scores.masked_fill(future, -math.inf).softmax(-1) @ v[shared])
        x = x + torch.cat(heads, dim=1) @ weights[f"{layer}.self_attn.o_proj.weight"].T
        into = normed(x, f"{layer}.post_attention_layernorm.weight")
        gate = into @ weights[f"{layer}.mlp.gate_proj.weight"].T
        up = into @ weights[f"{layer}.mlp.up_proj.weight"].T
        x = x + (gate * gate.sigmoid() * up) @ weights[f"{layer}.mlp.down_proj.weight"].T
    return normed(x, "model.norm.weight") @ weights["lm_head.weight"].T


def assert_logits_are_published(model: MiniMindForCausalLM, state: dict[str, Tensor], *, new: bool = True) -> None:
    sizes = {"num_heads": 4, "eps": 1e-6} if new else {"num_heads": 8, "eps": 1e-5}
    published = torch.stack([published_logits(state, row, **sizes) for row in PROMPT])
    assert published.abs().max() > 1
    assert (model(torch.tensor(PROMPT)) - published).abs().max() < 1e-5


def saved(state: dict[str, Any], path: Path) -> Path:
    torch.save(state, path)
    return path


def public_config(*, new: bool = True) -> dict[str, Any]:
    """`config.json` as public MiniMind's own conversion leaves it."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    common = {"model_type": "minimind", "hidden_act": "silu", "max_position_embeddings": 32768, "rope_theta": 1e6}
    common |= {"bos_token_id": 1, "eos_token_id": 2, "flash_attn": True, "rope_scaling": None, "use_moe": False}
    if new:
        return (
            sizes
            | common
            | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4}
            | {
                "rms_norm_eps": 1e-6,
                "tie_word_embeddings": True,
            }
        )
    return (
        sizes
        | common
        | {"num_attention_heads": 8, "num_key_value_heads": 4, "n_routed_experts": 4}
        | {
            "rms_norm_eps": 1e-5,
        }
    )


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_trainers_state_dict_gives_the_published_logits_in_float32(tmp_path: Path, new: bool, tied: bool) -> None:
    state = public_state(new=new, tied=tied)
    model = MiniMindForCausalLM.from_pretrained(saved(state, tmp_path / "full_sft_32.pth"))
    assert model.dtype == torch.float32
    assert model.config.tie_word_embeddings is tied
    assert (model.lm_head.weight is model.model.embed_tokens.weight) is tied
    assert_logits_are_published(model, state, new=new)


def test_sizes_are_read_off_the_tensors_and_the_rest_is_public_minimind(tmp_path: Path) -> None:
    config = MiniMindForCausalLM.from_pretrained(saved(public_state(), tmp_path / "a.pth")).config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (
        64,
        32,
        2,
        48,
    )
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (4, 2, 8)
    assert (config.rms_norm_eps, config.rope_theta, config.max_position_embeddings) == (1e-6, 1e6, 32768)
    assert (config.bos_token_id, config.eos_token_id, config.qk_norm) == (1, 2, True)
    older = MiniMindForCausalLM.from_pretrained(saved(public_state(new=False), tmp_path / "b.pth")).config
    assert (older.num_attention_heads, older.num_key_value_heads, older.head_dim) == (8, 4, 4)
    assert (older.rms_norm_eps, older.qk_norm) == (1e-5, False)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
def test_wrappers_of_the_trainer_rotary_tables_and_a_missing_tied_head_change_nothing(
    tmp_path: Path, prefix: str
) -> None:
    state = public_state()
    wrapped = {f"{prefix}{name}": tensor for name, tensor in state.items() if name != "lm_head.weight"}
    wrapped |= {f"{prefix}model.freqs_cos": torch.ones(9, 8), f"{prefix}model.freqs_sin": torch.ones(9, 8)}
    model = MiniMindForCausalLM.from_pretrained(saved(wrapped, tmp_path / "full_sft_32.pth"))
    assert_logits_are_published(model, state)


def test_half_precision_is_never_retained_and_other_formats_are(tmp_path: Path) -> None:
    state = {name: tensor.bfloat16() for name, tensor in public_state().items()}
    path = saved(state, tmp_path / "full_sft_32.pth")
    assert MiniMindForCausalLM.from_pretrained(path).dtype == torch.bfloat16
    assert MiniMindForCausalLM.from_pretrained(path, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin"])
def test_a_folder_of_the_public_conversion_gives_the_published_logits(tmp_path: Path, new: bool, weights: str) -> None:
    state = public_state(new=new)
    (tmp_path / "config.json").write_text(json.dumps(public_config(new=new)))
    if weights.endswith(".bin"):
        saved(state, tmp_path / weights)
    else:
        save_file({name: tensor for name, tensor in state.items() if name != "lm_head.weight"}, tmp_path / weights)
    model = MiniMindForCausalLM.from_pretrained(tmp_path)
    assert model.dtype == torch.float32
    assert_logits_are_published(model, state, new=new)


@pytest.mark.parametrize("new", [True, False])
def test_transformers_reads_what_is_saved_as_qwen3_or_as_llama_and_back(tmp_path: Path, new: bool) -> None:
    from transformers import AutoModelForCausalLM

    state = public_state(new=new)
    model = MiniMindForCausalLM.from_pretrained(saved(state, tmp_path / "full_sft_32.pth"))
    model.save_pretrained(tmp_path / "ours")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert type(theirs).__name__ == ("Qwen3ForCausalLM" if new else "LlamaForCausalLM")
    assert (theirs(torch.tensor(PROMPT)).logits - model(torch.tensor(PROMPT))).abs().max() < 1e-5
    theirs.save_pretrained(tmp_path / "theirs")
    for folder in ("ours", "theirs"):
        again = MiniMindForCausalLM.from_pretrained(tmp_path / folder)
        assert again.config.qk_norm is new
        assert_logits_are_published(again, state, new=new)


def test_a_llama_with_biases_in_its_feed_forward_is_refused(tmp_path: Path) -> None:
    MiniMindForCausalLM.from_pretrained(saved(public_state(new=False), tmp_path / "a.pth")).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mlp_bias": True}))
    with pytest.raises(CheckpointError, match="mlp_bias"):
        MiniMindForCausalLM.from_pretrained(tmp_path)


EXPERT = {"model.layers.0.mlp.experts.0.gate_proj.weight": torch.ones(2, 2)}
LORA = {"model.layers.0.self_attn.q_proj.lora.A.weight": torch.ones(2, 2)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (EXPERT, "mixture of experts.*use a dense MiniMind"),
        ({"model.layers.0.mlp.gate.weight": torch.ones(2, 2)}, "mixture of experts"),
        (LORA, "LoRA matrices.*convert_merge_base_lora"),
        ({"module." + next(iter(LORA)): torch.ones(2, 2)}, "LoRA matrices"),
        ({"model.embed_tokens.weight": None}, "has no tensor model.embed_tokens.weight"),
        ({"model.layers.0.self_attn.q_proj.weight": None}, "has no tensor model.layers.0.self_attn.q_proj.weight"),
        ({"model.layers.1.mlp.up_proj.weight": None}, "model.layers.1.mlp.up_proj.weight has no such tensor, but its"),
        ({"model.layers.1.mlp.up_proj.weight": torch.ones(48, 31)}, r"has \(48, 31\).* requests \(48, 32\)"),
        ({"model.layers.0.self_attn.q_proj.bias": torch.ones(32)}, "q_proj.bias has .* no such tensor"),
        ({"model.embed_tokens.weight": torch.ones(64)}, r"has the shape \(64,\), expected 2 dimensions"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(5)}, "cannot be split into heads of 5"),
        ({"model.layers.0.self_attn.q_norm.weight": torch.ones(1)}, "cannot be split into heads of 1"),
        ({"model.layers.0.self_attn.k_proj.weight": torch.ones(24, 32)}, "cannot be split into heads of 8"),
        ({"model.layers.0.self_attn.k_proj.weight": torch.ones(0, 32)}, "0 key rows cannot be split"),
        ({"model.norm.weight": torch.ones(32, dtype=torch.int8)}, "model.norm.weight holds torch.int8"),
        ({"step": 3}, "something else than named tensors"),
        ({"optimizer": {"state": {}}, "step": 3}, "state of a training run.* without _resume"),
    ],
)
def test_a_state_dict_of_another_kind_is_a_sentence_that_names_the_file(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    state = {name: tensor for name, tensor in (public_state() | changes).items() if tensor is not None}
    with pytest.raises(CheckpointError, match=rf"full_sft_32\.pth.*{words}"):
        MiniMindForCausalLM.from_pretrained(saved(state, tmp_path / "full_sft_32.pth"))


@pytest.mark.parametrize("length", [0, 1, 10, 1000, -1])
def test_a_torn_state_dict_is_a_sentence_that_names_the_file(tmp_path: Path, length: int) -> None:
    path = saved(public_state(), tmp_path / "full_sft_32.pth")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"full_sft_32\.pth .*torn"):
        MiniMindForCausalLM.from_pretrained(path)


@pytest.mark.parametrize(
    "content", [b"not weights at all", b"version https://git-lfs", b"\x80\x02\x8c\x02\xff\xff.", b"{}"]
)
def test_a_foreign_file_is_a_sentence_that_names_the_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "full_sft_32.pth"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"full_sft_32\.pth .*torn"):
        MiniMindForCausalLM.from_pretrained(path)


class MakesFolder:
    """Unpickling it runs code."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_code_in_a_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    path = saved(public_state() | {"code": MakesFolder(tmp_path / "ran")}, tmp_path / "full_sft_32.pth")
    with pytest.raises(CheckpointError, match=r"full_sft_32\.pth .*could run code, so it was not loaded"):
        MiniMindForCausalLM.from_pretrained(path)
    assert not (tmp_path / "ran").exists()
    torch.load(path, weights_only=False)
    assert (tmp_path / "ran").exists()


def test_a_missing_file_and_one_without_its_folder_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"full_sft_32\.pth does not exist"):
        MiniMindForCausalLM.from_pretrained(tmp_path / "full_sft_32.pth")
    saved(public_state(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a file, expected a folder"):
        MiniMindForCausalLM.from_pretrained(tmp_path / "pytorch_model.bin")


def test_the_tokenizer_of_a_state_dict_lies_beside_it_or_in_model_beside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "model").mkdir()
    path = saved({}, tmp_path / "out" / "full_sft_32.pth")
    with pytest.raises(CheckpointError, match=r"full_sft_32\.pth has no tokenizer.*out nor .*model holds.*copy"):
        tokenizer_folder(path)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    assert tokenizer_folder(path) == tmp_path / "model"
    monkeypatch.chdir(tmp_path / "out")
    assert tokenizer_folder("full_sft_32.pth") == tmp_path / "model"
    (tmp_path / "out" / "tokenizer.json").write_text("{}")
    assert tokenizer_folder(path) == tmp_path / "out"


def test_the_tokenizer_of_a_folder_lies_in_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=f"config.json is a file: give .* {tmp_path}$"):
        tokenizer_folder(tmp_path / "config.json")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json does not exist"):
        tokenizer_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert tokenizer_folder(str(tmp_path)) == tmp_path
