"""Operations counted by hand and by PyTorch's own counter; peaks by name; what is measured is measured once."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from agent_rl.modeling.minimind import MiniMindConfig, MiniMindForCausalLM
from agent_rl.telemetry.flops import count_matmul_weights, gpu_peak_flops, peak_flops, train_flops

SHAPE = {"num_layers": 2, "num_heads": 4, "head_dim": 8}


def test_weights_cost_six_operations_a_token_and_attention_its_causal_half():
    # 6 * 1000 * (3 + 5) tokens, and 6 * 2 * 4 * 8 * (9 + 25) for the attention of the two segments.
    assert train_flops(num_matmul_weights=1000, segment_lengths=[3, 5], **SHAPE) == 48_000 + 384 * 34


def test_a_shared_prompt_is_computed_once_and_looked_at_by_all_that_go_on_from_it():
    # A prompt of 10 with two continuations of 2: each looks at 10 * 2 pairs of the prompt, which are not halved.
    shared = train_flops(num_matmul_weights=1, segment_lengths=[10, 2, 2], prefix_lengths=[0, 10, 10], **SHAPE)
    assert shared == 6 * 14 + 384 * (100 + 4 + 4 + 2 * 20 + 2 * 20)
    # The same pairs as in two whole rows of 12, but for the second copy of the prompt's own 100.
    whole = train_flops(num_matmul_weights=1, segment_lengths=[12, 12], **SHAPE)
    assert whole - shared == 6 * 10 + 384 * 100


def test_frozen_weights_cost_four_and_the_head_counts_for_its_rows():
    flops = train_flops(
        num_matmul_weights=10,
        num_frozen_weights=100,
        num_head_weights=50,
        num_head_rows=3,
        segment_lengths=[4],
        **SHAPE,
    )
    assert flops == (60 + 400) * 4 + 6 * 50 * 3 + 384 * 16


def test_the_count_agrees_with_what_pytorch_counts_in_a_real_pass():
    torch.manual_seed(0)
    model = MiniMindForCausalLM(
        MiniMindConfig(
            vocab_size=50,
            hidden_size=32,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )
    ids = torch.randint(0, 50, (2, 16))
    with FlopCounterMode(display=False) as counter:
        model.logits(model.hidden_states(ids)).sum().backward()
    trained, frozen = count_matmul_weights(model)
    assert frozen == 0
    num_head = 50 * 32
    counted = train_flops(
        num_matmul_weights=trained,
        num_layers=3,
        num_heads=4,
        head_dim=8,
        segment_lengths=[16, 16],
        num_head_weights=num_head,
        num_head_rows=32,
    )
    # PyTorch counts the whole square of attention, and what its kernels do: flash attention makes the scores again.
    attention = 6 * 3 * 4 * 8 * 2 * 16**2
    by_pytorch = counter.get_total_flops()
    assert counted - attention <= by_pytorch <= counted + 2 * attention
    products = sum(n for name, n in counter.get_flop_counts()["Global"].items() if "attention" not in str(name))
    assert products == counted - attention


def test_matrices_count_and_tables_and_vectors_do_not():
    model = nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    model[1].weight.requires_grad_(False)
    assert count_matmul_weights(model) == (8, 32)


def test_a_weight_that_is_split_over_processes_counts_whole():
    layer = nn.Linear(8, 4)
    layer.weight.ds_shape = torch.Size([8, 4])
    layer.weight.data = torch.empty(0)
    assert count_matmul_weights(layer) == (32, 0)


def test_a_head_that_is_the_embedding_counts_as_the_table_it_is():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(100, 8)
            self.head = nn.Linear(8, 100, bias=False)
            self.head.weight = self.table.weight

    assert count_matmul_weights(Tied()) == (0, 0)


@pytest.mark.parametrize(
    ("name", "dtype", "uses_tf32", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, False, 989),
        ("NVIDIA H100 80GB HBM3", torch.float32, False, 67),
        ("NVIDIA H100 80GB HBM3", torch.float32, True, 494),
        ("NVIDIA H100 PCIe", torch.bfloat16, False, 756),
        ("NVIDIA H200", torch.float16, False, 989),
        ("NVIDIA GH200 480GB", torch.bfloat16, False, 989),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, False, 312),
        ("NVIDIA L40S", torch.bfloat16, False, 362),
        ("NVIDIA L4", torch.bfloat16, False, 121),
        ("NVIDIA A10G", torch.bfloat16, False, 70),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, False, 165.2),
    ],
)
def test_known_gpus_have_the_makers_dense_figure(name, dtype, uses_tf32, tera):
    assert gpu_peak_flops(name, dtype, uses_tf32=uses_tf32) == tera * 1e12


@pytest.mark.parametrize("name", ["NVIDIA RTX A4000", "NVIDIA GeForce RTX 4090 Laptop GPU", "AMD Instinct MI300X"])
def test_gpus_whose_names_only_look_alike_have_none(name):
    assert gpu_peak_flops(name, torch.bfloat16, uses_tf32=False) is None


def test_the_peak_of_a_cpu_is_measured_once():
    cpu = torch.device("cpu")
    first = peak_flops(cpu, torch.float32)
    assert 1e8 < first < 1e15
    assert peak_flops(cpu, torch.float32) == first
