"""vLLM inside this process for tests: the shipped model, a trainer's copy of it, and how far the two are apart.

Imports vLLM only when an engine is opened.
"""

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from agent_rl.records import Completion, SamplingParams

if TYPE_CHECKING:
    from agent_rl.inference.vllm.engine import VLLMEngine

MODEL = str(Path(__file__).resolve().parents[3] / "model/nat_minimind")
WINDOW = 768
PROMPT = tuple(range(20, 60)) * 8
"""320 ids: two whole blocks of vLLM's cache on a CPU."""
EXACT = 1e-3


def open_engine(*, where: str = "process 0", **options: Any) -> "VLLMEngine":
    from agent_rl.inference.vllm.engine import VLLMEngine
    from agent_rl.inference.vllm.engine_start import EngineOptions

    shape = {"model": MODEL, "dtype": "float32", "max_context": WINDOW, "max_batch_size": 8}
    return VLLMEngine(EngineOptions(**shape, **options), where=where)


def shipped_model(engine: "VLLMEngine") -> nn.Module:
    """A trainer's model, whose weights the engine has taken over."""
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    renew(engine, model, engine.weight_version + 1)
    return model


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """As in a checkpoint: the head is the embeddings and not stored."""
    return {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}


@torch.no_grad()
def update(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) * 0.02)


def renew(engine: "VLLMEngine", model: nn.Module, version: int) -> dict[str, str]:
    engine.pause()
    (receipt,) = engine.load(weights_of(model).items(), version)
    engine.flush()
    engine.resume(version)
    return dict(receipt.checksums)


def gap(
    model: nn.Module,
    token_ids: Iterable[int],
    logprobs: Iterable[float],
    *,
    prompt: tuple[int, ...] = PROMPT,
    temperature: float = 1.0,
) -> float:
    """Largest difference to a plain forward."""
    tokens = list(token_ids)
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1]
    expected = (logits / temperature).log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return float((expected - torch.tensor(list(logprobs))).abs().max())


def generate(engine: "VLLMEngine", *, num_tokens: int = 24, temperature: float = 1.0, seed: int = 3) -> Completion:
    return engine.complete(PROMPT, SamplingParams(max_new_tokens=num_tokens, temperature=temperature, seed=seed))


class Background:
    """A completion sampled by another thread; `started` waits until it has tokens."""

    def __init__(self, engine: "VLLMEngine", sampling: SamplingParams, cancel: threading.Event | None = None) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._engine = engine
        self.future = self._pool.submit(engine.complete, PROMPT, sampling, cancel)

    def started(self) -> None:
        deadline = time.monotonic() + 20
        while not any(len(request.token_ids) > 5 for request in list(self._engine._in_flight)):
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def result(self) -> Completion:
        completion = self.future.result(timeout=30)
        self._pool.shutdown()
        return completion
