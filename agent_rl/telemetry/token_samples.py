"""Whole steps with every token, for `agent-rl view`: a gzip file per step, one JSON object per line and episode.

An episode's record is that of `transcripts.py`, with the labels of its task, `error` where its environment failed,
`greedy` (true) for one that others are compared with and nothing is learned from, and `samples`: what was read and
drawn in one context, as columns of one length T.

- `token_ids`, `texts`: each token, and its text (empty for one without a text of its own, as a piece of a character
  that a later token completes).
- `loss_mask`: 1 where the token counted in the loss, which does not mean that it had a gradient; all 0 in an episode
  that was not learned from.
- `sampling_logprobs`, `trainer_logprobs`, `advantages`: null where a token was read, or where nobody computed it;
  `"nan"`, `"inf"` and `"-inf"` where that came out.
- `segments`: `{"kind", "turn", "start", "end"}`, covering all T tokens. `prompt` opens a context, `tool` and `user` are
  the environment's answers to the turn before, `assistant` is what the model drew in that turn, with `weight_version`:
  the steps done by the weights that drew it, one number, or one for each token where it changed.
- `num_updates`, one number: the optimizer steps with the sample in the loss that changed the policy.

Not here: when a step is written (`core/kept_episodes.py`), reading the files back (`reports/`).
"""

import gzip
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from agent_rl.records import LearnedSample, Trajectory, TrajectoryGroup, Turn
from agent_rl.telemetry.files import whole_file
from agent_rl.telemetry.transcripts import episode_record, json_line

TokenTexts = Callable[[Sequence[int]], list[str]]
NUM_DIGITS = 5
"""Of log-probs and advantages, leading zeros not counted."""
_COMPRESSION = 6
"""Of gzip's 9 levels; the highest takes nearly twice as long and saves a twentieth."""


def write_token_samples(
    path: Path,
    groups: Sequence[TrajectoryGroup],
    learned: Sequence[LearnedSample],
    *,
    step: int,
    labels: Mapping[str, Mapping[str, Any]],
    token_texts: TokenTexts,
) -> None:
    """Write all episodes of a step to `path`, whole or not at all; a group's greedy one comes last.

    `learned` are samples of these very episodes, in their order; `labels` belong to task ids.
    """
    by_episode: dict[int, list[LearnedSample]] = {}
    for sample in learned:
        by_episode.setdefault(id(sample.episode), []).append(sample)
    with whole_file(path) as raw, gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as file:
        for group in groups:
            for episode in (*group.trajectories, *filter(None, [group.greedy])):
                record = {"step": step, **labels.get(episode.task_id, {}), **episode_record(episode)}
                if episode.error is not None:
                    record["error"] = episode.error
                if episode is group.greedy:
                    record["greedy"] = True
                record["samples"] = sample_records(episode, by_episode.get(id(episode), ()), token_texts)
                file.write(json_line(record))


def sample_records(
    episode: Trajectory, learned: Sequence[LearnedSample], token_texts: TokenTexts
) -> list[dict[str, Any]]:
    """The columns of each context of an episode; `learned` has one entry per context in which something was drawn."""
    entries = iter(learned)
    records = []
    for turns in _contexts(episode.turns):
        is_drawn = any(turn.completion.token_ids for _, turn in turns)
        records.append(_sample_record(turns, next(entries, None) if is_drawn else None, token_texts))
    return records


def _contexts(turns: Sequence[Turn]) -> list[list[tuple[int, Turn]]]:
    """Numbered turns, those together that extend one another, as `core/batch.py` makes samples of them."""
    contexts: list[list[tuple[int, Turn]]] = []
    for number, turn in enumerate(turns):
        if turn.new_context or not contexts:
            contexts.append([])
        contexts[-1].append((number, turn))
    return contexts


def _sample_record(
    turns: Sequence[tuple[int, Turn]], learned: LearnedSample | None, token_texts: TokenTexts
) -> dict[str, Any]:
    ids: list[int] = []
    drawn: list[bool] = []
    segments: list[dict[str, Any]] = []

    def append(kind: str, number: int, new_ids: Sequence[int], **more: Any) -> None:
        if new_ids:
            segments.append({"kind": kind, "turn": number, "start": len(ids), "end": len(ids) + len(new_ids), **more})
            ids.extend(new_ids)
            drawn.extend(repeat(kind == "assistant", len(new_ids)))

    kind = "prompt"
    for number, turn in turns:
        append(kind, number, turn.prompt_token_ids)
        completion = turn.completion
        version = list(completion.token_versions) or completion.weight_version
        append("assistant", number, completion.token_ids, weight_version=version)
        kind = "tool" if any(message.role == "tool" for message in turn.env_messages) else "user"
    sampling = chain.from_iterable(turn.completion.logprobs for _, turn in turns)
    if learned is None:
        advantages, mask = None, [0] * len(ids)
    else:
        advantages = (value for value, is_drawn in zip(learned.sample.advantages, drawn, strict=True) if is_drawn)
        mask = list(learned.sample.loss_mask)
    return {
        "token_ids": ids,
        "texts": token_texts(ids),
        "loss_mask": mask,
        "sampling_logprobs": _column(sampling, drawn),
        "trainer_logprobs": _column(learned.trainer_logprobs if learned else None, drawn),
        "advantages": _column(advantages, drawn),
        "segments": segments,
        "num_updates": learned.num_updates if learned else 0,
    }


def _column(values: Iterable[float] | None, drawn: Sequence[bool]) -> list[float | str | None]:
    """Values of drawn tokens at their places, rounded; null elsewhere."""
    if values is None:
        return [None] * len(drawn)
    entries = iter(values)
    return [_written(next(entries)) if is_drawn else None for is_drawn in drawn]


def _written(value: float) -> float | str:
    """JSON has no infinite numbers and no NaN."""
    return float(f"{value:.{NUM_DIGITS}g}") if math.isfinite(value) else str(float(value))
