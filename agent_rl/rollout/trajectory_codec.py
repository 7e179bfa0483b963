"""Groups of episodes as JSON text and back, for checkpoints that hold groups not yet learned from.

Ids, log-probs (to the last bit, infinities and NaN too) and messages come back as they were, half surrogate pairs that
a model wrote included. What environments report in `info` is for logs: tuples come back as lists, what JSON does not
know as its text, and keys that it does not know are left out. Not here: how checkpoints are written, which groups are
kept.
"""

import json
from dataclasses import fields, is_dataclass
from numbers import Real
from typing import Any

import numpy as np

from agent_rl.agent.messages import Message, ToolCall, ToolCallError
from agent_rl.records import Completion, FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn


def encode_group(group: TrajectoryGroup) -> str:
    """The group as ASCII text, about 30 bytes a token."""
    return json.dumps(group, default=_to_plain, skipkeys=True)


def decode_group(text: str) -> TrajectoryGroup:
    """The group that `encode_group` wrote."""
    raw = json.loads(text)
    return TrajectoryGroup(
        task_id=raw["task_id"],
        trajectories=tuple(map(_trajectory, raw["trajectories"])),
        greedy=None if raw["greedy"] is None else _trajectory(raw["greedy"]),
    )


def _to_plain(value: Any) -> Any:
    """What `json` is to write instead of an object that it does not know."""
    # Level by level, because `dataclasses.asdict` copies every token by itself.
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, np.generic):  # in rewards for example
        return value.item()
    if isinstance(value, Real):
        return float(value)
    return str(value)


def _trajectory(raw: dict[str, Any]) -> Trajectory:
    built = {
        "turns": tuple(map(_turn, raw["turns"])),
        "stop_reason": StopReason(raw["stop_reason"]),
        "flags": tuple(raw["flags"]),
        "initial_messages": tuple(map(_message, raw["initial_messages"])),
    }
    return Trajectory(**(raw | built))


def _turn(raw: dict[str, Any]) -> Turn:
    built = {
        "prompt_token_ids": tuple(raw["prompt_token_ids"]),
        "completion": _completion(raw["completion"]),
        "message": _message(raw["message"]),
        "env_messages": tuple(map(_message, raw["env_messages"])),
    }
    return Turn(**(raw | built))


def _completion(raw: dict[str, Any]) -> Completion:
    built = {
        "token_ids": tuple(raw["token_ids"]),
        "logprobs": tuple(raw["logprobs"]),
        "finish_reason": FinishReason(raw["finish_reason"]),
        "token_versions": tuple(raw["token_versions"]),
    }
    return Completion(**(raw | built))


def _message(raw: dict[str, Any]) -> Message:
    built = {
        "tool_calls": tuple(ToolCall(**(call | {"span": tuple(call["span"])})) for call in raw["tool_calls"]),
        "tool_errors": tuple(ToolCallError(**(error | {"span": tuple(error["span"])})) for error in raw["tool_errors"]),
    }
    return Message(**(raw | built))
