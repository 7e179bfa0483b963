"""`log.jsonl`: the lines that a run showed on the terminal, with the time of each.

    {"time": 1767225600.123, "text": "step 3/80  reward 0.413  success 22%  ..."}

Appended line by line, through all starts of a run. A disk that refuses a line ends no run: the metrics, which do, are
written beside it. Not here: what happened, for programs (`events.py`).
"""

import json
import time
from contextlib import suppress
from pathlib import Path

LOG_FILE = "log.jsonl"


class RunLog:
    """`RunLog(folder).write("step 3/80  reward 0.413")`."""

    def __init__(self, folder: Path) -> None:
        """Nothing is written yet."""
        self._path = folder / LOG_FILE

    def write(self, text: str) -> None:
        line = json.dumps({"time": round(time.time(), 3), "text": text})
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
