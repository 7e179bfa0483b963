"""A package on disk: folder, zip and wheel, each there as a whole or not at all, and checked again as it lies there.

The wheel is written here rather than built: building runs what a project's `pyproject.toml` names. Equal packages are
equal bytes. Not here: what a package holds (`packaging.py`).
"""

import base64
import hashlib
import io
import os
import re
import shutil
import tempfile
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_rl.envs.nat.create.judging import ProjectJudge
from agent_rl.envs.nat.create.packaging import PackagedAgent, packaged
from agent_rl.envs.nat.create.result import Creation
from agent_rl.envs.nat.factory.user_test_cases import UserTestCase
from agent_rl.envs.nat.judge.toolkit import NatToolkit
from agent_rl.errors import UserError
from agent_rl.sandbox.workspace import MAX_TOTAL_BYTES

_THEN = (1980, 1, 1, 0, 0, 0)
_MOST_BYTES = 4 * MAX_TOTAL_BYTES
"""Of an archive's files together, unpacked."""
_MOST_FILES = 256
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAgent:
    """Where a package is."""

    folder: Path
    zip: Path | None = None
    wheel: Path | None = None


def check_free(folder: Path) -> None:
    """UserError unless a package can be put there: nothing is, or an empty folder."""
    try:
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise UserError(f"{folder}: cannot be looked into ({error.strerror}); name another folder") from None
    if is_taken:
        raise UserError(f"{folder} is not empty; name another folder with --output-dir")


def save(
    creation: Creation,
    toolkit: NatToolkit,
    folder: Path,
    *,
    cases: Sequence[UserTestCase] = (),
    with_zip: bool = False,
    with_wheel: bool = False,
) -> SavedAgent:
    """Write the package into `folder`, `FOLDER.zip`, and a wheel beside it.

    Everything is written under other names, read back and judged as it was before, and only then put in place. Raises
    UserError for a folder that is not empty, for a project that cannot be packaged, and for a package that is not what
    was judged. A rejected project gets no wheel.
    """
    check_free(folder)
    agent = packaged(creation, toolkit)
    judge = ProjectJudge(toolkit, creation.spec, cases, seed=creation.seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
    try:
        written, archive = partial / "folder", partial / "package.zip"
        write_folder(agent.files, written)
        _check(creation, judge, agent, read_files(written))
        if with_zip:
            archive.write_bytes(zip_of(agent.files, top=folder.name))
            _check(creation, judge, agent, read_zip(archive))
        wheel = None
        if with_wheel and creation.state != "rejected":
            wheel = folder.parent / wheel_name(agent)
            (partial / wheel.name).write_bytes(wheel_of(agent))
            _check_wheel(creation, judge, agent, read_zip(partial / wheel.name))
        zipped = folder.with_name(f"{folder.name}.zip") if with_zip else None
        if zipped is not None:
            os.replace(archive, zipped)
        if wheel is not None:
            os.replace(partial / wheel.name, wheel)
        os.replace(written, folder)
        return SavedAgent(folder=folder, zip=zipped, wheel=wheel)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(creation: Creation, judge: ProjectJudge, agent: PackagedAgent, found: Mapping[str, str]) -> None:
    if dict(found) != agent.files:
        raise UserError("the package that was written is not the one that was meant; write to another disk")
    if creation.state == "rejected":
        return
    judged = judge.judge(agent.judged_files)
    if judged.verdict != creation.state:
        raise UserError(
            f"the project was {creation.state}, and its package is {judged.verdict} ({judged.report.problems[0]}); "
            "report this"
        )


def _check_wheel(creation: Creation, judge: ProjectJudge, agent: PackagedAgent, found: Mapping[str, str]) -> None:
    """The wheel's package in place of the folder's is judged the same."""
    inside = {f"{agent.source}{path}": text for path, text in found.items() if ".dist-info/" not in path}
    rest = {path: text for path, text in agent.files.items() if path not in inside}
    if any(path.startswith(f"{agent.source}{agent.package}/") for path in rest):
        raise UserError("the wheel lacks files of the package; report this")
    _check(creation, judge, agent, {**rest, **inside})


# ---------------------------------------------------------------- folders and archives


def write_folder(files: Mapping[str, str], folder: Path) -> None:
    """Write every file below a new folder; paths were checked when the model wrote them."""
    folder.mkdir()
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())


