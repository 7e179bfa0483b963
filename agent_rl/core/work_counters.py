"""How much of a step's work was done and how much was spared: differences of counters, over all processes.

Not here: what is counted (`BasePolicy.counters`, `EnvFactory.counters`, `EnvFactory.worker_counters`).
"""

from collections import Counter
from collections.abc import Callable, Mapping

from agent_rl.distributed.backend import Backend

_SHARES = {"rollout/prefix_hit_rate": ("rollout/prompt_tokens_cached", "rollout/prompt_tokens_read")}
"""What is reported beside the counters: one of them as a share of another."""


class WorkCounters:
    """`work.start()` before a step, `work.metrics()` after it; names get their source's prefix."""

    def __init__(self, sources: Mapping[str, Callable[[], Mapping[str, float]]], backend: Backend) -> None:
        self._sources, self._backend = sources, backend
        self._before: dict[str, float] = {}

    def start(self) -> None:
        self._before = self._read()

    def metrics(self) -> dict[str, float]:
        """What was counted since `start`, summed over processes, which all call it."""
        grown = {name: value - self._before.get(name, 0.0) for name, value in self._read().items()}
        total: Counter[str] = Counter()
        for share in self._backend.all_gather_object(grown):
            total.update(share)
        shares = {name: total[part] / total[whole] for name, (part, whole) in _SHARES.items() if total[whole]}
        return dict(total) | shares

    def _read(self) -> dict[str, float]:
        return {f"{prefix}/{name}": value for prefix, read in self._sources.items() for name, value in read().items()}
