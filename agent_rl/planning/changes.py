"""Finds the nearest single change that makes a run fit: the first that fits, in order of harmlessness.

Does not: decide what fits (`fit.py`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agent_rl.config import Config
from agent_rl.errors import ConfigError
from agent_rl.planning.engines import cached_tokens

if TYPE_CHECKING:
    from agent_rl.planning.plan import PlannedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """`Change(text="train.micro_batch_tokens=4096", lowest=0.12, num_problems=0, fits=True)`."""

    text: str
    lowest: float
    """Least headroom of all places with it."""
    num_problems: int
    """Remaining problems other than memory."""
    fits: bool


def nearest_change(run: "PlannedRun") -> Change | None:
    """The first single change that fits, else the one that comes closest; None if there is none to try."""
    tried: list[Change] = []
    for text, changed in _changes(run):
        try:
            found = changed.check_fit()
        except ConfigError:
            continue  # the trainer would refuse it, or it offloads to a memory of unknown size
        change = Change(
            text=text,
            lowest=found.lowest,
            num_problems=len(found.problems),
            fits=found.is_enough(changed.machine.headroom),
        )
        if change.fits:
            return change
        tried.append(change)
    return min(tried, key=lambda each: (each.num_problems, -each.lowest), default=None)


def _changes(run: "PlannedRun") -> Iterator[tuple[str, "PlannedRun"]]:
    config = run.job.config
    yield from _keys(run, _halves(config, "train.micro_batch_tokens", config.train.micro_batch_tokens))
    if config.policy.type != "minimind" and not config.model.gradient_checkpointing:
        yield from _keys(run, ["model.gradient_checkpointing=true"])
    yield from _sharding(run)
    yield from _servers(run)
    yield from _keys(run, _caches(config))
    if config.policy.type != "minimind" and not config.model.lora.rank:
        is_half = config.model.dtype == "bfloat16"
        yield from _keys(run, ["model.lora.rank=32" + " train.autocast=bfloat16" * is_half])
    if config.policy.type == "huggingface" and not (run.layout.zero_stage or config.model.load_in_4bit):
        is_half = config.model.dtype == "bfloat16" and config.train.autocast == "none"
        new = "" if config.model.lora.rank else "model.lora.rank=32 " + "train.autocast=bfloat16 " * is_half
        yield from _keys(run, [f"{new}model.load_in_4bit=true"])
    yield from _more(run)


def _keys(run: "PlannedRun", settings: Sequence[str]) -> Iterator[tuple[str, "PlannedRun"]]:
    for setting in settings:
        yield setting, replace(run, overrides=(*run.overrides, *setting.split()))


def _halves(config: Config, key: str, tokens: int) -> list[str]:
    """Half as many tokens and fewer, down to one window, which a sample and a sequence may need."""
    settings = []
    while tokens > config.policy.max_context:
        tokens = max(tokens // 2, config.policy.max_context)
        settings.append(f"{key}={tokens}")
    return settings


def _sharding(run: "PlannedRun") -> Iterator[tuple[str, "PlannedRun"]]:
    layout = run.layout
    launch = f"zero_optimization in the DeepSpeed settings of {run.machine.launch or 'a launcher file'}:"
    for stage in range(max(layout.zero_stage, 1) + 1, 4):
        yield f"{launch} stage {stage}", replace(run, layout=replace(layout, zero_stage=stage))
    whole = replace(layout, zero_stage=3)
    if not layout.offload_optimizer:
        offloaded = replace(whole, offload_optimizer=True)
        yield f"{launch} stage 3, offload_optimizer to cpu", replace(run, layout=offloaded)
    if not layout.offload_weights:
        offloaded = replace(whole, offload_optimizer=True, offload_weights=True)
        yield (f"{launch} stage 3, offload_optimizer and offload_param to cpu", replace(run, layout=offloaded))


def _servers(run: "PlannedRun") -> Iterator[tuple[str, "PlannedRun"]]:
    layout = run.layout
    num = layout.num_servers
    while num > 1 and num % 2 == 0:
        num //= 2
        width = layout.num_servers * layout.tensor_parallel // num
        text = f"tensor_parallel={width}, with {num} of the addresses in vllm.servers"
        yield text, replace(run, layout=replace(layout, num_servers=num, tensor_parallel=width))
    share = layout.server_share
    while num and share > 0.5:
        share = round(share - 0.05, 2)
        text = f"server_share={share} (agent-rl serve-vllm --gpu-memory-share)"
        yield text, replace(run, layout=replace(layout, server_share=share))


def _caches(config: Config) -> list[str]:
    policy = config.policy
    if config.engine.servers:
        return []
    if config.engine.has_own_weights and policy.max_cached_tokens is None:
        # A smaller one leaves more to training, a larger one holds a window where there was no room for it.
        shares = [round(config.engine.gpu_memory_share + sign * 0.1 * k, 2) for k in range(1, 9) for sign in (-1, 1)]
        return [f"{policy.type}.gpu_memory_share={share}" for share in shares if 0.1 <= share <= 0.95]
    return _halves(config, "policy.max_cached_tokens", cached_tokens(config))


def _more(run: "PlannedRun") -> Iterator[tuple[str, "PlannedRun"]]:
    layout = run.layout
    gpus = run.machine.gpus
    missing = 0 if gpus is None else layout.num_gpus - gpus
    if missing > 0:
        num = layout.num_processes - missing
        if num > 0:
            fewer = replace(layout, num_processes=num)
            yield f"num_processes {num} in the launcher's file", replace(run, layout=fewer)
        enough = run.machine.model_copy(update={"gpus": layout.num_gpus})
        yield f"gpus={layout.num_gpus}", replace(run, machine=enough)
        return
    for factor in (2, 4, 8):
        more = replace(layout, num_processes=factor * layout.num_processes)
        text = f"gpus={more.num_gpus}, with num_processes {more.num_processes} in the launcher's file"
        yield text, replace(run, layout=more, machine=run.machine.model_copy(update={"gpus": more.num_gpus}))
