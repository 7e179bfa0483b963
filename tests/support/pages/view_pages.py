"""A page of `agent-rl view` in a real browser: what a person does and sees there."""

import shutil
import time
from collections.abc import Callable
from typing import Any

import pytest

CHROME = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
needs_a_browser = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROME and DRIVER), reason="needs chromium or chrome, and chromedriver, on PATH"),
]


class Page:
    """A run's page, open; what a person does and sees."""

    def __init__(self, driver: Any, address: str) -> None:
        self.driver = driver
        self.address = address

    def open(self, fragment: str = "") -> None:
        self.driver.get("about:blank")  # another fragment alone would not load the page again
        self.driver.get(self.address + fragment)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(f"return {script}", *arguments)

    def all(self, selector: str, of_each: str = "node") -> list[Any]:
        """What matches and is not hidden or folded, or something of each such node."""
        nodes = "[...document.querySelectorAll(arguments[0])].filter((node) => node.checkVisibility())"
        return self.run(f"{nodes}.map((node) => {of_each})", selector)

    def texts(self, selector: str) -> list[str]:
        return self.all(selector, "node.innerText")

    def click(self, selector: str, number: int = 0) -> None:
        self.wait(lambda: len(self.all(selector)) > number)
        self.all(selector)[number].click()

    def choose(self, selector: str, value: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.all(selector)[0]).select_by_value(value)

    def press(self, keys: str) -> None:
        self.driver.find_element("tag name", "body").send_keys(keys)

    def press_in(self, selector: str, keys: str) -> None:
        self.all(selector)[0].send_keys(keys)

    def wait(self, condition: Callable[[], Any], timeout_s: float = 10.0) -> None:
        ends = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < ends, self.driver.find_element("tag name", "body").text
            time.sleep(0.02)

    def wait_for_episode(self, number: int) -> None:
        self.wait(lambda: any(f"episode {number}," in text for text in self.texts("#episode h2")))

    @property
    def rows(self) -> list[str]:
        """Numbers of the episodes that are listed."""
        return self.texts("#groups button.row span:first-child")

    def token(self) -> dict[str, str]:
        """The details of the token pointed at or pinned."""
        return dict(zip(self.texts(".token-detail dt"), self.texts(".token-detail dd"), strict=True))

    def go(self, fragment: str) -> None:
        self.driver.execute_script("location.hash = arguments[0]", fragment)

    def colors(self) -> list[str]:
        return self.all(".t", "getComputedStyle(node).backgroundColor")
