"""The folder of an evaluation: settings, episodes as they are played, what is written of them in the end.

`settings.json  environment.json  episodes.jsonl  report.json  report.csv  report.html  plots/*.png`. Episodes are
appended chunk by chunk, so that an evaluation that was stopped goes on where it was. Not here: playing, figures, the
page.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.envs.failure_modes import FailureModes
from agent_rl.errors import ConfigError, DataError
from agent_rl.reports.episodes import GENERAL, Episode, read_episode_lines
from agent_rl.reports.evaluation_settings import FORMAT, Settings, difference
from agent_rl.telemetry.files import whole_file, write_json, write_text
from agent_rl.telemetry.trajectory_json import json_line

_COLUMNS = (
    "task_id", "sample", "family", "level", "difficulty", "success", "reward", "stop_reason", "failure_mode",
    "num_turns", "num_tokens", "duration_s", "flags", "error",
)  # fmt: skip
_OF_A_RUN = ("config.yaml", "metrics.jsonl", "checkpoints")
"""Any of these tells the folder of a training run."""


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

    def check(self, settings: Settings) -> list[dict[str, Any]]:
        """The records that stand here, of an evaluation with `settings`; nothing is written.

        ConfigError where a run or episodes of another evaluation stand; DataError for damaged files.
        """
        if any((self.path / name).exists() for name in _OF_A_RUN):
            raise ConfigError(f"{self.path} is the folder of a run; name another --output-dir")
        records = read_episode_lines(self.episodes_file)
        if records and (other := difference(self.settings(), settings)) is not None:
            raise ConfigError(
                f"{self.path} holds an evaluation with other settings ({other}); name another --output-dir, or remove "
                "this one"
            )
        return records

    def begin(self, settings: Settings) -> list[dict[str, Any]]:
        """Start here with `settings`, or go on; the records of the tasks that were played whole.

        Raises as `check`, and DataError when nothing can be written. A task of which episodes are missing, or were not
        scored because their environment failed, is taken out of the file, to be played again.
        """
        records = self.check(settings)
        self._write(lambda: write_json(self.settings_file, settings), self.settings_file)
        scored = Counter(record.get("task_id") for record in records if record.get("reward") is not None)
        kept = [record for record in records if scored[record.get("task_id")] == settings["protocol"]["samples"]]
        self._write(lambda: self._rewrite(kept), self.episodes_file)
        return kept

    def _rewrite(self, records: Sequence[Mapping[str, Any]]) -> None:
        with whole_file(self.episodes_file) as file:
            file.writelines(map(json_line, records))

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Keep machine, versions and isolation; they are not compared. DataError when they cannot be written."""
        path = self.path / "environment.json"
        self._write(lambda: write_json(path, environment), path)

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Add episodes, on disk when this returns. DataError when they cannot be written, as on a full disk."""
        try:
            with self.episodes_file.open("ab") as file:
                file.writelines(map(json_line, records))
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

    def episodes(self, failures: FailureModes = GENERAL) -> list[Episode]:
        """All episodes of an evaluation that is over. DataError when some are missing."""
        protocol = self.settings()["protocol"]
        episodes = to_episodes(read_episode_lines(self.episodes_file), self.episodes_file, failures)
        wanted = protocol["num_tasks"] * protocol["samples"]
        if len(episodes) != wanted:
            raise DataError(f"{self.path} has {len(episodes)} of {wanted} episodes; let that evaluation end first")
        return episodes

    def environment(self) -> dict[str, Any]:
        """What `write_environment` kept; empty where nothing was."""
        try:
            found = json.loads((self.path / "environment.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def write_data(self, report: Mapping[str, Any], episodes: Sequence[Episode]) -> None:
        """`report.json` and `report.csv`. DataError when they cannot be written."""
        data, rows = self.path / "report.json", self.path / "report.csv"
        self._write(lambda: write_json(data, report), data)
        self._write(lambda: write_text(rows, as_csv(episodes)), rows)

    def write_page(self, page: str, write_plots: Callable[[Path], None]) -> None:
        """`report.html`, and what `write_plots` puts into `plots/`. DataError when they cannot be written."""
        path, plots = self.path / "report.html", self.path / "plots"
        self._write(lambda: write_text(path, page), path)
        self._write(lambda: write_plots(plots), plots)

    def _write(self, write: Callable[[], None], path: Path) -> None:
        try:
            write()
        except OSError as error:
            raise _unwritten(path, error) from None


def to_episodes(records: Sequence[Mapping[str, Any]], source: Path, failures: FailureModes = GENERAL) -> list[Episode]:
    numbered = enumerate(records, start=1)
    return [Episode.from_record(record, f"{source}:{number}", failures.label) for number, record in numbered]


def as_csv(episodes: Sequence[Episode]) -> str:
    """One row per episode; parts of the reward have columns of their own, `part:NAME`."""
    parts = sorted({name for episode in episodes for name in episode.reward_parts if name != "success"})
    held = io.StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow([*_COLUMNS, *(f"part:{name}" for name in parts)])
    for episode in episodes:
        made = {
            "success": int(episode.is_success) if episode.is_scored else None,
            "flags": " ".join(episode.flags),
        }
        row = [made[name] if name in made else getattr(episode, name) for name in _COLUMNS]
        writer.writerow([*row, *(episode.reward_parts.get(name) for name in parts)])
    return held.getvalue()


def _unwritten(path: Path, error: OSError) -> DataError:
    return DataError(f"{path} cannot be written ({error.strerror}); make room, then start the same command again")
