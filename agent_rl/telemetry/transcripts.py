"""Readable records of episodes, messages in full; and files of a step's best and worst ones, one JSON object per line.

For people and for reports: training reads none of it back. Token ids and log-probs are not written. What the
environment noted on a turn (its `info`, such as `prediction`, `problems`, `search_history`) stands with the reply it
was noted on.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.records import Trajectory, TrajectoryGroup
from agent_rl.telemetry.files import plain, whole_file

MAX_INFO_CHARS = 4000
"""Most that is written of one turn's `info`, as JSON."""


def write_transcripts(path: str | Path, groups: Sequence[TrajectoryGroup], *, per_step: int, step: int) -> None:
    """Write the `per_step` best and `per_step` worst scored episodes of a step to the file `path`, whole or not at all.

    Best first, then worst first; `rank` says which. Ties keep rollout order; no episode is written twice. Nothing is
    written when `per_step` is 0 or no episode was scored.
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
    records = [{"step": step, "rank": rank, **episode_record(episode)} for rank, episode in ranked]
    if not records:
        return
    with whole_file(Path(path)) as file:
        file.writelines(map(json_line, records))


def json_line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON in UTF-8, with `plain` values for what JSON does not know."""
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=plain)
    # A model can write half a surrogate pair, which UTF-8 cannot hold: backslashreplace leaves it as a JSON escape.
    return line.encode("utf-8", errors="backslashreplace") + b"\n"


def episode_record(episode: Trajectory) -> dict[str, Any]:
    """One episode as plain JSON values, its conversation in full."""
    messages = [_message(message) for message in episode.initial_messages]
    for turn in episode.turns:
        noted = {"info": _readable(turn.info)} if turn.info else {}
        messages += [_message(turn.message) | noted, *map(_message, turn.env_messages)]
    return {
        "task_id": episode.task_id,
        "group_id": episode.group_id,
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "flags": list(episode.flags),
        "stop_reason": episode.stop_reason.value,
        "num_tokens": sum(len(turn.completion.token_ids) for turn in episode.turns),
        "duration_s": round(episode.duration_s, 3),
        "messages": messages,
    }


def task_labels(task: Task) -> dict[str, Any]:
    """`family`, `level` and `difficulty` of a task row, from the row or its `metadata`; None where it has none."""
    metadata = task.get("metadata")
    places = (task, metadata if isinstance(metadata, dict) else {})
    return {
        name: next((place[name] for place in places if isinstance(place.get(name), str | int)), None)
        for name in ("family", "level", "difficulty")
    }


def task_digest(task: Task) -> str:
    """Tells rows apart that have the same `task_id`: 16 hexadecimal digits of the SHA-256 of the row, keys sorted."""
    text = json.dumps(task, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _message(message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning:
        record["reasoning"] = message.reasoning
    if message.name is not None:
        record["name"] = message.name
    if message.tool_calls:
        record["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    if message.tool_errors:
        record["tool_errors"] = [error.message for error in message.tool_errors]
    return record


def _readable(info: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON can hold of `info`, the rest by `repr`; of what is too long, the start of its JSON."""
    shown: dict[str, Any] = {}
    room = MAX_INFO_CHARS
    for key, value in info.items():
        try:
            written = json.dumps(value, ensure_ascii=False, allow_nan=False, default=repr)
        except (TypeError, ValueError, RecursionError):  # keys, numbers and circles that JSON does not know
            written = json.dumps(repr(value), ensure_ascii=False)
        fits = len(written) <= room
        shown[str(key)] = json.loads(written) if fits else f"{written[:room]}..."
        room -= min(len(written), room)
    return shown
