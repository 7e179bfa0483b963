"""Scores answers to data sets of Reasoning Gym in another process, where time and memory are bounded.

Run as a program it is that process: a line of JSON in, a line out. Not here: which answers it may read.
"""

import cmath
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from fractions import Fraction
from typing import Any

TIMEOUT_S = 20.0
"""For one answer."""
_START_S = 120.0
_GRACE_S = 10.0
"""The process ends itself in time; after these seconds more it is ended, if it was stopped, say."""
_MEMORY_BYTES = 2 << 30
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHOME")
_TUPLE = "(tuple)"


class Scorer:
    """Starts the process with the first answer, and again after one that took too much. One answer at a time."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self._timeout_s = TIMEOUT_S if timeout_s is None else timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def score(self, dataset: str, parameters: dict[str, Any], answer: str | None, entry: dict[str, Any]) -> float:
        """The data set's own score of an answer to an entry, whose metadata are `packed`.

        TimeoutError where it takes too long, RuntimeError where it fails, ChildProcessError where the process does not
        start.
        """
        asked = json.dumps([dataset, parameters, answer, entry]) + "\n"
        with self._lock:
            try:
                result = self._result(asked)
            except RuntimeError:  # the one before or the machine may have ended the process
                result = self._result(asked)
        if "error" in result:
            raise RuntimeError(result["error"])
        return float(result["score"])

    def close(self) -> None:
        """End the process; the next answer starts another."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            with suppress(BrokenPipeError), process:  # waits, and closes the pipes
                pass

    def _result(self, asked: str) -> dict[str, Any]:
        if self._owner != os.getpid():  # a fork of the one that started it, whose answers these would be
            self._process, self._owner = None, os.getpid()
        try:
            if self._process is None:
                self._start()
            process = self._process
            assert process is not None and process.stdin is not None
            with suppress(BrokenPipeError):  # it has ended, which shows where its answer is read
                process.stdin.write(asked)
                process.stdin.flush()
            return self._line(process, self._timeout_s)
        except BaseException:  # for example Ctrl-C: an answer may still be on its way
            self.close()
            raise

    def _start(self) -> None:
        command = [sys.executable, "-P", __file__, str(self._timeout_s)]  # -P: beside this file lies one of the package
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        env |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # each takes address space
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        # In a group of its own, for a run that Ctrl-C ends still scores its last step.
        self._process = subprocess.Popen(command, text=True, env=env, process_group=0, **pipes)
        try:
            self._line(self._process, _START_S)
        except (TimeoutError, RuntimeError) as error:
            raise ChildProcessError(f"reasoning_gym cannot be opened in a process of its own: {error}") from None

    def _line(self, process: "subprocess.Popen[str]", limit_s: float) -> dict[str, Any]:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], limit_s + _GRACE_S)[0]:
            self.close()
            raise TimeoutError(f"no score within {limit_s + _GRACE_S:g} s")
        if (line := process.stdout.readline()).endswith("\n"):
            return json.loads(line)
        status = process.wait()
        self.close()
        if status == -signal.SIGALRM:
            raise TimeoutError(f"no score within {self._timeout_s:g} s")
        raise RuntimeError(f"the scorer's process ended with status {status}")


def packed(value: Any) -> Any:
    """`value` as JSON can hold it, tuples told from lists, which scorers compare."""
    if isinstance(value, dict):
        return {str(key): packed(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [packed(each) for each in value]}
    return [packed(each) for each in value] if isinstance(value, list) else value


def unpacked(value: Any) -> Any:
    """What was `packed`."""
    if isinstance(value, dict):
        if value.keys() == {_TUPLE}:
            return tuple(unpacked(each) for each in value[_TUPLE])
        return {key: unpacked(each) for key, each in value.items()}
    return [unpacked(each) for each in value] if isinstance(value, list) else value


# ---------------------------------------------------------------- the process


def main() -> None:
    # A signal that ends the process whatever it does, also where the one that asks is gone.
    signal.setitimer(signal.ITIMER_REAL, _START_S)
    import reasoning_gym

    timeout_s = float(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr  # what data sets print is no answer
    with suppress(ValueError):  # a lower limit holds already
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    opened: dict[str, Any] = {}
    result: dict[str, Any] = {}
    while True:
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(result), file=answers, flush=True)
        if "MemoryError" in result.get("error", "") or not (line := sys.stdin.readline()):
            break
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        name, parameters, answer, entry = json.loads(line)
        key = json.dumps([name, parameters])
        try:
            if key not in opened:
                opened[key] = reasoning_gym.create_dataset(name, seed=0, size=1, **parameters)
            entry["metadata"] = unpacked(entry["metadata"])
            result = {"score": _score(name, opened[key], answer, entry)}
        except Exception as error:  # the package's boundary: several scorers raise on what is no answer
            result = {"error": f"{type(error).__name__}: {error}"}


def _score(name: str, dataset: Any, answer: str | None, entry: dict[str, Any]) -> float:
    """The data set's own score, but nothing where it gives all to an answer that is another number."""
    score = float(dataset.score_answer(answer, entry))
    if score >= 1.0 and name == "coin_flip":  # for any first digits of the right number, such as 0
        given, right = (float(Fraction(text.replace(",", ""))) for text in (answer, entry["answer"]))
        return score if abs(given - right) <= 1e-4 else 0.0
    if score >= 1.0 and name == "complex_arithmetic":  # for nan, whose distance to any number is none
        return score if cmath.isfinite(dataset.parse_string_to_complex(answer)) else 0.0
    return score


if __name__ == "__main__":
    main()
