"""From a step's groups to training samples with advantages.

Sampled ids are used as they are, never encoded again. Every process computes this for the whole step, so that
statistics over groups and over the batch are global.
Not here: the estimators (`algorithms/`), which samples share a micro-batch (`packing.py`), log-probs and values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from agent_rl.algorithms.advantages import overlong_penalty
from agent_rl.algorithms.estimators import StepRewards, estimate
from agent_rl.config import AlgorithmConfig
from agent_rl.errors import ConfigError
from agent_rl.records import StopReason, TrainingSample, Trajectory, TrajectoryGroup, Turn

_ENDED = (StopReason.FINISHED, StopReason.INVALID_CALLS)
"""Stop reasons of episodes that came to their own end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSamples:
    """What a step's scored episodes give to train on; an episode has one sample or, by new contexts, several."""

    samples: tuple[TrainingSample, ...]
    """Advantages still 0."""
    episode_of: tuple[int, ...]
    """Index into `episodes`, one per sample."""
    episodes: tuple[Trajectory, ...]
    """Scored ones, groups one after the other."""
    groups: tuple[TrajectoryGroup, ...]
    group_of: tuple[int, ...]
    """Index into `groups`, one per episode."""
    num_untrained: int
    """Samples dropped because they hold no trained token."""


def collect_samples(groups: Sequence[TrajectoryGroup]) -> StepSamples:
    """All training samples of a step, in the order of its episodes."""
    samples: list[TrainingSample] = []
    episode_of: list[int] = []
    episodes: list[Trajectory] = []
    group_of: list[int] = []
    num_untrained = 0
    for group_index, group in enumerate(groups):
        for episode in group.trajectories:
            more, dropped = build_samples(episode)
            if not more and not dropped:
                continue  # not scored
            samples += more
            episode_of += [len(episodes)] * len(more)
            episodes.append(episode)
            group_of.append(group_index)
            num_untrained += dropped
    return StepSamples(
        samples=tuple(samples),
        episode_of=tuple(episode_of),
        episodes=tuple(episodes),
        groups=tuple(groups),
        group_of=tuple(group_of),
        num_untrained=num_untrained,
    )


def build_samples(episode: Trajectory) -> tuple[list[TrainingSample], int]:
    """Training samples of one episode, advantages 0, and how many were dropped because they hold no trained token.

    Turns are concatenated: ids that were new in the prompt (mask 0), then the completion (mask 1, its sampling
    log-probs). A turn with `new_context` starts another sample. For example, prompt (7, 8), completion (5, 2), tool
    reply (9,), completion (4,) give ids (7, 8, 5, 2, 9, 4) and mask (0, 0, 1, 1, 0, 1).
    An episode without a score (reward None or NaN, or `ENV_ERROR`) gives no sample and counts none.
    Raises ValueError when lengths disagree or when nothing comes before a generated id.
    """
    if not _is_scored(episode):
        return [], 0
    samples = [_concatenate(turns, task_id=episode.task_id) for turns in _split_contexts(episode.turns)]
    trained = [sample for sample in samples if any(sample.loss_mask)]
    return trained, len(samples) - len(trained)


def assign_credit(
    step: StepSamples,
    algorithm: AlgorithmConfig,
    *,
    token_penalties: Sequence[Tensor] | None = None,
    values: Sequence[Tensor] | None = None,
) -> tuple[list[TrainingSample], list[Tensor] | None]:
    """The samples with their advantages, and the returns that a critic learns, per sample [n trained tokens].

    `token_penalties` and `values` hold one tensor per sample, an entry per trained token. With `mask_truncated`,
    samples of episodes that were cut off have no trained token left.
    """
    if not step.samples:
        return [], None
    num_trained = [sum(sample.loss_mask) for sample in step.samples]
    rewards = step_rewards(step, algorithm, token_penalties=token_penalties, values=values)
    credit = estimate(algorithm.advantage, rewards, turn_weight=algorithm.turn_weight, **algorithm.estimator_options())
    advantages = _split_by_sample(credit.advantages_EN, step, num_trained)
    returns = None if credit.returns_EN is None else _split_by_sample(credit.returns_EN, step, num_trained)
    credited = []
    for index, sample in enumerate(step.samples):
        is_cut_off = step.episodes[step.episode_of[index]].stop_reason not in _ENDED
        mask = (0,) * len(sample.loss_mask) if algorithm.mask_truncated and is_cut_off else sample.loss_mask
        of_trained = iter(advantages[index].tolist())
        by_token = tuple(next(of_trained) if trained else 0.0 for trained in sample.loss_mask)
        credited.append(replace(sample, loss_mask=mask, advantages=by_token))
    return credited, returns


