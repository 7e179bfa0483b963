"""What matters for models that no process can hold: loaded as shards, in bfloat16, with the optimizer on the CPU."""

from pathlib import Path

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from agent_rl.distributed.backend import Backend, set_learning_rate

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
TOKEN_IDS = torch.tensor([[1, 2, 3, 4, 5]])


def save_llama(folder: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(LlamaConfig(vocab_size=64, **SIZES)).save_pretrained(folder)


def load_in_shards(folder: Path) -> None:
    """A model loaded as shards has the saved weights; one loaded before or after is whole."""
    backend = Backend("cpu", timeout_s=60)
    before = AutoModelForCausalLM.from_pretrained(folder)
    with backend.sharded_loading():
        model = AutoModelForCausalLM.from_pretrained(folder)
    after = AutoModelForCausalLM.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == 0
    assert sum(p.numel() for p in after.parameters()) == sum(p.numel() for p in before.parameters()) > 0
    model, _ = backend.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    weights = backend.full_state_dict(model)
    assert weights.keys() == (before.state_dict().keys() if backend.is_main_process else set())
    assert all(torch.equal(weights[name], whole) for name, whole in before.state_dict().items() if weights)
    with torch.no_grad():
        assert torch.equal(model(TOKEN_IDS).logits, before(TOKEN_IDS).logits)
    backend.close()


def norm_of_many(backend: Backend, module: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Of 64 gradients that are 1 and 400 times a thousandth, which bfloat16 would round away one by one."""
    set_learning_rate(optimizer, 0.0)
    for number in range(401):
        with backend.micro_step(module, is_last=number == 400):
            share = module(torch.ones(1, 8, dtype=torch.bfloat16)).float().sum()
            backend.backward(share * (1e-3 if number else 1.0))
    result = backend.step(module, optimizer, max_grad_norm=1.0, is_loss_finite=True)
    set_learning_rate(optimizer, 5e-5)
    return result.grad_norm


def train_in_bfloat16(folder: Path) -> None:
    """bfloat16 weights keep a float32 copy that moves by less than bfloat16 shows; a bad gradient stays out of it."""
    backend = Backend("cpu", timeout_s=60)
    torch.manual_seed(0)
    start = nn.Linear(8, 8, bias=False).to(torch.bfloat16)
    weight = start.weight.detach().clone()
    module, optimizer = backend.prepare(start, torch.optim.AdamW(start.parameters(), lr=5e-5, weight_decay=0.0))

    def step(factor: float) -> bool:
        with backend.micro_step(module, is_last=True):
            backend.backward(module(torch.ones(1, 8, dtype=torch.bfloat16)).float().sum() * factor)
        return backend.step(module, optimizer, max_grad_norm=1.0, is_loss_finite=True).applied

    def now() -> torch.Tensor:
        return backend.broadcast_object(backend.full_state_dict(module).get("weight"))

    assert step(1.0)
    norm = norm_of_many(backend, module, optimizer)
    assert abs(norm - backend.num_processes * 8 * 1.4) < 0.1, norm
    assert not step(float("nan") if backend.rank == 1 else 1.0)
    assert (now() - weight).abs().max() < 1e-4
    assert all(step(1.0) for _ in range(39))
    # Forty steps of Adam down a constant slope, each of the learning rate, give or take the last rounding.
    moved = (weight.float() - now().float()).mean().item()
    assert abs(moved - 40 * 5e-5) < 2e-4, moved
    backend.save_state(folder, module, optimizer)
    saved = now()
    assert all(step(1.0) for _ in range(40))
    assert not torch.equal(now(), saved)
    backend.load_state(folder, module, optimizer)
    assert torch.equal(now(), saved)
    backend.close()
