"""The generation engine: what it samples, what it records, and that callers neither mix nor hang."""

import math
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tiny_models import KINDS, SIZES, SPECIAL_IDS, VOCAB_SIZE, longrope, plain_logprobs, tiny_model
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    DogeConfig,
    GptOssConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
)

from agent_rl.errors import ConfigError, EngineError
from agent_rl.inference.local.engine import GenerationEngine
from agent_rl.records import Completion, FinishReason, SamplingParams

every_kind = pytest.mark.parametrize("kind", KINDS)


def random_prompt(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB_SIZE, length).tolist()


def generate_all(
    engine: GenerationEngine, jobs: Sequence[tuple[Sequence[int], SamplingParams]], num_threads: int = 64
) -> list[Completion]:
    """Every job in a thread of its own, answers in the order of the jobs."""
    with ThreadPoolExecutor(num_threads) as pool:
        return list(pool.map(lambda job: engine.generate(*job), jobs))


def mixed_jobs(count: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of 1 to 30 tokens, budgets of 1 to 40, four temperatures, stop ids in a third of them."""
    jobs = []
    for i in range(count):
        sampling = SamplingParams(
            max_new_tokens=1 + i * 7 % 40,
            temperature=(1.0, 0.7, 0.0, 1.3)[i % 4],
            stop_token_ids=(3, 5, 8) if i % 3 == 0 else (),
            seed=i,
        )
        jobs.append((random_prompt(i, 1 + i * 11 % 30), sampling))
    return jobs


def assert_recorded_as_plainly_computed(model: torch.nn.Module, jobs: Sequence, completions: Sequence) -> None:
    for (prompt, sampling), got in zip(jobs, completions, strict=True):
        expected = plain_logprobs(model, prompt, got.token_ids, sampling.temperature)
        torch.testing.assert_close(torch.tensor(got.logprobs), expected, atol=1e-4, rtol=0)


# Law 5: the recorded log-probs are those of a plain forward pass, for every model that generation treats differently


@every_kind
@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_recorded_logprobs_equal_a_plain_forward_pass_alone(kind: str, temperature: float) -> None:
    model = tiny_model(kind)
    job = (random_prompt(0, 11), SamplingParams(max_new_tokens=30, temperature=temperature, seed=3))
    with GenerationEngine(model, max_batch_size=4, max_context=64) as engine:
        got = engine.generate(*job)
    assert len(got.token_ids) == 30
    assert_recorded_as_plainly_computed(model, [job], [got])


@every_kind
@pytest.mark.parametrize("max_batch_size", [1, 5, 64])
def test_recorded_logprobs_equal_a_plain_forward_pass_in_a_mixed_batch(kind: str, max_batch_size: int) -> None:
    model = tiny_model(kind)
    jobs = mixed_jobs(24)
    with GenerationEngine(model, max_batch_size=max_batch_size, max_context=96) as engine:
        completions = generate_all(engine, jobs)
    assert_recorded_as_plainly_computed(model, jobs, completions)


@every_kind
@pytest.mark.parametrize("num_slots", [2, 12])
def test_recorded_logprobs_equal_a_plain_forward_pass_over_turns(kind: str, num_slots: int) -> None:
    """Groups share their prompts, turns follow upon one another; with two slots nearly everything is evicted."""
    model = tiny_model(kind)
    prompts = [random_prompt(group, 20 + group) for group in range(3) for _ in range(3)]
    with GenerationEngine(model, max_batch_size=9, max_context=96, max_cached_tokens=96 * num_slots) as engine:
        for turn in range(3):
            samplings = [SamplingParams(max_new_tokens=4 + i, seed=10 * turn + i) for i in range(len(prompts))]
            jobs = list(zip(prompts, samplings, strict=True))
            completions = generate_all(engine, jobs)
            assert_recorded_as_plainly_computed(model, jobs, completions)
            prompts = [
                [*prompt, *got.token_ids, *random_prompt(90 + i, 3 + i)]
                for i, (prompt, got) in enumerate(zip(prompts, completions, strict=True))
            ]


@every_kind
def test_bfloat16_weights_sample_close_to_a_plain_bfloat16_forward_pass(kind: str) -> None:
    model = tiny_model(kind, dtype=torch.bfloat16)
    prompt = random_prompt(1, 9)
    with GenerationEngine(model, max_batch_size=2, max_context=64) as engine:
        got = engine.generate(prompt, SamplingParams(max_new_tokens=20, seed=1))
    difference = torch.tensor(got.logprobs) - plain_logprobs(model, prompt, got.token_ids, 1.0)
    assert difference.abs().mean() < 0.15


# A sample depends on its prompt and its seed. In float64, because in float32 the rounding of another batch shape may
# move a cumulative probability across a uniform number, once in some hundred thousand tokens.


def test_the_same_seed_samples_the_same_tokens_whatever_the_neighbours() -> None:
    jobs = mixed_jobs(20)
    with GenerationEngine(tiny_model(dtype=torch.float64), max_batch_size=16, max_context=96) as engine:
        alone = [engine.generate(*job).token_ids for job in jobs]
        together = [completion.token_ids for completion in generate_all(engine, jobs)]
    assert together == alone
    assert len(set(alone)) == len(jobs)


def test_a_group_that_shares_its_prompt_samples_what_each_would_sample_alone() -> None:
    prompt = random_prompt(4, 17)
    jobs = [(prompt, SamplingParams(max_new_tokens=3 + 4 * seed, seed=seed)) for seed in range(8)]
    model = tiny_model(dtype=torch.float64)
    with GenerationEngine(model, max_batch_size=3, max_context=64) as engine:
        alone = [engine.generate(*job).token_ids for job in jobs]
        group = generate_all(engine, jobs)
    assert [completion.token_ids for completion in group] == alone
    for completion in group:
        expected = plain_logprobs(model, prompt, completion.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def test_greedy_equals_the_naive_loop_without_a_cache() -> None:
    model = tiny_model()
    ids = random_prompt(2, 8)
    with GenerationEngine(model, max_batch_size=2, max_context=64) as engine:
        got = engine.generate(ids, SamplingParams(max_new_tokens=25, temperature=0.0))
    naive = list(ids)
    with torch.no_grad():
        for _ in range(25):
            naive.append(int(model(torch.tensor([naive]))[0, -1].argmax()))
    assert list(got.token_ids) == naive[8:]


def test_sixty_four_threads_with_random_lengths_all_get_their_own_answer() -> None:
    jobs, model = mixed_jobs(128), tiny_model(dtype=torch.float64)
    with GenerationEngine(model, max_batch_size=24, max_context=96) as engine:
        crowd = generate_all(engine, jobs, num_threads=64)
        assert len(engine._in_flight) == 0
    with GenerationEngine(model, max_batch_size=1, max_context=96) as engine:
        for job, completion in list(zip(jobs, crowd, strict=True))[::8]:
            assert completion.token_ids == engine.generate(*job).token_ids


# How a completion ends


def test_the_stop_id_ends_the_completion_and_stays_in_it() -> None:
    prompt = random_prompt(5, 6)
    with GenerationEngine(tiny_model(), max_batch_size=2, max_context=64) as engine:
        free = engine.generate(prompt, SamplingParams(max_new_tokens=20, seed=5))
        stop_id = free.token_ids[7]
        end = free.token_ids.index(stop_id) + 1
        params = SamplingParams(max_new_tokens=20, seed=5, stop_token_ids=(stop_id,))
        stopped = engine.generate(prompt, params)
    assert free.finish_reason is FinishReason.LENGTH
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.token_ids == free.token_ids[:end]
    assert len(stopped.logprobs) == end


def test_a_stop_id_sampled_with_the_last_token_of_the_budget_counts_as_stop() -> None:
    prompt = random_prompt(5, 6)
    with GenerationEngine(tiny_model(), max_batch_size=2, max_context=64) as engine:
        first = engine.generate(prompt, SamplingParams(max_new_tokens=1, seed=5))
        again = engine.generate(prompt, SamplingParams(max_new_tokens=1, seed=5, stop_token_ids=first.token_ids))
    assert again.token_ids == first.token_ids
    assert again.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("prompt_length", "requested", "got"), [(10, 4, 4), (10, 50, 6), (15, 50, 1)])
def test_the_budget_is_capped_by_the_window(prompt_length: int, requested: int, got: int) -> None:
    with GenerationEngine(tiny_model(), max_batch_size=2, max_context=16) as engine:
        completion = engine.generate(random_prompt(0, prompt_length), SamplingParams(max_new_tokens=requested))
    assert len(completion.token_ids) == got
    assert completion.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "changes", "words"),
    [
        ([1] * 16, {}, "the prompt has 16 tokens; expected 1 to 15"),
        ([], {}, "the prompt has 0 tokens"),
        ([1, VOCAB_SIZE], {}, "the vocabulary ends at 63"),
        ([-1, 1], {}, "ids from -1"),
        ([1], {"temperature": -0.5}, "finite temperature >= 0"),
        ([1], {"temperature": math.nan}, "finite temperature >= 0"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens >= 1"),
        ([1], {"seed": -1}, "seed >= 0"),
    ],
)
def test_what_cannot_be_served_is_refused_and_the_engine_lives_on(
    prompt: list[int], changes: dict[str, float], words: str
) -> None:
    with GenerationEngine(tiny_model(), max_batch_size=2, max_context=16) as engine:
        with pytest.raises(ValueError, match=words):
            engine.generate(prompt, SamplingParams(**{"max_new_tokens": 4, **changes}))
        assert len(engine.generate([1], SamplingParams(max_new_tokens=4)).token_ids) == 4


def test_a_cache_too_small_for_a_window_is_refused() -> None:
    with pytest.raises(ValueError, match="room for one sequence of max_context"):
        GenerationEngine(tiny_model(), max_batch_size=2, max_context=64, max_cached_tokens=63)


def refused(config: PreTrainedConfig, max_context: int) -> str:
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(ConfigError) as error:
        GenerationEngine(model, max_batch_size=2, max_context=max_context)
    return str(error.value)


def test_models_that_cannot_be_reproduced_are_refused_in_a_sentence() -> None:
    sizes = SIZES | SPECIAL_IDS | {"max_position_embeddings": 64}
    assert "changes its rotary positions beyond 32 tokens" in refused(
        LlamaConfig(**sizes, rope_parameters=longrope(32)), max_context=33
    )
    alibi = BloomConfig(vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
    assert "does not run with the engine's cache (" in refused(alibi, max_context=32)
    # Its own mask has the width of a pass's new tokens, into which a step of several does fit.
    assert "does not run with the engine's cache (" in refused(DogeConfig(**sizes), max_context=32)
    mamba = MambaConfig(vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=1, state_size=4)
    assert refused(mamba, max_context=32)
    sinks = GptOssConfig(**sizes, head_dim=8, num_local_experts=2, num_experts_per_tok=1)
    assert refused(sinks, max_context=32).startswith("GptOssForCausalLM ")
    # A model that looks at how many tokens are cached gives other probabilities.
    crooked = tiny_model("gpt2")
    plain = crooked.transformer.wpe.forward
    crooked.transformer.wpe.forward = lambda ids: plain(ids if ids.shape[1] == 8 else ids * 0)
    with pytest.raises(ConfigError, match="gives other probabilities with the key/value cache"):
        GenerationEngine(crooked, max_batch_size=2, max_context=32)


def test_a_model_left_in_train_mode_is_sampled_from_all_the_same() -> None:
    model = tiny_model("gemma2")
    model.gradient_checkpointing_enable()
    job = ([1, 2, 3], SamplingParams(max_new_tokens=5))
    with GenerationEngine(model, max_batch_size=2, max_context=32) as engine:
        model.train()
        engine.refresh_weights(1)
        assert_recorded_as_plainly_computed(model, [job], [engine.generate(*job)])


# Giving up


def wait_for_in_flight(engine: GenerationEngine, count: int) -> None:
    while len(engine._in_flight) < count:
        time.sleep(0.001)


def test_a_cancelled_completion_ends_with_the_tokens_sampled_so_far() -> None:
    cancelled = threading.Event()
    sampling = SamplingParams(max_new_tokens=50_000, seed=2)
    with (
        GenerationEngine(tiny_model(window=50_000), max_batch_size=1, max_context=50_000) as engine,
        ThreadPoolExecutor(2) as pool,
    ):
        active = pool.submit(engine.generate, [1, 2], sampling, cancelled)
        wait_for_in_flight(engine, 1)
        waiting = pool.submit(engine.generate, [1, 2], sampling, cancelled)
        wait_for_in_flight(engine, 2)
        cancelled.set()
        first, second = active.result(timeout=10), waiting.result(timeout=10)
        free = engine.generate([1, 2], SamplingParams(max_new_tokens=len(first.token_ids) or 1, seed=2))
    assert first.finish_reason is second.finish_reason is FinishReason.CANCELLED
    assert free.token_ids[: len(first.token_ids)] == first.token_ids
    assert second.token_ids == ()


# Weights


def test_new_weights_and_no_keys_of_the_old_ones_are_sampled_from_after_a_refresh() -> None:
    model, params = tiny_model(), SamplingParams(max_new_tokens=12, temperature=0.0)
    prompt = random_prompt(3, 40)
    with GenerationEngine(model, max_batch_size=2, max_context=64) as engine:
        old = engine.generate(prompt, params)
        model.load_state_dict(tiny_model(seed=1).state_dict())
        engine.refresh_weights(5)
        new = engine.generate(prompt, params)
        assert engine.weight_version == 5
    assert (old.weight_version, new.weight_version) == (0, 5)
    assert_recorded_as_plainly_computed(model, [(prompt, params)], [new])
    assert new.token_ids != old.token_ids


@every_kind
def test_weights_are_followed_when_the_model_gets_other_tensors(kind: str) -> None:
    model, sampling = tiny_model(kind), SamplingParams(max_new_tokens=12, seed=1)
    with GenerationEngine(model, max_batch_size=2, max_context=64) as engine:
        for parameter in model.parameters():
            parameter.data = parameter.data.clone().mul_(0.9)
        engine.refresh_weights(1)
        got = engine.generate([1, 2, 3], sampling)
    assert_recorded_as_plainly_computed(model, [([1, 2, 3], sampling)], [got])


def test_the_engine_leaves_the_gradients_of_the_model_alone() -> None:
    model = tiny_model()
    with GenerationEngine(model, max_batch_size=2, max_context=32) as engine:
        engine.generate([1, 2], SamplingParams(max_new_tokens=4))
        model(torch.tensor([[1, 2, 3]])).sum().backward()
        engine.generate([1, 2], SamplingParams(max_new_tokens=4))
    assert all(parameter.grad is not None for parameter in model.parameters())


# Failure and closing


def endless_callers(engine: GenerationEngine, count: int) -> tuple[list[threading.Thread], list[BaseException]]:
    """Start callers whose completions take far longer than a test; returns once all are in flight."""
    errors: list[BaseException] = []

    def call(seed: int) -> None:
        try:
            engine.generate([1, 2, 3], SamplingParams(max_new_tokens=50_000, seed=seed))
        except EngineError as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    while len(engine._in_flight) < count:
        threading.Event().wait(0.001)
    return threads, errors


def test_close_frees_active_and_waiting_callers() -> None:
    engine = GenerationEngine(tiny_model(window=50_000), max_batch_size=1, max_context=50_000)
    threads, errors = endless_callers(engine, 3)
    with pytest.raises(EngineError, match="3 requests in flight"):
        engine.refresh_weights(1)
    engine.close()
    engine.close()
    for thread in threads:
        thread.join(timeout=10)
    assert [str(error) for error in errors] == ["the generation engine was closed"] * 3
    with pytest.raises(EngineError, match="was closed"):
        engine.generate([1], SamplingParams(max_new_tokens=1))


def test_a_failure_in_the_engine_thread_reaches_every_caller_and_all_later_ones() -> None:
    model = tiny_model(window=50_000)
    with GenerationEngine(model, max_batch_size=2, max_context=50_000) as engine:
        threads, errors = endless_callers(engine, 3)
        model.model.layers[0].mlp.down_proj.weight.data = torch.zeros(1, 1)
        for thread in threads:
            thread.join(timeout=10)
        assert len(errors) == 3
        assert len({id(error) for error in errors}) == 3
        assert all(str(error).startswith("the generation engine failed: RuntimeError: ") for error in errors)
        assert all(isinstance(error.__cause__, RuntimeError) for error in errors)
        with pytest.raises(EngineError, match="failed"):
            engine.generate([1], SamplingParams(max_new_tokens=1))


def test_diverged_weights_are_an_engine_error_and_not_a_sample() -> None:
    model = tiny_model()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight.fill_(math.nan)
    with (
        GenerationEngine(model, max_batch_size=2, max_context=32) as engine,
        pytest.raises(EngineError, match="its weights have diverged"),
    ):
        engine.generate([1, 2], SamplingParams(max_new_tokens=4))
