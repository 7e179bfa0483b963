"""Any Hugging Face causal LM as a policy: it is trained as it samples, whole or by adapters; and what is refused."""

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import episode, make_trainer, turn
from fakes import save_tiny_model, tiny_config
from run_outcomes import lasting_metrics
from safetensors.torch import load_file
from tiny_models import save_tiny_causal_lm, watched_products
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModelForCausalLM

from agent_rl.config import Config, LoraConfig
from agent_rl.distributed.backend import Backend
from agent_rl.errors import CheckpointError, ConfigError
from agent_rl.learning.logprob_model import LogprobModel
from agent_rl.learning.packing import plan_micro_batches
from agent_rl.learning.update import PolicyUpdater
from agent_rl.policies.hf_policy import HuggingFacePolicy
from agent_rl.policies.make_policy import load_policy_tokenizer, make_in_process_policy
from agent_rl.policies.minimind_policy import MiniMindPolicy
from agent_rl.records import (
    Batch,
    FinishReason,
    SamplingParams,
    TrainingSample,
    TrajectoryGroup,
)

RANK_4 = LoraConfig(rank=4, alpha=8.0)
LORA = {"rank": 4, "alpha": 8.0}


def load(folder: Path, **settings: Any) -> HuggingFacePolicy:
    return HuggingFacePolicy.from_pretrained(folder, **({"max_context": 64} | settings))


def hf_config(folder: Path, *, lora: dict[str, Any] | None = None, **sections: dict[str, Any]) -> Config:
    sections["policy"] = {"type": "huggingface"} | sections.get("policy", {})
    sections["model"] = ({"lora": lora} if lora else {}) | sections.get("model", {})
    return tiny_config(folder, **sections)


def scores(
    policy: HuggingFacePolicy, prompt: Sequence[int], sampled: Sequence[int], temperature: float
) -> torch.Tensor:
    with torch.no_grad():
        return LogprobModel(policy.model, temperature=temperature)(batch_of(prompt, sampled)).logprobs


def batch_of(prompt: Sequence[int], sampled: Sequence[int]) -> Batch:
    mask = (0,) * len(prompt) + (1,) * len(sampled)
    zeros = (0.0,) * len(mask)
    sample = TrainingSample(token_ids=(*prompt, *sampled), loss_mask=mask, sampling_logprobs=zeros, advantages=zeros)
    ((batch,),) = plan_micro_batches([sample], max_tokens=100, skip_zero_advantage=False)
    return batch


# Sampling and training


@pytest.mark.parametrize("name", ["Llama", "Qwen2", "Gemma2", "GPT2"])
@pytest.mark.parametrize("lora", [None, RANK_4], ids=["whole", "lora"])
def test_log_probs_of_what_was_sampled_are_those_the_trainer_computes(
    tmp_path: Path, name: str, lora: LoraConfig | None
) -> None:
    policy = load(save_tiny_causal_lm(tmp_path, name), lora=lora)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))  # fresh adapters add nothing
    policy.refresh_weights(1)
    for seed, prompt in enumerate([[7], [7, 8, 9, 10, 11, 12]]):
        sampling = SamplingParams(max_new_tokens=12, temperature=0.7, seed=seed)
        sampled = policy.generate(prompt, sampling)
        expected = scores(policy, prompt, sampled.token_ids, 0.7)
        torch.testing.assert_close(torch.tensor(sampled.logprobs), expected, atol=1e-4, rtol=0)
        assert expected.min() < -1.0
    policy.close()


