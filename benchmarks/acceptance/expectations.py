"""What is expected of each figure, and when it is an alarm. Not here: measuring, the report.

Expected ranges were calculated before any GPU was there, those of MFU and of shares set anew after one H200. Where no
alarm was set apart from them, the bad end of the range is the alarm: a faster machine raises none.
"""

from dataclasses import dataclass

from acceptance.figures import Result, Value


@dataclass(frozen=True, kw_only=True)
class Expected:
    """One row of the report."""

    part: str
    figure: str
    name: str
    """What is measured, with its unit."""
    text: str = ""
    """The expected range; empty: none was given."""
    low: float | None = None
    """Less is an alarm."""
    high: float | None = None
    """More is an alarm."""
    everywhere: bool = False
    """Also on a CPU and with tiny shapes: whether numbers are right does not depend on the machine."""

    @property
    def has_limits(self) -> bool:
        return self.low is not None or self.high is not None


def rows() -> list[Expected]:
    """All figures that the report shows, in its order."""
    return [
        *_MACHINE,
        *_parity(),
        *_LAW5,
        *_FUSED,
        *_updates(),
        *_generation(),
        *_LORA,
        *_RUNS,
        *_sharded(),
        *_VLLM,
    ]


def alarm(expected: Expected, result: Result) -> str:
    """Why this figure is an alarm; empty if it is none, or was not measured."""
    if expected.figure not in result.figures or not expected.has_limits:
        return ""
    if not expected.everywhere and (result.device == "cpu" or result.tiny):
        return ""
    value: Value = result.figures[expected.figure]
    if isinstance(value, str):
        return value
    if expected.low is not None and not value >= expected.low:
        return f"not at least {expected.low:g}"
    if expected.high is not None and not value <= expected.high:
        return f"not at most {expected.high:g}"
    return ""


def _row(part: str, figure: str, name: str, text: str = "", **limits: float | bool) -> Expected:
    return Expected(part=part, figure=figure, name=name, text=text, **limits)


_MACHINE = [
    _row("machine", "product_tflops", "bfloat16 product of 8192 x 8192, TFLOP/s", "650 to 790 (H100, H200)"),
    _row("machine", "product_share", "of it by the data sheet", "0.66 to 0.8", low=0.66, high=1.0),
    _row("machine", "copy_tb_s", "copy of 4 GiB, read and written, TB/s", "4.3 (H200)"),
    _row("machine", "copy_share", "of it by the data sheet", "0.9", low=0.8, high=1.0),
    _row("tests", "device_failed", "failed tests of models and log-probs", "0", high=0, everywhere=True),
    _row("tests", "device_passed", "passed", "all", low=1, everywhere=True),
    _row("tests", "gpu_failed", "failed tests marked `gpu`", "0", high=0, everywhere=True),
    _row("tests", "gpu_passed", "passed", "all", low=1, everywhere=True),
]


def _parity() -> list[Expected]:
    found = [_row("parity", "varlen_call", "`varlen_attn` takes what it is given", "1", low=1)]
    limits = {"float32": ("at most 1e-5", 1e-5), "bfloat16": ("at most 0.02", 2e-2)}
    kinds = {
        "segments": "attention, a call a segment, and float64",
        "one_call": "attention, one call, and float64",
        "packed": "log-probs packed with shared prefixes, and plain",
        "flat": "log-probs packed without, and plain",
        "padded": "log-probs padded, and plain",
        "head_one_call": "log-probs, head in one call, and all logits",
        "head_chunks": "log-probs, head chunk by chunk, and all logits",
        "norm": "norm, and the model's own",
    }
    for dtype, (text, high) in limits.items():
        for kind, name in kinds.items():
            if (dtype, kind) == ("float32", "one_call"):
                continue  # flash attention has no float32
            middle = f"{kind}_logprob" if kind in ("packed", "flat", "padded") else kind
            options = {"high": high, "everywhere": True}
            found.append(_row("parity", f"{dtype}_{middle}_max", f"{dtype}: {name}, largest", text, **options))
            if kind in ("segments", "one_call"):
                found.append(_row("parity", f"{dtype}_{kind}_mean", "mean", text, **options))
            found.append(_row("parity", f"{dtype}_{middle}_gradient", "gradients", text, **options))
    found.append(_row("parity", "flash_one_call", "one call is flash attention, by its kernels", "1", low=1))
    found.append(_row("parity", "flash_segments", "a call a segment is, by its kernels", "1", low=1))
    found.append(_row("parity", "flash_alone", "a call a segment, every other kernel forbidden", "1", low=1))
    return found