def zip_of(files: Mapping[str, str], *, top: str) -> bytes:
    """A zip with one folder `top` in it."""
    return _archive({f"{top}/{path}": text for path, text in files.items()})


def _archive(files: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in sorted(files.items()):
            entry = zipfile.ZipInfo(path, _THEN)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, text.encode())
    return content.getvalue()


def read_files(folder: Path) -> dict[str, str]:
    """Every file of a package's folder. Raises UserError for links and for more than a package holds."""
    files: dict[str, str] = {}
    num_bytes = 0
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise UserError(f"{path} is a link, which no package holds; give the folder that was made")
        if "__pycache__" in path.parts or not path.is_file():
            continue
        num_bytes += path.stat().st_size
        if num_bytes > _MOST_BYTES or len(files) == _MOST_FILES:
            raise UserError(f"{folder} holds more than a package does; give the folder of one agent")
        files[path.relative_to(folder).as_posix()] = _text(path.read_bytes(), str(path))
    return files


def read_zip(path: Path, content: bytes | None = None) -> dict[str, str]:
    """Every file of an archive, without the one folder that all may lie in; nothing is unpacked to disk.

    With `content` that is the archive, and `path` its name. Raises UserError for what is no archive of a package:
    absolute paths, `..`, links, too much.
    """
    try:
        with zipfile.ZipFile(path if content is None else io.BytesIO(content)) as archive:
            entries = [entry for entry in archive.infolist() if not entry.is_dir()]
            if len(entries) > _MOST_FILES or sum(entry.file_size for entry in entries) > _MOST_BYTES:
                raise UserError(f"{path} holds more than a package does; give the zip of one agent")
            files: dict[str, str] = {}
            room = _MOST_BYTES
            for entry in entries:
                name = entry.filename
                is_link = (entry.external_attr >> 16) & 0o170000 == 0o120000
                if is_link or name.startswith("/") or "\\" in name or ".." in name.split("/"):
                    raise UserError(f"{path} holds {name[:80]!r}, which no package does; give the zip that was made")
                if entry.compress_type not in _METHODS:
                    raise UserError(
                        f"{path} holds {name[:80]!r} compressed by method {entry.compress_type}, expected stored or "
                        "deflated; zip it again without another method"
                    )
                with archive.open(entry) as file:  # the size in the list may be a lie
                    data = file.read(room + 1)
                room -= len(data)
                if room < 0:
                    raise UserError(f"{path} holds more than a package does; give the zip of one agent")
                files[name] = _text(data, f"{path}: {name[:80]!r}")
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise UserError(f"{path} cannot be read as a zip ({error}); give the zip that was made") from None
    tops = {name.split("/")[0] for name in files}
    if len(tops) == 1 and all("/" in name for name in files):
        return {name.partition("/")[2]: text for name, text in files.items()}
    return files


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise UserError(f"{where} is no UTF-8 text, and a package holds nothing else; make the package again") from None


# ---------------------------------------------------------------- wheels


def wheel_name(agent: PackagedAgent) -> str:
    """`nat_length_helper-1-py3-none-any.whl`"""
    return f"{_stem(agent)}-py3-none-any.whl"


def wheel_files(agent: PackagedAgent) -> dict[str, str]:
    """The files of the wheel, which are also those of the package as it is installed."""
    info = f"{_stem(agent)}.dist-info"
    entries = "\n".join(f"{name} = {module}" for name, module in agent.entry_points.items())
    files = dict(agent.package_files)
    files[f"{info}/METADATA"] = "\n".join(
        [
            "Metadata-Version: 2.1",
            f"Name: {agent.name}",
            f"Version: {agent.version}",
            "Requires-Python: >=3.11,<3.14",
            *(f"Requires-Dist: {pin}" for pin in agent.dependencies),
            "",
        ]
    )
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: agent_rl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = f"[nat.components]\n{entries}\n"
    lines = [f"{path},sha256={_digest(text)},{len(text.encode())}" for path, text in sorted(files.items())]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    return files


def wheel_of(agent: PackagedAgent) -> bytes:
    """The wheel: package, configurations, pins, entry points."""
    return _archive(wheel_files(agent))


def _stem(agent: PackagedAgent) -> str:
    return f"{re.sub(r'[-_.]+', '_', agent.name).lower()}-{agent.version}"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
