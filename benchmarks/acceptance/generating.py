"""Sampling inside the process: its log-probs against trained ones (law 5 of design.md), its speed beside `generate`.

Not here: engines outside the process, vLLM (`runs.py`).
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import torch
from acceptance.figures import Recorder, Setting
from acceptance.models import forget, make_model, model_config, seconds_of
from generation import PROMPT_TOKENS, generate_theirs, make_prompts
from torch import Tensor, nn

from agent_rl.inference.local.engine import GenerationEngine
from agent_rl.learning.logprob_model import LogprobModel
from agent_rl.learning.packing import move_batch, plan_micro_batches
from agent_rl.records import Completion, SamplingParams, TrainingSample

SHARPNESS = 4.0
"""Factor of the last norm: random weights then choose among about as many ids as a trained model."""
BATCHES = (1, 16, 64)


def compare_logprobs(setting: Setting, out: Recorder) -> None:
    """Recorded log-probs of completions of groups of eight against `LogprobModel`'s, in both number formats."""
    count, num_new = setting.pick((32, 256), (8, 12))
    for name, dtype in {"float32": torch.float32, "bfloat16": torch.bfloat16}.items():
        config = model_config("0.5B", setting, window=PROMPT_TOKENS + num_new)
        model = make_model(config, setting.device, dtype)
        with torch.no_grad():
            model.model.norm.weight.mul_(SHARPNESS)
        prompts = make_prompts(count, config.vocab_size)
        engine = GenerationEngine(model, max_batch_size=count, max_context=PROMPT_TOKENS + num_new)
        with closing(engine):
            completions = _sample(engine, prompts, num_new)
        recorded = torch.tensor([value for one in completions for value in one.logprobs], dtype=torch.float64)
        trained = trained_logprobs(model, prompts, completions, setting.device)
        ratio = trained - recorded
        out.figure(f"{name}_mean", float(ratio.abs().mean()))
        out.figure(f"{name}_max", float(ratio.abs().max()))
        # The estimator k3 of the KL from the sampler to the trainer.
        out.figure(f"{name}_k3", float((ratio.exp() - 1 - ratio).mean()))
        out.figure(f"{name}_entropy_estimate", float(-recorded.mean()))
        del model, engine
        forget(setting.device)


def trained_logprobs(
    model: nn.Module, prompts: Sequence[Sequence[int]], completions: Sequence[Completion], device: str
) -> Tensor:
    """What `LogprobModel` says of the sampled ids, one completion after the other; float64 on the CPU."""
    samples = [
        TrainingSample(
            token_ids=(*prompt, *one.token_ids),
            loss_mask=(0,) * len(prompt) + (1,) * len(one.token_ids),
            sampling_logprobs=(0.0,) * len(prompt) + tuple(one.logprobs),
            advantages=(0.0,) * len(prompt) + (1.0,) * len(one.token_ids),
        )
        for prompt, one in zip(prompts, completions, strict=True)
    ]
    scorer = LogprobModel(model, temperature=1.0)
    found: dict[int, Tensor] = {}
    with torch.no_grad():
        for batch in plan_micro_batches(samples, max_tokens=16_384)[0]:
            parts = scorer(move_batch(batch, torch.device(device))).logprobs.double().cpu().split(batch.num_trained)
            found |= dict(zip(batch.samples, parts, strict=True))
    return torch.cat([found[index] for index in range(len(samples))])


def measure_generation(setting: Setting, out: Recorder) -> None:
    """Tokens/s of the in-process engine and of Transformers' `generate`, same weights, groups of eight."""
    num_new = setting.pick(128, 4)
    for shape in setting.pick(("0.5B", "1.5B"), ("0.5B",)):
        config = model_config(shape, setting, window=PROMPT_TOKENS + num_new)
        # The engine reads weights in place, and leaves the module as it is.
        model = make_model(config, setting.device, torch.bfloat16)
        for batch in BATCHES:
            prompts = make_prompts(batch, config.vocab_size)
            engine = GenerationEngine(model, max_batch_size=batch, max_context=PROMPT_TOKENS + num_new)
            with closing(engine):
                own_s = seconds_of(partial(_sample, engine, prompts, num_new), setting.device, 2)
            plain_s = seconds_of(partial(generate_theirs, model, prompts, [num_new] * batch), setting.device, 1)
            name, total = f"{shape}_{batch}", batch * num_new
            out.figure(f"{name}_tokens_per_s", total / own_s)
            out.figure(f"{name}_generate_tokens_per_s", total / plain_s)
            out.figure(f"{name}_speedup", plain_s / own_s)
        del model, engine
        forget(setting.device)


def _sample(engine: GenerationEngine, prompts: Sequence[Sequence[int]], num_new: int) -> list[Completion]:
    """All prompts at the same time, each with a seed of its own; nothing is cached of earlier ones."""
    engine.refresh_weights(engine.weight_version + 1)
    sampling = [SamplingParams(max_new_tokens=num_new, seed=seed) for seed in range(len(prompts))]
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(engine.generate, prompts, sampling))
