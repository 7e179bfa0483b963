"""The thread that steps vLLM inside this process, and the order of its calls during a weight sync: with a fake
for vLLM that samples the id 7 again and again. With vLLM itself: `test_vllm_engine*.py`."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from waiting import wait_for

from agent_rl.errors import EngineError, UserError
from agent_rl.inference.vllm import engine as engine_module
from agent_rl.inference.vllm.engine import EngineRequest, VLLMEngine
from agent_rl.inference.vllm.engine_start import EngineOptions
from agent_rl.records import Completion, FinishReason, SamplingParams

SLOW = 3
"""A prompt that starts with it is not started while `FakeVLLM.is_busy`."""


class FakeVLLM:
    """One token a step and request; `calls` are the other calls, in order."""

    def __init__(self) -> None:
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(get_vocab_size=lambda: 100))
        self.active: dict[str, EngineRequest] = {}
        self.calls: list[Any] = []
        self.is_busy = False
        self.flushes = True
        self.error: Exception | None = None

    def start(self, name: str, request: EngineRequest, adapter: Any) -> None:
        self.active[name] = request
        if adapter is not None:
            self.calls.append(("sampled with", adapter.lora_int_id))

    def step(self) -> list[Any]:
        time.sleep(0.001)
        if self.error is not None:
            raise self.error
        moving = {n: r for n, r in self.active.items() if not (self.is_busy and r.prompt[0] == SLOW)}
        return [self._token(name, request) for name, request in moving.items()]

    def _token(self, name: str, request: EngineRequest) -> Any:
        is_last = len(request.token_ids) + 1 == request.max_new_tokens
        if is_last:
            del self.active[name]
        sampled = SimpleNamespace(
            token_ids=[7], logprobs=[{7: SimpleNamespace(logprob=-0.5)}], finish_reason="length" if is_last else None
        )
        return SimpleNamespace(request_id=name, outputs=[sampled], num_cached_tokens=2, finished=is_last)

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            del self.active[name]

    def collective_rpc(self, method: str, args: tuple[Any, ...]) -> list[dict[str, str]]:
        self.calls.append(method)
        if method == "agent_rl_load_tensors":
            return [{name: str(tensor) for name, tensor in args[0]}]
        return [{"lora_A": "1"}]

    def reset_prefix_cache(self) -> bool:
        self.calls.append("flush")
        return self.flushes

    def sleep(self, level: int) -> None:
        self.calls.append(("sleep", level))

    def wake_up(self, tags: list[str]) -> None:
        self.calls.append(("wake up", *tags))

    def add_lora(self, adapter: Any) -> bool:
        self.calls.append(("add", adapter.lora_int_id))
        return True

    def remove_lora(self, number: int) -> None:
        self.calls.append(("remove", number))


@pytest.fixture
def vllm() -> FakeVLLM:
    return FakeVLLM()


@pytest.fixture
def make(vllm: FakeVLLM, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., VLLMEngine]]:
    made: list[VLLMEngine] = []
    monkeypatch.setattr(engine_module, "start_vllm", lambda _options: vllm)
    monkeypatch.setattr(engine_module, "stop_vllm", lambda _vllm, **options: vllm.calls.append(("stop", options)))
    monkeypatch.setattr(engine_module, "start_request", lambda _vllm, *args: vllm.start(*args))
    monkeypatch.setattr(engine_module, "adapter_request", lambda number, _folder: SimpleNamespace(lora_int_id=number))

    def make(**options: Any) -> VLLMEngine:
        sizes = {"dtype": "float32", "max_context": 1000, "max_batch_size": 4}
        made.append(VLLMEngine(EngineOptions(model="model", **sizes, **options)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.fixture
def engine(make: Callable[..., VLLMEngine]) -> VLLMEngine:
    return make()


def on_a_gpu(engine: VLLMEngine) -> VLLMEngine:
    engine._can_sleep = True
    return engine


def start(engine: VLLMEngine, first_id: int = 5, num_tokens: int = 900, **options: Any) -> "Future[Completion]":
    """A completion sampled by another thread, once the engine has it and, where it may, a token of it."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(engine.complete, [first_id], SamplingParams(max_new_tokens=num_tokens), **options)
    pool.shutdown(wait=False)
    wait_for(lambda: any(r.prompt == [first_id] for r in list(engine._in_flight)))
    if first_id != SLOW and not engine._is_pausing:
        wait_for(lambda: any(r.prompt == [first_id] and r.token_ids for r in list(engine._in_flight)))
    return future


