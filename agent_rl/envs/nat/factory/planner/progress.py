"""Read and write the planner's progress file: one JSON line per request, flushed when its calls are over.

A request that made a spec or was refused is finished and costs nothing the next time; one whose call failed is sent
again. Which specs are duplicates is not recorded: that is decided again from the specs in order (`planner.py`).
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from agent_rl.envs.nat.errors import PlannerError
from agent_rl.envs.nat.spec import NATSpec, Record


class ProgressLine(Record):
    """What became of one request."""

    index: int
    """Position of the request in the stream of requests."""
    request: str
    task_id: str
    status: Literal["made", "refused", "failed"]
    reason: str | None = None
    """Why there is no spec."""
    spec: NATSpec | None = None
    num_tokens_in: int
    num_tokens_out: int
    seconds: float
    num_answers: int = 0
    """Test cases of the model's plan whose inputs fit the tool."""
    num_right_answers: int = 0
    """Those whose expected answer is the oracle's: a measure of the planner, not a condition."""


def is_finished(line: bytes) -> bool:
    """Whether a line of the file is about a request that need not be sent again."""
    return ProgressLine.model_validate_json(line).status != "failed"


class Progress:
    """Appends lines to the file and remembers those of earlier runs. A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lines: dict[int, tuple[int, ProgressLine]] = {}
        if path.exists():
            self._read()
        self._file = path.open("a", encoding="utf-8")

    def finished(self, index: int, request: str, task_id: str) -> ProgressLine | None:
        """The line of this request when it need not be sent again. Raises PlannerError for another run's file."""
        number, line = self._lines.get(index, (0, None))
        if line is None or line.status == "failed":
            return None
        if (line.request, line.task_id) != (request, task_id):
            raise PlannerError(
                f"{self._path}:{number} is about {line.task_id} ({line.request[:60]!r}), this run has {task_id} "
                f"({request[:60]!r}) there; use the same seed and requests, or another progress file"
            )
        return line

    def append(self, line: ProgressLine) -> None:
        self._file.write(f"{line.model_dump_json()}\n")
        self._file.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_exc: object) -> None:
        self._file.close()

    def _read(self) -> None:
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:  # the last line was cut off by a crash; its request is sent again
            os.truncate(self._path, len(whole))
        for number, text in enumerate(whole.splitlines(), 1):
            try:
                line = ProgressLine.model_validate_json(text)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"]) or "line"
                raise PlannerError(
                    f"{self._path}:{number} is not a line of planner progress ({where}: {first['msg']}); "
                    "move the file away to start again"
                ) from None
            self._lines[line.index] = (number, line)
