"""Trajectories as JSON: every form in which episodes are written, and how they are read back.

- *whole* (`encode_group`, `decode_group`): all of a group, for checkpoints. Ids, log-probs (to the last bit, infinities
  and NaN too) and messages come back as they were, half surrogate pairs that a model wrote included. In `info`, which
  is for logs, tuples come back as lists, values that JSON does not know as text; keys that it does not know are
  left out.
- *record* (`episode_record`): one episode with its conversation, readable; no ids, no log-probs. Transcripts hold it.
- *evaluated record* (`evaluated_record`): a record with the labels and the digest of its task. Evaluations hold it,
  and `Episode` reads it.
- *columns* (`token_columns`): the tokens of each context of an episode. Token samples hold records with these.

Columns have one length T:

- `token_ids`, `texts`: each token, and its text (empty for one without a text of its own, as a piece of a character
  that a later token completes).
- `loss_mask`: 1 where the token counted in the loss, which does not mean that it had a gradient; all 0 in an episode
  that was not trained on.
- `sampling_logprobs`, `trainer_logprobs`, `advantages`: null for tokens of the prompt and where nothing was computed;
  `"nan"`, `"inf"` and `"-inf"` for values that are not finite.
- `segments`: `{"kind", "turn", "start", "end"}`, covering all T tokens. `prompt` opens a context, `tool` and `user` are
  the environment's reply to the turn before, `assistant` is what the model generated in that turn, with
  `weight_version`: the updates behind the weights that sampled it, one number, or one for each token where it changed.
- `num_updates`, one number: the optimizer steps with the sample in the loss that changed the policy.

Not here: files (`episode_files.py`), which episodes are written.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain, repeat, takewhile
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from agent_rl.agent.messages import Message
from agent_rl.data.tasks import Task
from agent_rl.errors import DataError
from agent_rl.records import LoggedSample, Trajectory, TrajectoryGroup, Turn
from agent_rl.telemetry.files import plain, whole_file
from agent_rl.telemetry.statistics import is_success

TokenTexts = Callable[[Sequence[int]], list[str]]
MAX_INFO_CHARS = 4000
"""Most characters that are written of one turn's `info`, as JSON."""
NUM_DIGITS = 5
"""Significant digits of log-probs and advantages in columns."""
_AS_WRITTEN = ("env", "family", "level", "difficulty", "num_tokens", "duration_s", "error", "task_sha256")
_TUPLES = ("flags", "problems", "messages")
"""Fields of `Episode` that files of earlier versions lack."""
_GROUP = TypeAdapter(TrajectoryGroup)


# Whole


def encode_group(group: TrajectoryGroup) -> str:
    """The group as ASCII text, about 30 bytes a token."""
    return json.dumps(group, default=_to_plain, skipkeys=True)


def decode_group(text: str) -> TrajectoryGroup:
    """The group that `encode_group` wrote."""
    return _GROUP.validate_python(json.loads(text))


def _to_plain(value: Any) -> Any:
    """What `json` writes instead of an object that it does not know."""
    # Level by level, because `dataclasses.asdict` copies every token by itself.
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, np.generic):  # in rewards for example
        return value.item()
    if isinstance(value, Real):
        return float(value)
    return str(value)


# Records


def json_line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON in UTF-8, with `plain` values for what JSON does not know."""
    line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=plain)
    # A model can write half a surrogate pair, which UTF-8 cannot hold: backslashreplace leaves it as a JSON escape.
    return line.encode("utf-8", errors="backslashreplace") + b"\n"


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of records, one a line, whole or not at all."""
    with whole_file(path) as file:
        file.writelines(map(json_line, records))


def episode_record(episode: Trajectory) -> dict[str, Any]:
    """One episode as plain JSON values, its conversation in full; each reply with the `info` of its turn."""
    messages = [_message_record(message) for message in episode.initial_messages]
    for turn in episode.turns:
        info = {"info": _readable(turn.info)} if turn.info else {}
        messages += [_message_record(turn.message) | info, *map(_message_record, turn.env_messages)]
    return {
        "task_id": episode.task_id,
        **({"env": episode.env} if episode.env else {}),
        "group_id": episode.group_id,
        "reward": episode.reward,
        "reward_parts": episode.reward_parts,
        "flags": list(episode.flags),
        "stop_reason": episode.stop_reason.value,
        "num_tokens": sum(len(turn.completion.token_ids) for turn in episode.turns),
        "duration_s": round(episode.duration_s, 3),
        "messages": messages,
    }


