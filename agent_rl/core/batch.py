"""From scored episodes to tensors: a group's turns become training samples, a step's samples become micro-batches.

Sampled ids are taken as they are, never encoded again. Every batch carries the denominators of the whole step.
Not here: computing advantages or losses, the shift between logits and ids (see `make_micro_batches`), devices.
"""

import math
from collections.abc import Sequence

import torch

from agent_rl.records import Batch, StopReason, TrainingSample, Trajectory, TrajectoryGroup, Turn


def build_samples(
    group: TrajectoryGroup, advantages_G: Sequence[float] | torch.Tensor
) -> tuple[list[TrainingSample], int]:
    """Training samples of one group, and how many were dropped because they hold no trained token.

    Turns are concatenated: ids that were new in the prompt (mask 0), then the completion (mask 1, its sampling
    log-probs, the episode's advantage). A turn with `new_context` starts another sample. For example, prompt (7, 8),
    completion (5, 2), tool reply (9,), completion (4,) give ids (7, 8, 5, 2, 9, 4) and mask (0, 0, 1, 1, 0, 1).
    Episodes without a score (reward None or NaN, or `ENV_ERROR`) give no sample and are not counted here.
    Raises ValueError when the lengths disagree or when nothing comes before a drawn id.
    """
    if len(advantages_G) != len(group.trajectories):
        raise ValueError(
            f"task {group.task_id!r}: {len(advantages_G)} advantages for {len(group.trajectories)} trajectories"
        )
    samples: list[TrainingSample] = []
    num_untrained = 0
    for trajectory, advantage in zip(group.trajectories, advantages_G, strict=True):
        if not _is_scored(trajectory):
            continue
        for turns in _split_contexts(trajectory.turns):
            sample = _concatenate(turns, float(advantage), task_id=group.task_id)
            if any(sample.loss_mask):
                samples.append(sample)
            else:
                num_untrained += 1
    return samples, num_untrained


def make_micro_batches(
    samples: Sequence[TrainingSample], *, max_tokens: int, pad_id: int, skip_zero_advantage: bool = True
) -> list[Batch]:
    """Right-padded batches, longest samples first, each of at most `max_tokens` ids with padding included.

    A sample longer than that gets a batch of its own. With `skip_zero_advantage`, samples whose advantages are all 0
    are left out, since their loss and gradient are exactly 0; the denominators count them all the same.

    Every column belongs to the id in it: `sampling_logprobs[:, t]`, `advantages[:, t]` and `loss_mask[:, t]` are about
    `token_ids[:, t]`, which the model predicts from position t - 1. So the trainer pairs `logits[:, :-1]` with
    `token_ids[:, 1:]` and the other tensors' `[:, 1:]`; column 0 is never trained. Padding stands on the right with
    mask 0, where no earlier position of a causal model sees it.
    """
    num_loss_tokens = sum(sum(sample.loss_mask) for sample in samples)
    num_samples = len(samples)
    kept = [sample for sample in samples if not skip_zero_advantage or any(sample.advantages)]
    kept.sort(key=lambda sample: len(sample.token_ids), reverse=True)  # longest first: too little memory shows at once
    rows_of_batches: list[list[TrainingSample]] = []
    for sample in kept:
        rows = rows_of_batches[-1] if rows_of_batches else []
        if rows and (len(rows) + 1) * len(rows[0].token_ids) <= max_tokens:
            rows.append(sample)
        else:
            rows_of_batches.append([sample])
    return [_pad(rows, pad_id, num_loss_tokens=num_loss_tokens, num_samples=num_samples) for rows in rows_of_batches]


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


def _concatenate(turns: Sequence[Turn], advantage: float, *, task_id: str) -> TrainingSample:
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
        advantages=tuple(advantage if trained else 0.0 for trained in loss_mask),
    )


def _pad(rows: Sequence[TrainingSample], pad_id: int, *, num_loss_tokens: int, num_samples: int) -> Batch:
    shape = (len(rows), max(len(row.token_ids) for row in rows))
    token_ids = torch.full(shape, pad_id, dtype=torch.long)
    loss_mask = torch.zeros(shape, dtype=torch.bool)
    sampling_logprobs = torch.zeros(shape)
    advantages = torch.zeros(shape)
    for index, row in enumerate(rows):
        length = len(row.token_ids)
        token_ids[index, :length] = torch.tensor(row.token_ids)
        loss_mask[index, :length] = torch.tensor(row.loss_mask, dtype=torch.bool)
        sampling_logprobs[index, :length] = torch.tensor(row.sampling_logprobs)
        advantages[index, :length] = torch.tensor(row.advantages)
    return Batch(
        token_ids=token_ids,
        loss_mask=loss_mask,
        sampling_logprobs=sampling_logprobs,
        advantages=advantages,
        num_loss_tokens=num_loss_tokens,
        num_samples=num_samples,
    )
