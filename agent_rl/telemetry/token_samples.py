"""Whole steps with every token, for `agent-rl view`: a gzip file per step, one JSON object per line and episode.

An episode's record is that of `transcripts.py`, with the labels of its task and `samples`: what was read and drawn in
one context, as columns of one length T.

- `token_ids`, `texts`: each token, and its text (empty for a piece of a character that a later token completes).
- `loss_mask`: 1 where the token was trained on; all 0 in an episode that was not learned from.
- `sampling_logprobs`, `trainer_logprobs`, `advantages`: null where a token was read, or where nobody computed it.
- `segments`: `{"kind", "turn", "start", "end"}`, covering all T tokens. `prompt` opens a context, `tool` and `user` are
  the environment's answers to the turn before, `assistant` is what the model drew in that turn.

Not here: when a step is written (`core/token_samples.py`), reading the files back (`reports/`).
"""

import gzip
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from agent_rl.records import LearnedSample, Trajectory, TrajectoryGroup, Turn
from agent_rl.telemetry.transcripts import episode_record

TokenTexts = Callable[[Sequence[int]], list[str]]
NUM_DIGITS = 4
"""Of log-probs and advantages, behind the point."""
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
    """Write all episodes of a step to `path`, whole or not at all.

    `learned` are samples of these very episodes, in their order; `labels` belong to task ids.
    """
    by_episode: dict[int, list[LearnedSample]] = {}
    for sample in learned:
        by_episode.setdefault(id(sample.episode), []).append(sample)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as raw, gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as file:
        for group in groups:
            for episode in group.trajectories:
                samples = sample_records(episode, by_episode.get(id(episode), ()), token_texts)
                record = {"step": step, **labels.get(episode.task_id, {}), **episode_record(episode)}
                line = json.dumps(record | {"samples": samples}, ensure_ascii=False, separators=(",", ":"))
                # A model can write half a surrogate pair, which UTF-8 cannot hold: it stays as a JSON escape.
                file.write(line.encode("utf-8", errors="backslashreplace") + b"\n")
    os.replace(partial, path)


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
    """Numbered turns, those together that extend one another."""
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
    drawn: list[int] = []
    segments: list[dict[str, Any]] = []

    def append(kind: str, number: int, new_ids: Sequence[int]) -> None:
        if new_ids:
            segments.append({"kind": kind, "turn": number, "start": len(ids), "end": len(ids) + len(new_ids)})
            ids.extend(new_ids)
            drawn.extend(repeat(int(kind == "assistant"), len(new_ids)))

    kind = "prompt"
    for number, turn in turns:
        append(kind, number, turn.prompt_token_ids)
        append("assistant", number, turn.completion.token_ids)
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
    }


def _column(values: Iterable[float] | None, drawn: Sequence[int]) -> list[float | None]:
    """Values of drawn tokens at their places, rounded; null elsewhere, and for what is no number."""
    if values is None:
        return [None] * len(drawn)
    entries = iter(values)
    return [_rounded(next(entries)) if is_drawn else None for is_drawn in drawn]


def _rounded(value: float) -> float | None:
    return round(value, NUM_DIGITS) if math.isfinite(value) else None
