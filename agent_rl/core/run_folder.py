"""The folder of one run: where its files are, what an earlier start left there, and from where to continue.

`config.yaml  environment.json  metrics.jsonl  events.jsonl  log.jsonl  errors.jsonl  transcripts/  samples/  eval/
checkpoints/`.
Nothing here knows models or episodes.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.config import Config, flatten
from agent_rl.config.load import read_yaml
from agent_rl.core.run.lock import make_run_folder
from agent_rl.core.run.machine import describe_machine, model_checksum
from agent_rl.core.run.record import run_config_of
from agent_rl.core.run.unfinished import clear_unfinished, holds_a_step, last_row
from agent_rl.distributed.checkpoint import latest_checkpoint, step_of
from agent_rl.errors import CheckpointError, ConfigError, DataError
from agent_rl.redacted import HIDDEN, redacted
from agent_rl.telemetry.files import write_json, write_text

_FREE_KEYS = ("checkpoint.", "log.", "run.name", "run.output_dir")
"""Beginnings of keys whose change is no news."""
_FILE_OF_A_STEP = re.compile(r"step_(\d+)(?:\.jsonl(?:\.gz)?|_t.*\.json)(\.partial)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What is to be told of a run's start."""

    changed: list[str]
    """Keys whose values, or whose files of tasks, are others than at the last start."""
    kept_in: Path | None
    """Folder that now has what an earlier start left, which finished no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """`RunFolder.open(config)` decides from which checkpoint to continue, and writes nothing."""

    path: Path
    resume_from: Path | None
    """Checkpoint to continue from; None starts from `model.path`."""
    is_new: bool = False
    """Whether the run begins here, so that no other may have done a step in this folder."""
    record: Config | None = None
    """What config.yaml will say, where that is not the configuration as it was given."""
    working_folder: str = field(default_factory=os.getcwd)
    """Of this process, from which the path counts."""

    @classmethod
    def open(cls, config: Config) -> "RunFolder":
        """Apply `checkpoint.resume` to what is on disk.

        Raises ConfigError when a run would be overwritten, CheckpointError when there is no such checkpoint.
        """
        path, resume = config.run.output_dir / config.run.name, config.checkpoint.resume
        newest = latest_checkpoint(path / "checkpoints")
        if resume == "auto":
            _refuse_another_model(config, newest)
            return cls(path=path, resume_from=newest)
        if resume == "never":
            if holds_a_step(path):
                raise _taken(path)
            return cls(path=path, resume_from=None, is_new=True)
        given = Path(resume)
        if not given.is_dir():
            raise CheckpointError(f"checkpoint.resume = {resume!r}: no such folder; give never, auto or a checkpoint")
        is_branch = newest is None or given.resolve() != newest.resolve()
        if is_branch and ((path / "config.yaml").exists() or holds_a_step(path)):
            raise ConfigError(
                f"{path} already holds a run, and {given} is not its newest checkpoint; set another run.name to branch"
            )
        _refuse_another_model(config, given)
        return cls(path=path, resume_from=given, is_new=is_branch)

    @property
    def metrics_file(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def transcript_file(self, step: int) -> Path:
        return self.path / "transcripts" / f"step_{step:05d}.jsonl"

    def samples_file(self, step: int) -> Path:
        return self.path / "samples" / f"step_{step:05d}.jsonl.gz"

    def eval_file(self, step: int, temperature: float) -> Path:
        return self.path / "eval" / f"step_{step:05d}_t{temperature:g}.json"

    def begin(
        self,
        config: Config,
        environment: dict[str, Any],
        *,
        step: int,
        saved_step: int | None = None,
        is_again: bool = False,
    ) -> "Begun":
        """Write config.yaml and environment.json, and remove what steps after `step` left; returns the keys whose
        values differ from the run's last start, or from that of the run whose checkpoint it continues from.

        For who holds the folder's lock. `saved_step` is that of the checkpoint which the run saved or continues from,
        `is_again` whether it has begun before. ConfigError when another run has been here since this one was opened.
        """
        config = self.record or config
        make_run_folder(self.path)
        self._refuse_another_run(0 if not is_again else step, saved_step)
        is_first = self.is_new and not is_again and saved_step is None
        kept_in = clear_unfinished(self.path) if is_first else None
        machine = describe_machine(config)
        changed = self._changed(config, machine)
        write_text(self.path / "config.yaml", config.to_yaml(), is_private=True)  # it may hold keys
        write_json(self.path / "environment.json", machine | {"env": environment})
        self.remove_later(step)
        return Begun(changed=changed, kept_in=kept_in)

    def _refuse_another_run(self, step: int, saved_step: int | None) -> None:
        """ConfigError where the folder holds what a run that has written `step` steps of metrics cannot have left."""
        newest = latest_checkpoint(self.checkpoints)
        if self.is_new and last_row(self.path) > step:
            raise _taken(self.path)
        if newest is not None and step_of(newest) > (saved_step or 0):
            raise ConfigError(
                f"{newest} was saved by another run since this one was opened, which would overwrite it; open it again "
                "with checkpoint.resume=auto, or set another run.name"
            )

    def refuse_another_working_folder(self) -> None:
        """ConfigError where code of the run has changed the process's working folder, which is changed back."""
        now = os.getcwd()
        if now != self.working_folder:
            os.chdir(self.working_folder)
            raise ConfigError(
                f"the working folder is {now}, and was {self.working_folder}: code of the run called os.chdir, which "
                "holds for all of it; give it absolute paths instead"
            )

    def remove_later(self, step: int) -> None:
        """Remove what steps after `step` left of episodes and evaluations, and files that were never finished.

        These steps are run again, perhaps differently, and what can be looked at must belong to the metrics.
        DataError for a file that cannot be removed.
        """
        for path in (path for name in ("transcripts", "samples", "eval") for path in (self.path / name).glob("step_*")):
            match = _FILE_OF_A_STEP.fullmatch(path.name)
            if match and (match[2] or int(match[1]) > step):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise DataError(
                        f"{path}: left of a step that is run again, and cannot be removed ({error.strerror}); remove it"
                    ) from None

    def _changed(self, config: Config, machine: dict[str, Any]) -> list[str]:
        """Settings, and files of tasks, that are others than at the last start."""
        path = self.path / "config.yaml"
        if not path.exists():
            path = (self.resume_from and run_config_of(self.resume_from)) or path
        if not path.exists():
            return []
        edited = edited_files(_machine_of(path).get("tasks"), machine["tasks"])
        return changed_keys(read_yaml(path), config.model_dump(mode="json")) + edited