def test_a_completion_without_a_waiter_ends_early(tmp_path: Path) -> None:
    policy = load(save_tiny_causal_lm(tmp_path))
    gave_up = threading.Event()
    gave_up.set()
    sampled = policy.generate([7, 8], SamplingParams(max_new_tokens=50), gave_up)
    assert sampled.finish_reason is FinishReason.CANCELLED
    assert len(sampled.token_ids) < 50
    policy.close()


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_an_update_raises_the_probability_of_what_was_rewarded(tmp_path: Path, lora: dict[str, Any] | None) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    config = hf_config(tmp_path, lora=lora)
    policy = make_in_process_policy(config, device=torch.device("cpu"))
    updater = PolicyUpdater(policy.model, config, Backend("cpu"))
    prompt, good, bad = (7, 8, 9), (10, 11, 2), (12, 13, 2)
    before = [scores(policy, prompt, sampled, 1.0) for sampled in (good, bad)]
    episodes = (
        episode(1.0, turn(prompt, good, before[0].tolist())),
        episode(0.0, turn(prompt, bad, before[1].tolist())),
    )
    metrics = updater.update([TrajectoryGroup(task_id="t", trajectories=episodes)], step=0).metrics
    policy.refresh_weights(1)
    after = [scores(policy, prompt, sampled, 1.0) for sampled in (good, bad)]
    assert metrics["loss/abs_log_ratio_max"] < 1e-5
    assert after[0].sum() > before[0].sum()
    assert after[1].sum() < before[1].sum()
    assert not policy.model.training
    sampled = policy.generate(prompt, SamplingParams(max_new_tokens=5))
    assert sampled.weight_version == 1
    torch.testing.assert_close(
        torch.tensor(sampled.logprobs), scores(policy, prompt, sampled.token_ids, 1.0), atol=1e-4, rtol=0
    )
    policy.close()


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_a_whole_run_trains_the_model_and_its_checkpoint_is_read_by_transformers(tmp_path: Path, name: str) -> None:
    save_tiny_causal_lm(tmp_path / "model", name)
    config = hf_config(tmp_path, train={"steps": 2}, eval={"temperatures": [0.0]})
    with make_trainer(config) as trainer:
        result = trainer.train()
        weights = {key: value.clone() for key, value in trainer.policy.model.state_dict().items()}
    assert result["step"] == 2
    rows = [row for row in lasting_metrics(tmp_path / "runs/tiny") if "policy/kl" in row]
    assert len(rows) == 2
    assert all(row["loss/abs_log_ratio_max"] < 1e-4 and row["optim/grad_norm"] > 0 for row in rows)
    folder = tmp_path / "runs/tiny/checkpoints/step_00002/model"
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # who reads one file reads the weights
    saved = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[key], weights[key]) for key in saved)
    start = load_file(tmp_path / "model/model.safetensors")
    assert not torch.equal(saved["model.embed_tokens.weight"], start["model.embed_tokens.weight"])


@pytest.mark.parametrize(
    ("lora", "weights_file"), [(None, "model.safetensors"), (LORA, "adapter_model.safetensors")], ids=["whole", "lora"]
)
def test_a_resumed_run_is_the_same_bit_for_bit(tmp_path: Path, lora: dict[str, Any] | None, weights_file: str) -> None:
    save_tiny_causal_lm(tmp_path / "model")

    def train(name: str, steps: int) -> None:
        config = hf_config(
            tmp_path,
            lora=lora,
            run={"name": name},
            model={"gradient_checkpointing": True},
            rollout={"groups_per_step": 2, "async_workers": 0},
            train={"steps": steps, "learning_rate": 1e-2, "final_learning_rate": 1e-2, "weight_decay": 0.1},
            checkpoint={"resume": "auto"},
        )
        with make_trainer(config) as trainer:
            trainer.train()

    train("straight", 3)
    train("stopped", 1)
    train("stopped", 3)
    runs = tmp_path / "runs"
    assert lasting_metrics(runs / "stopped") == lasting_metrics(runs / "straight")
    saved = [load_file(runs / name / "checkpoints/step_00003/model" / weights_file) for name in ("straight", "stopped")]
    assert saved[0].keys() == saved[1].keys()
    assert all(torch.equal(saved[0][key], saved[1][key]) for key in saved[0])


# Adapters


def test_no_product_beside_bfloat16_weights_is_in_float32(tmp_path: Path) -> None:
    """Nor is any input of an adapter widened, forward or backward, gradient checkpointing included."""
    save_tiny_causal_lm(tmp_path, "Qwen2")
    policy = load(tmp_path, dtype="bfloat16", lora=RANK_4, gradient_checkpointing=True)
    scorer = LogprobModel(policy.model, temperature=1.0).train()
    batch = batch_of((3, 1, 4, 1), (5, 9, 2, 6))
    with torch.autocast("cpu", torch.bfloat16), watched_products() as formats:
        scorer(batch).logprobs.sum().backward()
    assert formats == {torch.bfloat16}
    adapters = [weight for weight in policy.model.parameters() if weight.requires_grad]
    assert {weight.grad.dtype for weight in adapters} == {torch.float32}
    policy.close()


