"""What a part of the acceptance run leaves behind: figures, notes and how it ended, as JSON in the output folder.

A part that runs records every figure at once (`Recorder`), so that one that is killed or crashes keeps what it had
measured. Not here: what is expected of a figure (`expectations.py`), running parts (`runner.py`). Imports no PyTorch.
"""

import importlib.util
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agent_rl.errors import UserError

Value = float | int | str
DONE, FAILED, SKIPPED = "done", "failed", "skipped"


class Skip(Exception):
    """This part cannot run here; the text says why."""


@dataclass(kw_only=True)
class Result:
    """One part: `Result(part="machine", status=DONE, figures={"copy_tb_s": 4.2})`."""

    part: str
    status: str
    """`done`, `failed` (crashed, killed, out of time), or `skipped` because something is not there."""
    reason: str = ""
    figures: dict[str, Value] = field(default_factory=dict)
    """A text in the place of a number says why there is none."""
    notes: list[str] = field(default_factory=list)
    traceback: str = ""
    seconds: float = 0.0
    device: str = ""
    tiny: bool = False
    machine: dict[str, str] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How all parts of a run are run."""

    device: str
    """`cpu` or `cuda`."""
    tiny: bool
    """Shapes that a CPU computes in seconds: figures are then about nothing but whether the part works."""
    folder: Path
    """For files that the part itself needs."""

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"

    def pick(self, full: Any, tiny: Any) -> Any:
        """One of two sizes."""
        return tiny if self.tiny else full


class Recorder:
    """Receives a part's figures and notes, and writes each down when it comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.figures: dict[str, Value] = {}
        self.notes: list[str] = []

    def figure(self, name: str, value: Value) -> None:
        self.figures[name] = value
        print(f"  {name}: {shown(value)}", flush=True)
        self._write()

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            print(f"  {text}", flush=True)
            self._write()

    def _write(self) -> None:
        write_json(self._path, {"figures": self.figures, "notes": self.notes})


def shown(value: Value) -> str:
    """A figure as text: three significant digits, thousands with commas."""
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if math.isfinite(value) and abs(value) >= 1000 else f"{value:.3g}"


def result_path(folder: Path, part: str) -> Path:
    return folder / f"{part}.json"


def partial_path(folder: Path, part: str) -> Path:
    """What a part that has not ended has recorded."""
    return folder / f"{part}.partial"


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """All or nothing, whenever the process is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.new")
    beside.write_text(json.dumps(value, indent=2), encoding="utf-8")
    beside.replace(path)


def write_result(folder: Path, result: Result) -> None:
    write_json(result_path(folder, result.part), asdict(result))
    partial_path(folder, result.part).unlink(missing_ok=True)


def read_result(folder: Path, part: str) -> Result | None:
    """None for a part that has not ended. UserError for a file that is not one of ours."""
    path = result_path(folder, part)
    if not path.exists():
        return None
    try:
        return Result(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is no result of this script ({error}); remove it, or choose another folder") from None


def read_partial(folder: Path, part: str) -> tuple[dict[str, Value], list[str]]:
    path = partial_path(folder, part)
    if not path.exists():
        return {}, []
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["figures"], found["notes"]


def need(package: str) -> None:
    """Raise Skip where an optional package is missing."""
    found = importlib.util.find_spec(package)
    # A folder that happens to have that name is found too, as a package without a file.
    if found is None or found.origin is None:
        raise Skip(f"{package} is not installed")
