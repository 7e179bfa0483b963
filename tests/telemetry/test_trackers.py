"""Trackers really write: what TensorBoard, wandb (offline) and Trackio stored is read back."""

import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from builders import episode, turn
from fakes import tiny_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agent_rl.agent.messages import Message
from agent_rl.core.trainer_grpo import GRPOTrainer
from agent_rl.errors import ConfigError, DataError
from agent_rl.records import TrajectoryGroup
from agent_rl.registry import TRACKERS
from agent_rl.telemetry.episode_files import best_and_worst, table_row
from agent_rl.telemetry.metrics import MetricsWriter
from agent_rl.telemetry.trackers import BY_ACCELERATE, MetricsLog, Tracker, check_trackers, open_trackers

CONFIG = {"train": {"steps": 4}}


def opened(name: str, folder: Path, **options: Any) -> Tracker:
    settings = {"project": "agent_rl", **options}
    (tracker,) = open_trackers([name], run_name="tiny", folder=folder, config=CONFIG, **settings)
    return tracker


def write_steps(name: str, folder: Path, steps: list[int], *, offset: float = 0.0, **options: Any) -> None:
    tracker = opened(name, folder, **options)
    for step in steps:
        tracker.write(step, {"reward/mean": step + offset})
    tracker.close()


# TensorBoard


