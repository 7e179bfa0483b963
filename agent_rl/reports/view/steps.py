"""A file of episodes in memory: a summary of each, its packed record, and its text for searching.

Token samples of training, and records of evaluations, which have no tokens.

Numbers that JSON writes as NaN or Infinity are None. Means and scales are of tokens that counted in the loss: the
values of others were not used. Not here: which file, and when it is read again (`data.py`).
"""

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agent_rl.errors import DataError
from agent_rl.telemetry.files import whole_lines

_SCALE_SHARE = 0.99
"""Of values that a scale of colours covers: a few extreme ones would leave all others pale."""
_SUMMARY = ("task_id", "group_id", "family", "level", "difficulty", "reward", "stop_reason", "num_tokens", "duration_s")
_DAMAGED = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What reading a file that is none of these raises."""


class ViewedStep(NamedTuple):
    """The episodes of a step, packed."""

    records: list[bytes]
    """One JSON object per episode, compressed; unpacked when the episode is requested."""
    texts: list[bytes]
    """The searchable text of each episode, in lower case, compressed."""
    summaries: list[dict[str, Any]]
    scales: dict[str, float]
    """Where the colours of advantages and log ratios end; 0 where there is none other than 0."""

    @property
    def num_bytes(self) -> int:
        return sum(map(len, self.records)) + sum(map(len, self.texts))

    def record(self, index: int) -> dict[str, Any]:
        return _parse(zlib.decompress(self.records[index]))

    def search(self, text: str) -> list[int]:
        """Episodes that hold `text`, upper and lower case alike."""
        wanted = _searchable(text)
        return [index for index, text in enumerate(self.texts) if wanted in zlib.decompress(text)]

    def text(self, index: int) -> str:
        """What is searched of an episode."""
        return zlib.decompress(self.texts[index]).decode("utf-8", errors="surrogatepass")


def read_samples(path: Path) -> ViewedStep:
    """The token samples of a step of training. DataError when the file is damaged or empty."""
    with _reading(path, "a file of token samples"), gzip.open(path, "rb") as file:
        return _view(file, path)


def read_held_out(path: Path) -> ViewedStep:
    """The episodes of an evaluation within a run (`eval/step_*_t*.json`). DataError as for `read_samples`."""
    with _reading(path, "the record of an evaluation"):
        rows = _parse(path.read_bytes())["episodes"]
        return _view((json.dumps(row).encode() for row in rows), path)


def read_evaluation(path: Path) -> ViewedStep:
    """The episodes of `agent-rl eval` (`episodes.jsonl`); a last line that was cut off is left out."""
    with _reading(path, "the episodes of an evaluation"):
        return _view(whole_lines(path), path)


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise DataError(f"{path}: not {what} ({type(error).__name__}); remove it to see the others") from None


def _view(lines: Iterable[bytes], path: Path) -> ViewedStep:
    records, texts, summaries = [], [], []
    advantages, log_ratios = [], []
    of_task: Counter[str] = Counter()
    for line in lines:
        record = _parse(line)
        used, ratios = _used(record)
        advantages.append(used)
        log_ratios.append(ratios)
        mean = float(used.mean()) if used.size else None
        task_id = str(record["task_id"])
        summaries.append(_summary(record, len(summaries)) | {"number": of_task[task_id], "advantage": mean})
        of_task[task_id] += 1
        records.append(zlib.compress(line, 1))
        texts.append(zlib.compress(_searchable("\n".join(_shown(record))), 1))
    if not records:
        raise DataError(f"{path}: holds no episode; remove it to see the others")
    return ViewedStep(
        records, texts, summaries, {"advantage": _end_of_scale(advantages), "log_ratio": _end_of_scale(log_ratios)}
    )


def _parse(line: bytes) -> dict[str, Any]:
    return json.loads(line, parse_constant=lambda _: None)


def _searchable(text: str) -> bytes:
    # Half a surrogate pair, which UTF-8 cannot hold, is looked for as what it is.
    return text.lower().encode("utf-8", errors="surrogatepass")


def _summary(record: Mapping[str, Any], index: int) -> dict[str, Any]:
    """The summary of an episode for the list."""
    success = record["reward_parts"].get("success")
    return {
        "index": index,
        **{name: record.get(name) for name in _SUMMARY},
        "success": success >= 1.0 if isinstance(success, int | float) else None,
        "flags": record.get("flags", []),
        "greedy": bool(record.get("greedy")),
    }


def _used(record: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Advantages and log ratios of the trainer to the sampler at tokens that counted in the loss; finite ones."""
    names = ("advantages", "trainer_logprobs", "sampling_logprobs", "loss_mask")
    contexts = record.get("samples", ())
    columns = [np.concatenate([np.array(each[name], float) for each in contexts] or [[]]) for name in names]
    advantages, trainer, sampling = (column[columns[-1] > 0] for column in columns[:-1])
    with np.errstate(invalid="ignore"):
        log_ratios = trainer - sampling
    return advantages[np.isfinite(advantages)], log_ratios[np.isfinite(log_ratios)]


def _end_of_scale(values: Sequence[np.ndarray]) -> float:
    """The value that 99 % of the others do not exceed, signs left out; the largest where that is 0."""
    sizes = np.abs(np.concatenate(values))
    if not sizes.size:
        return 0.0
    return float(np.quantile(sizes, _SCALE_SHARE, method="inverted_cdf") or sizes.max())


def _shown(record: Mapping[str, Any]) -> Iterator[str]:
    """The text of an episode besides its tokens and numbers."""
    for name in ("task_id", "group_id", "family", "difficulty", "stop_reason", "error"):
        yield str(record.get(name) or "")
    yield from record.get("flags", ())
    yield from record.get("problems", ())
    for message in record.get("messages", ()):
        yield from (message["content"], message.get("reasoning", ""), message.get("name", ""))
        yield from message.get("tool_errors", ())
        for call in message.get("tool_calls", ()):
            yield call["name"]
            yield from _leaves(call["arguments"])
        yield from _leaves(message.get("info", {}))


def _leaves(value: Any) -> Iterator[str]:
    """Keys and values, texts as they are and not as JSON writes them."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value if isinstance(value, str) else json.dumps(value)