def step_rewards(
    step: StepSamples,
    algorithm: AlgorithmConfig,
    *,
    token_penalties: Sequence[Tensor] | None,
    values: Sequence[Tensor] | None,
) -> StepRewards:
    """The rewards of a step as the estimators take them."""
    rewards_E = _shaped_rewards(step.episodes, algorithm)
    num_trained = [sum(sample.loss_mask) for sample in step.samples]
    ones = [torch.ones(count, dtype=torch.float64) for count in num_trained]
    mask_EN = _join_by_episode(ones, step).bool()
    penalties_EN = torch.zeros(mask_EN.shape, dtype=torch.float64)
    if token_penalties is not None:
        penalties_EN = _join_by_episode([penalty.double() for penalty in token_penalties], step)
    turn_EN, turn_rewards_EK = _turns(step, rewards_E) if algorithm.credit == "turn" else (None, None)
    return StepRewards(
        group_E=torch.tensor(step.group_of),
        rewards_E=rewards_E,
        mask_EN=mask_EN,
        token_penalties_EN=penalties_EN,
        values_EN=None if values is None else _join_by_episode([value.double() for value in values], step),
        greedy_rewards_E=_greedy_rewards(step, algorithm) if algorithm.advantage == "remax" else None,
        parts_E=_parts(step, algorithm),
        turn_EN=turn_EN,
        turn_rewards_EK=turn_rewards_EK,
    )


def _turns(step: StepSamples, rewards_E: Tensor) -> tuple[Tensor, Tensor]:
    """The turn of each trained token, long [E, N], and the rewards of turns, [E, K], NaN where there is no such turn.

    Turns without a trained token are left out, and what they earned goes to the next; the last one has what is left of
    the episode's reward, penalties for length included.
    """
    numbers: list[Tensor] = []
    rewards: list[Tensor] = []
    for episode, total in zip(step.episodes, rewards_E.tolist(), strict=True):
        counts: list[int] = []
        earned: list[float] = []
        waiting = 0.0
        for turn in episode.turns:
            waiting += turn.reward
            if turn.completion.token_ids:
                counts.append(len(turn.completion.token_ids))
                earned.append(waiting)
                waiting = 0.0
        if earned:
            earned[-1] = total - sum(earned[:-1])
        numbers.append(torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.long)))
        rewards.append(torch.tensor(earned, dtype=torch.float64))
    turn_EN = torch.nn.utils.rnn.pad_sequence(numbers, batch_first=True)
    return turn_EN, torch.nn.utils.rnn.pad_sequence(rewards, batch_first=True, padding_value=math.nan)


def _shaped_rewards(episodes: Sequence[Trajectory], algorithm: AlgorithmConfig) -> Tensor:
    """Rewards less the penalty for length, float64; NaN where an episode could not be scored."""
    rewards = torch.tensor([math.nan if e.reward is None else e.reward for e in episodes], dtype=torch.float64)
    overlong = algorithm.overlong
    if not overlong.buffer:
        return rewards
    num_generated = torch.tensor([sum(len(turn.completion.token_ids) for turn in e.turns) for e in episodes])
    return rewards + overlong.weight * overlong_penalty(
        num_generated, max_tokens=overlong.max_tokens, buffer=overlong.buffer
    )


def _greedy_rewards(step: StepSamples, algorithm: AlgorithmConfig) -> Tensor:
    """Of each episode's group, shaped like the others."""
    greedy = [group.greedy for group in step.groups]
    if any(episode is None for episode in greedy):
        raise ConfigError("algorithm.advantage 'remax' needs a greedy episode in every group (TrajectoryGroup.greedy)")
    return _shaped_rewards(greedy, algorithm)[torch.tensor(step.group_of)]


def _parts(step: StepSamples, algorithm: AlgorithmConfig) -> dict[str, Tensor]:
    """Reward parts that the estimator normalises one by one; a part that an episode does not report is 0.

    So is one that no episode of the step reports: it may be that of another environment, or of a task yet to come.
    """
    return {
        name: torch.tensor([episode.reward_parts.get(name, 0.0) for episode in step.episodes], dtype=torch.float64)
        for name in algorithm.part_weights
    }


def _join_by_episode(of_samples: Sequence[Tensor], step: StepSamples) -> Tensor:
    """One row per episode: its samples' trained tokens one after the other, padded with 0, [E, N]."""
    rows: list[list[Tensor]] = [[torch.zeros(0, dtype=torch.float64)] for _ in step.episodes]
    for column, episode in zip(of_samples, step.episode_of, strict=True):
        rows[episode].append(column.cpu())
    return torch.nn.utils.rnn.pad_sequence([torch.cat(row) for row in rows], batch_first=True)


def _split_by_sample(rows_EN: Tensor, step: StepSamples, num_trained: Sequence[int]) -> list[Tensor]:
    """The inverse of `_join_by_episode`."""
    taken = [0] * len(step.episodes)
    columns = []
    for episode, count in zip(step.episode_of, num_trained, strict=True):
        columns.append(rows_EN[episode, taken[episode] : taken[episode] + count])
        taken[episode] += count
    return columns


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
        num_read, num_generated = len(turn.prompt_token_ids), len(completion.token_ids)
        if num_generated != len(completion.logprobs):
            raise ValueError(
                f"task {task_id!r}: a completion has {num_generated} ids but {len(completion.logprobs)} log-probs"
            )
        token_ids += [*turn.prompt_token_ids, *completion.token_ids]
        loss_mask += [0] * num_read + [1] * num_generated
        sampling_logprobs += [0.0] * num_read + list(completion.logprobs)
    if loss_mask and loss_mask[0]:
        raise ValueError(f"task {task_id!r}: a sample starts with a generated id; its first turn needs prompt ids")
    return TrainingSample(
        token_ids=tuple(token_ids),
        loss_mask=tuple(loss_mask),
        sampling_logprobs=tuple(sampling_logprobs),
        advantages=(0.0,) * len(loss_mask),
    )