_LAW5 = [
    _row(
        "law5",
        "float32_max",
        "float32: sampled and trained log-probs, largest",
        "at most 1e-4",
        high=1e-4,
        everywhere=True,
    ),
    _row("law5", "float32_mean", "mean"),
    _row("law5", "bfloat16_mean", "bfloat16: mean", "0.01 to 0.03, alarm above 0.08", high=0.08),
    _row("law5", "bfloat16_max", "largest"),
    _row("law5", "bfloat16_k3", "KL (k3)", "below 0.002", high=2e-3),
]

_FUSED = [
    _row("fused", "varlen_8_ms", "attention in one call, 8 segments of 16,384 tokens, ms"),
    _row("fused", "varlen_8_ratio", "calls a segment by it", "1 to 1.3", low=1.0),
    _row("fused", "varlen_64_ms", "64 segments, ms"),
    _row("fused", "varlen_64_ratio", "calls a segment by it"),
    _row("fused", "varlen_256_ms", "256 segments, ms"),
    _row("fused", "varlen_256_ratio", "calls a segment by it", "2 to 5", low=2.0),
    _row("fused", "head_ms", "head in one call, 16,384 rows, ms"),
    _row("fused", "head_ratio", "chunk by chunk by it"),
    _row("fused", "norm_ms", "norm, 16,384 rows, ms"),
    _row("fused", "norm_ratio", "the model's own by it"),
]


def _updates() -> list[Expected]:
    found = []
    expected = {"0.5b": ("0.2 to 0.35", 0.12), "1.5b": ("0.25 to 0.4", 0.2), "7b": ("0.35 to 0.5", 0.3)}
    for shape, (usual, least) in expected.items():
        for size in ("4k", "16k", "32k"):
            # So few tokens of so small a model are launched no faster than they are computed.
            text, low = ("0.08 to 0.15", 0.06) if (shape, size) == ("0.5b", "4k") else (usual, least)
            where = f"{shape.upper()}, {size} tokens: "
            named = [
                ("mfu", f"{where}MFU", f"{text}, alarm below {low}", {"low": low}),
                ("tokens_per_s", "tokens/s", "", {}),
                ("checkpointing", "with gradient checkpointing", "", {}),
                ("layers", "layers", "", {}),
                ("allocated_gib", "peak, GiB", "", {}),
                ("peak_share", "peak by the plan's", "0.75 to 1.1", {"low": 0.75, "high": 1.1}),
                ("reserved_gib", "reserved, GiB", "", {}),
                ("reserved_share", "reserved by peak", "at most 1.05", {"high": 1.05}),
                ("s", "seconds", "", {}),
                ("plain_s", "plain Hugging Face, seconds", "", {}),
                ("plain_allocated_gib", "its peak, GiB", "", {}),
                ("speedup", "plain by ours", "", {}),
            ]
            found += [_row(f"update_{shape}", f"{size}_{key}", name, text, **more) for key, name, text, more in named]
    found.append(_row("update_0.5b", "4k_kernels_s", "0.5B, 4k tokens: seconds of kernels"))
    # An H200 with the attention of PyTorch 2.11 gave 0.54, 0.33 and 0.13, at episodes of 8,000 tokens.
    shares = {"products": ("0.5 to 0.7", 0.5, None), "attention": ("0.2 to 0.4", None, 0.4)}
    shares["others"] = ("below 0.15", None, 0.15)
    for kind, (text, low, high) in shares.items():
        limits = {"low": low, "high": high}
        found.append(_row("update_7b", f"32k_share_{kind}", f"7B, 32k: share of {kind}", text, **limits))
    return found


