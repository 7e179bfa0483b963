"""vLLM inside this process, against plain forwards of Hugging Face's model: its completions, callers and weights."""

import json
import logging
import os
import random
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from distributed.ranks import start_ranks
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM
from vllm_engines import (
    EXACT,
    MODEL,
    PROMPT,
    WINDOW,
    Background,
    gap,
    generate,
    open_engine,
    renew,
    shipped_model,
    update,
    weights_of,
)

from agent_rl.distributed.checksums import checksum
from agent_rl.errors import EngineError
from agent_rl.records import Completion, FinishReason, SamplingParams

if TYPE_CHECKING:
    from agent_rl.inference.vllm.engine import VLLMEngine

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

RANK = 4
"""Of the adapters."""


def settings_of_the_process() -> dict[str, Any]:
    """What vLLM changes of a process that it starts in."""
    return {
        "environment": dict(os.environ),
        "random": (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()),
        "torch": (torch.get_default_dtype(), torch.get_num_threads(), torch.get_float32_matmul_precision()),
        "set_num_threads": torch.set_num_threads,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "logging": [(logger.level, list(logger.handlers)) for logger in map(logging.getLogger, ("", "transformers"))],
    }


@dataclass
class Opened:
    """One engine at a time: the tests of the base model have one, those of adapters another, after it."""

    engine: "VLLMEngine | None" = None
    lora_rank: int = -1
    before: dict[str, Any] = field(default_factory=dict)
    after: dict[str, Any] = field(default_factory=dict)

    def with_rank(self, lora_rank: int) -> "VLLMEngine":
        if self.engine is None or self.lora_rank != lora_rank:
            self.close()
            self.before = settings_of_the_process()
            self.engine, self.lora_rank = open_engine(lora_rank=lora_rank), lora_rank
            self.after = settings_of_the_process()
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    torch.manual_seed(5)
    AutoModelForCausalLM.from_pretrained(MODEL)  # what it changes of the process is not vLLM's doing
    opened = Opened()
    yield opened
    opened.close()


@pytest.fixture
def engine(opened: Opened) -> "VLLMEngine":
    return opened.with_rank(0)


@pytest.fixture
def trainer(engine: "VLLMEngine") -> nn.Module:
    """A model with the engine's weights: the shipped ones, taken over anew."""
    return shipped_model(engine)


def test_the_process_is_as_it_was_before_vllm_started(engine: "VLLMEngine", opened: Opened) -> None:
    assert opened.after == opened.before


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_recorded_logprobs_are_those_of_a_plain_forward(
    engine: "VLLMEngine", trainer: nn.Module, temperature: float
) -> None:
    completion = generate(engine, temperature=temperature)
    assert completion.finish_reason is FinishReason.LENGTH
    assert len(completion.token_ids) == 24
    assert gap(trainer, completion.token_ids, completion.logprobs, temperature=temperature or 1.0) < EXACT


def test_a_greedy_completion_takes_the_most_likely_ids(engine: "VLLMEngine", trainer: nn.Module) -> None:
    token_ids = generate(engine, num_tokens=8, temperature=0.0).token_ids
    logits = trainer(torch.tensor([[*PROMPT, *token_ids]])).logits[0, len(PROMPT) - 1 : -1]
    assert tuple(logits.argmax(-1).tolist()) == token_ids


def test_a_stop_id_ends_a_completion_and_is_included(engine: "VLLMEngine") -> None:
    whole = generate(engine).token_ids
    stop = whole[7]
    sampling = SamplingParams(max_new_tokens=24, seed=3, stop_token_ids=(stop,))
    completion = engine.complete(PROMPT, sampling)
    assert completion.token_ids == whole[: whole.index(stop) + 1]
    assert completion.finish_reason is FinishReason.STOP


def test_a_completion_ends_where_the_window_ends(engine: "VLLMEngine") -> None:
    prompt = tuple(range(20, 40)) * 38
    completion = engine.complete(prompt, SamplingParams(max_new_tokens=100, seed=1))
    assert len(completion.token_ids) == WINDOW - 760
    assert completion.finish_reason is FinishReason.LENGTH


def test_32_threads_sample_what_each_would_sample_alone_and_leave_random_numbers_alone(
    engine: "VLLMEngine", trainer: nn.Module
) -> None:
    """The prompts are longer than one pass of vLLM's takes, and every third one is greedy."""

    def sample(index: int) -> tuple[tuple[int, ...], SamplingParams, Completion]:
        prompt = tuple((token * (index + 1)) % 2000 + 10 for token in range(600))
        sampling = SamplingParams(max_new_tokens=8, temperature=float(index % 3 > 0), seed=2**62 + index)
        return prompt, sampling, engine.complete(prompt, sampling)

    before = settings_of_the_process()
    with ThreadPoolExecutor(32) as pool:
        results = list(pool.map(sample, range(32)))
    for index in (0, 1, 16, 31):
        prompt, sampling, completion = results[index]
        assert engine.complete(prompt, sampling).token_ids == completion.token_ids
        assert gap(trainer, completion.token_ids, completion.logprobs, prompt=prompt) < EXACT
    assert len({completion.token_ids for _, _, completion in results}) > 16
    assert settings_of_the_process() == before


def test_a_cancelled_completion_keeps_what_was_sampled(engine: "VLLMEngine", trainer: nn.Module) -> None:
    cancel = threading.Event()
    background = Background(engine, SamplingParams(max_new_tokens=400, seed=7), cancel)
    background.started()
    cancel.set()
    completion = background.result()
    assert completion.finish_reason is FinishReason.CANCELLED
    assert 5 < len(completion.token_ids) < 400
    assert gap(trainer, completion.token_ids, completion.logprobs) < EXACT
    assert generate(engine, num_tokens=400, seed=7).token_ids[: len(completion.token_ids)] == completion.token_ids