def evaluated_record(episode: Trajectory, task: Task) -> dict[str, Any]:
    """A record with the labels of its task, and the problems that the environment reported at its end."""
    problems = episode.turns[-1].info.get("problems") if episode.turns else None
    return {
        **task_labels(task),
        **episode_record(episode),
        "task_sha256": task_digest(task),
        "num_turns": len(episode.turns),
        "problems": [str(problem) for problem in problems] if isinstance(problems, list | tuple) else [],
        "error": episode.error,
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


def _message_record(message: Message) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """An evaluated record, read back: one episode of one task, without tokens.

    Files of earlier versions lack some fields, which are None or empty then.
    """

    task_id: str
    sample: int = 0
    """Its number among the episodes of its task, from 0."""
    env: str | None = None
    """Name of its environment in a mixture."""
    family: str | None = None
    level: int | str | None = None
    difficulty: str | None = None
    reward: float | None
    """None when the environment failed and the episode counts for nothing."""
    reward_parts: Mapping[str, float]
    stop_reason: str
    num_turns: int = 0
    num_tokens: int | None = None
    """Tokens that the model generated."""
    duration_s: float | None = None
    flags: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    """What the environment reported at the end, in words."""
    error: str | None = None
    failure_mode: str | None = None
    """Why it failed, as its environment names it; None for a success."""
    task_sha256: str | None = None
    """Digest of the task's row; None in files of earlier versions."""
    messages: tuple[Mapping[str, Any], ...] = ()
    """As in `transcripts/`; empty in files of earlier versions."""

    @property
    def is_scored(self) -> bool:
        return self.reward is not None

    @property
    def is_success(self) -> bool:
        return is_success(self.reward_parts)

    @property
    def opening(self) -> tuple[Mapping[str, Any], ...]:
        """The messages before the model's first."""
        return tuple(takewhile(lambda message: message.get("role") != "assistant", self.messages))

    def is_of_another_task(self, other: "Episode") -> bool:
        """Whether the rows differ, whatever their ids are; by the openings where a row's digest is not known."""
        if self.task_sha256 and other.task_sha256:
            return self.task_sha256 != other.task_sha256
        return bool(self.opening and other.opening) and self.opening != other.opening

    @classmethod
    def from_record(
        cls, record: Mapping[str, Any], where: str, label: Callable[[Mapping[str, Any]], str | None] | None = None
    ) -> "Episode":
        """Read a record; `label` gives its failure mode. DataError, opened by `where`, for one that lacks what every
        version wrote."""
        try:
            return cls(
                **{name: record[name] for name in _AS_WRITTEN if name in record},
                **{name: tuple(record[name]) for name in _TUPLES if name in record},
                task_id=str(record["task_id"]),
                sample=int(record.get("sample", 0)),
                reward=None if record["reward"] is None else float(record["reward"]),
                reward_parts={str(name): float(value) for name, value in record["reward_parts"].items()},
                stop_reason=str(record["stop_reason"]),
                num_turns=int(record.get("num_turns", 0)),
                failure_mode=label(record) if label else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(
                f"{where}: not a record of an episode ({type(error).__name__}: {error}); use a file that an evaluation "
                "wrote"
            ) from None


# Columns


def token_columns(episode: Trajectory, logged: Sequence[LoggedSample], token_texts: TokenTexts) -> list[dict[str, Any]]:
    """The columns of each context of an episode; `logged` has one entry per context with generated tokens."""
    entries = iter(logged)
    contexts = []
    for turns in _contexts(episode.turns):
        is_generated = any(turn.completion.token_ids for _, turn in turns)
        contexts.append(_context_columns(turns, next(entries, None) if is_generated else None, token_texts))
    return contexts


def _contexts(turns: Sequence[Turn]) -> list[list[tuple[int, Turn]]]:
    """Numbered turns, those together that extend one another, as `learning/samples.py` makes samples of them."""
    contexts: list[list[tuple[int, Turn]]] = []
    for number, turn in enumerate(turns):
        if turn.new_context or not contexts:
            contexts.append([])
        contexts[-1].append((number, turn))
    return contexts


def _context_columns(
    turns: Sequence[tuple[int, Turn]], logged: LoggedSample | None, token_texts: TokenTexts
) -> dict[str, Any]:
    ids: list[int] = []
    generated: list[bool] = []
    segments: list[dict[str, Any]] = []

    def append(kind: str, number: int, new_ids: Sequence[int], **more: Any) -> None:
        if new_ids:
            segments.append({"kind": kind, "turn": number, "start": len(ids), "end": len(ids) + len(new_ids), **more})
            ids.extend(new_ids)
            generated.extend(repeat(kind == "assistant", len(new_ids)))

    kind = "prompt"
    for number, turn in turns:
        append(kind, number, turn.prompt_token_ids)
        completion = turn.completion
        version = list(completion.token_versions) or completion.weight_version
        append("assistant", number, completion.token_ids, weight_version=version)
        kind = "tool" if any(message.role == "tool" for message in turn.env_messages) else "user"
    sampling = chain.from_iterable(turn.completion.logprobs for _, turn in turns)
    if logged is None:
        advantages, mask = None, [0] * len(ids)
    else:
        advantages = (value for value, is_own in zip(logged.sample.advantages, generated, strict=True) if is_own)
        mask = list(logged.sample.loss_mask)
    return {
        "token_ids": ids,
        "texts": token_texts(ids),
        "loss_mask": mask,
        "sampling_logprobs": _column(sampling, generated),
        "trainer_logprobs": _column(logged.trainer_logprobs if logged else None, generated),
        "advantages": _column(advantages, generated),
        "segments": segments,
        "num_updates": logged.num_updates if logged else 0,
    }


def _column(values: Iterable[float] | None, generated: Sequence[bool]) -> list[float | str | None]:
    """Values of generated tokens at their places, rounded; null elsewhere."""
    if values is None:
        return [None] * len(generated)
    entries = iter(values)
    return [_rounded(next(entries)) if is_own else None for is_own in generated]


def _rounded(value: float) -> float | str:
    """JSON has no infinite numbers and no NaN."""
    return float(f"{value:.{NUM_DIGITS}g}") if math.isfinite(value) else str(float(value))
