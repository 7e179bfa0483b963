"""Adapters on weights in 4 bits: log-probs, a whole run, its checkpoint and merged model, memory, and what is refused.

Skipped without the package bitsandbytes, whose CPU kernels run here; nothing here was run on a GPU.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import make_trainer
from commands import run_here
from fakes import tiny_config
from run_outcomes import lasting_metrics
from safetensors.torch import load_file
from tiny_models import plain_logits, plain_logprobs, save_tiny_causal_lm
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from agent_rl.config import Config, LoraConfig
from agent_rl.distributed.backend import Backend
from agent_rl.errors import ConfigError
from agent_rl.planning.layout import Layout
from agent_rl.planning.memory import Job, resident
from agent_rl.planning.shapes import shape_of
from agent_rl.policies.hf_policy import HuggingFaceModel, HuggingFacePolicy
from agent_rl.policies.make_policy import make_policy
from agent_rl.records import SamplingParams
from agent_rl.telemetry.flops import count_matmul_weights

RANK_4 = LoraConfig(rank=4, alpha=8.0)
SIZES = {"hidden_size": 64, "intermediate_size": 128}


def config_of(folder: Path, **sections: Any) -> Config:
    four_bit = {"lora": {"rank": 4, "alpha": 8.0}, "load_in_4bit": True}
    return tiny_config(folder, **({"policy": {"type": "huggingface"}, "model": four_bit} | sections))


def weights_by_name(module: nn.Module) -> dict[str, torch.Tensor]:
    """A copy of every weight as it is stored."""
    return {name: weight.detach().clone() for name, weight in module.named_parameters()}


@pytest.fixture
def bitsandbytes() -> Any:
    return pytest.importorskip("bitsandbytes", reason="needs requirements-qlora.txt")


# Sampling and training


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Gemma2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_sampled_has_the_log_probs_of_the_rounded_weights(
    tmp_path: Path, bitsandbytes: Any, name: str, dtype: str
) -> None:
    """The 4-bit layers' products are those of a plain model with the same rounded weights."""
    save_tiny_causal_lm(tmp_path, name, **SIZES)
    options = {"dtype": dtype, "lora": RANK_4, "max_context": 64, "load_in_4bit": True}
    policy = HuggingFacePolicy.from_pretrained(tmp_path, **options)
    rounded = HuggingFaceModel.from_pretrained(tmp_path, **options, dequantize=True).module
    whole = HuggingFaceModel.from_pretrained(tmp_path, **options | {"load_in_4bit": False}).module
    with torch.no_grad():
        for module in (policy.model, rounded, whole):
            torch.manual_seed(3)
            for key, weight in module.named_parameters():
                if "lora_B" in key:  # fresh adapters add nothing
                    weight.normal_(std=0.3)
    policy.refresh_weights(1)
    sampled = policy.generate([7, 8, 9], SamplingParams(max_new_tokens=12, temperature=0.7, seed=1))
    found = torch.tensor(sampled.logprobs)
    tolerance = 1e-4 if dtype == "float32" else 0.1
    for model in (policy.model, rounded):
        expected = plain_logprobs(model, [7, 8, 9], sampled.token_ids, 0.7)
        torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)
    others = plain_logprobs(whole, [7, 8, 9], sampled.token_ids, 0.7)
    assert (found - others).abs().max() > 1e-3  # weights were rounded
    policy.close()


def test_a_run_trains_the_adapters_alone_and_resumes(tmp_path: Path, bitsandbytes: Any) -> None:
    save_tiny_causal_lm(tmp_path / "model", **SIZES)
    for steps, resume in ((2, "never"), (3, "auto")):
        config = config_of(
            tmp_path,
            train={"steps": steps},
            eval={"temperatures": [0.0]},
            algorithm={"kl": {"coef": 0.01}},
            checkpoint={"resume": resume},
        )
        with make_trainer(config) as trainer:
            before = weights_by_name(trainer.model.module)
            trainer.train()
            after = weights_by_name(trainer.model.module)
        changed = {name for name in before if not torch.equal(before[name], after[name])}
        assert changed and all("lora_" in name for name in changed)
        assert sum(weight.dtype == torch.uint8 for weight in after.values()) == 2 * 7  # layers, products of each
    rows = [row for row in lasting_metrics(tmp_path / "runs/tiny") if "policy/kl" in row]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["loss/abs_log_ratio_max"] < 1e-4 and row["optim/grad_norm"] > 0 for row in rows)
    saved = load_file(tmp_path / "runs/tiny/checkpoints/step_00003/model/adapter_model.safetensors")
    assert len(saved) == 2 * 2 * 7
    assert all(torch.equal(value, after[name.replace(".weight", ".default.weight")]) for name, value in saved.items())


