"""`agent-rl metrics`: the runs in a folder for Prometheus, also those that were killed.

    agent-rl metrics runs

Reads what runs write and answers at http://127.0.0.1:9201/metrics until Ctrl-C (exit code 130) or SIGTERM (0). Changes
nothing. docs/MONITORING.md has the names and the alerts.
"""

import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from agent_rl.telemetry.program_log import LogFormat, start_log


def main(
    runs_dir: Annotated[Path, typer.Argument(help="Folder of runs, or of one run.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to listen; 0 takes a free port.")] = 9201,
    address: Annotated[
        str, typer.Option(help="Address to listen on; others than the default let other machines read.")
    ] = "127.0.0.1",
    log_format: Annotated[
        LogFormat, typer.Option(help="Of the log on stderr, which tells when a run's state changes: lines or JSON.")
    ] = LogFormat.TEXT,
) -> None:
    """Export the runs of a folder to Prometheus until Ctrl-C or SIGTERM."""
    from agent_rl.monitoring.exporter import MetricsServer, RunsCollector, check_installed

    check_installed()
    start_log(log_format)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    collector = RunsCollector(runs_dir)
    runs = collector.look()
    with MetricsServer(collector, address=address, port=port) as server:
        print(f"{runs_dir} ({len(runs)} run{'s' * (len(runs) != 1)}) is exported at {server.address}", flush=True)
        threading.Event().wait()
