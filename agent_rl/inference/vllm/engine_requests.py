"""One completion of vLLM inside this process: the checked request and the tokens sampled so far.

Not here: threads, the engine (`engine.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_rl.errors import EngineError
from agent_rl.inference.base import Cancel, check_request
from agent_rl.inference.requests import CompletionRequest
from agent_rl.records import FinishReason, SamplingParams

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.llm_engine import LLMEngine

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


@dataclass(slots=True, kw_only=True, eq=False)
class EngineRequest(CompletionRequest):
    """One call of `complete`."""

    is_probe: bool = False
    """It is sampled while others are held."""
    num_cached: int = 0
    """Tokens of the prompt that vLLM took from its cache."""

    def take(self, output: "RequestOutput") -> FinishReason | None:
        """Add the tokens of one step; the reason if it was the last. EngineError for an unexpected reason."""
        new = output.outputs[0]
        self.num_cached = output.num_cached_tokens or 0
        for token, logprobs in zip(new.token_ids, new.logprobs or (), strict=True):
            self.token_ids.append(token)
            self.logprobs.append(logprobs[token].logprob)
        if not output.finished:
            return None
        if new.finish_reason not in _REASONS:
            raise EngineError(f"vLLM ended a completion with {new.finish_reason!r}, expected one of {list(_REASONS)}")
        return _REASONS[new.finish_reason]


def make_request(
    prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None, *, max_context: int, vocab_size: int
) -> EngineRequest:
    """A checked request; ValueError for a bad prompt or parameters, which would end vLLM."""
    max_new_tokens = check_request(prompt_ids, sampling, max_context=max_context, vocab_size=vocab_size)
    return EngineRequest(
        prompt=[int(token) for token in prompt_ids],
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        cancel=cancel,
    )


def start_request(engine: "LLMEngine", name: str, request: EngineRequest, adapter: "LoRARequest | None") -> None:
    """Pass the request to vLLM: only our own stop ids end it, and log-probs come with every step."""
    from vllm import SamplingParams as Params
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling
    params = Params(
        temperature=sampling.temperature,
        max_tokens=request.max_new_tokens,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,
        seed=sampling.seed % 2**63,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    engine.add_request(name, tokens_input(request.prompt), params, lora_request=adapter)


def adapter_request(number: int, folder: Path) -> "LoRARequest":
    """vLLM reads a folder once for each number, and caches different names separately."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=f"adapter-{number}", lora_int_id=number, lora_path=str(folder))
