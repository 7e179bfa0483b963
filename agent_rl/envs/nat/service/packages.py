"""The folder of a job: the package as a folder, a zip and a wheel, there as a whole or not at all.

No part of a request ever becomes part of a path: a file is found among those that were listed when the package was
written. Not here: what a package holds (`create/package.py`).
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_rl.envs.nat.create.package import save
from agent_rl.envs.nat.create.packaging import folder_name
from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.factory.user_test_cases import UserTestCase
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.envs.nat.service.records import PARTIAL, AgentJob


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPackage:
    """What `AgentJob.result` has of a package."""

    package: str
    files: dict[str, int]
    """Path -> bytes."""
    wheel: str | None
    num_bytes: int
    """Of folder, zip and wheel together."""

    def to_dict(self) -> dict[str, Any]:
        return {"package": self.package, "files": self.files, "wheel": self.wheel}


def keep(creation: Creation, toolkit: NatToolkit, folder: Path, cases: Sequence[UserTestCase]) -> KeptPackage:
    """Write the package of a job below `folder`, in place of one that was left there.

    Raises UserError for a project that cannot be packaged, OSError where the disk takes no more.
    """
    partial = folder.with_name(f"{folder.name}{PARTIAL}")
    for left in (partial, folder):
        shutil.rmtree(left, ignore_errors=True)
    name = folder_name(creation)
    try:
        saved = save(creation, toolkit, partial / name, cases=cases, with_zip=True, with_wheel=True)
        files = {
            path.relative_to(partial / name).as_posix(): path.stat().st_size
            for path in sorted((partial / name).rglob("*"))
            if path.is_file()
        }
        num_bytes = sum(path.stat().st_size for path in partial.rglob("*") if path.is_file())
        os.replace(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    wheel = saved.wheel.name if saved.wheel else None
    return KeptPackage(package=name, files=files, wheel=wheel, num_bytes=num_bytes)


def kept_file(folder: Path, job: AgentJob, path: str) -> Path | None:
    """A file of the project by the path that it has there; None where there is none of exactly this."""
    if path not in job.result.get("files", {}):
        return None
    return folder / job.result["package"] / path


def kept_zip(folder: Path, job: AgentJob) -> Path:
    return folder / f"{job.result['package']}.zip"


def kept_wheel(folder: Path, job: AgentJob) -> Path | None:
    return folder / job.result["wheel"] if job.result.get("wheel") else None
