"""The frozen model that a KL penalty pulls to: a copy of what the run started from, or the model without its adapters.

Not here: the penalty (`algorithms/kl.py`), reading models.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from agent_rl.algorithms.logprobs import Head
from agent_rl.config import Config
from agent_rl.distributed.backend import Backend
from agent_rl.distributed.sequence import SequenceGroup
from agent_rl.errors import ConfigError
from agent_rl.learning.logprob_model import LogprobModel, head_dtype_of
from agent_rl.learning.packing import move_batch
from agent_rl.records import Batch


class Reference:
    """`Reference(model, ...).logprobs(batch)`; never changes."""

    def __init__(
        self,
        trained: nn.Module,
        frozen: nn.Module | None,
        config: Config,
        backend: Backend,
        sequence: SequenceGroup | None = None,
    ) -> None:
        """`frozen` is the reference; without one it is `trained`, a PeftModel, with its adapters switched off.

        Make it before the trained module is prepared, and prepare it afterwards. Raises ConfigError when
        neither is available, or when the exact KL is configured and weights are shards.
        """
        if frozen is None and not hasattr(trained, "disable_adapter"):
            raise ConfigError(
                f"algorithm.kl.coef = {config.algorithm.kl.coef}: a KL needs a reference model, and this model has no "
                "adapters to switch off; give the updater a reference_model, or set the coefficient to 0"
            )
        if config.algorithm.kl.kind == "full" and backend.zero_stage == 3:
            raise ConfigError(
                "algorithm.kl.kind = 'full' needs whole output layers, which ZeRO-3 splits; use k2 or k3, or ZeRO-2"
            )
        self._trained = None if frozen is not None else trained
        whole = frozen if frozen is not None else trained
        self._logprob_model: nn.Module = LogprobModel(
            whole,
            temperature=config.policy.temperature,
            sequence=sequence,
            head_dtype=head_dtype_of(config),
        )
        self._backend = backend
        self._autocast = lambda: backend.autocast(config.train.autocast)

    def prepare(self) -> None:
        """Put a frozen model where it is read from; under ZeRO-3 as shards."""
        if self._trained is None:
            self._logprob_model = self._backend.prepare_frozen(self._logprob_model)

    @torch.no_grad()
    def logprobs(self, batch: Batch) -> Tensor:
        """Log-probs of the batch's trained tokens, float32 [N]."""
        with self._switched_off(), self._autocast():
            return self._logprob_model(move_batch(batch, self._backend.device)).logprobs

    def states_and_head(self, batch: Batch) -> tuple[Tensor, Head]:
        """What `LogprobModel` takes as `ref` for the exact KL; no gradient."""
        with self._switched_off(), self._autocast():
            hidden_Nd, head = self._logprob_model.states_and_head(move_batch(batch, self._backend.device))

        def head_switched_off(hidden: Tensor) -> Tensor:
            # Called again in the backward pass, when the adapters are on.
            with self._switched_off():
                return head(hidden)

        return hidden_Nd, head_switched_off

    @contextmanager
    def _switched_off(self) -> Iterator[None]:
        if self._trained is None:
            yield
            return
        was_training = self._trained.training
        self._trained.eval()
        try:
            with self._trained.disable_adapter():
                yield
        finally:
            self._trained.train(was_training)
