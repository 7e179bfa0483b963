"""What the log-prob model computes for sampled ids is what a plain forward pass of each sample alone computes, whatever
the model is and however samples share a micro-batch."""

import copy
import json
import os
from pathlib import Path

import pytest
import torch
from fakes import tiny_config
from tiny_models import tiny_causal_lm, tiny_model
from torch import Tensor, nn

from agent_rl.errors import ConfigError
from agent_rl.learning import logprob_model as scoring
from agent_rl.learning.logprob_model import Critic, LogprobModel, Scores, ValueHead, make_logprob_model
from agent_rl.learning.packing import move_batch, plan_micro_batches
from agent_rl.modeling.onednn import OneDNNLinear
from agent_rl.modeling.packed_attention import PackedLayout
from agent_rl.records import Batch, TrainingSample

pytestmark = pytest.mark.usefixtures("on_test_device")
on_cpu_only = pytest.mark.skipif(
    os.environ.get("AGENT_RL_TEST_DEVICE", "cpu") != "cpu", reason="of layers and calls that a CPU has"
)
KINDS = ("minimind", "llama", "qwen2", "qwen3", "mistral", "mistral_window", "gemma2", "gpt2", "lora")
"""Windows are six tokens, Gemma 2 has softcaps, GPT-2 learned positions."""
PROMPT = [5, 9, 2, 14, 7, 3, 33, 8]


def sample(ids: list[int], mask: list[int]) -> TrainingSample:
    return TrainingSample(
        token_ids=tuple(ids),
        loss_mask=tuple(mask),
        sampling_logprobs=(0.0,) * len(ids),
        advantages=tuple(1.0 * trained for trained in mask),
    )


SAMPLES = [
    sample([*PROMPT, 21, 40, 6, 11, 50, 1], [0] * 8 + [1, 1, 0, 0, 1, 1]),
    sample([*PROMPT, 60], [0] * 8 + [1]),
    sample([*PROMPT, 19, 4, 22, 31, 13, 63, 12, 9, 27], [0] * 8 + [1] * 9),
    sample([44, 17, 30, 2], [0, 1, 1, 1]),
]
"""A group of three, of which one has a single trained token, and a sample with another prompt."""
WAYS = {"shared": {}, "flat": {"share_prefixes": False}, "padded": {"packed": False}}


def one_batch(*, share_prefixes: bool = True) -> Batch:
    ((batch,),) = plan_micro_batches(SAMPLES, max_tokens=1000, share_prefixes=share_prefixes)
    return move_batch(batch, torch.get_default_device())


def score(model: nn.Module, way: str, **options: object) -> Scores:
    """All samples in one micro-batch, at temperature 0.7."""
    packed, share = WAYS[way].get("packed"), WAYS[way].get("share_prefixes", True)
    return LogprobModel(model, temperature=0.7, packed=packed, **options)(one_batch(share_prefixes=share))


def plain(model: nn.Module, temperature: float = 0.7) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every trained id, from the model's own logits for each sample alone."""
    rows, targets = [], []
    for one in SAMPLES:
        output = model(torch.tensor([one.token_ids]))
        logits = output if isinstance(output, Tensor) else output.logits
        for place in (place for place, trained in enumerate(one.loss_mask) if trained):
            rows.append(logits[0, place - 1].float() / temperature)
            targets.append(one.token_ids[place])
    log_softmax = torch.log_softmax(torch.stack(rows), dim=-1)
    return log_softmax.gather(1, torch.tensor(targets)[:, None])[:, 0], -(log_softmax.exp() * log_softmax).sum(dim=-1)


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# Equal to plain forward passes


