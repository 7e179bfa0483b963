"""`/metrics` for Prometheus over the folders of runs: what a run wrote, whether it goes on, what it has saved.

A program of its own that reads files, so a run that was killed is seen as stalled instead of vanishing. Nothing of a
trainer is imported and nothing is written. Not here: the service's own metrics.
"""

import logging
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent_rl.closing import Closing
from agent_rl.errors import ConfigError, DataError
from agent_rl.monitoring.names import PREFIX
from agent_rl.monitoring.run_follower import CONFIG_FILE, METRICS_FILE, RunFollower
from agent_rl.monitoring.run_series import Series, run_series
from agent_rl.resources import install_command
from agent_rl.telemetry.events import EVENTS_FILE

_LOGGER = logging.getLogger(__name__)
EXPORTER_GAUGES = {
    "runs": "Folders of runs",
    "runs_disk_size_bytes": "Size of the file system of the runs",
    "runs_disk_free_bytes": "Room on the file system of the runs",
    "exporter_scrape_seconds": "How long reading took this time",
}
"""Families that are not of one run."""
_ASIDE = re.compile(r"\.unfinished-\d+$")
"""Folders with what an earlier start left that did no step; the run itself goes on beside them."""
_OF_A_RUN = (CONFIG_FILE, METRICS_FILE, EVENTS_FILE)


def check_installed() -> None:
    """ConfigError without the package that speaks Prometheus's format."""
    if find_spec("prometheus_client") is None:
        raise ConfigError(f"the package prometheus_client is not installed; {install_command('monitoring')}")


class RunsCollector:
    """Reads the runs in a folder, or the one run that the folder is, whenever Prometheus asks."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read yet. DataError where there is no such folder."""
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder; give the folder of one run or of several, such as runs")
        self._folder = folder
        self._followers: dict[Path, RunFollower] = {}
        self._highest: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._lock = threading.Lock()

    def look(self) -> list[RunFollower]:
        """Every run as it is now, in order of names."""
        folders = self._run_folders()
        self._followers = {each: self._followers.get(each) or RunFollower(each) for each in folders or ()}
        if folders is not None:
            names = {follower.name for follower in self._followers.values()}
            # A later run in a folder of the same name counts from 0.
            self._highest = {key: value for key, value in self._highest.items() if dict(key[1]).get("run") in names}
        for follower in self._followers.values():
            before = follower.state
            follower.look()
            if follower.state != before:
                facts = {"run": follower.name, "state": follower.state}
                _LOGGER.info("%(run)s is %(state)s", facts, extra=facts)
        return list(self._followers.values())

    def _run_folders(self) -> list[Path] | None:
        """Sorted by name; None where it cannot be told which there are."""
        try:
            if _is_run(self._folder):
                return [self._folder]
            found = sorted(self._folder.iterdir())
            return [each for each in found if self._seems_a_run(each) and not _ASIDE.search(each.name)]
        except OSError as error:
            _LOGGER.error("%s: cannot be read (%s); no run is exported", self._folder, error.strerror)
            return [] if isinstance(error, FileNotFoundError) else None

    def _seems_a_run(self, folder: Path) -> bool:
        try:
            return _is_run(folder)
        except OSError:  # a run that was one stays one, with files that cannot be read
            return folder in self._followers

    def collect(self) -> Iterable[Any]:
        """All families; a counter never falls while this program runs, though a continued run drops rows."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        began = time.perf_counter()
        families: dict[str, Any] = {}
        with self._lock:
            for series in self._all_series(began):
                if series.family not in families:
                    make = CounterMetricFamily if series.is_counter else GaugeMetricFamily
                    names = [name for name, _ in series.labels]
                    families[series.family] = make(series.family, series.help, labels=names)
                value = self._never_lower(series) if series.is_counter else series.value
                families[series.family].add_metric([_as_text(label) for _, label in series.labels], value)
        return families.values()

    def _all_series(self, began: float) -> Iterator[Series]:
        followers = self.look()
        for follower in followers:
            yield from run_series(follower)
        found = {"runs": len(followers)}
        with suppress(OSError):
            usage = shutil.disk_usage(self._folder)
            found |= {"runs_disk_size_bytes": usage.total, "runs_disk_free_bytes": usage.free}
        found["exporter_scrape_seconds"] = time.perf_counter() - began
        yield from (Series(PREFIX + name, EXPORTER_GAUGES[name], (), value) for name, value in found.items())

    def _never_lower(self, series: Series) -> float:
        key = (series.family, series.labels)
        self._highest[key] = max(series.value, self._highest.get(key, 0.0))
        return self._highest[key]


class MetricsServer(Closing):
    """Answers `GET /metrics` at `address` from a thread until it is closed."""

    def __init__(self, collector: RunsCollector, *, address: str, port: int) -> None:
        """ConfigError where it cannot listen there."""
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, address, registry)
        except OSError as error:
            raise ConfigError(
                f"--address {address} --port {port}: cannot listen there ({error.strerror}); give others"
            ) from None
        self.address = f"http://{address}:{self._server.server_port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _OF_A_RUN)


def _as_text(label: str) -> str:
    """What UTF-8 cannot hold, as in the name of a folder in another encoding, as its escapes."""
    return label.encode("utf-8", errors="backslashreplace").decode("utf-8")
