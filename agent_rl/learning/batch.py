"""From an episode to training samples, and from flat micro-batches to what a loss needs of them.

Sampled ids are taken as they are, never encoded again. Columns of a micro-batch (log-probs, advantages, ...) hold one
entry per trained token, sample after sample. Not here: which samples share a micro-batch (`packing.py`), advantages,
losses.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from agent_rl.records import Batch, StopReason, TrainingSample, Trajectory, Turn


def build_samples(episode: Trajectory) -> tuple[list[TrainingSample], int]:
    """Training samples of one episode, advantages 0, and how many were dropped because they hold no trained token.

    Turns are concatenated: ids that were new in the prompt (mask 0), then the completion (mask 1, its sampling
    log-probs). A turn with `new_context` starts another sample. For example, prompt (7, 8), completion (5, 2), tool
    reply (9,), completion (4,) give ids (7, 8, 5, 2, 9, 4) and mask (0, 0, 1, 1, 0, 1).
    An episode without a score (reward None or NaN, or `ENV_ERROR`) gives no sample and counts none.
    Raises ValueError when lengths disagree or when nothing comes before a drawn id.
    """
    if not _is_scored(episode):
        return [], 0
    samples = [_concatenate(turns, task_id=episode.task_id) for turns in _split_contexts(episode.turns)]
    trained = [sample for sample in samples if any(sample.loss_mask)]
    return trained, len(samples) - len(trained)


def move_batch(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on another device."""
    names = ("token_ids", "position_ids", "sources", "targets")
    return replace(batch, **{name: getattr(batch, name).to(device) for name in names})


def select_column(columns_B: Sequence[torch.Tensor], batch: Batch) -> torch.Tensor:
    """The entries of a batch's trained tokens, [N], out of one tensor [n] for each sample of the step."""
    picked = [columns_B[index] for index in batch.samples]
    if [len(column) for column in picked] != list(batch.num_trained):
        raise ValueError(f"columns of {[len(c) for c in picked]} entries for {batch.num_trained} trained tokens")
    return torch.cat(picked) if picked else torch.zeros(0)


def to_rows(column_N: torch.Tensor, num_trained: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A column as one row per sample, zeros on the right of shorter ones, and the mask of real entries: both [S, N].

    (1, 2, 3) with 2 and 1 trained tokens is ((1, 2), (3, 0)). Gradients pass through; `column_SN[mask_SN]` is the
    column again. A batch without samples is one row without entries.
    """
    num_trained_S = torch.tensor(list(num_trained) or [0], device=column_N.device)
    mask_SN = torch.arange(max(num_trained, default=0), device=column_N.device) < num_trained_S[:, None]
    column_SN = torch.zeros(mask_SN.shape, dtype=column_N.dtype, device=column_N.device)
    return column_SN.masked_scatter(mask_SN, column_N), mask_SN


def _is_scored(trajectory: Trajectory) -> bool:
    reward = trajectory.reward
    return reward is not None and not math.isnan(reward) and trajectory.stop_reason is not StopReason.ENV_ERROR


def _split_contexts(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Runs of turns that extend one another; one empty run for an episode without a turn, so that it is counted."""
    contexts: list[list[Turn]] = [[]]
    for turn in turns:
        if turn.new_context and contexts[-1]:
            contexts.append([])
        contexts[-1].append(turn)
    return contexts


def _concatenate(turns: Sequence[Turn], *, task_id: str) -> TrainingSample:
    token_ids: list[int] = []
    loss_mask: list[int] = []
    sampling_logprobs: list[float] = []
    for turn in turns:
        completion = turn.completion
        num_read, num_drawn = len(turn.prompt_token_ids), len(completion.token_ids)
        if num_drawn != len(completion.logprobs):
            raise ValueError(
                f"task {task_id!r}: a completion has {num_drawn} ids but {len(completion.logprobs)} log-probs"
            )
        token_ids += [*turn.prompt_token_ids, *completion.token_ids]
        loss_mask += [0] * num_read + [1] * num_drawn
        sampling_logprobs += [0.0] * num_read + list(completion.logprobs)
    if loss_mask and loss_mask[0]:
        raise ValueError(f"task {task_id!r}: a sample starts with a drawn id; its first turn needs prompt ids")
    return TrainingSample(
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        sampling_logprobs=tuple(sampling_logprobs),
        advantages=(0.0,) * len(loss_mask),
    )
