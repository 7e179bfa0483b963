"""`agent_rl.json` in a model's folder: what the model was trained for.

    {"format": 1, "environment": "nat_agent_creation", "max_context": 1024,
     "tasks": {"families": ["calculator"], "kinds": ["create"], "levels": [1, 2], "wordings": ["own"]}}

A warm start writes it from the demonstrations that it shows, what trains the model further adds to it, and a model that
comes without, as large ones do, stays without. Not here: what is asked of a model (`envs/nat/create/scope.py`).
"""

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.errors import CheckpointError
from agent_rl.telemetry.files import write_json

FILE = "agent_rl.json"
FORMAT = 1
Value = str | int
Covers = Mapping[str, tuple[Value, ...]]
"""What tasks are of, by the name of a property: `{"families": ("calculator",), "levels": (1,)}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedFor:
    """`read_trained_for("model/nat_minimind")`."""

    environment: str
    """As in `env.name`."""
    max_context: int
    """Tokens of the longest conversation that it was trained on, or was allowed to have."""
    tasks: Covers
    """All values of each property; the properties are the environment's."""

    def and_also(self, environment: str, max_context: int, tasks: Iterable[Covers]) -> "TrainedFor":
        """After training on more. Another environment takes the place of what was learned before."""
        is_new = environment != self.environment
        return TrainedFor(
            environment=environment,
            max_context=max_context if is_new else max(self.max_context, max_context),
            tasks=union(tasks if is_new else [self.tasks, *tasks]),
        )

    def save(self, folder: Path) -> None:
        tasks = {name: list(values) for name, values in self.tasks.items()}
        about = {"format": FORMAT, "environment": self.environment, "max_context": self.max_context, "tasks": tasks}
        write_json(folder / FILE, about)


def union(tasks: Iterable[Covers]) -> Covers:
    """Every property with all values, sorted."""
    found: dict[str, set[Value]] = {}
    for each in tasks:
        for name, values in each.items():
            found.setdefault(name, set()).update(values)
    return {name: tuple(sorted(values, key=_order)) for name, values in sorted(found.items())}


def _order(value: Value) -> tuple[str, Value]:
    return type(value).__name__, value


def read_trained_for(folder: str | Path) -> TrainedFor | None:
    """What the model in a folder was trained for; None where nothing says so, as for a name on the Hub.

    CheckpointError for a file that cannot be read.
    """
    path = Path(folder) / FILE
    try:
        return _read(json.loads(path.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} does not say what the model was trained for ({type(error).__name__}: {str(error)[:100]}); correct "
            "it, or remove it"
        ) from None


def keep_trained_for(source: str | Path, folder: Path) -> None:
    """Copy the file of one model's folder to another, if there is one."""
    if (Path(source) / FILE).is_file():
        shutil.copyfile(Path(source) / FILE, folder / FILE)


def _read(raw: Any) -> TrainedFor:
    if raw["format"] != FORMAT:
        raise ValueError(f"format {raw['format']!r}, this program reads {FORMAT}")
    tasks = {name: tuple(values) for name, values in raw["tasks"].items() if isinstance(values, list)}
    is_known = type(raw["max_context"]) is int and isinstance(raw["environment"], str)
    values = [value for each in tasks.values() for value in each]
    if not is_known or len(tasks) < len(raw["tasks"]) or not all(isinstance(value, Value) for value in values):
        raise ValueError("expected environment, max_context and tasks, each property with a list of texts or numbers")
    return TrainedFor(environment=raw["environment"], max_context=raw["max_context"], tasks=tasks)
