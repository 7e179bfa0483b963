"""Updates on fake tensors: as many bytes as real ones, a GPU's branches, number formats, and the plan beside them."""

import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plan_jobs import make_config
from transformers import Qwen2Config
from typer.testing import CliRunner

from agent_rl.config import Config
from agent_rl.errors import ConfigError, UserError
from agent_rl.learning.logprob_model import logits_at_a_time
from agent_rl.modeling.packed_attention import PackedLayout, packed_attention
from agent_rl.planning import memory
from agent_rl.planning.fake.live_bytes import LiveBytes, LivePhase
from agent_rl.planning.fake.pretended_gpu import fake_tensors, pretended_gpu
from agent_rl.planning.fake.update_run import (
    MicroBatchShape,
    UpdateBytes,
    allocate,
    build_model,
    choose_micro_batch,
    run_update,
)
from agent_rl.planning.layout import Layout
from agent_rl.records import Segment
from agent_rl.scripts.cli import app

SIZES = {
    "vocab_size": 500,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "tie_word_embeddings": False,
}
TWO_BEHIND_A_PROMPT = MicroBatchShape(prompt=40, own=(44, 44))
HALF = {"dtype": "bfloat16"}
AGAIN = {"gradient_checkpointing": True}
ADAPTERS = {"lora": {"rank": 4}}


def small_config(model: dict[str, Any] | None = None, **train: Any) -> Config:
    return make_config(
        model={"dtype": "float32"} | (model or {}),
        policy={"max_context": 128, "max_new_tokens": 64},
        train={"micro_batch_tokens": 128} | train,
    )


def run(config: Config, layout: Layout, *, is_gpu: bool) -> UpdateBytes:
    with torch.device("meta"):
        model = build_model(Qwen2Config(**SIZES), config)
    with pretended_gpu() if is_gpu else fake_tensors(), LiveBytes() as live:
        allocate(model)
        return run_update(model, config, layout, TWO_BEHIND_A_PROMPT, live)


def run_real(config: Config, layout: Layout) -> UpdateBytes:
    model = build_model(Qwen2Config(**SIZES), config)
    with LiveBytes() as live:
        return run_update(model, config, layout, TWO_BEHIND_A_PROMPT, live)


