"""Runs the parts of the acceptance run one after the other, each in a process of its own, and takes up where it ended.

A part that crashes, or that its time ends, is recorded with what it had measured; the others still run. A part that was
ended with this process leaves no result and is run again. Not here: what a part does, the report.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from acceptance.figures import FAILED, Result, partial_path, read_partial, read_result, result_path, write_result

from agent_rl.errors import UserError, nearest_or_all

ROOT = Path(__file__).resolve().parents[2]
PARTS = {
    "machine": "acceptance.machine:measure_machine",
    "tests": "acceptance.machine:run_tests",
    "parity": "acceptance.parity:compare",
    "law5": "acceptance.generating:compare_logprobs",
    "fused": "acceptance.fused:time_fused",
    "update_0.5b": "acceptance.update:measure_half_billion",
    "update_1.5b": "acceptance.update:measure_one_and_a_half",
    "update_7b": "acceptance.update:measure_seven",
    "generation": "acceptance.generating:measure_generation",
    "lora": "acceptance.adapters:measure_adapters",
    "default": "acceptance.runs:train_default",
    "deepspeed": "acceptance.sharding:train_sharded",
    "vllm": "acceptance.runs:train_with_vllm",
}
"""Name -> function of a `Setting` and a `Recorder`, in the order in which they run."""
LIMIT_S = 530.0
"""Longest time of a part."""
LEAST_S = 5.0
"""No part is begun with less time than this."""


def chosen_parts(names: Sequence[str]) -> list[str]:
    """Parts by name or its beginning (`update`), in their order; all without a name. UserError for an unknown one."""
    found = set()
    for name in names:
        fits = [part for part in PARTS if part == name] or [part for part in PARTS if part.startswith(f"{name}_")]
        if not fits:
            raise UserError(f"there is no part {name!r}{nearest_or_all(name, PARTS)}")
        found.update(fits)
    return [part for part in PARTS if part in found or not names]


def run_parts(
    parts: Sequence[str],
    folder: Path,
    *,
    device: str,
    tiny: bool,
    minutes: float | None = None,
    again: Sequence[str] = (),
    command: str = "",
) -> list[str]:
    """Run what is not yet done; returns the parts that the time was not enough for.

    With `minutes`, a part that the end of that time interrupts is left for the next call, but if it had all of it.
    UserError when the folder holds results of another device or of tiny shapes.
    """
    earlier = [result for part in PARTS if (result := read_result(folder, part)) is not None]
    if wrong := [result for result in earlier if (result.device, result.tiny) != (device, tiny)]:
        how = f"{wrong[0].device}{', tiny' if wrong[0].tiny else ''}"
        raise UserError(
            f"{folder} holds results of a run on {how}, and this one is on {device}{', tiny' if tiny else ''}; choose "
            "another --output-dir"
        )
    todo = [part for part in parts if part in again or all(result.part != part for result in earlier)]
    ends = None if minutes is None else time.monotonic() + 60 * minutes
    for number, part in enumerate(todo):
        left = LIMIT_S if ends is None else min(LIMIT_S, ends - time.monotonic())
        if left < LEAST_S:
            return todo[number:]
        has_all_of_it = ends is None or number == 0 or left == LIMIT_S
        if not _run(part, folder, device=device, tiny=tiny, limit_s=left, command=command, records=has_all_of_it):
            return todo[number:]
    return []


def _run(part: str, folder: Path, *, device: str, tiny: bool, limit_s: float, command: str, records: bool) -> bool:
    """Run one part; whether there is a result now. Out of time, it has one only if this `records` that."""
    print(f"{part} ...", flush=True)
    for path in (partial_path(folder, part), result_path(folder, part)):
        path.unlink(missing_ok=True)
    words = [sys.executable, "-m", "acceptance.child", part, str(folder.resolve()), device, "tiny" if tiny else "full"]
    started = time.monotonic()
    process = subprocess.Popen([*words, str(os.getpid()), command], cwd=ROOT, env=environment(), start_new_session=True)
    is_late = False
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        is_late = True
    finally:
        _kill_group(process)
    seconds = time.monotonic() - started
    if process.returncode != 0 and (not is_late or records):
        figures, notes = read_partial(folder, part)
        how = f"it ran past {limit_s:.0f} s" if is_late else f"its process ended with code {process.returncode}"
        write_result(
            folder,
            Result(
                part=part,
                status=FAILED,
                reason=how,
                figures=figures,
                notes=notes,
                seconds=seconds,
                device=device,
                tiny=tiny,
                command=command,
            ),
        )
    result = read_result(folder, part)
    if result is None:
        print(f"{part}: interrupted after {seconds:.0f} s, left for the next call", flush=True)
        return False
    print(f"{part}: {result.status}{f', {result.reason}' if result.reason else ''} ({seconds:.0f} s)", flush=True)
    return True


def environment() -> dict[str, str]:
    """Of every process that this run starts: this checkout's modules, and segments that the allocator can grow."""
    paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    growing = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True")
    return {**growing, **os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _kill_group(process: "subprocess.Popen[bytes]") -> None:
    """The part and what it started, whether it ended or not."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
