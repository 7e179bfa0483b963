"""Updates under ZeRO-3 in which micro-batches have different numbers of chunks of logits, as DeepSpeed counts them."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from updates import learn

from agent_rl.distributed.backend import Backend
from agent_rl.learning import logprob_model


def count_traces(folder: Path, out: Path, sections: dict[str, Any]) -> None:
    """How often DeepSpeed forgot in which order weights are needed, and how many passes knew it; written to `out`."""
    from deepspeed.runtime.zero import partitioned_param_coordinator as coordinators

    counts: Counter[str] = Counter()
    coordinator = coordinators.PartitionedParameterCoordinator
    forget, begin = coordinator._invalidate_trace, coordinator.reset_step

    def counted_forget(self: Any) -> None:
        counts["forgotten"] += 1
        forget(self)

    def counted_begin(self: Any) -> None:
        begin(self)
        counts["passes"] += 1
        counts["known"] += self.is_complete_trace()

    coordinator._invalidate_trace, coordinator.reset_step = counted_forget, counted_begin
    logprob_model.LOGITS_AT_A_TIME = 3 * 32  # rows of three predictions: from one to a dozen chunks
    backend = Backend("cpu", timeout_s=60)
    metrics = learn(folder, sections, backend=backend)
    (out / f"{backend.rank}_traces.json").write_text(json.dumps({"counts": counts, "metrics": metrics}))
    backend.close()
