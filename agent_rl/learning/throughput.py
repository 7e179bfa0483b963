"""How much of what the devices can do an update used: operations of the policy's matrix products by peak operations.

A critic's own model and a reference are not counted. Not here: the convention and the peaks (`telemetry/flops.py`).
"""

import torch

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.learning.logprob_model import LogprobModel
from agent_rl.learning.step_stats import StepStats
from agent_rl.modeling.sharding import full_shape
from agent_rl.telemetry.flops import count_matmul_weights, mfu, peak_flops, train_flops


class Throughput:
    """`Throughput(scorer, config, backend).metrics(record, seconds)`."""

    def __init__(self, scorer: LogprobModel, config: Config, backend: Backend) -> None:
        whole = scorer.model.config
        shape = whole.get_text_config() if hasattr(whole, "get_text_config") else whole
        self._num_trained, self._num_frozen = count_matmul_weights(scorer.backbone)
        self._num_head = full_shape(scorer.head.weight).numel()
        self._num_layers, self._num_heads = shape.num_hidden_layers, shape.num_attention_heads
        self._head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        is_half = "bfloat16" in (config.model.dtype, config.train.autocast)
        self._dtype = torch.bfloat16 if is_half else torch.float32
        self._backend = backend

    def metrics(self, record: StepStats, seconds: float) -> dict[str, float]:
        """Of what all processes computed with gradients in `seconds`."""
        flops = train_flops(
            num_matmul_weights=self._num_trained,
            num_frozen_weights=self._num_frozen,
            num_head_weights=self._num_head,
            num_head_rows=sum(len(sample.logprobs) for sample in record.scored),
            num_layers=self._num_layers,
            num_heads=self._num_heads,
            head_dim=self._head_dim,
            segment_lengths=[length for length, _ in record.segments],
            prefix_lengths=[prefix for _, prefix in record.segments],
        )
        peak = peak_flops(self._backend.device, self._dtype) * self._backend.num_processes
        return {
            "perf/update_tokens_per_s": record.num_tokens / seconds,
            "perf/mfu": mfu(flops, seconds, peak),
        }
