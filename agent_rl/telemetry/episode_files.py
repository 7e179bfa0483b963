"""Files of a step's episodes: transcripts of some, token samples of all. Training never reads them.

Not here: what a record is (`trajectory_json.py`), when a step is written (`core/episode_log.py`).
"""

import gzip
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rl.records import LoggedSample, TrajectoryGroup
from agent_rl.telemetry.files import whole_file
from agent_rl.telemetry.trajectory_json import TokenTexts, episode_record, json_line, token_columns, write_lines

_COMPRESSION = 6
"""Of gzip's 9 levels; the highest takes nearly twice as long and saves a twentieth."""


def write_transcripts(path: str | Path, groups: Sequence[TrajectoryGroup], *, per_step: int, step: int) -> None:
    """Write `best_and_worst` of a step to the file `path`, whole or not at all; nothing when there are none."""
    records = best_and_worst(groups, per_step=per_step, step=step)
    if records:
        write_lines(Path(path), records)


def best_and_worst(groups: Sequence[TrajectoryGroup], *, per_step: int, step: int) -> list[dict[str, Any]]:
    """Records of the `per_step` best and `per_step` worst scored episodes of a step.

    Best first, then worst first; `rank` says which. Ties keep rollout order; no episode is there twice.
    """
    scored = [
        (episode.reward, episode)
        for group in groups
        for episode in group.trajectories
        if episode.reward is not None and not math.isnan(episode.reward)
    ]
    best_first = [episode for _, episode in sorted(scored, key=lambda pair: pair[0], reverse=True)]
    best, rest = best_first[:per_step], best_first[per_step:]
    worst = rest[::-1][:per_step]
    ranked = [("best", episode) for episode in best] + [("worst", episode) for episode in worst]
    return [{"step": step, "rank": rank, **episode_record(episode)} for rank, episode in ranked]


def table_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record of `best_and_worst` as the row of a tracker's table, the conversation as one text."""
    said = [
        "\n".join([f"[{each['role']}] {each['content']}", *(f"-> {call}" for call in each.get("tool_calls", ()))])
        for each in record["messages"]
    ]
    columns = {key: record[key] for key in ("step", "rank", "task_id", "reward", "stop_reason", "num_tokens")}
    return {**columns, "success": record["reward_parts"].get("success"), "conversation": "\n\n".join(said)}


def write_token_samples(
    path: Path,
    groups: Sequence[TrajectoryGroup],
    logged: Sequence[LoggedSample],
    *,
    step: int,
    labels: Mapping[str, Mapping[str, Any]],
    token_texts: TokenTexts,
) -> None:
    """Write all episodes of a step to the gzip file `path`, one JSON object per line, whole or not at all.

    An object is the record of an episode with the labels of its task, `error` where its environment failed, `greedy`
    (true) for one that others are compared with and that is not trained on (the last of its group), and `samples`, its
    columns. `logged` are samples of these very episodes, in their order; `labels` belong to task ids.
    """
    by_episode: dict[int, list[LoggedSample]] = {}
    for sample in logged:
        by_episode.setdefault(id(sample.episode), []).append(sample)
    with whole_file(path) as raw, gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as file:
        for group in groups:
            for episode in (*group.trajectories, *filter(None, [group.greedy])):
                record = {"step": step, **labels.get(episode.task_id, {}), **episode_record(episode)}
                if episode.error is not None:
                    record["error"] = episode.error
                if episode is group.greedy:
                    record["greedy"] = True
                record["samples"] = token_columns(episode, by_episode.get(id(episode), ()), token_texts)
                file.write(json_line(record))
