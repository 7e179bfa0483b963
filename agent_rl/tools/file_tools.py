"""`file_write` and `file_read` on an episode's workspace, which lives in memory until something is run.

Nothing touches the disk here; the sandbox writes the files into a private folder when it runs them.
"""

from typing import Any

from agent_rl.sandbox.workspace import WorkspaceError, validate_files
from agent_rl.tools.base import BaseTool, ToolResult

Files = dict[str, str]
"""Path (relative, forward slashes) to text."""
_MAX_NAME_BYTES = 255
"""Of a file or folder on Linux."""


def wrote(path: str) -> str:
    """The reply to a successful `file_write`."""
    return f"wrote {path}"


class FileWriteTool(BaseTool):
    name = "file_write"
    description = "Write a text file of the project, replacing it if it exists."
    parameters = {
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    }

    def __init__(self, files: Files) -> None:
        self.files = files

    def __call__(self, **arguments: Any) -> ToolResult:
        path, content = arguments["path"], arguments["content"]
        try:
            validate_files({**self.files, path: content})
            _check_names(path)
        except WorkspaceError as error:
            return ToolResult(text=f"error: {error}", ok=False)
        self.files[path] = content
        return ToolResult(text=wrote(path))


def _check_names(path: str) -> None:
    """WorkspaceError for names that no later run could write, or name to pytest."""
    if any(len(part.encode()) > _MAX_NAME_BYTES for part in path.split("/")):
        raise WorkspaceError(f"path {path[:40]!r}... has a name of over {_MAX_NAME_BYTES} bytes; use a shorter one")
    if path.endswith(".py") and ("[" in path or "::" in path):
        raise WorkspaceError(
            f"path {path!r} holds '[' or '::', which pytest reads as the name of a test; leave them out"
        )


class FileReadTool(BaseTool):
    name = "file_read"
    description = "Read a text file of the project."
    parameters = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}

    def __init__(self, files: Files) -> None:
        self.files = files

    def __call__(self, **arguments: Any) -> ToolResult:
        path = arguments["path"]
        if path not in self.files:
            known = ", ".join(sorted(self.files)) or "none yet"
            return ToolResult(text=f"error: there is no file {path!r}; written so far: {known}", ok=False)
        return ToolResult(text=self.files[path])


class SubmitTool(BaseTool):
    name = "submit"
    description = "Hand in the project as it is. This ends the task."
    parameters = {"type": "object", "properties": {}, "required": []}

    def __call__(self, **arguments: Any) -> ToolResult:
        return ToolResult(text="submitted", terminal=True)
