"""vLLM inside this process: token ids in, token ids and log-probs out, many callers, one batch, its own weights.

`complete` blocks and may be called from any number of threads; one background thread steps vLLM for all of them. New
weights are loaded by the caller's thread while that one is paused.
Not here: starting and ending vLLM (`engine_start.py`), what its worker does with weights (`worker.py`), servers.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from agent_rl.errors import AgentRLError, EngineError
from agent_rl.inference.base import Cancel, Probe, Receipt, check_request
from agent_rl.inference.requests import CompletionRequest, ThreadedEngine
from agent_rl.inference.vllm.engine_start import EngineOptions, start_vllm, stop_vllm
from agent_rl.modeling.openmp import release_openmp_threads
from agent_rl.records import Completion, FinishReason, SamplingParams

if TYPE_CHECKING:
    from vllm import RequestOutput
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.llm_engine import LLMEngine

_POLL_S = 0.1
"""How often waiting requests are checked for cancellation while nothing runs."""
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


class VLLMEngine(ThreadedEngine[EngineRequest]):
    """A `RemoteEngine`, one for each process. Use as a context manager, or call `close`."""

    what = "vLLM engine"
    is_shared = False

    def __init__(self, options: EngineOptions, *, where: str = "process 0") -> None:
        """Start vLLM and the thread; all processes of a process group do so at the same time.

        Raises ConfigError without vLLM, UserError for what vLLM itself refuses.
        """
        super().__init__()
        self._where = where
        self._max_context = options.max_context
        self._lora_rank = options.lora_rank
        self._owns_process_group = not dist.is_initialized()
        self._engine = start_vllm(options)
        self._vocab_size = self._engine.vllm_config.model_config.get_vocab_size()
        self._gpu = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._can_sleep = options.sleep and self._gpu is not None
        self._is_asleep = False
        self._torn: str | None = None
        """Why the weights must not be used; None if they are whole."""
        self._adapter: Any = None
        self._num_adapters = 0
        self._active: dict[str, EngineRequest] = {}
        """Running requests by vLLM's id."""
        self._num_started = 0
        self._num_read = self._num_cached = 0
        """Tokens of finished requests' prompts, and those of them from the cache."""
        # Guarded by `_changed`.
        self._is_held = self._is_pausing = self._is_still = self._is_closed = False
        self._thread.start()

    def complete(self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None = None) -> Completion:
        """Generate one completion; blocks. Thread-safe.

        `sampling.max_new_tokens` is capped by the room left in the window. Ends as `CANCELLED` when `cancel.is_set()`
        and as `INTERRUPTED` by `pause`, with the tokens sampled so far. Raises ValueError for a bad prompt or
        parameters, EngineError when vLLM fails or is closed.
        """
        return self._sample(prompt_ids, sampling, cancel).future.result()

    def hold(self) -> None:
        """Start no completion until `release`, probes excepted."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        """Start the requests queued since `hold`, and new ones."""
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    def pause(self) -> None:
        """Stop sampling: running completions end as `INTERRUPTED`, those without a token and later ones wait."""
        with self._changed:
            self._is_pausing = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_still or self._stopped is not None)
            self._check_running()

    def sleep(self) -> None:
        """Pause and free the GPU's memory until new weights come; a no-op on a CPU or without the option `sleep`."""
        if not self._can_sleep or self._is_asleep:
            return
        self.pause()
        with self._failing("free its memory"):
            # Level 2 drops the weights. An adapter's base is not sent again, so it goes to the CPU.
            self._engine.sleep(level=1 if self._lora_rank else 2)
        self._is_asleep = True
        if not self._lora_rank:
            self._torn = "its weights were dropped for the trainer's update, and no new ones were loaded"

    def load(self, tensors: Iterable[tuple[str, Tensor]], version: int) -> list[Receipt]:
        """Load all weights while paused.

        EngineError for weights that vLLM does not take; then it samples nothing until others are loaded.
        """
        with self._failing(f"load weights {version}"):
            self._torn = f"weights {version} were not loaded to the end"
            self._wake_up("weights")
            (checksums,) = self._engine.collective_rpc("agent_rl_load_tensors", args=(tensors,))
            self._wake_up("kv_cache")
            self._is_asleep, self._torn = False, None
        return [Receipt(where=self._where, checksums=checksums)]

    def load_adapter(self, folder: Path, version: int) -> list[Receipt]:
        """Sample with the LoRA adapter in `folder` from now on, instead of the last one; while paused."""
        with self._failing(f"load adapter {version} from {folder}"):
            self._torn = f"adapter {version} was not loaded to the end"
            self._wake_up("weights", "kv_cache")
            self._is_asleep = False
            (checksums,) = self._engine.collective_rpc("agent_rl_adapter_checksums", args=(str(folder),))
            if self._adapter is not None:
                self._engine.remove_lora(self._adapter.lora_int_id)
            self._num_adapters += 1
            self._adapter = adapter_request(self._num_adapters, folder)
            if not self._engine.add_lora(self._adapter):
                raise EngineError(f"{self._where}: vLLM did not take the adapter in {folder}")
            self._torn = None
        return [Receipt(where=self._where, checksums=checksums)]

    def flush(self) -> None:
        """Drop all cached keys and values; while paused."""
        with self._failing("flush its cache"):
            if not self._engine.reset_prefix_cache():
                raise EngineError(f"{self._where}: vLLM did not flush its cache, some of it is in use")

    def resume(self, version: int) -> None:
        """Sample again, as `version`. EngineError when the weights are not whole."""
        with self._failing(f"sample with weights {version}"):
            if self._torn is not None:
                raise EngineError(f"{self._where} may not sample with weights {version}: {self._torn}")
            self._wake_up("weights", "kv_cache")
        with self._changed:
            self.weight_version = version
            self._is_asleep = self._is_pausing = self._is_still = False
            self._changed.notify_all()

    def probe(self, prompt_ids: tuple[int, ...], *, num_tokens: int, temperature: float, seed: int) -> list[Probe]:
        """Sample `num_tokens` after `prompt_ids`, no stop ids, also between `hold` and `release`."""
        sampling = SamplingParams(max_new_tokens=num_tokens, temperature=temperature, seed=seed)
        request = self._sample(prompt_ids, sampling, None, is_probe=True)
        sampled = request.future.result()
        return [
            Probe(
                where=self._where,
                version=sampled.weight_version,
                num_cached=request.num_cached,
                token_ids=sampled.token_ids,
                logprobs=sampled.logprobs,
            )
        ]

    def counters(self) -> Mapping[str, float]:
        """So far: tokens of the prompts that were read, and how many of them came from the cache."""
        return {"prompt_tokens_read": self._num_read, "prompt_tokens_cached": self._num_cached}

    def close(self) -> None:
        """End the thread and vLLM; requests in flight get EngineError. Calling it again does nothing.

        Call it before the process group ends, in which vLLM has groups of its own.
        """
        super().close()
        if not self._is_closed:
            self._is_closed = True
            stop_vllm(self._engine, owns_process_group=self._owns_process_group)

    def _sample(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, cancel: Cancel | None, *, is_probe: bool = False
    ) -> EngineRequest:
        """The request once it has ended."""
        room = check_request(prompt_ids, sampling, max_context=self._max_context, vocab_size=self._vocab_size)
        request = EngineRequest(
            prompt=[int(token) for token in prompt_ids],
            sampling=sampling,
            max_new_tokens=room,
            cancel=cancel,
            is_probe=is_probe,
        )
        self._wait_for(request)
        return request

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Around vLLM's own work while the thread holds still: its failures are EngineErrors."""
        with self._changed:
            self._check_running()
            if not self._is_still:
                raise EngineError(f"{self._where} cannot {what} while it samples: pause it first")
        try:
            yield
        except AgentRLError:
            raise
        except Exception as error:  # the engine's boundary: whatever vLLM raises
            raise EngineError(f"{self._where} could not {what}: {error}") from error

    def _wake_up(self, *tags: str) -> None:
        if self._is_asleep:
            self._engine.wake_up(tags=list(tags))

    def _work(self) -> None:
        if self._gpu is not None:
            torch.cuda.set_device(self._gpu)  # every thread has its own
        while self._take_waiting():
            for request in self._stop([name for name, request in self._active.items() if request.is_cancelled]):
                self._deliver(request, FinishReason.CANCELLED)
            for output in self._engine.step():
                request = self._active.get(output.request_id)
                ended = request.take(output) if request is not None else None
                if request is not None and ended is not None:
                    del self._active[output.request_id]
                    self._num_read += len(request.prompt)
                    self._num_cached += request.num_cached
                    self._deliver(request, ended)

    def _take_waiting(self) -> bool:
        """Wait while paused or without work, then start new requests; False when closing."""
        with self._changed:
            while not self._is_closing and (self._is_pausing or not (self._startable() or self._active)):
                if self._is_pausing and not self._is_still:
                    self._interrupt()
                    self._is_still = True
                    self._changed.notify_all()
                self._drop_cancelled()
                release_openmp_threads()
                self._changed.wait(_POLL_S if self._waiting else None)
            if self._is_closing:
                return False
            self._drop_cancelled()
            started = self._startable()
            self._waiting = [request for request in self._waiting if self._is_held and not request.is_probe]
        for request in started:
            self._num_started += 1
            name = str(self._num_started)
            self._active[name] = request
            start_request(self._engine, name, request, self._adapter)
        return True

    def _startable(self) -> list[EngineRequest]:
        return [request for request in self._waiting if request.is_probe or not self._is_held]

    def _interrupt(self) -> None:
        """End running requests; those without a token start again after `resume`."""
        stopped = self._stop(list(self._active))
        for request in stopped:
            if request.token_ids:
                self._deliver(request, FinishReason.INTERRUPTED)
        self._waiting[:0] = [request for request in stopped if not request.token_ids]

    def _drop_cancelled(self) -> None:
        """End requests that were cancelled before they were started."""
        for request in [request for request in self._waiting if request.is_cancelled]:
            self._waiting.remove(request)
            self._deliver(request, FinishReason.CANCELLED)

    def _stop(self, names: list[str]) -> list[EngineRequest]:
        if names:
            self._engine.abort_request(names)
            # vLLM tells its worker about the end of a request with the next step.
            if len(names) == len(self._active):
                self._engine.step()
        return [self._active.pop(name) for name in names]


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