def tensorboard_rows(folder: Path, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_holds_what_was_written_as_soon_as_it_was_written(tmp_path: Path) -> None:
    tracker = opened("tensorboard", tmp_path)
    tracker.write(1, {"reward/mean": 0.5, "loss/kl": math.nan})
    assert tensorboard_rows(tmp_path, "reward/mean") == [(1, 0.5)]
    assert math.isnan(tensorboard_rows(tmp_path, "loss/kl")[0][1])
    tracker.write(1, {"eval/t0/success": 0.25})
    tracker.close()
    assert tensorboard_rows(tmp_path, "eval/t0/success") == [(1, 0.25)]


def test_a_resumed_run_shows_no_step_twice_in_tensorboard(tmp_path: Path) -> None:
    write_steps("tensorboard", tmp_path, [1, 2, 3, 4])
    write_steps("tensorboard", tmp_path, [3], offset=0.5, resume_from_step=3)
    assert tensorboard_rows(tmp_path, "reward/mean") == [(1, 1.0), (2, 2.0), (3, 3.5)]
    write_steps("tensorboard", tmp_path, [1], offset=0.25, resume_from_step=0)
    assert tensorboard_rows(tmp_path, "reward/mean") == [(1, 1.25)]


# wandb, offline


def wandb_records(folder: Path) -> Iterator[Any]:
    """The records of all offline runs, oldest first: a log of LevelDB's shape, in blocks of 32 KiB."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its own process has written everything by then
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        data, position, text = path.read_bytes(), 7, b""
        while position + 7 <= len(data):
            room = 32768 - position % 32768
            if room < 7:
                position += room
                continue
            length, kind = int.from_bytes(data[position + 4 : position + 6], "little"), data[position + 6]
            text += data[position + 7 : position + 7 + length]
            position += 7 + length
            if kind in (1, 4):  # whole, or its last part
                record = Record()
                record.ParseFromString(text)
                yield record
                text = b""


def wandb_history(folder: Path) -> list[dict[str, Any]]:
    rows = []
    for record in wandb_records(folder):
        if record.WhichOneof("record_type") == "history":
            items = {(item.key or "/".join(item.nested_key)): item.value_json for item in record.history.item}
            rows.append({key: json.loads(value) for key, value in items.items()})
    return [
        {"_step": row["_step"]} | {key: value for key, value in row.items() if not key.startswith("_")} for row in rows
    ]


@pytest.fixture
def offline_wandb(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="pip install -r requirements-trackers.txt")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def test_wandb_goes_on_under_the_same_id_and_sends_no_step_twice(tmp_path: Path, offline_wandb: None) -> None:
    write_steps("wandb", tmp_path, [1, 2, 3])
    write_steps("wandb", tmp_path, [2, 3, 4], resume_from_step=2)
    assert wandb_history(tmp_path) == [{"_step": step, "reward/mean": float(step)} for step in (1, 2, 3, 4)]
    runs = [record.run for record in wandb_records(tmp_path) if record.WhichOneof("record_type") == "run"]
    assert len({run.run_id for run in runs}) == 1
    assert {(run.display_name, run.project) for run in runs} == {("tiny", "agent_rl")}
    write_steps("wandb", tmp_path, [1], resume_from_step=0)
    ids = {path.name for path in (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")}
    assert len(ids) == 2


def test_an_evaluation_joins_the_row_of_its_step_in_wandb(tmp_path: Path, offline_wandb: None) -> None:
    tracker = opened("wandb", tmp_path)
    tracker.write(2, {"reward/mean": 1.0})
    tracker.write(2, {"eval/t0/success": 0.5})
    tracker.close()
    resumed = opened("wandb", tmp_path, resume_from_step=3)
    resumed.write(2, {"eval/t1/success": 0.75})  # the earlier run was stopped before this one
    resumed.close()
    assert wandb_history(tmp_path) == [
        {"_step": 2, "reward/mean": 1.0, "eval/t0/success": 0.5},
        {"_step": 2, "eval/t1/success": 0.75},
    ]


def test_a_table_of_episodes_is_stored_by_wandb_with_the_row_of_its_step(tmp_path: Path, offline_wandb: None) -> None:
    said = turn(message=Message.assistant("hello"))
    solved = episode(1.0, said, reward_parts={"success": 1.0})
    group = TrajectoryGroup(task_id="t", trajectories=(episode(0.25, said), solved))
    rows = [table_row(record) for record in best_and_worst([group], per_step=1, step=3)]
    plain = opened("tensorboard", tmp_path)
    log = MetricsLog(MetricsWriter(tmp_path / "m.jsonl"), [opened("wandb", tmp_path), plain], report=print)
    log.write(3, {"reward/mean": 0.5})
    log.write_episodes(3, rows)
    log.close()
    (path,) = tmp_path.glob("wandb/offline-run-*/files/media/table/episodes_3_*.table.json")
    table = json.loads(path.read_text())
    shown = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [(row["rank"], row["reward"], row["success"]) for row in shown] == [
        ("best", 1.0, 1.0),
        ("worst", 0.25, None),
    ]
    assert shown[0]["conversation"].endswith("[assistant] hello")
    assert [row["_step"] for row in wandb_history(tmp_path)] == [3]


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """wandb as on a machine where nobody has logged in."""
    wandb = pytest.importorskip("wandb", reason="pip install -r requirements-trackers.txt")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no_netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    wandb.teardown()  # its settings are read once
    yield
    wandb.teardown()


def test_wandb_without_a_login_is_told_before_a_model_is_read(no_login: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no login.*wandb login.*WANDB_API_KEY.*WANDB_MODE=offline"):
        check_trackers(["tensorboard", "wandb"])
    config = tiny_config(tmp_path, model={"path": "no/such/model"}, log={"trackers": ["wandb"]})
    with pytest.raises(ConfigError, match="no login"):
        GRPOTrainer.from_config(config)


def test_offline_wandb_needs_no_login(no_login: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert check_trackers(["tensorboard", "wandb"], ask_services=True) == "tensorboard, wandb (offline)"


def test_a_key_that_none_can_be_is_refused(no_login: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(ConfigError, match="wandb cannot log in"):
        check_trackers(["wandb"])


def test_when_a_tracker_does_not_start_the_others_are_closed(tmp_path: Path, offline_wandb: None) -> None:
    import wandb

    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(ConfigError, match="tensorboard did not start"):
        open_trackers(["wandb", "tensorboard"], run_name="tiny", folder=tmp_path, config=CONFIG, project="demo")
    assert wandb.run is None


# Trackio: where it stores is settled when it is imported, so it runs in a process of its own.

TRACKIO_PROGRAM = """
import sys
from pathlib import Path
from agent_rl.telemetry.trackers import open_trackers

folder = Path(sys.argv[1])
for steps, resume_from_step in (([1, 2, 3], None), ([2, 3, 4], 2)):
    (tracker,) = open_trackers(
        ["trackio"], run_name="tiny", folder=folder, config={}, project="demo", resume_from_step=resume_from_step
    )
    for step in steps:
        tracker.write(step, {"reward/mean": float(step)})
    tracker.close()

from trackio.sqlite_storage import SQLiteStorage
for name in SQLiteStorage.get_runs("demo"):
    rows = SQLiteStorage.get_logs("demo", name)
    print("ROW", name.split("-")[0], [(row["step"], row["reward/mean"]) for row in rows])
"""


def test_trackio_stores_a_resumed_run_as_one_without_repeats(tmp_path: Path) -> None:
    pytest.importorskip("trackio", reason="pip install -r requirements-trackers.txt")
    done = subprocess.run(
        [sys.executable, "-c", TRACKIO_PROGRAM, str(tmp_path)],
        env=os.environ | {"TRACKIO_DIR": str(tmp_path / "store"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROW")]
    assert rows == ["ROW tiny [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]"]


class ServiceOfAccelerate:
    """What Accelerate's tracker of a service is called with."""

    requires_logging_directory = True
    calls: list[tuple[Any, ...]] = []

    def __init__(self, project: str, folder: str) -> None:
        self.calls.append(("made", project, folder))

    def start(self) -> None:
        self.calls.append(("start",))

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.calls.append(("settings", values))

    def log(self, values: dict[str, float], step: int) -> None:
        self.calls.append(("log", step, values))

    def finish(self) -> None:
        self.calls.append(("finish",))


def test_a_service_of_accelerates_gets_settings_and_every_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "aim.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "aim", ServiceOfAccelerate)
    monkeypatch.setattr(ServiceOfAccelerate, "calls", [])
    write_steps("aim", tmp_path, [1, 2])
    write_steps("aim", tmp_path, [2, 3], resume_from_step=1)
    settings = {"run.name": "tiny", "train.steps": "4"}
    begun = [("made", "agent_rl", str(tmp_path)), ("start",), ("settings", settings)]
    first = [("log", step, {"reward/mean": float(step)}) for step in (1, 2)]
    assert ServiceOfAccelerate.calls == [
        *(*begun, *first, ("finish",)),
        *(*begun, ("log", 3, {"reward/mean": 3.0}), ("finish",)),
    ]


def test_every_tracker_of_accelerates_has_a_name_here() -> None:
    assert set(LOGGER_TYPE_TO_CLASS) == {"tensorboard", "wandb", "trackio", *BY_ACCELERATE}
    assert {"tensorboard", "wandb", "trackio", *BY_ACCELERATE} == set(TRACKERS.names())


def test_mlflow_keeps_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    write_steps("mlflow", tmp_path, [1, 2])
    (run,) = mlflow.search_runs(experiment_names=["agent_rl"], output_format="list")
    assert (run.info.run_name, run.data.params["train.steps"]) == ("tiny", "4")
    stored = mlflow.MlflowClient().get_metric_history(run.info.run_id, "reward/mean")
    assert [(each.step, each.value) for each in stored] == [(1, 1.0), (2, 2.0)]


# Errors that the user can fix


def test_an_unknown_tracker_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'tensorbord' in log\.trackers; did you mean 'tensorboard'"):
        opened("tensorbord", tmp_path)


def test_a_tracker_that_does_not_start_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    with pytest.raises(
        ConfigError, match=r"^log\.trackers: tensorboard did not start \(FileExistsError: .*\); make the run's folder"
    ):
        opened("tensorboard", tmp_path)


@pytest.mark.parametrize("leftover", [False, True])
def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leftover: bool) -> None:
    if leftover:  # the folder of an earlier run looks like a package to Python
        (tmp_path / "wandb").mkdir()
    for name in [name for name in sys.modules if name.split(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"wandb is not installed; run pip install -r requirements-trackers\.txt"):
        opened("wandb", tmp_path)


def test_nothing_optional_is_imported_before_it_is_configured() -> None:
    program = (
        "import sys, agent_rl.telemetry.trackers as t;"
        "t.open_trackers([], run_name='r', project='p', folder=None, config={});"
        "print({'torch', 'tensorboard', 'wandb', 'trackio'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout.strip() == "set()"


# One log of the file and the trackers


class Fragile:
    """Records its inputs, and fails at the configured steps."""

    def __init__(self, name: str, *, fails_at: tuple[int, ...] = (), fails_to_close: bool = False) -> None:
        self.name = name
        self.steps: list[int] = []
        self.is_closed = False
        self._fails_at = fails_at
        self._fails_to_close = fails_to_close

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if step in self._fails_at:
            raise ConnectionError("no route to host\nTraceback of somebody else")
        self.steps.append(step)

    def close(self) -> None:
        if self._fails_to_close:
            raise TimeoutError
        self.is_closed = True


def test_a_failing_tracker_is_reported_once_and_left_out_while_the_others_go_on(tmp_path: Path) -> None:
    broken, slow, good = Fragile("wandb", fails_at=(2, 3)), Fragile("trackio", fails_to_close=True), Fragile("good")
    reported: list[str] = []
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(MetricsWriter(path), [broken, slow, good], report=reported.append) as log:
        for step in (1, 2, 3, 4):
            log.write(step, {"a": 0.5})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3, 4]
    assert (broken.steps, slow.steps, good.steps) == ([1], [1, 2, 3, 4], [1, 2, 3, 4])
    assert (broken.is_closed, good.is_closed) == (False, True)
    assert reported == [
        "wandb failed at step 2 (ConnectionError: no route to host) and gets nothing more; "
        "metrics.jsonl has everything",
        "trackio failed at the end (TimeoutError) and gets nothing more; metrics.jsonl has everything",
    ]


@contextmanager
def files_may_grow_to(num_bytes: int) -> Iterator[None]:
    """As on a full disk: a write beyond that fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_run_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with (
        files_may_grow_to(70),
        pytest.raises(DataError, match=r"metrics\.jsonl: the metrics of step 2 cannot be written \(File too large\)"),
        MetricsLog(MetricsWriter(path), [], report=print) as log,
    ):
        log.write(1, {"a": 0.5})
        log.write(2, {"a" * 40: 0.5})
    with MetricsWriter(path, resume_from_step=2):
        (line,) = path.read_text().splitlines()
        assert {"step": 1, "a": 0.5}.items() <= json.loads(line).items()


def test_ctrl_c_in_a_tracker_is_not_taken_for_its_failure(tmp_path: Path) -> None:
    class Pressed(Fragile):
        def write(self, step: int, metrics: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    with (
        pytest.raises(KeyboardInterrupt),
        MetricsLog(MetricsWriter(tmp_path / "m.jsonl"), [Pressed("wandb")], report=print) as log,
    ):
        log.write(1, {})
