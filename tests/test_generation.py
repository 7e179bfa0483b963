"""The generation engine: what it draws, what it records, and that callers neither mix nor hang."""

import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from agent_rl.errors import EngineError
from agent_rl.generation import batch as batch_module
from agent_rl.generation.batch import ActiveBatch, Request
from agent_rl.generation.decoder import Attend, FusedDecoder
from agent_rl.generation.engine import GenerationEngine
from agent_rl.generation.sampling import draw_uniforms
from agent_rl.records import Completion, FinishReason, SamplingParams
from model.model_minimind import MiniMindConfig, MiniMindForCausalLM

VOCAB_SIZE = 64


def tiny_model(*, seed: int = 0, dtype: torch.dtype = torch.float32, window: int = 128) -> MiniMindForCausalLM:
    """A model whose weights are large enough that every token of the context matters to the next."""
    torch.manual_seed(seed)
    config = MiniMindConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=window,
    )
    model = MiniMindForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype)


def forward_logprobs(model: MiniMindForCausalLM, prompt: Sequence[int], drawn: Sequence[int], scale: float) -> Tensor:
    """Log-probs of `drawn` after `prompt` in one plain forward pass, as the trainer computes them."""
    ids = torch.tensor([[*prompt, *drawn]])
    with torch.no_grad():
        logprobs = torch.log_softmax(model(ids)[0].float() / scale, dim=-1)
    return logprobs[len(prompt) - 1 : -1].gather(1, torch.tensor(drawn)[:, None])[:, 0]


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


