"""`file_write` and `file_read` on an episode's workspace, which lives in memory until something is run.

Nothing touches the disk here; the sandbox writes the files into a private folder when it runs them.
"""

from typing import Any

from agent_rl.sandbox.workspace import WorkspaceError, validate_files
from agent_rl.tools.base import BaseTool, ToolResult

Files = dict[str, str]
"""Path (relative, forward slashes) to text."""


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
        except WorkspaceError as error:
            return ToolResult(text=f"error: {error}", ok=False)
        self.files[path] = content
        return ToolResult(text=wrote(path))


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