def test_a_pause_interrupts_and_new_weights_go_on(engine: "VLLMEngine", trainer: nn.Module) -> None:
    old = engine.weight_version
    background = Background(engine, SamplingParams(max_new_tokens=400, seed=8))
    background.started()
    engine.pause()
    first = background.result()
    late = Background(engine, SamplingParams(max_new_tokens=6, seed=9))
    assert first.finish_reason is FinishReason.INTERRUPTED
    assert 5 < len(first.token_ids) < 400
    assert first.weight_version == old
    assert gap(trainer, first.token_ids, first.logprobs) < EXACT
    update(trainer, seed=1)
    engine.load(weights_of(trainer).items(), old + 1)
    engine.flush()
    assert not late.future.done()
    engine.resume(old + 1)
    rest = engine.complete([*PROMPT, *first.token_ids], SamplingParams(max_new_tokens=10, seed=10))
    assert rest.weight_version == late.result().weight_version == engine.weight_version == old + 1
    assert gap(trainer, rest.token_ids, rest.logprobs, prompt=(*PROMPT, *first.token_ids)) < EXACT


@pytest.mark.parametrize(
    ("prompt", "options"),
    [((), {}), ((1,) * WINDOW, {}), ((10**6,), {}), ((5,), {"seed": -1}), ((5,), {"stop_token_ids": (10**6,)})],
)
def test_what_cannot_be_served_is_refused_and_others_are_served(
    engine: "VLLMEngine", prompt: tuple[int, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"expected|vocabulary"):
        engine.complete(prompt, SamplingParams(max_new_tokens=4, **options))
    assert len(generate(engine, num_tokens=4).token_ids) == 4


def test_a_failure_of_vllms_reaches_every_caller(opened: Opened, monkeypatch: Any) -> None:
    """It ends the engine; the one for adapters comes after it."""
    engine = opened.with_rank(0)
    waiting = [Background(engine, SamplingParams(max_new_tokens=400, seed=seed)) for seed in range(3)]
    waiting[0].started()

    def fail() -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(engine._engine, "step", fail)
    for background in waiting:
        with pytest.raises(EngineError, match="the vLLM engine failed: RuntimeError: out of memory"):
            background.result()
    for call in (engine.pause, lambda: generate(engine), lambda: engine.resume(1)):
        with pytest.raises(EngineError, match="out of memory"):
            call()
    monkeypatch.undo()
    opened.close()


def test_adapters_are_sampled_with_in_the_place_of_the_last(opened: Opened, tmp_path: Path) -> None:
    import peft

    engine = opened.with_rank(RANK)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    completion = generate(engine)
    assert gap(base, completion.token_ids, completion.logprobs) < EXACT
    config = peft.LoraConfig(r=RANK, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = peft.get_peft_model(base, config)
    for version in (1, 2, 3):
        update_adapter(trainer, seed=version)
        assert gap(trainer, completion.token_ids, completion.logprobs) > 0.01
        folder = tmp_path / f"adapter_{version}"
        trainer.save_pretrained(folder, save_embedding_layers=False)
        engine.pause()
        (receipt,) = engine.load_adapter(folder, version)
        engine.flush()
        engine.resume(version)
        tensors = load_file(folder / "adapter_model.safetensors")
        assert receipt.checksums == {name: checksum(tensor) for name, tensor in tensors.items()}
        completion = generate(engine)
        assert completion.weight_version == version
        assert gap(trainer, completion.token_ids, completion.logprobs) < EXACT


def test_an_adapter_that_is_not_there_is_not_sampled_with(opened: Opened, tmp_path: Path) -> None:
    engine = opened.with_rank(RANK)
    engine.pause()
    with pytest.raises(EngineError, match=r"could not load adapter 4 from .*does not exist"):
        engine.load_adapter(tmp_path, 4)
    with pytest.raises(EngineError, match="adapter 4 was not loaded to the end"):
        engine.resume(4)


@torch.no_grad()
def update_adapter(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.05)


def one_rank(folder: Path) -> None:
    """Two engines, one after the other, in a process of a trainer of several."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    gaps, sums = [], []
    for version in (1, 2):
        with open_engine(where=f"process {rank}") as engine:
            update(model, seed=version)
            renew(engine, model, version)
            for seed in range(1 + rank):  # one of them samples more
                completion = generate(engine, seed=seed + rank)
                gaps.append(gap(model, completion.token_ids, completion.logprobs))
            sums.append(summed(rank))
        sums.append(summed(rank))
    report = {"gaps": gaps, "sums": sums, "local_world_size": os.environ.get("LOCAL_WORLD_SIZE")}
    (folder / f"{rank}.json").write_text(json.dumps(report))
    dist.barrier()
    dist.destroy_process_group()


def summed(rank: int) -> float:
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    return value.item()


def test_each_of_two_processes_has_an_engine_and_they_still_talk_after_it_is_closed(tmp_path: Path) -> None:
    ranks = start_ranks(one_rank, tmp_path, folder=tmp_path, num=2)
    codes = ranks.wait(timeout_s=200)
    assert codes == [0, 0], ranks.log(0) + ranks.log(1)
    for rank in (0, 1):
        report = json.loads((tmp_path / f"{rank}.json").read_text())
        assert report["sums"] == [3.0] * 4
        assert len(report["gaps"]) == 2 * (1 + rank)
        assert max(report["gaps"]) < EXACT
        assert report["local_world_size"] is None
