"""Destinations of a run's metrics besides `metrics.jsonl`: TensorBoard, Weights & Biases, Trackio, and Accelerate's.

`MetricsLog` is what the loop writes to. The file must work; a tracker that fails is reported once and left out for the
rest of the run, because a full disk or a lost network must not end hours of training. A package is imported when its
tracker is opened. Not here: what is measured (`metrics.py`), and logins: they belong to the packages' own settings.
"""

import inspect
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from agent_rl.closing import Closing
from agent_rl.config import flatten
from agent_rl.errors import ConfigError
from agent_rl.registry import TRACKERS
from agent_rl.resources import install_command
from agent_rl.telemetry.files import write_json
from agent_rl.telemetry.metrics import MetricsWriter


class Tracker(Protocol):
    """One place that metrics go to. With a method `write_episodes(step, rows)` it gets tables of episodes too, rows
    with equal keys (`episode_files.table_row`)."""

    name: str

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of `step`; the same step may come again with other names, as an evaluation does."""

    def close(self) -> None:
        """Send what is buffered."""


def open_trackers(
    names: Sequence[str],
    *,
    run_name: str,
    folder: Path,
    config: dict[str, Any],
    project: str,
    resume_from_step: int | None = None,
) -> list[Tracker]:
    """Open trackers by name or import path (`registry.TRACKERS`), in the order given, for the run in `folder`.

    `config` is the run's configuration, as plain values. A run that continues gives the first step that it runs
    again as `resume_from_step`, so that no step is written twice and a service shows one run; 0 and None start anew.
    Raises ConfigError for an unknown name, a missing package, and a tracker that does not start.
    """
    options = {"run_name": run_name, "folder": folder, "config": config, "project": project}
    trackers: list[Tracker] = []
    with ExitStack() as opened:
        for name in names:
            _check_package(name)
            open_tracker = TRACKERS.get(name)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                trackers.append(open_tracker(**options, resume_from_step=resume_from_step))
            except Exception as error:  # the trackers' boundary: their packages may raise anything
                remedy = f"{_BUILT_IN[name][1]}, or " if name in _BUILT_IN else ""
                raise ConfigError(
                    f"log.trackers: {name} did not start ({_short(error)}); {remedy}take {name} out"
                ) from error
            opened.callback(trackers[-1].close)
        opened.pop_all()
    return trackers


def check_trackers(names: Sequence[str], *, ask_services: bool = False) -> str:
    """Look, before a run, for what trackers need: their packages, and a login of wandb unless it is offline.

    With `ask_services` wandb's server has to take the key. Returns what was found, as `tensorboard, wandb (offline)`;
    ConfigError for what is missing.
    """
    found = []
    for name in names:
        _check_package(name)
        found.append(f"wandb ({_wandb_login(ask_services)})" if name == "wandb" else name)
    return ", ".join(found)


class MetricsLog(Closing):
    """`metrics.jsonl` and the trackers of a run as one: `log.write(3, {"reward/mean": 0.5})`. A context manager.

    Closes its file and trackers. `report` gets the sentence about a failed tracker; an error of the file is raised.
    """

    def __init__(self, writer: MetricsWriter, trackers: Sequence[Tracker], *, report: Callable[[str], None]) -> None:
        self._writer = writer
        self._trackers = list(trackers)
        self._report = report

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line to the file, then pass the metrics to every tracker that still works."""
        self._writer.write(step, metrics)
        for tracker in tuple(self._trackers):
            self._try(tracker, lambda tracker=tracker: tracker.write(step, metrics), f"at step {step}")

    def write_episodes(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Pass a table of episodes to the trackers that take one."""
        for tracker in tuple(self._trackers):
            if rows and (write := getattr(tracker, "write_episodes", None)) is not None:
                self._try(tracker, lambda write=write: write(step, rows), f"at step {step}")

    def close(self) -> None:
        self._writer.close()
        for tracker in tuple(self._trackers):
            self._try(tracker, tracker.close, "at the end")

    def _try(self, tracker: Tracker, call: Callable[[], None], when: str) -> None:
        try:
            call()
        except Exception as error:  # the trackers' boundary, as above
            self._trackers.remove(tracker)
            self._report(
                f"{tracker.name} failed {when} ({_short(error)}) and gets nothing more; metrics.jsonl has everything"
            )


class TensorBoardTracker:
    """Event files in `tensorboard/` of the run's folder; a resumed run hides what it will write again."""

    name = "tensorboard"

    def __init__(self, *, folder: Path, resume_from_step: int | None, **_unused: object) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=resume_from_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, global_step=step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _Service:
    """A run of a package that cannot remove steps; it is written to with `run.log(metrics, step=step)`.

    `<name>.json` in the run's folder holds its id and the last step that was sent. A run that continues reuses the id
    and leaves out steps that were sent before.
    """

    def __init__(self, name: str, *, folder: Path, resume_from_step: int | None) -> None:
        self.name = name
        self._path = folder / f"{name}.json"
        self.run_id, self._last_step = secrets.token_hex(4), -1
        if resume_from_step and self._path.exists():
            record = json.loads(self._path.read_text(encoding="utf-8"))
            self.run_id, self._last_step = record["run_id"], record["last_step"]
        # An evaluation of the step that the run continues from may still be missing, so the range does not start at 0.
        self._sent = range(resume_from_step or 0, self._last_step + 1)
        self.run: Any = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if step in self._sent:
            return
        self.run.log(dict(metrics), step=step)
        self._last_step = max(self._last_step, step)
        write_json(self._path, {"run_id": self.run_id, "last_step": self._last_step})

    def close(self) -> None:
        self.run.finish()


class _Wandb(_Service):
    def write_episodes(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The table `episodes` of this step."""
        import wandb

        if step not in self._sent:
            table = wandb.Table(columns=list(rows[0]), data=[list(row.values()) for row in rows])
            self.run.log({"episodes": table}, step=step)


def open_wandb(
    *, run_name: str, folder: Path, config: dict[str, Any], project: str, resume_from_step: int | None
) -> _Service:
    """Files in `wandb/` of the run's folder. `WANDB_MODE`, `WANDB_ENTITY` and the login are wandb's own settings."""
    import wandb

    service = _Wandb("wandb", folder=folder, resume_from_step=resume_from_step)
    service.run = wandb.init(
        project=project,
        name=run_name,
        id=service.run_id,
        dir=folder,
        config=config,
        resume="allow",
        allow_val_change=True,
        # Its copy of the terminal would disturb the progress display.
        settings=wandb.Settings(console="off"),
    )
    return service


def _wandb_login(ask_service: bool) -> str:
    """How wandb would start; ConfigError without a login, which it would ask for on a terminal."""
    import wandb

    mode = wandb.setup().settings.mode
    if mode != "online" or wandb.run is not None:
        return mode
    if "prompt" not in inspect.signature(wandb.login).parameters:  # older ones ask, so their start tells
        return mode
    remedy = f"{_BUILT_IN['wandb'][1]}, or take wandb out"
    try:
        is_logged_in = wandb.login(prompt=False, verify=ask_service)
    except Exception as error:  # the trackers' boundary, as above
        raise ConfigError(f"log.trackers: wandb cannot log in ({_short(error)}); {remedy}") from error
    if not is_logged_in:
        raise ConfigError(f"log.trackers: wandb has no login on this machine; {remedy}")
    return "logged in" if ask_service else "has a login"


def open_trackio(
    *, run_name: str, folder: Path, config: dict[str, Any], project: str, resume_from_step: int | None
) -> _Service:
    """One database for all runs of this machine, in Trackio's own folder (`TRACKIO_DIR` names another)."""
    import trackio

    service = _Service("trackio", folder=folder, resume_from_step=resume_from_step)
    # It finds a run by name, and another folder may hold a run of the same name.
    name = f"{run_name}-{service.run_id}"
    service.run = trackio.init(project=project, name=name, config=config, resume="allow", embed=False)
    return service


def _open_by_accelerate(
    name: str, *, run_name: str, folder: Path, config: dict[str, Any], project: str, resume_from_step: int | None
) -> Tracker:
    """A service that Accelerate writes to; the project is named as Accelerate names it there.

    A run that continues is another run of the service, with the steps that were not sent before.
    """
    from accelerate.state import PartialState
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    PartialState()  # its trackers write from the first process alone
    kind = LOGGER_TYPE_TO_CLASS[name]
    named = {"run_name": run_name} if name == "mlflow" else {}
    service = _Service(name, folder=folder, resume_from_step=resume_from_step)
    service.run = kind(project, *([str(folder)] if kind.requires_logging_directory else []), **named)
    service.run.start()
    service.run.store_init_configuration({"run.name": run_name, **{k: str(v) for k, v in flatten(config).items()}})
    return service


BY_ACCELERATE = ("mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab")
"""Trackers of Accelerate's that this library has no writer of its own for."""
open_mlflow, open_comet_ml, open_aim, open_clearml, open_dvclive, open_swanlab = (
    partial(_open_by_accelerate, name) for name in BY_ACCELERATE
)

_BUILT_IN = {
    "tensorboard": (None, "make the run's folder writable"),
    "wandb": ("trackers", "run `wandb login` or set WANDB_API_KEY, or set WANDB_MODE=offline to send the run later"),
    "trackio": ("trackers", "let TRACKIO_DIR name a folder that can be written"),
    **{name: (None, f"look at the settings of {name}") for name in BY_ACCELERATE},
}
"""The optional part that brings the package of a tracker, and what to do when it does not start."""


def _check_package(name: str) -> None:
    """Refuse a built-in tracker whose package is not installed."""
    if name not in _BUILT_IN:
        return
    spec = find_spec(name)
    # A folder of that name, such as wandb leaves behind, looks like a package without a file.
    if spec is None or spec.origin is None:
        extra = _BUILT_IN[name][0]
        install = install_command(extra) if extra else f"pip install {name}"
        raise ConfigError(f"log.trackers: the package {name} is not installed; run {install}, or take {name} out")


def _short(error: Exception) -> str:
    """The first line of an error, with its class."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
