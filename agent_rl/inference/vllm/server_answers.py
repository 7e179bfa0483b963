"""What is asked of vLLM's token-in, token-out route and what its answers mean, checked. Pure functions.

The route takes and gives token ids, and says by which version of the weights each token was drawn. Not here: HTTP
(`server_pool.py`), who is asked (`servers.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_rl.errors import EngineError
from agent_rl.inference.base import Probe
from agent_rl.records import Completion, FinishReason, SamplingParams

GENERATE_PATH = "/inference/v1/generate"
FIRST_LABEL = "default"
"""What a server calls the weights that it was started with."""
_NO_LOGPROB = -9999.0
"""What vLLM writes for a log-prob that is missing, infinite or no number."""
_ROUNDING = 1e-3
_EXCERPT = 200
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.INTERRUPTED}


class RequestRefusedError(EngineError, ValueError):
    """A server will not draw after this prompt or with these parameters, and no other would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """One answer, read and checked."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    versions: tuple[int, ...]
    """Of the weights that drew each token; never falling. Shape [T]."""
    labels: frozenset[str]
    """What the server calls these weights."""
    num_cached: int | None
    """Prompt tokens that came out of the cache; None when the server was not started to tell."""


def make_body(prompt_ids: Sequence[int], sampling: SamplingParams, *, adapter: str | None) -> dict[str, Any]:
    """The JSON of a request. Everything that bends the distribution is named and neutral, but for the temperature."""
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
    """What the server drew. EngineError naming server and finding, where it is not what was asked for."""
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
        raise _rubbish(address, f"({type(error).__name__}: {error}) {answer!r}") from None
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in token_ids):
        raise _rubbish(address, f"ids that are none: {token_ids}")
    if scored_ids != token_ids:
        raise _rubbish(address, f"{len(token_ids)} ids {token_ids} with log-probs for {len(scored_ids)} {scored_ids}")
    if not all(_NO_LOGPROB < logprob <= _ROUNDING for logprob in logprobs):
        raise _rubbish(address, f"log-probs that are none: {logprobs}")
    has_all = bool(token_ids) and (reason is not FinishReason.STOP or token_ids[-1] in sampling.stop_token_ids)
    if len(token_ids) > sampling.max_new_tokens or not (has_all or reason is FinishReason.INTERRUPTED):
        raise _rubbish(address, f"{len(token_ids)} of {sampling.max_new_tokens} ids ended by {reason}: {token_ids}")
    return ServerAnswer(
        token_ids=token_ids,
        logprobs=logprobs,
        finish_reason=reason,
        versions=_versions_of(address, spans, len(token_ids)),
        labels=frozenset(label for label, start, end in spans if start < end),
        num_cached=num_cached and num_cached.get("cached_tokens"),
    )


def make_completion(drawn: ServerAnswer, *, version_if_none: int) -> Completion:
    """The record of an answer; `version_if_none` stands for the weights where no token was drawn."""
    versions = drawn.versions
    return Completion(
        token_ids=drawn.token_ids,
        logprobs=drawn.logprobs,
        finish_reason=drawn.finish_reason,
        weight_version=versions[0] if versions else version_if_none,
        token_versions=versions if len(set(versions)) > 1 else (),
    )


def make_probe(address: str, drawn: ServerAnswer, *, num_tokens: int) -> Probe:
    """The record of a probe. EngineError when it was cut short, or the server does not tell what was cached."""
    if len(drawn.token_ids) != num_tokens or len(set(drawn.versions)) != 1:
        raise EngineError(
            f"{address} drew {len(drawn.token_ids)} of {num_tokens} probe tokens with the weights "
            f"{sorted(set(drawn.versions))}: nothing may pause it or change its weights meanwhile"
        )
    if drawn.num_cached is None:
        raise EngineError(
            f"{address} does not tell how many prompt tokens came out of its cache; start it with `agent-rl serve-vllm`"
        )
    return Probe(
        where=address,
        version=drawn.versions[0],
        num_cached=drawn.num_cached,
        token_ids=drawn.token_ids,
        logprobs=drawn.logprobs,
    )


def read_label(address: str, label: str) -> int:
    """The version that a server's label for its weights stands for: 3 for "3/17", the 17th weights sent."""
    if label == FIRST_LABEL:
        return 0
    version, _, count = label.partition("/")
    if not (version.isdecimal() and count.isdecimal()):
        raise EngineError(f"{address} calls its weights {label!r}, not by a version: something else sends it weights")
    return int(version)


def sentence_of(answer: Any, text: str) -> str:
    """What the server itself says about a failure."""
    error = answer.get("error", answer.get("detail")) if isinstance(answer, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or text or "(nothing)")[:_EXCERPT].strip()


def _versions_of(address: str, spans: Sequence[tuple[str, int, int]], num_tokens: int) -> tuple[int, ...]:
    versions: list[int] = []
    for label, start, end in spans:
        version = read_label(address, label)
        if start != len(versions) or end < start or (versions and version < versions[-1]):
            raise _rubbish(address, f"versions of the weights that make no sequence: {spans}")
        versions += [version] * (end - start)
    if len(versions) != num_tokens:
        raise _rubbish(address, f"versions of the weights for {len(versions)} of {num_tokens} ids: {spans}")
    return tuple(versions)


def _rubbish(address: str, finding: str) -> EngineError:
    short = finding if len(finding) <= _EXCERPT else f"{finding[:_EXCERPT]}..."
    return EngineError(f"{address} answered with something that is no completion: {short}")