def test_lora_leaves_the_weights_of_the_model_as_they_are(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    start = load_file(tmp_path / "model/model.safetensors")
    config = hf_config(tmp_path, lora=LORA, train={"steps": 2, "learning_rate": 1e-2, "weight_decay": 0.1})
    with make_trainer(config) as trainer:
        trainer.train()
        model = trainer.policy.model
        now = {name.replace(".base_layer", ""): value for name, value in model.get_base_model().state_dict().items()}
        adapters = {name: value for name, value in model.named_parameters() if value.requires_grad}
    assert all(torch.equal(now[name], value) for name, value in start.items())
    assert len(adapters) == 2 * 2 * 7  # A and B of seven linear layers in two blocks
    assert all("lora_" in name for name in adapters)
    assert any(value.abs().max() > 0 for name, value in adapters.items() if "lora_B" in name)
    saved = {path.name for path in (tmp_path / "runs/tiny/checkpoints/step_00002/model").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= saved
    assert "model.safetensors" not in saved


def test_adapters_are_float32_and_initialised_from_the_seed(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path)

    def adapters(seed: int) -> list[torch.Tensor]:
        policy = load(tmp_path, dtype="bfloat16", lora=LoraConfig(rank=2, target_modules=("q_proj",)), seed=seed)
        policy.close()
        assert policy.model.get_base_model().lm_head.weight.dtype == torch.bfloat16
        return [parameter for parameter in policy.model.parameters() if parameter.requires_grad]

    first, again, other = adapters(0), adapters(0), adapters(1)
    assert [tuple(parameter.shape) for parameter in first] == [(2, 32), (32, 2)] * 2
    assert {parameter.dtype for parameter in first} == {torch.float32}
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_a_folder_of_adapters_is_read_on_the_model_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    policy = load(Path("model"), lora=RANK_4)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    policy.save_pretrained("adapter")
    expected = scores(policy, [7, 8], [9, 10, 11], 1.0)
    policy.close()
    monkeypatch.chdir("/")
    again = load(tmp_path / "adapter", lora=RANK_4)
    again.close()
    assert torch.equal(scores(again, [7, 8], [9, 10, 11], 1.0), expected)
    assert sum(parameter.requires_grad for parameter in again.model.parameters()) == 28
    for other, words in [
        (None, r"rank 0, alpha 32, .* but the adapters in .* have 4, 8, .*; set model.lora to these"),
        (LoraConfig(rank=8, alpha=8.0), "has rank 8, alpha 8"),
        (LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj",)), r"layers \['q_proj'\], but the adapters"),
    ]:
        with pytest.raises(ConfigError, match=words):
            load(tmp_path / "adapter", lora=other)


def test_adapters_of_another_kind_or_of_a_lost_model_are_refused(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    policy = load(tmp_path / "model", lora=RANK_4)
    policy.save_pretrained(tmp_path / "adapter")
    policy.close()
    path = tmp_path / "adapter/adapter_config.json"
    raw = json.loads(path.read_text())
    for change, words in [
        ({"peft_type": "IA3"}, "IA3 adapters with dropout 0.0; expected LORA without dropout"),
        ({"lora_dropout": 0.1}, "LORA adapters with dropout 0.1; expected LORA without dropout"),
        ({"base_model_name_or_path": "/nowhere/model"}, "model.path = '/nowhere/model': no such folder"),
    ]:
        path.write_text(json.dumps(raw | change))
        with pytest.raises(CheckpointError, match=words):
            load(tmp_path / "adapter", lora=RANK_4)
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json cannot be read as a LoRA adapter's"):
        load(tmp_path / "adapter", lora=RANK_4)


def test_a_run_that_trained_the_whole_model_is_not_continued_with_adapters(tmp_path: Path) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"model\.lora\.rank = 4, but .* holds a model that was trained whole"):
        make_in_process_policy(
            hf_config(tmp_path, lora=LORA), device=torch.device("cpu"), checkpoint=tmp_path / "model"
        )


# The function that is trained is the one that is sampled from


@pytest.mark.parametrize(
    ("name", "random"),
    [
        ("Llama", {"attention_dropout": 0.5}),
        ("GPT2", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}),
        ("Mixtral", {"router_jitter_noise": 0.5}),
    ],
)
def test_a_model_in_train_mode_is_the_one_in_eval_mode(tmp_path: Path, name: str, random: dict[str, float]) -> None:
    save_tiny_causal_lm(tmp_path, name, scale=30.0, **random)
    ids = torch.arange(3, 20)[None]
    noisy = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    policy = load(tmp_path)
    policy.close()
    expected = policy.model(input_ids=ids).logits
    torch.testing.assert_close(policy.model.train()(input_ids=ids).logits, expected)
    assert (noisy(input_ids=ids).logits - expected).abs().max() > 0.01


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
def test_gradient_checkpointing_computes_twice_and_changes_no_gradient(
    tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    gradients: list[list[torch.Tensor]] = []
    num_calls = [0, 0]

    def count(module: torch.nn.Module, _inputs: object) -> None:
        num_calls[len(gradients)] += type(module).__name__ == "LlamaMLP"

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        gradients.append([p.grad.clone() for group in optimizer.param_groups for p in group["params"]])

    for is_on in (False, True):
        config = hf_config(tmp_path, lora=lora, model={"gradient_checkpointing": is_on})
        policy = make_in_process_policy(config, device=torch.device("cpu"))
        policy.close()
        updater = PolicyUpdater(policy.model, config, Backend("cpu"))
        episodes = [episode(id_ - 10, turn((7, 8), (9, id_, 2), (-3.0,) * 3)) for id_ in (10, 11)]
        num_calls[len(gradients)] = 0
        hooks = [
            register_module_forward_pre_hook(count),
            register_optimizer_step_pre_hook(record),
        ]
        updater.update([TrajectoryGroup(task_id="t", trajectories=tuple(episodes))], step=0)
        for hook in hooks:
            hook.remove()
    assert num_calls == [2, 4]
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted)
    assert any(gradient.abs().max() > 0 for gradient in gradients[1])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_attention_is_computed_as_configured(tmp_path: Path, attention: str) -> None:
    save_tiny_causal_lm(tmp_path / "model")
    policy = make_in_process_policy(hf_config(tmp_path, model={"attention": attention}), device=torch.device("cpu"))
    policy.generate([7, 8], SamplingParams(max_new_tokens=3))
    policy.close()
    assert policy.model.config._attn_implementation == attention


# Construction


def test_the_type_decides_which_policy_is_made(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")  # MiniMind is written as Qwen3
    for kind, expected in (("minimind", MiniMindPolicy), ("huggingface", HuggingFacePolicy)):
        config = tiny_config(tmp_path, policy={"type": kind})
        policy = make_in_process_policy(config, device=torch.device("cpu"))
        policy.close()
        assert type(policy) is expected
        assert len(load_policy_tokenizer(config)) == 20


@pytest.mark.parametrize("kind", [HuggingFacePolicy, MiniMindPolicy])
def test_weights_are_as_readable_as_their_configuration(
    tmp_path: Path, kind: type[HuggingFacePolicy] | type[MiniMindPolicy]
) -> None:
    policy = kind.from_pretrained(save_tiny_model(tmp_path / "model"), max_context=96)
    policy.save_pretrained(tmp_path / "saved")
    modes = {path.stat().st_mode for path in (tmp_path / "saved").iterdir()}
    assert modes == {(tmp_path / "saved/config.json").stat().st_mode}


def test_both_policies_give_a_minimind_the_same_log_probs(tmp_path: Path) -> None:
    save_tiny_model(tmp_path)
    sampling = SamplingParams(max_new_tokens=20, seed=3)
    sampled = []
    for policy in (MiniMindPolicy.from_pretrained(tmp_path, max_context=64), load(tmp_path)):
        sampled.append(policy.generate([7, 8, 9], sampling))
        policy.close()
    assert sampled[0].token_ids == sampled[1].token_ids
    assert sampled[0].logprobs == pytest.approx(sampled[1].logprobs, abs=1e-5)


@pytest.mark.parametrize("kind", ["minimind", "huggingface"])
def test_a_run_without_adapters_does_not_import_peft(tmp_path: Path, kind: str) -> None:
    save_tiny_model(tmp_path / "model")
    code = (
        "import sys; sys.path.insert(0, 'tests/support')\n"
        "from pathlib import Path; from fakes import LETTER_TASKS, LetterEnv, tiny_config\n"
        "from agent_rl.core.trainer_grpo import GRPOTrainer\n"
        f"config = tiny_config(Path({str(tmp_path)!r}), policy={{'type': {kind!r}}}, train={{'steps': 1}})\n"
        "with GRPOTrainer.from_config(config, env_factory=LetterEnv, train_tasks=LETTER_TASKS) as trainer:\n"
        "    trainer.train()\n"
        "assert 'transformers' in sys.modules and 'peft' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True, timeout=400)


def test_without_peft_the_error_names_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny_causal_lm(tmp_path)
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=r"pip install -r requirements-lora\.txt"):
        load(tmp_path, lora=RANK_4)
