"""What the page of `agent-rl view` shows of a run: its steps, the episodes of one, an episode with its tokens.

Reads `samples/step_*.jsonl.gz` (`telemetry/token_samples.py` says what is in them), `metrics.jsonl` and `config.yaml`
as they are at the moment of asking, so that a run may still go on. Every answer holds plain JSON values, numbers that
are not finite as None. Not here: HTTP (`view_server.py`), the page (`static/`).
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import yaml

from agent_rl.errors import DataError

_SAMPLES_FILE = re.compile(r"step_(\d+)\.jsonl\.gz")
_KEPT_STEPS = 4
"""Steps held in memory, the ones asked for last."""
_SUMMARY = ("task_id", "group_id", "family", "level", "difficulty", "reward", "stop_reason", "num_tokens", "duration_s")


class _Step(NamedTuple):
    lines: list[bytes]
    """One JSON object per episode, parsed again when the episode is asked for."""
    texts: list[str]
    """What was said in each episode, in lower case."""
    summaries: list[dict[str, Any]]
    scales: dict[str, float]


class RunSamples:
    """`RunSamples.open(Path("runs/nat_grpo"))`; nothing is written."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def open(cls, path: Path) -> "RunSamples":
        """DataError for a folder that is no run."""
        if not (path / "config.yaml").is_file():
            raise DataError(f"{path} holds no config.yaml; give the folder of a run, such as runs/nat_grpo")
        return cls(path)

    def overview(self) -> dict[str, Any]:
        """The run's name, how often it keeps samples (None where it does not say), and the steps that it has kept."""
        metrics = _step_metrics(self._path / "metrics.jsonl")
        steps = [
            {"step": step, "reward": row.get("reward/mean"), "success": row.get("success/mean")}
            for step in self._files()
            for row in [metrics.get(step, {})]
        ]
        return {"run": self._path.resolve().name, "samples_every": self._samples_every(), "steps": steps}

    def episodes(self, step: int) -> dict[str, Any]:
        """One summary per episode, in the order in which they were drawn, and the largest values among all tokens."""
        loaded = self._load(step)
        return {"step": step, "episodes": loaded.summaries, "scales": loaded.scales}

    def episode(self, step: int, index: int) -> dict[str, Any]:
        """The whole record of an episode. DataError where there is none."""
        lines = self._load(step).lines
        if not 0 <= index < len(lines):
            raise DataError(f"step {step} has no episode {index}: it has {len(lines)}, counted from 0")
        return _parse(lines[index]) | {"index": index}

    def search(self, step: int, text: str) -> list[int]:
        """Episodes in which `text` was said by anyone, upper and lower case alike."""
        return [index for index, said in enumerate(self._load(step).texts) if text.lower() in said]

    def _files(self) -> dict[int, Path]:
        """By step; a file that is not below the run's folder, as behind a link, is none of its."""
        root = self._path.resolve()
        found = {}
        for path in (self._path / "samples").glob("step_*.jsonl.gz"):
            match = _SAMPLES_FILE.fullmatch(path.name)
            if match and path.is_file() and path.resolve().is_relative_to(root):
                found[int(match[1])] = path
        return dict(sorted(found.items()))

    def _load(self, step: int) -> _Step:
        path = self._files().get(step)
        if path is None:
            raise DataError(f"step {step} of {self._path.name} has no samples; log.samples_every says which steps have")
        status = path.stat()
        return _read_step(path, status.st_mtime_ns, status.st_size)

    def _samples_every(self) -> int | None:
        try:
            config = yaml.safe_load((self._path / "config.yaml").read_text(encoding="utf-8"))
            every = config["log"]["samples_every"]
        except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
            return None
        return every if isinstance(every, int) else None


@lru_cache(maxsize=_KEPT_STEPS)
def _read_step(path: Path, _changed_ns: int, _size: int) -> _Step:
    """Read a file once, until it changes. DataError when it is damaged."""
    lines, texts, summaries = [], [], []
    most_advantage = most_log_ratio = 0.0
    try:
        with gzip.open(path, "rb") as file:
            for line in file:
                record = _parse(line)
                lines.append(line)
                texts.append("\n".join(_said(record["messages"])).lower())
                samples = record["samples"]
                advantages = [value for sample in samples for value in sample["advantages"] if value is not None]
                log_ratios = [value for sample in samples for value in _log_ratios(sample)]
                summaries.append(_summary(record, len(summaries), advantages))
                most_advantage = max([most_advantage, *map(abs, advantages)])
                most_log_ratio = max([most_log_ratio, *map(abs, log_ratios)])
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{path}: not a file of token samples ({type(error).__name__}); remove it to see the other steps"
        ) from None
    return _Step(lines, texts, summaries, {"advantage": most_advantage, "log_ratio": most_log_ratio})


def _parse(line: bytes) -> dict[str, Any]:
    return json.loads(line, parse_constant=lambda _: None)


def _log_ratios(sample: Mapping[str, Any]) -> list[float]:
    """Of the trainer to the sampler, at tokens that both computed."""
    pairs = zip(sample["trainer_logprobs"], sample["sampling_logprobs"], strict=True)
    return [trainer - sampling for trainer, sampling in pairs if trainer is not None and sampling is not None]


def _summary(record: Mapping[str, Any], index: int, advantages: list[float]) -> dict[str, Any]:
    success = record["reward_parts"].get("success")
    return {
        "index": index,
        **{name: record.get(name) for name in _SUMMARY},
        "success": None if success is None else success >= 1.0,
        "flags": record["flags"],
        "advantage": round(fmean(advantages), 4) if advantages else None,
    }


def _said(messages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Everything that stands in a conversation."""
    for message in messages:
        yield message["content"]
        yield message.get("reasoning", "")
        for call in message.get("tool_calls", ()):
            yield call["name"]
            yield from map(str, call["arguments"].values())


def _step_metrics(path: Path) -> dict[int, dict[str, float | None]]:
    """By step, those of training; lines that are not whole are left out, the last one may be being written."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    rows = {}
    for line in text.split("\n")[:-1]:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if "reward/mean" in row:
            rows[row["step"]] = {name: value if _is_finite(value) else None for name, value in row.items()}
    return rows


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
