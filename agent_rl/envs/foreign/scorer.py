"""Scores answers to a data set of Reasoning Gym in another process, which is ended when it takes too long.

Run as a program it is that process: a line of JSON in, a line out. Not here: which answers it may read.
"""

import json
import select
import subprocess
import sys
from typing import Any

TIMEOUT_S = 20.0
"""For one answer, the start of the process included."""


class Scorer:
    """Starts the process with the first answer, and again after one that took too long. One answer at a time."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None

    def score(self, dataset: str, parameters: dict[str, Any], answer: str | None, entry: dict[str, Any]) -> float:
        """The data set's own score; TimeoutError where it takes too long, RuntimeError where it fails."""
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-P", __file__]  # -P: beside this file lies one of the package's name
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self._process = subprocess.Popen(command, text=True, **pipes)
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps([dataset, parameters, answer, entry]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], self._timeout_s)[0]:
            self.close()
            raise TimeoutError(f"no score within {self._timeout_s:g} s")
        line = process.stdout.readline()
        result = json.loads(line) if line else {"error": "the process ended"}
        if "error" in result:
            raise RuntimeError(result["error"])
        return float(result["score"])

    def close(self) -> None:
        """End the process; the next answer starts another."""
        if self._process is not None:
            self._process.kill()
            with self._process:
                self._process = None


def main() -> None:
    import reasoning_gym

    answers, sys.stdout = sys.stdout, sys.stderr  # what data sets print is no answer
    opened: dict[str, Any] = {}
    for line in sys.stdin:
        name, parameters, answer, entry = json.loads(line)
        key = json.dumps([name, parameters])
        try:
            if key not in opened:
                opened[key] = reasoning_gym.create_dataset(name, seed=0, size=1, **parameters)
            result = {"score": float(opened[key].score_answer(answer, entry))}
        except Exception as error:  # the package's boundary
            result = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    main()
