"""From the raw header and body of a run to a record. Everything in them is the word of the run."""

import json
from typing import Any

from agent_rl.sandbox.limits import Capability, JobResult, RunResult, Status

_CAUSES = {"timeout": Status.TIMEOUT, "memory": Status.MEMORY, "output_limit": Status.OUTPUT_LIMIT}
_SIGXCPU = 24


def job_result(header: dict[str, Any], body: bytes, tier: str, enforced: frozenset[Capability]) -> JobResult:
    """Read a header and a body: one JSON object a line, items first, result or error last."""
    items: list[Any] = []
    end: dict[str, Any] = {}
    for line in body.split(b"\n"):
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):  # forged or torn by the candidate
            continue
        if isinstance(message, dict) and "item" in message:
            items.append(message["item"])
        elif isinstance(message, dict):
            end = message
    exit_code = header["exit_code"]
    result, error = None, None
    status = _CAUSES.get(header["cause"])
    if status is None and exit_code == -_SIGXCPU:
        status, exit_code = Status.TIMEOUT, None
    if status is not None:
        error = f"killed at the limit: {status.value}"
    elif header["detail"]:
        status, error = Status.ERROR, f"the files cannot be written: {header['detail']}"
    elif "result" in end and header["cause"] == "ended":
        status, result = Status.OK, end["result"]
    elif "error" in end:
        status, error = Status.ERROR, str(end["error"])
    else:
        status, error = Status.CRASHED, f"the process ended with exit code {exit_code} and no result"
    return JobResult(
        status=status,
        result=result,
        items=tuple(items),
        error=error,
        exit_code=exit_code,
        stdout=header["stdout"],
        stderr=header["stderr"],
        truncated=header["truncated"],
        wall_s=header["wall_s"],
        cpu_s=header["cpu_s"],
        max_rss_mb=header["max_rss_mb"],
        files={path: text.encode("latin-1") for path, text in header["files"].items()},
        tier=tier,
        enforced=enforced,
    )


def run_result(job: JobResult) -> RunResult:
    """A program that ended by itself is OK or NONZERO, however it ended."""
    status, exit_code = job.status, job.exit_code
    if status is Status.OK and isinstance(job.result, dict) and type(job.result.get("exit_code")) is int:
        exit_code = job.result["exit_code"]
        status = Status.OK if exit_code == 0 else Status.NONZERO
    elif status is Status.CRASHED and exit_code is not None:  # os._exit, exec, a signal
        status = Status.OK if exit_code == 0 else Status.NONZERO
    return RunResult(
        status=status,
        exit_code=exit_code,
        stdout=job.stdout,
        stderr=job.stderr or (job.error or "" if status is Status.ERROR else ""),
        truncated=job.truncated,
        wall_s=job.wall_s,
        cpu_s=job.cpu_s,
        max_rss_mb=job.max_rss_mb,
        files=job.files,
        tier=job.tier,
        enforced=job.enforced,
    )
