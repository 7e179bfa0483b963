"""The files of a run as a checked mapping from relative path to content. Does not touch the disk."""

from collections.abc import Iterator, Mapping

MAX_FILES = 64
MAX_FILE_BYTES = 128 * 1024
MAX_TOTAL_BYTES = 512 * 1024
MAX_PATH_CHARS = 200


class WorkspaceError(ValueError):
    """A path or content the workspace refuses; the message is a sentence for its author."""


class Workspace(Mapping[str, bytes]):
    """An immutable snapshot of files: `Workspace({"src/x.py": "x = 1"})["src/x.py"] == b"x = 1"`."""

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self._files = {path: _bytes(path, content) for path, content in validate_files(files).items()}

    def __getitem__(self, path: str) -> bytes:
        return self._files[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def with_files(self, files: Mapping[str, str | bytes]) -> "Workspace":
        """A new snapshot with `files` added or put in place of those of the same name."""
        return Workspace({**self._files, **files})


def to_wire(files: Mapping[str, str | bytes]) -> dict[str, str]:
    """The files for a JSON message: one character for each byte."""
    snapshot = files if isinstance(files, Workspace) else Workspace(files)
    return {path: content.decode("latin-1") for path, content in snapshot.items()}


def validate_files(files: Mapping[str, str | bytes]) -> dict[str, str | bytes]:
    """Return the files as a plain dict, or raise WorkspaceError.

    Paths are relative, use forward slashes, stay inside the workspace and do not clash with each other; texts can be
    encoded as UTF-8; numbers and sizes are capped.
    """
    if len(files) > MAX_FILES:
        raise WorkspaceError(f"{len(files)} files are too many; write at most {MAX_FILES}")
    total = 0
    for path, text in files.items():
        _check_path(path)
        size = len(_bytes(path, text))
        if size > MAX_FILE_BYTES:
            raise WorkspaceError(f"file {path!r} has {size} bytes; write at most {MAX_FILE_BYTES}")
        total += size
    if total > MAX_TOTAL_BYTES:
        raise WorkspaceError(f"the files have {total} bytes together; write at most {MAX_TOTAL_BYTES}")
    for path in files:
        parts = path.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            if folder in files:
                raise WorkspaceError(f"{folder!r} is a file, so {path!r} cannot lie in it; rename one of the two")
    return dict(files)


def _check_path(path: str) -> None:
    if not isinstance(path, str) or not path or len(path) > MAX_PATH_CHARS:
        raise WorkspaceError(f"path {str(path)[:40]!r} must be text of 1 to {MAX_PATH_CHARS} characters")
    if path.startswith("/"):
        raise WorkspaceError(f"path {path!r} is absolute; use a path relative to the project, such as src/x.py")
    if "\\" in path or not path.isprintable():
        raise WorkspaceError(f"path {path!r} holds a backslash or a control character; use plain names and '/'")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise WorkspaceError(f"path {path!r} holds an empty part, '.' or '..'; stay inside the project")
    _bytes(path, path)


def _bytes(path: str, content: str | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    if not isinstance(content, str):
        raise WorkspaceError(f"the content of {path!r} is {type(content).__name__}, not text")
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise WorkspaceError(f"{path!r} holds a character that UTF-8 cannot store: {error.reason}") from None
