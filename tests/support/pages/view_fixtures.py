"""Fixtures with a browser and pages of `agent-rl view`: `pytest_plugins = ["view_fixtures"]`."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from view_pages import CHROME, DRIVER, Page
from view_runs import make_run

from agent_rl.reports.view.data import RunSamples
from agent_rl.reports.view.runs import ViewedRuns
from agent_rl.reports.view.server import ViewServer

_FROM_TEXT = ", ".join(f"{where} {tag}" for where in ("main", "#list", "#steps", "header") for tag in ("img", "script"))
"""What would be in a page that took a text for HTML."""


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROME
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,800")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def unharmed(driver: Any) -> Iterator[None]:
    """At the end nothing that was written in a page may have run, and nothing complained."""
    yield
    assert driver.execute_script("return window.harmed") is None
    assert driver.execute_script(f"return document.querySelectorAll({_FROM_TEXT!r}).length") == 0
    assert driver.get_log("browser") == []


@pytest.fixture
def open_file(driver: Any, unharmed: None) -> Callable[..., Page]:
    """Opens a page that is a file."""

    def opened(path: Path, fragment: str = "") -> Page:
        page = Page(driver, path.as_uri())
        page.open(fragment)
        return page

    return opened


@pytest.fixture
def open_page(driver: Any, unharmed: None) -> Iterator[Callable[..., Page]]:
    """Opens the page of runs."""
    servers = []

    def open_run(run: Path | RunSamples, fragment: str = "", *others: Path) -> Page:
        samples = [RunSamples(each) if isinstance(each, Path) else each for each in (run, *others)]
        server = ViewServer(ViewedRuns(samples), host="127.0.0.1", port=0)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        page = Page(driver, server.address)
        page.open(fragment)
        return page

    yield open_run
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def page(open_page: Callable[..., Page], tmp_path: Path) -> Page:
    return open_page(make_run(tmp_path / "tiny"))
