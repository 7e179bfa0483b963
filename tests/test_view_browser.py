"""The page of `agent-rl view` in a real browser: clicks, colours, filters, keys, links, and text that would do harm."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from view_runs import HOSTILE, make_run, record, write_step

from agent_rl.reports.view_data import RunSamples
from agent_rl.reports.view_server import ViewServer

CHROME = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROME and DRIVER), reason="needs chromium or chrome, and chromedriver, on PATH"),
]


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

    def colors(self) -> list[str]:
        return self.all(".t", "getComputedStyle(node).backgroundColor")


@pytest.fixture
def open_page(driver: Any) -> Iterator[Callable[[Path], Page]]:
    """Opens the page of a run; at the end nothing that was written in it may have run, and nothing complained."""
    servers = []

    def open_run(run: Path, fragment: str = "") -> Page:
        server = ViewServer(RunSamples.open(run), host="127.0.0.1", port=0)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        servers.append(server)
        page = Page(driver, server.address)
        page.open(fragment)
        return page

    yield open_run
    for server in servers:
        server.shutdown()
        server.server_close()
    assert driver.execute_script("return window.harmed") is None
    assert driver.execute_script("return document.querySelectorAll('main img, #list img, main script').length") == 0
    assert driver.get_log("browser") == []


@pytest.fixture
def page(open_page: Callable[[Path], Page], tmp_path: Path) -> Page:
    return open_page(make_run(tmp_path / "tiny"))


def test_a_step_its_groups_and_an_episode_can_be_clicked(page: Page) -> None:
    page.wait_for_episode(0)
    assert page.texts("#steps button") == ["1\n50 %\n0.50", "10\n25 %\n–"]
    assert HOSTILE in page.texts("#episode h2")[0]  # the newest step comes first; its task has a hostile name
    page.click("#steps button")
    page.wait(lambda: len(page.rows) == 4)
    assert page.texts(".group h3") == ["task-0\n1/2 solved · 0.50", "task-1\n1/2 solved · 0.63"]
    page.click("button.row", 3)
    page.wait_for_episode(3)
    assert "⚑ reads_tests" in page.texts("#episode .facts")[0]
    assert page.texts(".message.user pre") == [f"How many? {HOSTILE}"]
    assert page.texts(".message .bad") == [HOSTILE]
    assert page.texts("#message") == [""]


def test_what_goes_into_tools_and_comes_out_is_folded(page: Page) -> None:
    page.open("#step=1&episode=0")
    page.wait_for_episode(0)
    assert page.texts(".call dd") == []
    assert page.texts(".message.tool pre") == []
    page.click(".call summary")
    page.click(".message.tool summary")
    page.click(".info summary")
    assert page.texts(".call dd") == ["2+3"]
    assert page.texts(".message.tool pre") == [HOSTILE]


def test_tokens_are_coloured_and_explained(page: Page) -> None:
    page.open("#step=1&episode=0")
    page.click("[data-tab=tokens]")
    page.wait(lambda: page.all(".t"))
    assert page.texts(".segment summary") == [
        "prompt2 tokens",
        "turn 1, drawn2 tokens",
        "tool results1 token",
        "turn 2, drawn1 token",
    ]
    assert page.all(".t", "node.textContent") == ["", "é", "five"]
    assert page.colors() == ["rgba(33, 102, 172, 0.36)"] * 2 + ["rgba(224, 130, 20, 0.72)"]  # advantages .5 .5 -1
    assert page.texts(".ticks span") == ["−1.00", "0", "+1.00"]
    page.choose("#color", "ratio")  # 0, 0.1, -0.2 of 0.2
    assert page.colors() == ["rgba(33, 102, 172, 0)", "rgba(33, 102, 172, 0.36)", "rgba(224, 130, 20, 0.72)"]
    assert page.texts(".ticks span") == ["−0.20", "0", "+0.20"]
    page.choose("#color", "logprob")  # -0.1, -2.5, -5 of -5
    assert page.colors() == ["rgba(118, 42, 131, 0.016)", "rgba(118, 42, 131, 0.36)", "rgba(118, 42, 131, 0.72)"]
    page.choose("#color", "mask")
    assert page.colors() == ["rgba(33, 102, 172, 0.36)"] * 3
    page.click(".t", 1)
    shown = dict(zip(page.texts("#token dt"), page.texts("#token dd"), strict=True))
    assert shown == {
        "text": '"é"',
        "id": "169",
        "position": "3",
        "mask": "trained on",
        "log-prob, sampler": "−2.5000 (8.21 %)",
        "log-prob, trainer": "−2.4000",
        "ratio (log)": "1.1052 (0.1000)",
        "advantage": "0.5000",
    }
    page.click(".segment.tool summary")
    page.wait(lambda: len(page.all(".t")) == 4)
    assert page.texts(".segment.tool .t") == [HOSTILE]
    assert page.colors()[2] == "rgba(0, 0, 0, 0)"


def test_filters_leave_what_is_asked_for(page: Page) -> None:
    page.open("#step=1&episode=0")
    page.wait(lambda: len(page.rows) == 4)

    def only(*numbers: int) -> None:
        page.wait(lambda: page.rows == [f"#{number}" for number in numbers])
        assert page.texts("#count") == [f"{len(numbers)} of 4 episodes"]
        page.click("#filters button")
        page.wait(lambda: len(page.rows) == 4)

    for name, value, numbers in (
        ("success", "true", (0, 2)),
        ("family", "prices", (3,)),
        ("stop_reason", "finished", (0, 1, 2)),
        ("flag", "*", (3,)),
        ("flag", "reads_tests", (3,)),
    ):
        page.choose(f"[name={name}]", value)
        only(*numbers)
    page.all("[name=low]")[0].send_keys("0.2")
    page.all("[name=high]")[0].send_keys("0.9")
    only(3)
    page.all("[name=text]")[0].send_keys("Episode 2")
    only(2)
    page.all("[name=text]")[0].send_keys("<script>")
    only(0, 1, 2, 3)


def test_keys_go_through_what_is_listed_and_the_address_follows(page: Page) -> None:
    page.open("#step=1&episode=0&tab=tokens&color=mask")
    page.wait_for_episode(0)
    page.choose("[name=success]", "true")
    page.press("j")
    page.wait_for_episode(2)
    assert page.run("location.hash") == "#step=1&episode=2&tab=tokens&color=mask"
    page.press("j")  # there is no next one
    page.press("k")
    page.wait_for_episode(0)
    page.run("location.hash = '#step=1&episode=3'")
    page.wait_for_episode(3)
    assert page.texts("[aria-pressed=true]") == ["Conversation"]
    assert page.run("document.querySelector('button.row[aria-current]').dataset.episode") == "3"


def test_a_run_without_samples_says_which_key_writes_them(open_page: Callable[[Path], Page], tmp_path: Path) -> None:
    page = open_page(make_run(tmp_path / "none", samples_every=0))
    page.wait(lambda: page.texts("#episode h2") == ["No tokens to show"])
    assert "log.samples_every is 0 in this run's configuration" in page.texts("#episode p")[0]
    assert page.texts("#episode code") == ["log.samples_every=10"]
    page.press("j")


def test_a_thousand_episodes_do_not_freeze_it(open_page: Callable[[Path], Page], tmp_path: Path) -> None:
    run = make_run(tmp_path / "large")
    write_step(run, 20, [record(number, step=20) for number in range(1000)])
    page = open_page(run, "#step=20&episode=999")
    page.wait_for_episode(999)
    assert page.run("document.querySelectorAll('button.row').length") == 1000
    assert page.run("(() => { const t = performance.now(); filter(); document.body.offsetHeight; "
                    "return performance.now() - t; })()") < 500  # fmt: skip


@pytest.mark.parametrize("width", [1280, 800, 400])
def test_nothing_is_wider_than_the_window(page: Page, width: int) -> None:
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for tab in ("conversation", "tokens"):
        page.open(f"#step=1&episode=3&tab={tab}")
        page.wait_for_episode(3)
        assert page.run("document.documentElement.scrollWidth") <= width
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