def test_a_merged_model_is_the_one_that_was_trained(tmp_path: Path, bitsandbytes: Any) -> None:
    save_tiny_causal_lm(tmp_path / "model", **SIZES)
    ids = [3, 4, 5, 6]
    with make_trainer(config_of(tmp_path, train={"steps": 1, "learning_rate": 0.1})) as trainer:
        trainer.train()
        expected = plain_logits(trainer.model.module, ids)
    done = run_here("export", tmp_path / "runs/tiny", "--output-dir", tmp_path / "merged", "--merge")
    assert done.returncode == 0, done.stderr
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    torch.testing.assert_close(plain_logits(merged, ids), expected, atol=1e-4, rtol=0)
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert (plain_logits(whole, ids) - expected).abs().max() > 1e-2
    assert "| frozen weights | in 4 bits (NF4) |" in (tmp_path / "merged/README.md").read_text(encoding="utf-8")


# Memory


def test_a_plan_counts_the_bytes_that_the_weights_take(tmp_path: Path, bitsandbytes: Any) -> None:
    save_tiny_causal_lm(tmp_path / "model", hidden_size=256, intermediate_size=1024, num_attention_heads=4)
    config = config_of(tmp_path)
    model = HuggingFaceModel.from_pretrained(tmp_path / "model", lora=RANK_4, max_context=64, load_in_4bit=True).module
    held = 0
    for name, weight in model.named_parameters():
        if "lora_" in name:
            continue
        held += weight.numel() * weight.element_size()
        if (state := getattr(weight, "quant_state", None)) is not None:
            held += state.absmax.numel() * state.absmax.element_size()
            held += state.state2.absmax.numel() * state.state2.absmax.element_size()
    shape = shape_of(AutoConfig.from_pretrained(tmp_path / "model"), "tiny")
    job = Job(shape=shape, config=config, layout=Layout(), is_cpu=True)
    planned = next(item.num_bytes for item in resident(job) if item.name == "weights")
    assert planned == pytest.approx(held, rel=0.01)
    assert planned < 0.2 * shape.num_weights * 4
    assert count_matmul_weights(model.get_base_model().model) == (
        shape.num_adapter_weights(4),
        shape.num_matmul_weights,
    )


# What is refused; these need no package


@pytest.mark.parametrize(
    ("sections", "sentence"),
    [
        ({"model": {"load_in_4bit": True}}, "set model.lora.rank=16"),
        ({"policy": {"type": "minimind"}, "model": {"load_in_4bit": True}}, "load_in_4bit has no effect with policy"),
        ({"policy": {"type": "vllm"}}, "would sample from whole weights"),
        ({"algorithm": {"advantage": "gae"}, "critic": {"backbone": "own"}}, "set critic.backbone=shared"),
    ],
)
def test_what_4_bits_cannot_do_is_one_sentence(tmp_path: Path, sections: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace(".", r"\.")):
        config_of(tmp_path, **sections)


def test_under_deepspeed_it_is_refused_before_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backend, "zero_stage", 3)
    with pytest.raises(ConfigError, match=r"ZeRO-3.*ddp_8gpu\.yaml"):
        make_policy(config_of(tmp_path), Backend("cpu"), run_folder=tmp_path)


def test_without_the_package_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    save_tiny_causal_lm(tmp_path)
    with pytest.raises(ConfigError, match=r"bitsandbytes; .*qlora"):
        HuggingFaceModel.from_pretrained(tmp_path, lora=RANK_4, max_context=64, load_in_4bit=True)
