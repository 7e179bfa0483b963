"""MiniMind: a small decoder-only transformer (the dense Qwen3 architecture), and its checkpoint folder.

RMSNorm, rotary positions, grouped-query attention with normalised queries and keys, SwiGLU, no biases. Folders are
written as `Qwen3ForCausalLM`, so Transformers and vLLM read them; parameter names are those of public MiniMind.
Its older generation does not normalise queries and keys, which makes it a plain `LlamaForCausalLM`.
Not here: files of weights (`minimind_weights.py`), tokenizers, sampling (the generation engine), losses, mixture of
experts, rotary scaling.
"""

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from agent_rl.errors import CheckpointError
from agent_rl.modeling.minimind_weights import (
    EMBEDDING_KEY,
    HEAD_KEY,
    STATE_DICT_SUFFIX,
    WEIGHTS_FILE,
    read_weights,
    sizes_of,
    weights_file,
)
from agent_rl.modeling.packed_attention import PackedLayout, packed_attention
from agent_rl.modeling.recompute import computed_again, rms_norm, swiglu
from agent_rl.modeling.tensor_files import models_inside

CONFIG_FILE = "config.json"
READABLE_MODEL_TYPES = ("qwen3", "llama", "minimind")

Visible = Tensor | PackedLayout | None
"""What a token attends to. None: all before it; a mask [B, 1, T, T], True = attend; the segments of a flat row."""


@dataclass(kw_only=True, slots=True)
class MiniMindConfig:
    """Sizes of the network, under their Hugging Face names; the defaults are public MiniMind's dense model."""

    vocab_size: int = 6400
    hidden_size: int = 768
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int | None = None
    """None: `hidden_size // num_attention_heads`; a number once constructed."""
    intermediate_size: int = 2432
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    tie_word_embeddings: bool = True
    qk_norm: bool = True
    """Whether queries and keys are normalised: Qwen3 and MiniMind-3; Llama and MiniMind2 do not."""
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise ValueError(
                f"num_attention_heads {self.num_attention_heads} must be a multiple of num_key_value_heads "
                f"{self.num_key_value_heads}, and head_dim {self.head_dim} must be even"
            )

    @classmethod
    def from_file(cls, path: Path) -> "MiniMindConfig":
        """Read a Hugging Face `config.json`; a missing, torn or foreign one raises CheckpointError."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CheckpointError(
                f"{path} does not exist: give a folder in Hugging Face format{models_inside(path.parent)}"
            ) from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read as JSON ({error}): restore the file") from None
        if not isinstance(raw, dict):
            raise CheckpointError(f"{path} holds a {type(raw).__name__}, expected an object: restore the file")
        _refuse_foreign(raw, path)
        rope = raw.get("rope_parameters") or {}
        raw.setdefault("rope_theta", rope.get("rope_theta"))
        optional = {"bos_token_id", "eos_token_id", "pad_token_id"}
        if raw["model_type"] != "qwen3":
            optional.add("head_dim")
        if raw["model_type"] == "minimind":
            # Transformers 4 leaves it out where it is its own default.
            raw.setdefault("tie_word_embeddings", True)
        # Public MiniMind's generations have one model type; the key is the older one's alone.
        raw["qk_norm"] = raw["model_type"] != "llama" and "n_routed_experts" not in raw
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if raw.get(name) is None and name not in optional]
        if missing:
            raise CheckpointError(f"{path} has no {', '.join(missing)}: expected a complete Hugging Face config")
        try:
            return cls(**{name: raw.get(name) for name in names})
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{path} describes an impossible network: {error}") from None

    def to_dict(self, dtype: torch.dtype) -> dict[str, Any]:
        """Return the content of `config.json`, readable by Transformers 4 and 5."""
        sizes = asdict(self)
        family = "Qwen3" if sizes.pop("qk_norm") else "Llama"
        return {
            "architectures": [f"{family}ForCausalLM"],
            "model_type": family.lower(),
            **sizes,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "dtype": str(dtype).removeprefix("torch."),
        }


def _refuse_foreign(raw: dict[str, Any], path: Path) -> None:
    """Raise CheckpointError for anything this module would compute differently from the checkpoint's own code."""
    model_type = raw.get("model_type")
    if model_type not in READABLE_MODEL_TYPES:
        raise CheckpointError(
            f"{path} has model_type {model_type!r}, expected one of {', '.join(READABLE_MODEL_TYPES)}: "
            "use a dense MiniMind, Qwen3 or Llama checkpoint"
        )
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {"rope_type": "default"}
    unsupported = {
        "use_moe (mixture of experts)": raw.get("use_moe", False),
        "attention_bias": raw.get("attention_bias", False),
        "mlp_bias": raw.get("mlp_bias", False),
        "use_sliding_window": raw.get("use_sliding_window", False),
        f"rotary scaling {rope}": rope.get("rope_type") != "default",
        f"hidden_act {raw.get('hidden_act')!r}": raw.get("hidden_act", "silu") != "silu",
    }
    for name, is_set in unsupported.items():
        if is_set:
            raise CheckpointError(f"{path} requests {name}, which is not supported: use a plain dense checkpoint")


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def rope_tables(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the rotary angles, float32, shape [*positions.shape, head_dim].

    Angle j of position p is p * theta^(-2j / head_dim), repeated for the two halves (Su et al. 2021, the half-split
    layout). Computed in float32 on every call: a buffer would be rounded when the module is cast to bfloat16.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions.device) / head_dim
    angles = positions[..., None].float() * (1.0 / theta**exponents)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate `x` [..., head_dim]; cos and sin broadcast against it and share its dtype."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention: each key/value head serves `num_attention_heads / num_key_value_heads` queries."""

    def __init__(self, config: MiniMindConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        query_size = config.num_attention_heads * config.head_dim
        key_value_size = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=False)
        self.k_proj = nn.Linear(config.hidden_size, key_value_size, bias=False)
        self.v_proj = nn.Linear(config.hidden_size, key_value_size, bias=False)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=False)
        self.has_norms = config.qk_norm
        if self.has_norms:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Visible) -> Tensor:
        """x [B, T, d], B = 1 where segments are given; cos, sin [B or 1, T, 1, head_dim]."""
        heads = (*x.shape[:2], -1, self.head_dim)
        q, k, v = self.q_proj(x).view(heads), self.k_proj(x).view(heads), self.v_proj(x).view(heads)
        if self.has_norms:
            q, k = self.q_norm(q), self.k_norm(k)
        cos, sin = cos.to(q.dtype), sin.to(q.dtype)
        q, k = apply_rope(q, cos, sin), apply_rope(k, cos, sin)
        if isinstance(visible, PackedLayout):
            return self.o_proj(packed_attention(q[0], k[0], v[0], visible).flatten(1)[None])
        q, k, v = (heads.transpose(1, 2) for heads in (q, k, v))
        return self.o_proj(fused_attention(q, k, v, visible).transpose(1, 2).flatten(2))