def weights() -> Iterator[tuple[str, torch.Tensor]]:
    yield from (("a", torch.zeros(1)), ("b", torch.zeros(1)))


def test_a_completion_holds_what_the_steps_sampled(engine: VLLMEngine) -> None:
    assert engine.complete([5, 6], SamplingParams(max_new_tokens=3)) == Completion(
        token_ids=(7, 7, 7), logprobs=(-0.5,) * 3, finish_reason=FinishReason.LENGTH, weight_version=0
    )


def test_a_pause_ends_what_has_tokens_and_keeps_the_rest_for_the_new_weights(
    engine: VLLMEngine, vllm: FakeVLLM
) -> None:
    vllm.is_busy = True
    running, not_begun = start(engine), start(engine, SLOW, 2)
    wait_for(lambda: len(vllm.active) == 2)
    engine.pause()
    late = start(engine, 9, 2)
    engine.pause()  # a second one changes nothing
    first = running.result(5)
    assert first.finish_reason is FinishReason.INTERRUPTED
    assert (len(set(first.token_ids)), first.weight_version) == (1, 0)
    assert not vllm.active
    vllm.is_busy = False
    engine.resume(4)
    assert engine.weight_version == 4
    for waited in (not_begun.result(5), late.result(5)):
        assert (waited.token_ids, waited.finish_reason, waited.weight_version) == ((7, 7), FinishReason.LENGTH, 4)


def test_while_completions_are_held_only_a_probe_is_sampled(engine: VLLMEngine, vllm: FakeVLLM) -> None:
    running = start(engine)
    engine.hold()
    engine.pause()
    held = [ThreadPoolExecutor(1).submit(engine.complete, [9], SamplingParams(max_new_tokens=2)) for _ in range(8)]
    wait_for(lambda: len(engine._waiting) == 8)
    engine.resume(1)
    (probe,) = engine.probe((5, 6), num_tokens=3, temperature=1.0, seed=0)
    assert (probe.token_ids, probe.version) == ((7, 7, 7), 1)
    assert len(engine._waiting) == 8 and not any(each.done() for each in held)
    engine.release()
    assert {each.result(5).weight_version for each in held} == {1}
    assert running.result(5).finish_reason is FinishReason.INTERRUPTED


@pytest.mark.parametrize("first_id", [5, SLOW])
def test_a_request_without_a_waiter_is_ended(engine: VLLMEngine, vllm: FakeVLLM, first_id: int) -> None:
    vllm.is_busy = True
    cancel = threading.Event()
    future = start(engine, first_id, cancel=cancel)
    cancel.set()
    completion = future.result(5)
    assert completion.finish_reason is FinishReason.CANCELLED
    assert bool(completion.token_ids) == (first_id != SLOW)
    assert not vllm.active


def test_a_request_is_cancelled_during_a_pause_too(engine: VLLMEngine) -> None:
    engine.pause()
    cancel = threading.Event()
    future = start(engine, cancel=cancel)
    time.sleep(0.05)  # the thread that steps sleeps by now
    cancel.set()
    assert future.result(5).finish_reason is FinishReason.CANCELLED


def test_a_probe_reports_how_much_was_cached(engine: VLLMEngine) -> None:
    (probe,) = engine.probe((5, 6), num_tokens=2, temperature=1.0, seed=0)
    assert (probe.where, probe.version, probe.num_cached, probe.token_ids) == ("process 0", 0, 2, (7, 7))


@pytest.mark.parametrize("verb", ["load", "flush", "resume"])
def test_nothing_is_changed_while_it_samples(engine: VLLMEngine, vllm: FakeVLLM, verb: str) -> None:
    arguments = {"load": (weights(), 1), "flush": (), "resume": (1,)}[verb]
    with pytest.raises(EngineError, match="while it samples: pause it first"):
        getattr(engine, verb)(*arguments)
    assert vllm.calls == []


def test_new_weights_come_with_a_receipt(engine: VLLMEngine, vllm: FakeVLLM) -> None:
    engine.pause()
    (receipt,) = engine.load(weights(), 1)
    engine.flush()
    assert (receipt.where, list(receipt.checksums)) == ("process 0", ["a", "b"])
    assert vllm.calls == ["agent_rl_load_tensors", "flush"]


