"""Requests to vLLM's token-in, token-out route and its answers, checked. Pure functions.

The route takes and returns token ids, with the version of the weights that sampled each token.
Not here: HTTP (`server_pool.py`), which server gets a request (`servers.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.errors import EngineError
from agent_rl.inference.base import Probe
from agent_rl.records import Completion, FinishReason, SamplingParams

GENERATE_PATH = "/inference/v1/generate"
FIRST_LABEL = "default"
"""A server's label for the weights that it was started with."""
_NO_LOGPROB = -9999.0
"""vLLM's value for a log-prob that is missing, infinite or not a number."""
_ROUNDING = 1e-3
_EXCERPT = 200
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.INTERRUPTED}


class RequestRefusedError(EngineError, ValueError):
    """A server refuses this prompt or these parameters, and every other one would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """One answer, read and checked."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[int, ...]
    """Of the weights that sampled each token; never falling. Shape [T]."""
    labels: frozenset[str]
    """The server's labels for these weights."""
    num_cached: int | None
    """Prompt tokens from the cache; None if the server was not started to report it."""


def make_body(prompt_ids: Sequence[int], sampling: SamplingParams, *, adapter: str | None) -> dict[str, Any]:
    """The JSON of a request. Everything that changes the distribution is set and neutral, except the temperature."""
    body: dict[str, Any] = {
        "token_ids": [int(token_id) for token_id in prompt_ids],
        "sampling_params": {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": True,
            "logprobs": 0,
            "detokenize": False,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        },
    }
    if adapter is not None:
        body["model"] = adapter
    return body


def read_answer(address: str, answer: Any, sampling: SamplingParams) -> ServerAnswer:
    """The checked answer. EngineError with server and finding if it is not a valid answer to the request."""
    try:
        choice = answer["choices"][0]
        token_ids = tuple(choice["token_ids"])
        content = choice["logprobs"]["content"]
        logprobs = tuple(float(entry["logprob"]) for entry in content)
        scored_ids = tuple(entry["token_id"] for entry in content)
        reason = _REASONS[choice["finish_reason"]]
        spans = [(str(span["version"]), span["start"], span["end"]) for span in choice["weight_versions"] or ()]
        num_cached = (answer.get("usage") or {}).get("prompt_tokens_details")
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise _bad_answer(address, f"({type(error).__name__}: {error}) {answer!r}") from None
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in token_ids):
        raise _bad_answer(address, f"ids that are none: {token_ids}")
    if scored_ids != token_ids:
        raise _bad_answer(
            address, f"{len(token_ids)} ids {token_ids} with log-probs for {len(scored_ids)} {scored_ids}"
        )
    if not all(_NO_LOGPROB < logprob <= _ROUNDING for logprob in logprobs):
        raise _bad_answer(address, f"log-probs that are none: {logprobs}")
    has_all = bool(token_ids) and (reason is not FinishReason.STOP or token_ids[-1] in sampling.stop_token_ids)
    if len(token_ids) > sampling.max_new_tokens or not (has_all or reason is FinishReason.INTERRUPTED):
        raise _bad_answer(address, f"{len(token_ids)} of {sampling.max_new_tokens} ids ended by {reason}: {token_ids}")
    return ServerAnswer(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=reason,
        versions=_versions_of(address, spans, len(token_ids)),
        labels=frozenset(label for label, start, end in spans if start < end),
        num_cached=num_cached and num_cached.get("cached_tokens"),
    )


def make_completion(answer: ServerAnswer, *, version_if_none: int) -> Completion:
    """The record of an answer; `version_if_none` is the version if no token was sampled."""
    versions = answer.versions
    return Completion(
        token_ids=answer.token_ids,
        logprobs=answer.logprobs,
        finish_reason=answer.finish_reason,
        weight_version=versions[0] if versions else version_if_none,
        token_versions=versions if len(set(versions)) > 1 else (),
    )


def make_probe(address: str, answer: ServerAnswer, *, num_tokens: int) -> Probe:
    """The record of a probe. EngineError if it was cut short, or the server does not report what was cached."""
    if len(answer.token_ids) != num_tokens or len(set(answer.versions)) != 1:
        raise EngineError(
            f"{address} sampled {len(answer.token_ids)} of {num_tokens} probe tokens with the weights "
            f"{sorted(set(answer.versions))}: nothing may pause it or change its weights meanwhile"
        )
    if answer.num_cached is None:
        raise EngineError(
            f"{address} does not report how many prompt tokens came from its cache; start it with `agent-rl serve-vllm`"
        )
    return Probe(
        where=address,
        version=answer.versions[0],
        num_cached=answer.num_cached,
        token_ids=answer.token_ids,
        logprobs=answer.logprobs,
    )


def read_label(address: str, label: str) -> int:
    """The version in a server's label for its weights: 3 for "3/17", the 17th weights sent."""
    if label == FIRST_LABEL:
        return 0
    version, _, count = label.partition("/")
    if not (version.isdecimal() and count.isdecimal()):
        raise EngineError(f"{address} calls its weights {label!r}, not by a version: something else sends it weights")
    return int(version)


def sentence_of(answer: Any, text: str) -> str:
    """The server's own message about a failure."""
    error = answer.get("error", answer.get("detail")) if isinstance(answer, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or text or "(nothing)")[:_EXCERPT].strip()


def _versions_of(address: str, spans: Sequence[tuple[str, int, int]], num_tokens: int) -> tuple[int, ...]:
    versions: list[int] = []
    for label, start, end in spans:
        version = read_label(address, label)
        if start != len(versions) or end < start or (versions and version < versions[-1]):
            raise _bad_answer(address, f"versions of the weights that make no sequence: {spans}")
        versions += [version] * (end - start)
    if len(versions) != num_tokens:
        raise _bad_answer(address, f"versions of the weights for {len(versions)} of {num_tokens} ids: {spans}")
    return tuple(versions)


def _bad_answer(address: str, finding: str) -> EngineError:
    short = finding if len(finding) <= _EXCERPT else f"{finding[:_EXCERPT]}..."
    return EngineError(f"{address} answered with something that is not a completion: {short}")