@on_cpu_only
@pytest.mark.parametrize("kind", ["minimind", "llama", "qwen3", "mistral_window", "lora"])
def test_a_large_micro_batch_gets_hidden_spare_rows(kind: str) -> None:
    samples = [sample([*PROMPT, length, *range(5, 4 + length)], [0] * 8 + [1] * length) for length in range(9, 33)]
    ((batch,),) = plan_micro_batches(samples, max_tokens=10_000)
    num_tokens = len(batch.token_ids)
    assert num_tokens == 476
    model = tiny_model(kind)
    seen: list[int] = []
    for layer in (module for module in model.modules() if isinstance(module, nn.Linear)):
        layer.register_forward_hook(lambda _module, inputs, _out: seen.append(inputs[0].numel() // inputs[0].shape[-1]))
    found = {}
    for packed in (True, False):
        scores = LogprobModel(model, temperature=0.7, packed=packed)(batch)
        loss = (scores.logprobs * torch.linspace(-1, 1, len(batch.predictions))).sum()
        found[packed] = scores, gradients(model, loss)
        assert any(type(module) is OneDNNLinear for module in model.modules())
        has_own_gates = any("forward" in vars(module) for module in model.modules())
        assert has_own_gates == (kind != "minimind")
        if packed:
            # Both the 476 tokens and the head's 492 trained ones; two rows of the trial at the beginning apart.
            assert set(seen) - {2, 4} == {512}
    torch.testing.assert_close(found[True][0].logprobs, found[False][0].logprobs, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[True][0].entropies, found[False][0].entropies, atol=1e-5, rtol=1e-5)
    assert found[True][1].keys() == found[False][1].keys()
    for name, gradient in found[True][1].items():
        torch.testing.assert_close(gradient, found[False][1][name], atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_gradients_are_those_of_plain_forward_passes(kind: str) -> None:
    model = tiny_model(kind)
    logprobs, entropies = plain(model)
    wanted = gradients(model, (logprobs * torch.arange(17)).sum())
    for way in WAYS:
        scores = score(model, way)
        torch.testing.assert_close(scores.logprobs, logprobs, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(scores.entropies, entropies, atol=1e-4, rtol=1e-4)
        found = gradients(model, (scores.logprobs * torch.arange(17)).sum())
        assert found.keys() == wanted.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(found[name], gradient, atol=5e-4, rtol=1e-3, msg=f"{way}: {name}")
    assert logprobs.std() > 0.5


@pytest.mark.parametrize("kind", KINDS)
def test_models_known_here_run_flat(kind: str) -> None:
    model = tiny_model(kind)
    assert LogprobModel(model, temperature=1.0).is_packed
    assert not LogprobModel(model, temperature=1.0, packed=False).is_packed


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Phimoe", {"num_local_experts": 4, "router_jitter_noise": 0.0}),
        ("Qwen2Moe", {"num_experts": 4, "use_sliding_window": True, "max_window_layers": 1}),
    ],
)
def test_a_window_that_only_the_mask_has_is_that_of_a_flat_pass(name: str, changes: dict) -> None:
    model = tiny_causal_lm(name, initializer_range=0.5, sliding_window=6, **changes)
    logprobs, _ = plain(model)
    unlimited = tiny_causal_lm(name, initializer_range=0.5, sliding_window=128, **changes)
    assert (plain(unlimited)[0] - logprobs).abs().max() > 0.1
    for way in WAYS:
        torch.testing.assert_close(score(model, way).logprobs, logprobs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "changes"), [("Bloom", {}), ("GptOss", {}), ("StableLm", {})])
def test_models_that_cannot_run_flat_are_scored_by_padded_rows(name: str, changes: dict) -> None:
    model = tiny_causal_lm(name, scale=30.0, **changes)
    scorer = LogprobModel(model, temperature=0.7)
    assert not scorer.is_packed
    torch.testing.assert_close(scorer(one_batch()).logprobs, plain(model)[0], atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match="cannot run without padding"):
        LogprobModel(model, temperature=0.7, packed=True)


def test_a_model_that_fails_in_a_flat_pass_is_scored_by_padded_rows(caplog: pytest.LogCaptureFixture) -> None:
    scoring._say_padded.cache_clear()
    model = tiny_causal_lm("Doge", scale=30.0)
    attention = model.config._attn_implementation
    scorers = [LogprobModel(model, temperature=0.7) for _ in range(2)]
    assert not any(scorer.is_packed for scorer in scorers)
    assert model.config._attn_implementation == attention
    assert [record.args[0] for record in caplog.records if record.name == scoring.__name__] == ["DogeForCausalLM"]
    torch.testing.assert_close(score(model, "padded").logprobs, plain(model)[0], atol=1e-4, rtol=1e-4)
    with pytest.raises(ConfigError, match="DogeForCausalLM cannot run without padding"):
        LogprobModel(model, temperature=0.7, packed=True)


def test_a_model_with_other_numbers_in_a_flat_pass_is_scored_by_padded_rows() -> None:
    model = tiny_model("gpt2")
    forward = model.get_decoder().forward

    def without_positions(*args: object, **kwargs: object) -> object:
        return forward(*args, **kwargs | {"position_ids": None})

    model.get_decoder().forward = without_positions
    assert not LogprobModel(model, temperature=0.7).is_packed


@pytest.mark.parametrize("kind", ["minimind", "qwen3", "gemma2"])
def test_bfloat16_scores_are_near_those_of_a_plain_pass(kind: str) -> None:
    model = tiny_model(kind, dtype=torch.bfloat16)
    logprobs, _ = plain(model)
    for way in ("shared", "flat"):
        assert float((score(model, way).logprobs - logprobs).detach().abs().mean()) < 0.1


@pytest.mark.parametrize("kind", ["minimind", "llama", "gemma2"])
def test_autocast_scores_are_near_those_of_a_plain_pass(kind: str) -> None:
    model = tiny_model(kind)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        logprobs, _ = plain(model)
        for way in ("shared", "flat"):
            scores = score(model, way)
            assert scores.logprobs.dtype == torch.float32
            assert float((scores.logprobs - logprobs).detach().abs().mean()) < 0.1
            assert gradients(model, scores.logprobs.sum())


@pytest.mark.parametrize("kind", ["llama", "mistral_window", "gemma2", "gpt2", "lora"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_computed_again_give_the_same_gradient(kind: str, reentrant: bool) -> None:
    model = tiny_model(kind).train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = one_batch()
    scorer = LogprobModel(model, temperature=1.0)
    wanted = gradients(model, scorer(batch).logprobs.sum())
    inner = model.get_base_model() if kind == "lora" else model
    inner.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    found = gradients(model, scorer(batch).logprobs.sum())
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "mistral_window"])
def test_a_model_that_was_scored_is_the_same_in_plain_passes_and_on_disk(kind: str, tmp_path: Path) -> None:
    model = tiny_model(kind)
    ids = torch.tensor([SAMPLES[2].token_ids, SAMPLES[2].token_ids[::-1]])
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    before = model(ids, attention_mask=mask).logits
    score(model, "shared")
    torch.testing.assert_close(model(ids, attention_mask=mask).logits[mask.bool()], before[mask.bool()])
    model.save_pretrained(tmp_path)
    assert "agent_rl" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))


