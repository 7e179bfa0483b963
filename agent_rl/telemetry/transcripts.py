"""Readable records of a step's best and worst episodes: one JSON object per line, messages in full.

For people: nothing reads these files back. Token ids and log-probs are not written.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_rl.agent.messages import Message
from agent_rl.records import Trajectory, TrajectoryGroup


def write_transcripts(path: str | Path, groups: Sequence[TrajectoryGroup], *, per_step: int, step: int) -> None:
    """Write the `per_step` best and `per_step` worst scored episodes of a step to the file `path`, replacing it.

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
    records = [_record(e, "best", step) for e in best] + [_record(e, "worst", step) for e in worst]
    if not records:
        return
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A model can write half a surrogate pair, which UTF-8 cannot hold: backslashreplace leaves it as a JSON escape.
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _record(episode: Trajectory, rank: str, step: int) -> dict[str, Any]:
    replies = [message for turn in episode.turns for message in (turn.message, *turn.env_messages)]
    messages = [*episode.initial_messages, *replies]
    return {
        "step": step,
        "rank": rank,
        "task_id": episode.task_id,
        "group_id": episode.group_id,
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "flags": list(episode.flags),
        "stop_reason": episode.stop_reason.value,
        "num_tokens": sum(len(turn.completion.token_ids) for turn in episode.turns),
        "duration_s": round(episode.duration_s, 3),
        "messages": [_message(message) for message in messages],
    }


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
