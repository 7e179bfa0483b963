"""A task of the NAT environment: a spec, what kind of work it is, and the files that the workspace begins with.

`create` begins with no file. `repair` begins with a project in which one file is wrong, `extend` with a working project
that does not do all yet. A row of the last two is a row of a spec with `kind`, `start_files` and for repairs `fault`.
Does not: make tasks (`generate.py`), judge them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.parse import parse_spec
from agent_rl.envs.nat.spec import NATSpec
from agent_rl.errors import DataError, nearest_or_all
from agent_rl.sandbox.workspace import WorkspaceError, validate_files

Kind = Literal["create", "repair", "extend"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_KEYS = ("kind", "start_files", "fault")


@dataclass(frozen=True, slots=True, kw_only=True)
class NATTask:
    """One row of a dataset."""

    spec: NATSpec
    """What the project has to be in the end; its `request` is what the user says."""
    kind: Kind = "create"
    start_files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text."""
    fault: str = ""
    """The class of the fault of a repair, for reports; the model is not told."""

    def to_row(self) -> dict[str, Any]:
        """The row of a dataset; that of a spec alone where the workspace begins empty."""
        row = self.spec.model_dump(mode="json")
        if self.kind == "create":
            return row
        row |= {"kind": self.kind, "start_files": dict(self.start_files)}
        return row | {"fault": self.fault} if self.fault else row

    def solution(self) -> dict[str, str]:
        """The files of the reference that have to be written still."""
        return {path: text for path, text in render_project(self.spec).items() if self.start_files.get(path) != text}


def covered(row: Mapping[str, Any]) -> dict[str, tuple[str | int, ...]]:
    """What a dataset row that was checked is of: families of the agent and its tools, level, kind of work."""
    families = {row["family"], *(tool["family"] for tool in row["tools"])}
    return {"families": tuple(families), "levels": (row["level"],), "kinds": (row.get("kind") or "create",)}


def read_task(row: Mapping[str, Any], where: str) -> NATTask:
    """Validate a dataset row; `where` opens the error sentence. DataError."""
    kind, start_files, fault = (row.get(key) for key in _KEYS)
    kind = kind or "create"
    if kind not in KINDS:
        raise DataError(f"{where}: field 'kind': there is no kind of task {kind!r:.60}{nearest_or_all(kind, KINDS)}")
    spec = parse_spec({key: value for key, value in row.items() if key not in _KEYS}, where)
    if kind == "create":
        if start_files or fault:
            raise DataError(
                f"{where}: a task of the kind 'create' begins with no file; leave start_files and fault out"
            )
        return NATTask(spec=spec)
    if not isinstance(start_files, Mapping) or not start_files:
        raise DataError(
            f"{where}: field 'start_files' of a task of the kind {kind!r} must hold its files, path to text"
        )
    if not all(isinstance(text, str) for text in start_files.values()) or not isinstance(fault or "", str):
        raise DataError(f"{where}: fields 'start_files' and 'fault' must hold texts")
    try:
        validate_files(dict(start_files))
    except WorkspaceError as error:
        raise DataError(f"{where}: field 'start_files': {error}") from None
    return NATTask(spec=spec, kind=kind, start_files=dict(start_files), fault=fault or "")