def fused_attention(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None) -> Tensor:
    """PyTorch's fused attention, causal unless `visible` says more; q [B, heads, T, D], k and v of fewer heads.

    A CPU learns through it in float32, by autocast too: the backward pass of its bfloat16 kernel takes longer
    (`benchmarks/stepping/attention_formats.py`).
    """
    if not (q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.requires_grad and visible is None):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None, enable_gqa=True)
    with torch.autocast("cpu", enabled=False):
        wide = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True, enable_gqa=True)
    return wide.to(q.dtype)


class FeedForward(nn.Module):
    """SwiGLU: `down(silu(gate(x)) * up(x))` (Shazeer 2020)."""

    def __init__(self, config: MiniMindConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return swiglu(x, self.gate_proj, self.up_proj, self.down_proj)


class DecoderLayer(nn.Module):
    """Pre-norm residual block: attention, then feed-forward."""

    def __init__(self, config: MiniMindConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = FeedForward(config)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, visible: Visible) -> Tensor:
        normed = self.input_layernorm(x)
        with computed_again(normed):
            x = x + self.self_attn(normed, cos, sin, visible)
        normed = self.post_attention_layernorm(x)
        with computed_again(normed):
            return x + self.mlp(normed)


class TransformerStack(nn.Module):
    """Embedding, layers and the final norm; a module of its own only so that parameter names start with `model.`."""

    def __init__(self, config: MiniMindConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, token_ids: Tensor, cos: Tensor, sin: Tensor, visible: Visible) -> Tensor:
        x = self.embed_tokens(token_ids)
        for layer in self.layers:
            x = layer(x, cos, sin, visible)
        return self.norm(x)


class MiniMindForCausalLM(nn.Module):
    """The language model. `hidden_states` and `logits` are apart so that a trainer pays for trained rows only."""

    def __init__(self, config: MiniMindConfig) -> None:
        """Initialise weights from N(0, 0.02); those that add to the residual stream scaled by 1/sqrt(2 * layers)."""
        super().__init__()
        self.config = config
        self.model = TransformerStack(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                is_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                scale = 1 / math.sqrt(2 * config.num_hidden_layers) if is_residual else 1.0
                nn.init.normal_(parameter, mean=0.0, std=0.02 * scale)

    @property
    def num_parameters(self) -> int:
        """Number of weights; tied ones count once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def device(self) -> torch.device:
        return self.lm_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.lm_head.weight.dtype

    def hidden_states(
        self,
        token_ids_BT: Tensor,
        position_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        layout: PackedLayout | None = None,
    ) -> Tensor:
        """Return the normalised last hidden states, [B, T, d].

        Padding on the right needs no mask: causal attention never looks there. `position_ids` [B, T] default to
        0..T-1; `attention_mask` [B, T] is true (1) on real tokens and only needed for padding elsewhere. With a
        `layout` there is one row (B = 1) of segments that do not see one another; ValueError without their positions.
        """
        if layout is not None and position_ids is None:
            raise ValueError("segments begin at positions of their own: give position_ids with a layout")
        num_tokens = token_ids_BT.shape[1]
        if position_ids is None:
            position_ids = torch.arange(num_tokens, device=token_ids_BT.device)[None]
        cos, sin = rope_tables(position_ids[:, :, None], self.config.head_dim, self.config.rope_theta)
        visible: Visible = layout
        if attention_mask is not None:
            square = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=token_ids_BT.device)
            # A padded query attends to itself, because a softmax over nothing is NaN.
            visible = square.tril() & attention_mask.bool()[:, None, None, :] | square.diag().diag()
        return self.model(token_ids_BT, cos, sin, visible)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return next-token logits [..., vocab_size] of hidden states [..., d], in the dtype of the matrix product."""
        return self.lm_head(hidden)

    def forward(self, token_ids_BT: Tensor) -> Tensor:
        """Return logits [B, T, vocab_size] of every position."""
        return self.logits(self.hidden_states(token_ids_BT))

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `config.json` and `model.safetensors` into `folder`, made when missing."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        if self.config.tie_word_embeddings:
            del state[HEAD_KEY]
        save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        config = json.dumps(self.config.to_dict(self.dtype), indent=2) + "\n"
        (folder / CONFIG_FILE).write_text(config, encoding="utf-8")

    @classmethod
    def from_pretrained(cls, path: str | Path, dtype: torch.dtype | None = None) -> "MiniMindForCausalLM":
        """Read a model onto the CPU: a folder in Hugging Face format, or a `.pth` state dict of public MiniMind.

        Folders are those that `save_pretrained`, Transformers or public MiniMind's conversions write. A `.pth` file
        has no config: see `minimind_weights.sizes_of`. `dtype` None keeps the file's, except for float16, which
        becomes float32. Raises CheckpointError when a file is missing or torn, or the network is another.
        """
        path = Path(path)
        if path.suffix == STATE_DICT_SUFFIX:
            source, asker = path, "its first layer"
            state = read_weights(source, dtype)
            config = MiniMindConfig(**sizes_of(state, source))
        else:
            source, asker = weights_file(path), CONFIG_FILE
            config = MiniMindConfig.from_file(path / CONFIG_FILE)
            state = read_weights(source, dtype)
        with torch.device("meta"):
            model = cls(config)
        if config.tie_word_embeddings and EMBEDDING_KEY in state:
            head = state.setdefault(HEAD_KEY, state[EMBEDDING_KEY])
            if not torch.equal(head, state[EMBEDDING_KEY]):
                raise CheckpointError(f"{path} ties its embeddings in {CONFIG_FILE}, but {source.name} has two")
        _check_shapes(model.state_dict(), state, source, asker)
        model.load_state_dict(state, assign=True)
        if config.tie_word_embeddings:
            model.lm_head.weight = model.model.embed_tokens.weight
        return model


def _check_shapes(expected: dict[str, Tensor], got: dict[str, Tensor], path: Path, asker: str) -> None:
    for name in sorted(expected.keys() | got.keys()):
        want = tuple(expected[name].shape) if name in expected else "no such tensor"
        have = tuple(got[name].shape) if name in got else "no such tensor"
        if want != have:
            raise CheckpointError(f"{path}: {name} has {have}, but {asker} requests {want}: they do not belong")