def edited_files(before: Any, now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """`data.train_path tasks.jsonl (other contents)` for every file of `task_checksums` that is another than before."""
    told = []
    for key, file in now.items():
        old = before.get(key) if isinstance(before, dict) else None
        if not isinstance(old, dict) or "sha256" not in file:
            continue
        is_same_file = (old.get("path"), old.get("of")) == (str(file["path"]), file["of"])
        if is_same_file and old.get("sha256") != file["sha256"]:
            told.append(f"{key if '.' in key else f'data.{key}'} {file['path']} (other contents)")
    return told


def _machine_of(config_file: Path) -> dict[str, Any]:
    """`environment.json` beside a run's configuration; empty for one of an older version, or a damaged one."""
    try:
        record = json.loads(config_file.with_name("environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    return record if isinstance(record, dict) else {}


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """`train.steps 5 -> 6` for every key whose values differ; secrets are told by their names alone."""
    raw = flatten(before), flatten(now)
    redacted_ones = flatten(redacted(before)), flatten(redacted(now))
    told = []
    for key in raw[0] | raw[1]:
        if raw[0].get(key) == raw[1].get(key) or key.startswith(_FREE_KEYS):
            continue
        # What is hidden with all that is below it has no such key.
        old, new = (
            shown.get(key, HIDDEN if key in values else None) for values, shown in zip(raw, redacted_ones, strict=True)
        )
        told.append(f"{key} changed {HIDDEN}" if old == new else f"{key} {old} -> {new}")
    return told


def _taken(path: Path) -> ConfigError:
    if math.isinf(last_row(path)):
        return ConfigError(
            f"{path / 'metrics.jsonl'} holds lines without a step, which no run can continue; move it away, or set "
            "another run.name"
        )
    return ConfigError(f"{path} already holds a run; set checkpoint.resume=auto to continue it, or another run.name")


def _refuse_another_model(config: Config, checkpoint: Path | None) -> None:
    """ConfigError where `model.path` holds other weights than those that the checkpoint's run began with."""
    of_run = checkpoint and run_config_of(checkpoint)
    began = _machine_of(of_run).get("model", {}) if of_run else {}
    given = config.model.path
    if "sha256" not in began or given == began.get("path"):
        return
    now = model_checksum(given)
    if now.get("of") == began["of"] and now["sha256"] != began["sha256"]:
        raise ConfigError(
            f"model.path = {given!r} is another model than {began['path']}, from which {of_run.parent} began; a run "
            "that continues has its checkpoint's weights: leave model.path as it was, or take another run.name"
        )