@pytest.mark.parametrize(
    ("model", "train", "layout"),
    [
        ({}, {}, Layout()),
        (AGAIN, {}, Layout()),
        (AGAIN, {"autocast": "bfloat16"}, Layout()),
        (HALF | AGAIN | ADAPTERS, {"autocast": "bfloat16"}, Layout()),
        (HALF | AGAIN, {}, Layout(num_processes=4, zero_stage=3)),
    ],
    ids=["float32", "checkpointing", "autocast", "adapters", "zero_3"],
)
def test_fake_tensors_are_alive_as_long_as_real_ones(
    model: dict[str, Any], train: dict[str, Any], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several chunks of the head, as a large vocabulary has.
    monkeypatch.setattr("agent_rl.learning.logprob_model.LOGITS_AT_A_TIME", 32 * 500)
    config = small_config(model, **train)
    real = run_real(config, layout)
    assert run(config, layout, is_gpu=False) == real
    assert min(real.kept, real.layers, real.head, real.backward) > 0


class AllocatorBytes:
    """In place of `LiveBytes`, what PyTorch's allocator gave in a real run, by its profiler and without any mode."""

    def __init__(self) -> None:
        self.now = 0
        self.phases: list[LivePhase] = []
        self.products = self.attentions = {}
        self._times: list[int] = []
        self._profiler: torch.profiler.profile | None = None

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        pass

    def restart(self, name: str) -> None:
        self.phases.clear()
        self._times.clear()
        if self._profiler is not None:
            self._profiler.stop()
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self._profiler.start()
        self.enter(name)

    def enter(self, name: str) -> None:
        self.phases.append(LivePhase(name, 0, 0, 0))
        self._times.append(time.time_ns())

    def peaks(self) -> dict[str, int]:
        self._profiler.stop()
        events = [event for event in self._profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        num_bytes, place, peaks = 0, 0, dict.fromkeys((phase.name for phase in self.phases), 0)
        for event in sorted(events, key=lambda event: event.start_ns()):
            while place + 1 < len(self.phases) and event.start_ns() >= self._times[place + 1]:
                place += 1
                peaks[self.phases[place].name] = max(peaks[self.phases[place].name], num_bytes)
            num_bytes += event.nbytes()
            peaks[self.phases[place].name] = max(peaks[self.phases[place].name], num_bytes)
        return peaks


@pytest.mark.parametrize(
    ("model", "train"),
    [({}, {}), (AGAIN, {}), (AGAIN, {"autocast": "bfloat16"})],
    ids=["float32", "checkpointing", "autocast"],
)
def test_fake_tensors_are_what_the_allocator_gives_in_a_real_run(
    model: dict[str, Any], train: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_rl.learning.logprob_model.LOGITS_AT_A_TIME", 8 * 500)
    config = small_config(model, **train)
    fake = run(config, Layout(), is_gpu=False)
    allocator = AllocatorBytes()
    run_update(build_model(Qwen2Config(**SIZES), config), config, Layout(), TWO_BEHIND_A_PROMPT, allocator)
    peaks = allocator.peaks()
    # A little less than real: kernels of a CPU take memory inside, which no tensor shows.
    for phase in ("layers", "head", "backward", "step"):
        assert 0.94 < getattr(fake, phase) / peaks[phase] < 1.02, (phase, fake, peaks)


def test_live_bytes_count_a_storage_once_and_until_it_is_freed() -> None:
    with LiveBytes() as live:
        x = torch.empty(10)
        view = x[2:].view(2, 4)
        assert live.now == 40
        live.enter("more")
        y = x + 1
        del x
        assert live.now == 80  # the view holds all of it
        del view, y
        live.enter("less")
        torch.empty(2).add_(1)
    assert [(each.name, each.start, each.end, each.peak) for each in live.phases] == [
        ("before", 0, 40, 40),
        ("more", 40, 0, 80),
        ("less", 0, 0, 8),
    ]


def test_a_pretended_gpu_is_one_for_whoever_asks() -> None:
    with pretended_gpu():
        x = torch.empty(2, 3)
        assert x.device == torch.device("cuda", 0) and x.is_cuda
        assert logits_at_a_time(x.device.type) == 2**26
        assert torch.arange(3, device=x.device).device.type == (x @ x.t()).device.type == "cuda"
        assert torch.tensor([1.0]).to("cuda").add(x[0, 0]).device.type == "cuda"
        with torch.autocast(x.device.type, torch.bfloat16):
            assert torch.is_autocast_enabled("cuda") and (x @ x.t()).dtype == torch.bfloat16
        assert float(x.sum()) == 1.0 and bool(x.isfinite().all())
    assert torch.empty(1).device.type == "cpu" and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_behind_a_prefix_builds_no_mask_on_a_gpu_where_a_fused_kernel_computes_it(dtype: torch.dtype) -> None:
    num, heads, size = 96, 4, 16
    layout = PackedLayout((Segment(0, 64), Segment(64, 16, 0), Segment(80, 16, 0)))
    with pretended_gpu(), LiveBytes() as live:
        q, k, v = (torch.empty(num, heads, size, dtype=dtype, requires_grad=True) for _ in range(3))
        live.restart("attention")
        before = live.now
        out = packed_attention(q, k, v, layout)
        width = out.element_size()
        # Kept: outputs, apart and together, where a segment is a call; keys and values of each segment with its prefix;
        # log-sum-exp.
        keys = 2 * (64 + 2 * (64 + 16)) * heads * size * width
        num_calls = 1 if dtype == torch.bfloat16 else 3
        most = min(num_calls, 2) * num * heads * size * width + keys + 4 * heads * num
        # Kernels round the rows of the log-sum-exp up, and add a few numbers for the random state.
        assert most <= live.now - before < most + 4 * heads * 96 + 200
        assert sum(live.attentions.values()) == num_calls and not live.products


def test_attention_in_float32_with_grouped_heads_has_no_fused_kernel_on_a_gpu() -> None:
    with pretended_gpu(), LiveBytes() as live:
        q, k = torch.empty(1, 4, 64, 16), torch.empty(1, 2, 64, 16)
        F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        assert live.products["float32"] == 2 * (2 * 4 * 64 * 64 * 16) and live.phases[-1].peak > 4 * 4 * 64 * 64


def test_a_norm_in_one_kernel_keeps_its_input_and_a_number_a_row() -> None:
    with pretended_gpu(), LiveBytes() as live:
        x, weight = torch.empty(8, 32, requires_grad=True), torch.empty(32, requires_grad=True)
        before = live.now
        out = F.rms_norm(x * 1, (32,), weight, 1e-6)
        assert live.now - before == 4 * (2 * 8 * 32 + 8)
        out.sum().backward()
        assert x.grad.shape == x.shape and weight.grad.shape == weight.shape


def test_products_in_float32_are_found_in_a_bfloat16_run() -> None:
    plain = run(small_config(HALF), Layout(), is_gpu=True)
    assert set(plain.products) == {"bfloat16"}
    config = small_config(HALF | ADAPTERS, autocast="bfloat16")
    # As no configuration may be any more.
    without = config.model_copy(update={"train": config.train.model_copy(update={"autocast": "none"})})
    adapters = run(without, Layout(), is_gpu=True)
    # Per linear layer of i inputs and o outputs: tokens * rank * (i + o), forward, and twice that backward, except for
    # the gradients of the embeddings, which the first three layers read.
    widths = 3 * (2 * (64 + 64) + 2 * (64 + 32) + 3 * (64 + 160))
    assert adapters.products["float32"] == 2 * (2 * 128) * 4 * (3 * widths - 3 * 64)
    cast = run(config, Layout(), is_gpu=True)
    assert set(cast.products) == {"bfloat16"}
    assert set(cast.attentions) == {"bfloat16"}


def test_gradients_of_zero_3_go_as_they_come_and_its_optimizer_is_not_run() -> None:
    config = small_config(HALF | AGAIN)
    alone, sharded = (run(config, layout, is_gpu=True) for layout in (Layout(), Layout(num_processes=4, zero_stage=3)))
    num_bytes = alone.weights
    assert sharded.weights == num_bytes and sharded.states == 0 and sharded.step < 0.05 * num_bytes
    # Moments and a counter a weight; gradients, and the step's log-probs.
    assert alone.states == pytest.approx(2 * num_bytes, rel=0.01)
    assert alone.step == pytest.approx(num_bytes, rel=0.04)
    assert 0.4 * num_bytes < alone.backward - sharded.backward <= num_bytes


def test_a_micro_batch_is_filled_by_a_prompt_and_what_continues_it() -> None:
    config = small_config()
    assert choose_micro_batch(config, tokens=128, prompt=32, own=30) == MicroBatchShape(prompt=32, own=(32, 32, 32))
    # No sample is longer than the window.
    two = choose_micro_batch(small_config(micro_batch_tokens=220), tokens=220, prompt=32, own=1000)
    assert two == MicroBatchShape(prompt=32, own=(94, 94))
    # A sample that is longer than a micro-batch has one of its own.
    alone = choose_micro_batch(small_config(micro_batch_tokens=64), tokens=128, prompt=32, own=10)
    assert alone == MicroBatchShape(prompt=32, own=(96,))


def test_a_critic_is_not_run() -> None:
    config = make_config(algorithm={"advantage": "gae"}, critic={"backbone": "shared"})
    with pytest.raises(ConfigError, match="critic"):
        run(config, Layout(), is_gpu=True)


# The command


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    folder = tmp_path / "model"
    Qwen2Config(**SIZES | {"hidden_size": 128, "vocab_size": 2000}).save_pretrained(folder)
    overrides = (
        f"model.path={folder}",
        "policy.max_context=1024",
        "policy.max_new_tokens=256",
        "train.micro_batch_tokens=1024",
    )
    return ["plan", "--config", "configs/nat_grpo_1gpu.yaml", "--verify", "--json", *overrides]


def test_the_command_compares_by_phase(command: list[str]) -> None:
    result = CliRunner().invoke(app, command)
    found = json.loads(result.stdout)["verification"]
    assert result.exit_code == (0 if found["is_close"] else 1)
    phases = {each["phase"]: each for each in found["phases"]}
    assert list(phases) == ["weights", "optimizer", "forward", "head", "backward", "step", "update"]
    assert phases["weights"]["ratio"] == pytest.approx(1.0, abs=0.01)
    assert set(found["products"]) == {"bfloat16"} and found["float32_share"] == 0
    assert "fragmentation (device)" in found["not_verified"]


def test_a_plan_that_is_wrong_in_one_phase_is_named(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "logit_bytes", lambda job: 1e12)
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "head" in json.loads(result.stdout)["verification"]["differing"]


@pytest.mark.parametrize("override", ["run.device=cpu", "algorithm.kl.coef=0.1"])
def test_what_cannot_be_run_is_a_mistake_of_the_user(command: list[str], override: str) -> None:
    command = [*command, override] if override.startswith("run") else [*command, override, "model.lora.rank=0"]
    assert isinstance(CliRunner().invoke(app, command).exception, UserError)  # which the command line makes code 2


# The models of configs/


EIGHT = ("configs/nat_grpo_8xh100.yaml", "--machine", "configs/machines/8xh100.yaml")
ONE = ("configs/nat_grpo_1gpu.yaml",)
SEVEN = "model.path=Qwen/Qwen2.5-Coder-7B-Instruct"
ALL = ("model.lora.rank=0", "model.dtype=float32", "train.autocast=bfloat16")
SHORT = ("train.micro_batch_tokens=4096", "policy.max_context=4096", "policy.max_new_tokens=1024")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "short",
    [pytest.param((), marks=pytest.mark.long), pytest.param(SHORT, marks=pytest.mark.slow)],
    ids=["config", "4k"],
)
@pytest.mark.parametrize(
    "arguments",
    [EIGHT, ONE, (*ONE, SEVEN), (*ONE, *ALL)],
    ids=["32b_zero_3", "1.5b_adapters", "7b_adapters", "1.5b_all"],
)
def test_the_plan_of_a_shipped_model_is_what_its_update_holds(
    arguments: tuple[str, ...], short: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(app, ["plan", "--verify", "--json", "--config", *arguments, *short])
    found = json.loads(result.stdout)["verification"]
    print({each["phase"]: (each["planned"], each["found"], round(each["ratio"], 3)) for each in found["phases"]})
    assert found["differing"] == [] and result.exit_code == 0