class CountingDecoder(FusedDecoder):
    """Notes how many tokens each forward pass had."""

    def hidden_states(self, token_ids_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        self.passes = [*getattr(self, "passes", []), len(token_ids_N)]
        return super().hidden_states(token_ids_N, positions_N, attend)


def make_request(prompt: tuple[int, ...], max_new_tokens: int = 5, seed: int = 0) -> Request:
    sampling = SamplingParams(max_new_tokens=max_new_tokens, seed=seed)
    uniforms = draw_uniforms(seed, max_new_tokens)
    return Request(prompt_ids=prompt, sampling=sampling, max_new_tokens=max_new_tokens, uniforms=uniforms)


# Law 5: the recorded log-probs are those of a plain forward pass


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_recorded_logprobs_equal_a_plain_forward_pass_alone(temperature: float) -> None:
    model = tiny_model()
    prompt = random_prompt(0, 11)
    with GenerationEngine(model, max_batch_size=4, max_context=64) as engine:
        got = engine.generate(prompt, SamplingParams(max_new_tokens=30, temperature=temperature, seed=3))
    expected = forward_logprobs(model, prompt, got.token_ids, temperature or 1.0)
    assert len(got.token_ids) == 30
    torch.testing.assert_close(torch.tensor(got.logprobs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("max_batch_size", [1, 5, 64])
def test_recorded_logprobs_equal_a_plain_forward_pass_in_a_mixed_batch(max_batch_size: int) -> None:
    model = tiny_model()
    jobs = mixed_jobs(24)
    with GenerationEngine(model, max_batch_size=max_batch_size, max_context=96) as engine:
        completions = generate_all(engine, jobs)
    for (prompt, sampling), got in zip(jobs, completions, strict=True):
        expected = forward_logprobs(model, prompt, got.token_ids, sampling.temperature or 1.0)
        torch.testing.assert_close(torch.tensor(got.logprobs), expected, atol=1e-4, rtol=0)


def test_bfloat16_weights_draw_close_to_a_plain_bfloat16_forward_pass() -> None:
    model = tiny_model(dtype=torch.bfloat16)
    prompt = random_prompt(1, 9)
    with GenerationEngine(model, max_batch_size=2, max_context=64) as engine:
        got = engine.generate(prompt, SamplingParams(max_new_tokens=20, seed=1))
    difference = torch.tensor(got.logprobs) - forward_logprobs(model, prompt, got.token_ids, 1.0)
    assert difference.abs().mean() < 0.1


# A sample depends on its prompt and its seed. In float64, because in float32 the rounding of another batch shape may
# move a cumulative probability across a uniform number, once in some hundred thousand tokens.


def test_the_same_seed_draws_the_same_tokens_whatever_the_neighbours() -> None:
    jobs = mixed_jobs(20)
    with GenerationEngine(tiny_model(dtype=torch.float64), max_batch_size=16, max_context=96) as engine:
        alone = [engine.generate(*job).token_ids for job in jobs]
        together = [completion.token_ids for completion in generate_all(engine, jobs)]
    assert together == alone
    assert len(set(alone)) == len(jobs)


def test_a_group_that_shares_its_prompt_draws_what_each_would_draw_alone() -> None:
    prompt = random_prompt(4, 17)
    jobs = [(prompt, SamplingParams(max_new_tokens=3 + 4 * seed, seed=seed)) for seed in range(8)]
    model = tiny_model(dtype=torch.float64)
    with GenerationEngine(model, max_batch_size=3, max_context=64) as engine:
        alone = [engine.generate(*job).token_ids for job in jobs]
        group = generate_all(engine, jobs)
    assert [completion.token_ids for completion in group] == alone
    for completion in group:
        expected = forward_logprobs(model, prompt, completion.token_ids, 1.0)
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
        assert engine.num_in_flight == 0
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


def test_a_stop_id_drawn_with_the_last_token_of_the_budget_counts_as_stop() -> None:
    prompt = random_prompt(5, 6)
    with GenerationEngine(tiny_model(), max_batch_size=2, max_context=64) as engine:
        first = engine.generate(prompt, SamplingParams(max_new_tokens=1, seed=5))
        again = engine.generate(prompt, SamplingParams(max_new_tokens=1, seed=5, stop_token_ids=first.token_ids))
    assert again.token_ids == first.token_ids
    assert again.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("prompt_length", "asked", "got"), [(10, 4, 4), (10, 50, 6), (15, 50, 1)])
def test_the_budget_is_capped_by_the_window(prompt_length: int, asked: int, got: int) -> None:
    with GenerationEngine(tiny_model(), max_batch_size=2, max_context=16) as engine:
        completion = engine.generate(random_prompt(0, prompt_length), SamplingParams(max_new_tokens=asked))
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


def test_a_window_beyond_the_models_is_refused() -> None:
    with pytest.raises(ValueError, match="max_position_embeddings"):
        GenerationEngine(tiny_model(), max_batch_size=2, max_context=129)


# Weights


def test_new_weights_are_drawn_from_after_a_refresh_and_not_before() -> None:
    model, params = tiny_model(), SamplingParams(max_new_tokens=12, temperature=0.0)
    prompt = random_prompt(3, 5)
    with GenerationEngine(model, max_batch_size=2, max_context=64) as engine:
        old = engine.generate(prompt, params)
        model.load_state_dict(tiny_model(seed=1).state_dict())
        before = engine.generate(prompt, params)
        engine.refresh_weights(5)
        after = engine.generate(prompt, params)
        assert engine.weight_version == 5
    assert (old.weight_version, before.weight_version, after.weight_version) == (0, 0, 5)
    assert before.token_ids == old.token_ids
    expected = forward_logprobs(model, prompt, after.token_ids, 1.0)
    torch.testing.assert_close(torch.tensor(after.logprobs), expected, atol=1e-4, rtol=0)
    assert after.token_ids != old.token_ids


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
    while engine.num_in_flight < count:
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
    with GenerationEngine(tiny_model(window=50_000), max_batch_size=2, max_context=50_000) as engine:
        threads, errors = endless_callers(engine, 3)
        engine._decoder.layers = []
        engine._decoder.head = torch.zeros(1, 1)
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


# The batch


def test_a_prompt_is_computed_once_for_its_group_and_copied_from_a_live_row() -> None:
    decoder = CountingDecoder(tiny_model(), max_context=32)
    rows = ActiveBatch(decoder, max_rows=8, max_context=32)
    rows.admit([make_request((4, 5, 6), seed=seed) for seed in range(3)])
    assert decoder.passes == [3]
    rows.step()
    rows.admit([make_request((4, 5, 6), seed=3), make_request((7, 8), seed=4)])
    assert decoder.passes == [3, 3, 2]
    assert [request.sampling.seed for request in rows.requests] == [0, 1, 2, 4, 3]


def test_the_last_row_moves_into_the_place_of_one_that_ended() -> None:
    decoder = CountingDecoder(tiny_model(), max_context=32)
    rows = ActiveBatch(decoder, max_rows=4, max_context=32)
    rows.admit([make_request((row,), max_new_tokens=length) for row, length in enumerate((2, 1, 3, 3))])
    assert [request.prompt_ids for request in rows.step()] == [(1,)]
    assert [request.prompt_ids for request in rows.requests] == [(0,), (3,), (2,)]
    assert decoder.passes == [4, 3]


def test_a_prompt_is_copied_from_a_live_row_that_has_moved() -> None:
    rows = ActiveBatch(FusedDecoder(tiny_model(), max_context=32), max_rows=4, max_context=32)
    early, late = make_request((1, 2)), make_request((1, 2))
    rows.admit([make_request((9,), max_new_tokens=1), early])
    rows.step()
    rows.admit([late])
    while rows.requests:
        rows.step()
    assert late.token_ids == early.token_ids
    assert late.logprobs == pytest.approx(early.logprobs, abs=1e-5)


def test_one_prefill_takes_what_fits_its_token_bound_and_free_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "MAX_PREFILL_TOKENS", 8)
    rows = ActiveBatch(FusedDecoder(tiny_model(), max_context=32), max_rows=5, max_context=32)
    lengths = (4, 2, 4, 9, 1)
    waiting = deque(make_request(tuple(range(length))) for length in lengths)
    taken = rows.take_from(waiting)
    assert [len(request.prompt_ids) for request in taken] == [4, 2, 4]
    rows.admit(taken)
    assert [len(request.prompt_ids) for request in rows.take_from(waiting)] == [9]
    waiting.extend(make_request((0, 1)) for _ in range(5))
    assert [len(request.prompt_ids) for request in rows.take_from(waiting)] == [1, 2]
