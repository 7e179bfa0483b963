"""Completions of a policy whose weights change while it samples: continued, with the version of every token."""

import threading
from collections.abc import Sequence

import pytest
from fakes import save_tiny_model

from agent_rl.inference.base import Cancel
from agent_rl.policies.hf_loading import load_hf_tokenizer
from agent_rl.policies.remote_policy import RemotePolicy
from agent_rl.records import Completion, FinishReason, SamplingParams

PROMPT = [7, 8]


def part(*token_ids: int, reason: str, version: int, token_versions: tuple[int, ...] = ()) -> Completion:
    return Completion(
        token_ids=token_ids,
        logprobs=tuple(-float(token) for token in token_ids),
        finish_reason=FinishReason(reason),
        weight_version=version,
        token_versions=token_versions,
    )


class ScriptedEngine:
    """Answers in the order of its script and records the requests."""

    def __init__(self, *script: Completion) -> None:
        self.script = list(script)
        self.prompts: list[list[int]] = []
        self.samplings: list[SamplingParams] = []

    def complete(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        self.prompts.append(list(prompt_ids))
        self.samplings.append(sampling)
        return self.script.pop(0)

    def close(self) -> None:
        return None


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> object:
    return load_hf_tokenizer(save_tiny_model(tmp_path_factory.mktemp("model")))


def sample(tokenizer: object, engine: ScriptedEngine, *, most: int = 9, cancel: Cancel | None = None) -> Completion:
    policy = RemotePolicy(engine, tokenizer, max_context=12)
    return policy.generate(PROMPT, SamplingParams(max_new_tokens=most, seed=5), cancel)


def test_a_completion_that_nothing_interrupts_is_passed_on(tokenizer: object) -> None:
    engine = ScriptedEngine(part(5, 2, reason="stop", version=3))
    assert sample(tokenizer, engine) == part(5, 2, reason="stop", version=3)
    assert engine.samplings == [SamplingParams(max_new_tokens=9, seed=5)]


def test_an_interrupted_completion_goes_on_behind_its_last_token(tokenizer: object) -> None:
    engine = ScriptedEngine(
        part(5, 6, reason="interrupted", version=3),
        part(reason="interrupted", version=3),
        part(9, 2, reason="stop", version=4),
    )
    sampled = sample(tokenizer, engine)
    assert sampled == part(5, 6, 9, 2, reason="stop", version=3, token_versions=(3, 3, 4, 4))
    assert engine.prompts == [PROMPT, [*PROMPT, 5, 6], [*PROMPT, 5, 6]]
    assert [sampling.max_new_tokens for sampling in engine.samplings] == [9, 7, 7]
    assert engine.samplings[1].seed != 5  # the same seed would sample the first tokens' numbers again


def test_versions_within_a_part_are_preserved(tokenizer: object) -> None:
    engine = ScriptedEngine(
        part(5, 6, reason="interrupted", version=1, token_versions=(1, 2)), part(2, reason="stop", version=2)
    )
    assert sample(tokenizer, engine).token_versions == (1, 2, 2)


def test_parts_of_one_version_are_one_completion_of_it(tokenizer: object) -> None:
    engine = ScriptedEngine(part(5, reason="interrupted", version=2), part(2, reason="stop", version=2))
    assert sample(tokenizer, engine) == part(5, 2, reason="stop", version=2)


def test_a_completion_interrupted_at_its_last_token_is_at_its_end(tokenizer: object) -> None:
    engine = ScriptedEngine(part(5, 6, reason="interrupted", version=1))
    assert sample(tokenizer, engine, most=2) == part(5, 6, reason="length", version=1)


def test_the_window_bounds_what_may_be_sampled(tokenizer: object) -> None:
    engine = ScriptedEngine(part(2, reason="stop", version=0))
    sample(tokenizer, engine, most=500)
    assert engine.samplings[0].max_new_tokens == 10


def test_a_cancelled_completion_is_not_continued(tokenizer: object) -> None:
    gave_up = threading.Event()
    gave_up.set()
    engine = ScriptedEngine(part(5, reason="interrupted", version=1))
    assert sample(tokenizer, engine, cancel=gave_up) == part(5, reason="cancelled", version=1)
