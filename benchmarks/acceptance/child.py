"""One part in this process: `python -m acceptance.child PART FOLDER DEVICE tiny|full STARTER COMMAND`.

Started by `runner.py`, whose process id is STARTER: it ends with it, and without it writes no result, as what a part
raises then (a pipe that nobody reads) is no failure of the part. Exits with 0 when the part has a result, whether it
worked or raised.
"""

import importlib
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path

from acceptance.figures import DONE, FAILED, SKIPPED, Recorder, Result, Setting, Skip, partial_path, write_result
from acceptance.runner import PARTS


def run(part: str, folder: Path, *, device: str, tiny: bool, command: str = "", starter: int | None = None) -> Result:
    """Run a part, write its result and return it; nothing that the part raises gets out."""
    recorder = Recorder(partial_path(folder, part))
    status, reason, trace = DONE, "", ""
    machine: dict[str, str] = {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"{part}_") as scratch:
        try:
            from acceptance.machine import describe

            machine = describe(device)
            _prepare(setting := Setting(device=device, tiny=tiny, folder=Path(scratch)), recorder)
            module, _, function = PARTS[part].partition(":")
            getattr(importlib.import_module(module), function)(setting, recorder)
        except Skip as skip:
            status, reason = SKIPPED, str(skip)
        except BaseException as error:
            status, reason, trace = FAILED, f"{type(error).__name__}: {error}", traceback.format_exc()
            with suppress(OSError):
                print(trace, file=sys.stderr, flush=True)
    result = Result(
        part=part,
        status=status,
        reason=reason.strip().partition("\n")[0],
        figures=recorder.figures,
        notes=recorder.notes,
        traceback=trace,
        seconds=time.monotonic() - started,
        device=device,
        tiny=tiny,
        machine=machine,
        command=command,
    )
    if starter is None or os.getppid() == starter:
        write_result(folder, result)
    return result


def _prepare(setting: Setting, recorder: Recorder) -> None:
    if setting.is_gpu:  # importing takes seconds that a part without PyTorch need not wait for
        from acceptance.models import use_what_fits

        use_what_fits(setting, recorder)


def _end_with(starter: int) -> None:
    """The next call runs a part again whose starter was killed."""
    while os.getppid() == starter:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    part, folder, device, size, starter, command = sys.argv[1:]
    threading.Thread(target=_end_with, args=(int(starter),), daemon=True).start()
    run(part, Path(folder), device=device, tiny=size == "tiny", command=command, starter=int(starter))


if __name__ == "__main__":
    main()