def test_weights_that_were_not_taken_are_not_sampled_from(engine: VLLMEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_method: str, args: tuple[Any, ...]) -> None:
        next(args[0])
        raise ValueError("no such tensor")

    engine.pause()
    with monkeypatch.context() as patch:
        patch.setattr(engine._engine, "collective_rpc", refuse)
        with pytest.raises(EngineError, match="process 0 could not load weights 1: no such tensor"):
            engine.load(weights(), 1)
    with pytest.raises(EngineError, match="may not sample with weights 1: weights 1 were not loaded to the end"):
        engine.resume(1)
    engine.load(weights(), 2)
    engine.resume(2)
    assert engine.complete([5], SamplingParams(max_new_tokens=1)).weight_version == 2


def test_a_failure_of_who_gathers_is_passed_on_as_it_is(engine: VLLMEngine) -> None:
    def gather() -> Iterator[tuple[str, torch.Tensor]]:
        yield "a", torch.zeros(1)
        raise UserError("another process ended")

    engine.pause()
    with pytest.raises(UserError, match="another process ended"):
        engine.load(gather(), 1)


def test_a_cache_that_stays_is_a_failure(engine: VLLMEngine, vllm: FakeVLLM) -> None:
    vllm.flushes = False
    engine.pause()
    with pytest.raises(EngineError, match="did not flush its cache"):
        engine.flush()


def test_a_gpu_is_freed_for_the_update_and_its_weights_come_before_its_cache(
    engine: VLLMEngine, vllm: FakeVLLM
) -> None:
    on_a_gpu(engine)
    running = start(engine)
    engine.sleep()
    engine.sleep()
    assert running.result(5).finish_reason is FinishReason.INTERRUPTED
    engine.pause()
    with pytest.raises(EngineError, match="weights were dropped"):
        engine.resume(1)
    engine.load(weights(), 1)
    engine.flush()
    engine.resume(1)
    assert vllm.calls == [
        ("sleep", 2),
        ("wake up", "weights"),
        "agent_rl_load_tensors",
        ("wake up", "kv_cache"),
        "flush",
    ]
    assert engine.complete([5], SamplingParams(max_new_tokens=1)).weight_version == 1


def test_the_base_of_adapters_sleeps_on_the_cpu_and_each_takes_the_place_of_the_last(
    make: Callable[..., VLLMEngine], vllm: FakeVLLM
) -> None:
    engine = on_a_gpu(make(lora_rank=8))
    for version in (1, 2):
        engine.sleep()
        engine.pause()
        (receipt,) = engine.load_adapter(Path("folder"), version)
        assert receipt.checksums == {"lora_A": "1"}
        engine.resume(version)
        engine.complete([5], SamplingParams(max_new_tokens=1))
    awake = [("sleep", 1), ("wake up", "weights", "kv_cache"), "agent_rl_adapter_checksums"]
    first, second = [("add", 1), ("sampled with", 1)], [("remove", 1), ("add", 2), ("sampled with", 2)]
    assert vllm.calls == [*awake, *first, *awake, *second]


def test_an_engine_that_cannot_sleep_goes_on(engine: VLLMEngine, vllm: FakeVLLM) -> None:
    engine.sleep()
    assert engine.complete([5], SamplingParams(max_new_tokens=1)).token_ids == (7,)
    assert vllm.calls == []


def test_a_failure_reaches_every_caller_and_every_later_one(engine: VLLMEngine, vllm: FakeVLLM) -> None:
    futures = [start(engine), start(engine, 6)]
    vllm.error = RuntimeError("out of memory")
    calls = [lambda f=future: f.result(5) for future in futures]
    calls += [engine.pause, lambda: engine.resume(1), lambda: engine.complete([5], SamplingParams(max_new_tokens=1))]
    for call in calls:
        with pytest.raises(EngineError, match="the vLLM engine failed: RuntimeError: out of memory"):
            call()


def test_closing_ends_running_requests_and_vllm_once(engine: VLLMEngine, vllm: FakeVLLM) -> None:
    future = start(engine)
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="was closed"):
        future.result(5)
    assert vllm.calls == [("stop", {"owns_process_group": True})]