def _generation() -> list[Expected]:
    found = []
    for shape in ("0.5B", "1.5B"):
        for batch in (1, 16, 64):
            name = f"{shape}_{batch}"
            found.append(_row("generation", f"{name}_tokens_per_s", f"{shape}, batch {batch}: engine, tokens/s"))
            found.append(_row("generation", f"{name}_generate_tokens_per_s", "`generate`, tokens/s"))
            found.append(_row("generation", f"{name}_speedup", "engine by `generate`"))
    return found


_LORA = [
    _row("lora", "mfu", "1.5B, rank 32, autocast, 8,192 tokens: MFU"),
    _row("lora", "tokens_per_s", "tokens/s"),
    _row("lora", "allocated_gib", "peak, GiB"),
    _row("lora", "peak_share", "peak by the plan's", "0.75 to 1.1", low=0.75, high=1.1),
]
_RUNS = [
    _row("default", "step_s", "default run: step, s"),
    _row("default", "cpu_step_s", "the same on this machine's CPU, s"),
    _row("default", "speedup", "CPU by GPU", "5 to 20", low=5.0),
    _row("default", "reward_mean", "mean reward"),
    _row("default", "reward_gap", "apart from the CPU's, standard errors", "within noise: at most 3", high=3.0),
    _row("default", "k3", "sampled and trained log-probs (float32): KL (k3)", "below 1e-6", high=1e-6),
    _row("default", "abs_log_diff_max", "largest"),
]


def _sharded() -> list[Expected]:
    found = []
    for stage in (2, 3):
        same = {"low": 1, "everywhere": True}
        found.append(_row("deepspeed", f"zero{stage}_resume_same", f"ZeRO-{stage}: resumed, same bits", "1", **same))
        name = "norms of gradients, by those of float32 weights in autocast, largest"
        found.append(_row("deepspeed", f"zero{stage}_norm_gap", name, "within 0.02", high=2e-2))
        name = "the first norm, by the one in bfloat16 without DeepSpeed"
        found.append(_row("deepspeed", f"zero{stage}_first_norm_gap", name))
        found.append(_row("deepspeed", f"zero{stage}_s", "update, s"))
    return found


_VLLM = [
    _row("vllm", "engine_start_s", "vLLM: start, s", "60 to 150, alarm above 300", high=300.0),
    _row("vllm", "tokens_per_s", "64 completions at a time, tokens/s", "4,000 to 7,000", low=4000.0),
    _row("vllm", "level_2_sleep_s", "sleep, level 2, s", "0.5 to 3, alarm above 8", high=8.0),
    _row("vllm", "level_2_wake_s", "wake with new weights, s", "0.3 to 2, alarm above 8", high=8.0),
    _row("vllm", "level_2_asleep_gib", "held asleep, GiB", "alarm above 4", high=4.0),
    _row("vllm", "level_1_sleep_s", "sleep, level 1, s", "0.5 to 3, alarm above 8", high=8.0),
    _row("vllm", "level_1_wake_s", "wake, s", "0.3 to 2, alarm above 8", high=8.0),
    _row("vllm", "level_1_asleep_gib", "held asleep, GiB", "alarm above 4", high=4.0),
    _row("vllm", "sync_s", "weight sync of a MiniMind, s", "alarm above 5", high=5.0),
    _row("vllm", "probe_gap", "probe gap (float32)", "below 0.005", high=5e-3),
    _row("vllm", "k3", "sampled and trained log-probs: KL (k3)", "below 0.002", high=2e-3),
    _row("vllm", "abs_log_diff_max", "largest"),
]
