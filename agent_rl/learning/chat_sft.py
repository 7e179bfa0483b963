"""Supervised fine-tuning of any model on conversations: packed, on any number of processes, resumable.

The loss of a step is the mean cross-entropy of its trained ids, over all processes. Micro-batches, back ends and
checkpoints are those of reinforcement learning, so adapters, DDP and ZeRO work alike, and a prefix that conversations
share is computed once. Not here: reading rows (`conversations.py`), warm starts from nothing (`sft.py`).
"""

import hashlib
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from agent_rl.config import Config
from agent_rl.distributed.backend import Backend, set_learning_rate
from agent_rl.distributed.checkpoint import load_state, restoring, save_checkpoint
from agent_rl.errors import CheckpointError, TrainingStoppedError
from agent_rl.learning.logprob_model import LogprobModel, head_dtype_of
from agent_rl.learning.optimizer import learning_rate_at, make_optimizer
from agent_rl.learning.packing import move_batch, plan_micro_batches
from agent_rl.policies.model_files.trained_for import keep_trained_for
from agent_rl.policies.trained_model import TrainedModel, save_trained
from agent_rl.records import Batch, TrainingSample

MAX_REFUSED = 3
"""Updates in a row that loss or gradient may refuse."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSftSettings:
    batch_size: int
    """Conversations of an optimizer step, over all processes."""
    epochs: int
    save_every: int
    """Steps between checkpoints; the end has one always."""
    evaluate_every: int
    """Steps between evaluations of the held-out conversations; start and end have one always."""


def num_steps(num_samples: int, settings: ChatSftSettings) -> int:
    """Optimizer steps of a training; the last batch of an epoch may be smaller."""
    return settings.epochs * math.ceil(num_samples / settings.batch_size)


class ChatSft:
    """`ChatSft(config, model, samples, held_out, settings, backend, folder).train(report)`."""

    def __init__(
        self,
        config: Config,
        model: TrainedModel,
        samples: Sequence[TrainingSample],
        held_out: Sequence[TrainingSample],
        settings: ChatSftSettings,
        backend: Backend,
        folder: Path,
    ) -> None:
        """`config.train.steps` is `num_steps`; checkpoints lie in `folder/checkpoints`."""
        self._config, self._model, self._settings = config, model, settings
        self._samples, self._held_out = samples, held_out
        self._backend, self._folder = backend, folder
        self._step, self._saved_step = 0, -1
        logprob_model = LogprobModel(model.module, temperature=1.0, head_dtype=head_dtype_of(config))
        self._is_packed = logprob_model.is_packed
        optimizer, self._rates = make_optimizer(logprob_model, config)
        self._module, self._optimizer = backend.prepare(logprob_model, optimizer)

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        return self._step

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint; the model was loaded from there. CheckpointError for one of another training."""
        saved = load_state(checkpoint, self._backend)
        with restoring(checkpoint):
            step, digest = int(saved["step"]), str(saved["digest"])
        if digest != self._digest():
            raise CheckpointError(
                f"{checkpoint} is of a training on other conversations, or with another batch size, number of epochs "
                "or seed; give another --output-dir, or the same data and options"
            )
        self._backend.load_state(checkpoint, self._module, self._optimizer)
        self._step = self._saved_step = step

    def train(
        self,
        report: Callable[[int, dict[str, float]], None],
        whole_step: Callable[[], AbstractContextManager],
    ) -> None:
        """Train to the end; `report(step, metrics)` after every step and evaluation.

        `whole_step` is entered around an update and around a checkpoint: an interrupt within waits until its end.
        """
        total = self._config.train.steps
        if self._step == 0 and self._held_out:
            report(0, self.evaluate())
        refused = 0
        for indices in self._batches_left():
            with whole_step():
                metrics = self._update(indices)
                self._step += 1
            self._backend.leave_if_stopped()
            refused = 0 if metrics["optim/grad_norm"] < math.inf else refused + 1
            if refused >= MAX_REFUSED:
                raise TrainingStoppedError(
                    f"loss or gradient was infinite or not a number {MAX_REFUSED} updates in a row; lower "
                    "train.learning_rate"
                )
            is_last = self._step == total
            if self._held_out and (is_last or self._step % self._settings.evaluate_every == 0):
                metrics |= self.evaluate()
            report(self._step, metrics)
            if is_last or self._step % self._settings.save_every == 0:
                self.save(whole_step)

    def save(self, whole_step: Callable[[], AbstractContextManager]) -> None:
        """Write a checkpoint of the last whole step, unless there is one; collective."""
        if self._saved_step == self._step:
            return
        with whole_step():
            save_checkpoint(
                self._folder / "checkpoints",
                self._step,
                write_model=self.save_model,
                write_rank=lambda folder: self._backend.save_state(folder, self._module, self._optimizer),
                state={"step": self._step, "digest": self._digest()},
                keep=1,
                processes=self._backend,
            )
            self._saved_step = self._step

    def save_model(self, folder: Path) -> None:
        """Write model and tokenizer, adapters alone where there are any; collective."""
        save_trained(self._model, self._backend.unwrap(self._module).model, self._backend, folder)
        if self._backend.is_main_process:
            keep_trained_for(self._config.model.path, folder)

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """`eval/loss`, nats a trained id of the held-out conversations, and `eval/perplexity`; collective."""
        total = 0.0
        for batch in self._plan(self._held_out, range(len(self._held_out))):
            total += float(-self._logprobs(batch).sum())
        num_tokens = sum(sum(sample.loss_mask) for sample in self._held_out)
        loss = self._backend.sum(total) / num_tokens
        return {"eval/loss": loss, "eval/perplexity": math.exp(min(loss, 80.0))}

    def _update(self, indices: Sequence[int]) -> dict[str, float]:
        started, loss = time.perf_counter(), torch.zeros((), device=self._backend.device)
        rate = learning_rate_at(self._step, self._config.train)
        set_learning_rate(self._optimizer, [rate * factor for _, factor in self._rates])
        batches = self._plan(self._samples, indices)
        self._module.train()  # Transformers recomputes activations in train mode only
        try:
            for number, batch in enumerate(batches):
                with self._backend.micro_step(self._module, is_last=number == len(batches) - 1):
                    share = -self._logprobs(batch).sum() / batch.num_loss_tokens
                    self._backend.backward(share)
                    loss += share.detach()
        finally:
            self._module.eval()
        done = self._backend.step(
            self._module,
            self._optimizer,
            max_grad_norm=self._config.train.max_grad_norm,
            is_loss_finite=bool(loss.isfinite()),
        )
        num_tokens = sum(len(self._samples[index].token_ids) for index in indices)
        return {
            "train/loss": self._backend.sum(float(loss)),
            "optim/grad_norm": done.grad_norm if done.applied else math.inf,
            "optim/learning_rate": rate,
            "perf/tokens_per_s": num_tokens / (time.perf_counter() - started),
        }

    def _logprobs(self, batch: Batch) -> torch.Tensor:
        with self._backend.autocast(self._config.train.autocast):
            return self._module(move_batch(batch, self._backend.device)).logprobs

    def _plan(self, samples: Sequence[TrainingSample], indices: Sequence[int]) -> list[Batch]:
        """This process's micro-batches."""
        train = self._config.train
        return plan_micro_batches(
            samples,
            indices,
            max_tokens=train.micro_batch_tokens,
            share_prefixes=train.share_prefixes,
            num_ranks=self._backend.num_processes,
            skip_zero_advantage=False,
            padded=not self._is_packed,
            only_rank=self._backend.rank,
        )[self._backend.rank]

    def _batches_left(self) -> Iterator[list[int]]:
        """Indices of every step to come; an epoch's order depends on seed and epoch alone."""
        size = self._settings.batch_size
        per_epoch = math.ceil(len(self._samples) / size)
        while self._step < self._config.train.steps:
            epoch, place = divmod(self._step, per_epoch)
            order = list(range(len(self._samples)))
            random.Random(f"{self._config.run.seed}-{epoch}").shuffle(order)
            yield order[place * size : (place + 1) * size]

    def _digest(self) -> str:
        """Of what the order and the number of steps depend on."""
        facts = (self._settings.batch_size, self._config.train.steps, self._config.run.seed)
        digest = hashlib.sha256(repr(facts).encode())
        for sample in self._samples:
            digest.update(repr((sample.token_ids, sample.loss_mask)).encode())
        return digest.hexdigest()
