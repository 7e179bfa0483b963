"""Pages in the dark: text is readable, plots lie on light paper, and paper is white when printed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from view_pages import Page, needs_a_browser
from view_runs import make_evaluated_run

from agent_rl.reports.run.data import read_run
from agent_rl.reports.run.page import run_page
from agent_rl.reports.run.report import make_report

pytest_plugins = ["view_fixtures"]
pytestmark = needs_a_browser
CONTRASTS = """(() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const bright = (text) => channels(text).slice(0, 3).map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, at) => sum + c * [0.2126, 0.7152, 0.0722][at], 0);
  const back = (node) => {
    for (; node; node = node.parentElement) {
      const color = getComputedStyle(node).backgroundColor;
      if ((channels(color)[3] ?? 1) === 1) return color;
    }
    return "rgb(18, 18, 18)";
  };
  const texts = [...document.querySelectorAll("body *")].filter((node) => node.checkVisibility()
    && [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim()));
  return texts.map((node) => {
    const [one, other] = [bright(getComputedStyle(node).color), bright(back(node))].sort((a, b) => b - a);
    return [(one + 0.05) / (other + 0.05), node.tagName + "." + node.className];
  });
})()"""
"""Contrast of every text with what is behind it (WCAG 2.2, relative luminance), and where."""
LEAST = 4.5
"""WCAG's for text."""


@pytest.fixture
def dark(driver: Any) -> Iterator[None]:
    def prefer(features: list[dict[str, str]], media: str = "") -> None:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features, "media": media})

    prefer([{"name": "prefers-color-scheme", "value": "dark"}])
    yield
    prefer([])


def check(page: Page) -> None:
    found = page.run(CONTRASTS)
    assert len(found) > 5
    assert [(round(value, 1), where) for value, where in found if value < LEAST] == []
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(22, 25, 29)"


@pytest.mark.parametrize("tab", ["conversation", "tokens", "steps"])
def test_the_viewer_is_readable_in_the_dark(
    open_page: Callable[..., Page], tmp_path: Path, dark: None, tab: str
) -> None:
    page = open_page(make_evaluated_run(tmp_path / "tiny"), f"#step=1&tab={tab}")
    page.wait_for_episode(0) if tab != "steps" else page.wait(lambda: page.texts(".place"))
    check(page)


def test_reports_are_readable_in_the_dark_and_white_on_paper(
    open_file: Callable[..., Page], tmp_path: Path, dark: None, driver: Any
) -> None:
    run = make_evaluated_run(tmp_path / "tiny")
    (tmp_path / "report.html").write_text(run_page(make_report(read_run(run))), encoding="utf-8")
    page = open_file(tmp_path / "report.html")
    check(page)
    assert page.all("figure img", "getComputedStyle(node).backgroundColor") == ["rgb(255, 255, 255)"] * len(
        page.all("figure img")
    )
    dark_on_paper = [{"name": "prefers-color-scheme", "value": "dark"}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": dark_on_paper})
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
