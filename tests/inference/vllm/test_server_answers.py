"""What a server's answer means, and what is not believed."""

import json

import pytest
from fake_vllm_server import FakeVLLMServer

from agent_rl.errors import EngineError
from agent_rl.inference.vllm.server_answers import make_completion, read_answer
from agent_rl.records import Completion, FinishReason, SamplingParams

ADDRESS = "http://127.0.0.1:8000"
SAMPLING = SamplingParams(max_new_tokens=3, seed=41)


REQUEST = {"sampling_params": {"max_tokens": 3, "seed": 41, "stop_token_ids": []}}


def answer_with(**changes):
    """A sound answer to SAMPLING but for `changes` to its choice."""
    answer = FakeVLLMServer().sample(REQUEST)
    answer["choices"][0].update(changes)
    return answer


RUBBISH = {
    "html": "<html>welcome</html>",
    "no choices": {"choices": []},
    "null": None,
    "no log-probs": answer_with(logprobs=None),
    "a log-prob too few": answer_with(logprobs={"content": [{"token_id": 41, "logprob": -1.0}]}),
    "nan": answer_with(logprobs={"content": [{"token_id": index, "logprob": -9999.0} for index in (41, 42, 43)]}),
    "positive": answer_with(logprobs={"content": [{"token_id": index, "logprob": 0.5} for index in (41, 42, 43)]}),
    "negative id": answer_with(token_ids=[41, -2, 43]),
    "no integer": answer_with(token_ids=[41, "x", 43]),
    "another reason": answer_with(finish_reason="tool_calls"),
    "no ids": answer_with(token_ids=[], logprobs={"content": []}, weight_versions=[]),
    "stopped at no stop id": answer_with(finish_reason="stop"),
    "no versions": answer_with(weight_versions=None),
    "versions with a hole": answer_with(weight_versions=[{"version": "3/1", "start": 1, "end": 3}]),
    "versions that overlap": answer_with(
        weight_versions=[{"version": "3/1", "start": 0, "end": 2}, {"version": "4/2", "start": 1, "end": 2}]
    ),
    "falling versions": answer_with(
        weight_versions=[{"version": "4/2", "start": 0, "end": 1}, {"version": "3/1", "start": 1, "end": 3}]
    ),
    "a label of another program": answer_with(weight_versions=[{"version": "step-3", "start": 0, "end": 3}]),
    "a label without a count": answer_with(weight_versions=[{"version": "3", "start": 0, "end": 3}]),
}


@pytest.mark.parametrize("name", RUBBISH)
def test_an_answer_that_is_none_is_an_error_that_names_the_server(name):
    with pytest.raises(EngineError, match=f"{ADDRESS} (answered with something|calls its weights)"):
        read_answer(ADDRESS, RUBBISH[name], SAMPLING)


def test_more_tokens_than_requested_are_no_completion():
    with pytest.raises(EngineError, match="3 of 2 ids"):
        read_answer(ADDRESS, answer_with(), SamplingParams(max_new_tokens=2))


def test_a_completion_interrupted_before_its_first_token_is_empty():
    answer = FakeVLLMServer().sample(REQUEST, limit=0)
    sampled = read_answer(ADDRESS, answer, SAMPLING)
    assert make_completion(sampled, version_if_none=5) == Completion(
        token_ids=(), logprobs=(), finish_reason=FinishReason.INTERRUPTED, weight_version=5
    )


def test_each_token_has_the_version_of_its_weights():
    spans = [{"version": "default", "start": 0, "end": 1}, {"version": "12/5", "start": 1, "end": 3}]
    sampled = read_answer(ADDRESS, answer_with(weight_versions=spans), SAMPLING)
    assert sampled.labels == {"default", "12/5"}
    completion = make_completion(sampled, version_if_none=5)
    assert (completion.weight_version, completion.token_versions) == (0, (0, 12, 12))


def test_a_number_that_json_has_no_word_for_is_no_logprob():
    text = json.dumps(answer_with()).replace("-1.01", "NaN")
    with pytest.raises(EngineError, match="log-probs that are none"):
        read_answer(ADDRESS, json.loads(text), SAMPLING)