# Logits in chunks, the same number on all ranks


def head_calls(scorer: LogprobModel, batch: Batch) -> list[int]:
    """Rows of each call of the head in a forward pass."""
    sizes: list[int] = []
    handle = scorer.head.register_forward_hook(lambda _module, inputs, _output: sizes.append(len(inputs[0])))
    scorer(batch)
    handle.remove()
    return sizes


@pytest.mark.parametrize("kind", ["minimind", "gemma2"])
def test_chunks_change_neither_scores_nor_gradients(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(kind)
    whole = score(model, "shared")
    wanted = gradients(model, whole.logprobs.sum())
    monkeypatch.setattr(scoring, "LOGITS_AT_A_TIME", 5 * 64)
    scores = score(model, "shared")
    torch.testing.assert_close(scores.logprobs, whole.logprobs)
    torch.testing.assert_close(scores.entropies, whole.entropies)
    for name, gradient in gradients(model, scores.logprobs.sum()).items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-4, rtol=1e-4)


@on_cpu_only
@pytest.mark.parametrize(
    ("kind", "is_split", "expected"),
    [
        ("minimind", False, ([4, 4, 4], [2], [1])),  # each as often as it needs: nothing is gathered
        ("minimind", True, ([12], [2], [1])),  # all chunks in one call
        ("gemma2", True, ([4, 4, 4], [1, 1, 1], [1, 1, 1])),  # whose logits are capped after the head
    ],
)
def test_ranks_with_unequal_shares_call_a_head_of_shards_equally_often(
    kind: str, is_split: bool, expected: tuple[list[int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scoring, "LOGITS_AT_A_TIME", 5 * 64)
    scorer = LogprobModel(tiny_model(kind), temperature=1.0)
    if is_split:
        scorer.head.weight.ds_shape = scorer.head.weight.shape
    few = sample([1, 2, 3], [0, 1, 1])
    many = sample([4, *range(20, 32)], [0] + [1] * 12)
    ((first,), (second,), (third,)) = plan_micro_batches([few, many], max_tokens=99, num_ranks=3)
    assert [len(batch.targets) for batch in (first, second, third)] == [12, 2, 0]
    assert tuple(head_calls(scorer, batch) for batch in (first, second, third)) == expected


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_head_in_float32_beside_bfloat16(is_chunked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its products are those of float32 copies of the same hidden states and weights."""
    if is_chunked:
        monkeypatch.setattr(scoring, "LOGITS_AT_A_TIME", 5 * 64)
    model = tiny_model("llama", dtype=torch.bfloat16)
    batch = move_batch(plan_micro_batches(SAMPLES, max_tokens=999)[0][0], torch.get_default_device())
    found = LogprobModel(model, temperature=1.0, head_dtype=torch.float32)
    plain = LogprobModel(model, temperature=1.0)
    rows, targets, _ = plain._flat.hidden_rows(batch)
    wanted = (rows.float() @ plain.head.weight.float().T).log_softmax(-1).gather(1, targets[:, None])[:, 0]
    scores = found(batch)
    torch.testing.assert_close(scores.logprobs, wanted[batch.predictions], atol=1e-5, rtol=1e-5)
    assert (plain(batch).logprobs - scores.logprobs).abs().max() > 1e-4
    scores.logprobs.sum().backward()
    assert plain.head.weight.grad.dtype == torch.bfloat16


def test_a_head_of_its_own_format_must_be_a_plain_layer() -> None:
    with pytest.raises(ConfigError, match=r"model\.head_dtype"):
        LogprobModel(tiny_model("gemma2"), temperature=1.0, head_dtype=torch.float32)


@pytest.mark.parametrize("kind", ["minimind", "llama", "gpt2"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_micro_batch_without_trained_tokens_has_gradients_of_zero(kind: str, packed: bool) -> None:
    model = tiny_model(kind)
    scorer = LogprobModel(model, temperature=1.0, packed=packed, critic=ValueHead(32))
    (_, (filler,)) = plan_micro_batches(SAMPLES[:1], max_tokens=99, num_ranks=2)
    scores = scorer(move_batch(filler, torch.get_default_device()))
    assert scores.logprobs.shape == scores.entropies.shape == scores.values.shape == (0,)
    (scores.logprobs.sum() + scores.values.sum()).backward()
    for name, parameter in scorer.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


# One module


def test_the_scorer_holds_the_weights_of_the_model_once() -> None:
    model = tiny_causal_lm()
    scorer = LogprobModel(model, temperature=1.0)
    assert [id(p) for p in scorer.parameters()] == [id(p) for p in model.parameters()]
    assert set(scorer.state_dict()) == {f"model.{name}" for name in model.state_dict()}


def test_entropies_carry_a_gradient_when_requested() -> None:
    model = tiny_model()
    assert not score(model, "shared").entropies.requires_grad
    entropies = score(model, "shared", entropy_gradient=True).entropies
    wanted = gradients(model, plain(model)[1].sum())
    for name, gradient in gradients(model, entropies.sum()).items():
        torch.testing.assert_close(gradient, wanted[name], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["minimind", "gemma2"])
def test_the_kl_to_a_reference_is_that_of_both_models_logits(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scoring, "LOGITS_AT_A_TIME", 5 * 64)  # 17 rows in four calls
    model, other = tiny_model(kind), tiny_model(kind, seed=1)
    batch = one_batch()
    scorer, reference = LogprobModel(model, temperature=0.7), LogprobModel(other, temperature=1.0)
    ref = reference.states_and_head(batch)
    full_kl = scorer(batch, ref=ref).full_kl

    def log_softmax(of: LogprobModel) -> Tensor:
        hidden, head = of.states_and_head(batch)
        return torch.log_softmax(head(hidden) / 0.7, dim=-1)

    p, q = log_softmax(scorer), log_softmax(reference)
    expected = (p.exp() * (p - q)).sum(-1)[batch.predictions]
    torch.testing.assert_close(full_kl, expected, atol=1e-4, rtol=1e-4)
    full_kl.sum().backward()
    assert all(parameter.grad is None for parameter in other.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())


# Values


def test_values_are_read_where_a_token_is_predicted() -> None:
    head = ValueHead(32)
    with torch.no_grad():
        head.linear.weight.normal_()
        head.linear.bias.fill_(0.5)
    model = tiny_model()
    values = score(model, "shared", critic=head).values
    hidden = model.hidden_states(torch.tensor([SAMPLES[3].token_ids]))[0]
    expected = hidden[:3] @ head.linear.weight[0] + 0.5
    torch.testing.assert_close(values[-3:], expected, atol=1e-5, rtol=1e-5)


def test_a_fresh_critic_predicts_zero() -> None:
    assert score(tiny_model(), "shared", critic=ValueHead(32)).values.tolist() == [0.0] * 17


def test_values_are_float32_under_autocast() -> None:
    head = ValueHead(4)
    with torch.no_grad():
        head.linear.weight.fill_(1.0)
        head.linear.bias.fill_(1 / 3)
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        (value,) = head(torch.full((1, 4), 1 / 3))
    assert value.dtype == torch.float32
    assert float(value.detach()) == pytest.approx(5 / 3, abs=1e-6)  # bfloat16 knows 1.6640625 and 1.671875 only


@pytest.mark.parametrize("kind", ["minimind", "qwen3", "lora"])
def test_a_critic_of_its_own_shares_no_weight_and_uses_all_it_trains(kind: str) -> None:
    model = tiny_model(kind)
    scorer = LogprobModel(model, temperature=1.0, critic=Critic(copy.deepcopy(model)))
    with torch.no_grad():
        scorer.critic.value_head.linear.weight.normal_()
    batch = one_batch()
    scorer(batch).values.sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    scores = scorer(batch)
    scores.logprobs.sum().backward()
    for name, parameter in scorer.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    torch.testing.assert_close(scores.logprobs, LogprobModel(model, temperature=1.0)(batch).logprobs)


@pytest.mark.parametrize(
    ("sections", "critic"),
    [
        ({}, type(None)),
        ({"algorithm": {"advantage": "gae"}, "critic": {"backbone": "shared"}}, ValueHead),
        ({"algorithm": {"advantage": "gae"}, "critic": {"backbone": "own"}}, Critic),
    ],
)
def test_a_configuration_selects_the_critic(tmp_path: Path, sections: dict, critic: type) -> None:
    scorer = make_logprob_model(tiny_model(), tiny_config(tmp_path, **sections))
    assert isinstance(scorer.critic, critic)
    assert not scorer(one_batch()).entropies.requires_grad


# Hugging Face models


def test_a_model_that_does_not_hand_the_layout_on_is_not_trained_wrongly() -> None:
    model = tiny_model("llama")
    scorer = LogprobModel(model, temperature=1.0)
    backbone = model.get_decoder()
    forward = backbone.forward

    def without_layout(*, packed_layout: PackedLayout, **kwargs: object) -> object:
        assert packed_layout.segments
        return forward(**kwargs)

    backbone.forward = without_layout
    with pytest.raises(ConfigError, match="LlamaAttention does not hand the layout of a flat pass on"):
        scorer(one_batch())


def test_a_model_that_makes_a_mask_of_its_own_is_not_trained_wrongly() -> None:
    model = tiny_model("llama")
    scorer = LogprobModel(model, temperature=1.0)
    forward = model.get_decoder().forward
    own = torch.zeros(1, 1, 31, 31)
    model.get_decoder().forward = lambda **kwargs: forward(**kwargs | {"attention_mask": own})
    with pytest.raises(ConfigError, match="LlamaAttention makes a mask of its own"):
        scorer(one_batch())
