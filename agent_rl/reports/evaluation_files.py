"""The folder of an evaluation: settings, episodes as they are played, what is written of them in the end.

`settings.json  episodes.jsonl  report.json  report.csv  report.html  plots/*.png`. Episodes are appended chunk by
chunk, so that an evaluation that was stopped goes on where it was. Not here: playing, figures, the page.
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.core.run_folder import write_json
from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.episodes import Episode, read_episode_lines
from agent_rl.reports.evaluation_settings import FORMAT, Settings, difference
from agent_rl.reports.failure_modes import failure_mode

_COLUMNS = (
    "task_id", "sample", "family", "level", "difficulty", "success", "reward", "stop_reason", "failure_mode",
    "num_turns", "num_tokens", "duration_s", "flags", "error",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """`EvaluationFolder(Path("runs/eval"))`."""

    path: Path

    @property
    def settings_file(self) -> Path:
        return self.path / "settings.json"

    @property
    def episodes_file(self) -> Path:
        return self.path / "episodes.jsonl"

    def begin(self, settings: Settings) -> list[dict[str, Any]]:
        """Start here with `settings`, or go on; the records of the tasks that were played whole.

        ConfigError where episodes of another evaluation stand; DataError for damaged files. A task of which episodes
        are missing is taken out of the file.
        """
        records = read_episode_lines(self.episodes_file)
        if records and (other := difference(self.settings(), settings)) is not None:
            raise ConfigError(
                f"{self.path} holds an evaluation with other settings ({other}); name another --output-dir, or remove "
                "this one"
            )
        write_json(self.settings_file, settings)
        counts = Counter(record.get("task_id") for record in records)
        kept = [record for record in records if counts[record.get("task_id")] == settings["protocol"]["samples"]]
        self._write("episodes.jsonl", "".join(map(_line, kept)))
        return kept

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add episodes, on disk when this returns. DataError when they cannot be written, as on a full disk."""
        try:
            with self.episodes_file.open("a", encoding="utf-8", errors="backslashreplace") as file:
                file.writelines(map(_line, records))
        except OSError as error:
            raise _unwritten(self.episodes_file, error) from None

    def settings(self) -> Settings:
        """DataError when this is no evaluation's folder."""
        try:
            settings = json.loads(self.settings_file.read_text(encoding="utf-8"))
            if settings["format"] == FORMAT and isinstance(settings["protocol"], dict):
                return settings
        except FileNotFoundError:
            raise DataError(f"{self.path} is no evaluation: it has no settings.json; name an --output-dir") from None
        except (OSError, ValueError, KeyError, TypeError):
            pass
        raise DataError(f"{self.settings_file} cannot be read by this version; evaluate again in another folder")

    def episodes(self) -> list[Episode]:
        """All episodes of an evaluation that is over. DataError when some are missing."""
        protocol = self.settings()["protocol"]
        episodes = to_episodes(read_episode_lines(self.episodes_file), self.episodes_file)
        wanted = protocol["num_tasks"] * protocol["samples"]
        if len(episodes) != wanted:
            raise DataError(f"{self.path} has {len(episodes)} of {wanted} episodes; let that evaluation end first")
        return episodes

    def write_report(self, report: Mapping[str, Any], episodes: Sequence[Episode], page: str) -> None:
        """`report.json`, `report.csv`, `report.html`. DataError when they cannot be written."""
        self._write("report.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
        self._write("report.csv", as_csv(episodes))
        self._write("report.html", page)

    def _write(self, name: str, content: str) -> None:
        path = self.path / name
        partial = path.with_name(f"{name}.partial")
        try:
            partial.write_text(content, encoding="utf-8", errors="backslashreplace")
            os.replace(partial, path)
        except OSError as error:
            raise _unwritten(path, error) from None


def to_episodes(records: Sequence[Mapping[str, Any]], source: Path) -> list[Episode]:
    return [Episode.from_record(record, f"{source}:{number}") for number, record in enumerate(records, start=1)]


def as_csv(episodes: Sequence[Episode]) -> str:
    """One row per episode; parts of the reward have columns of their own, `part:NAME`."""
    parts = sorted({name for episode in episodes for name in episode.reward_parts if name != "success"})
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(f"part:{name}" for name in parts)])
    for episode in episodes:
        made = {
            "success": int(episode.is_success) if episode.is_scored else None,
            "failure_mode": failure_mode(episode),
            "flags": " ".join(episode.flags),
        }
        row = [made[name] if name in made else getattr(episode, name) for name in _COLUMNS]
        writer.writerow([*row, *(episode.reward_parts.get(name) for name in parts)])
    return held.getvalue()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"


def _unwritten(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be written ({error.strerror}); make room, then start the same command again")
