"""The page of `agent-rl view` in a real browser: held-out episodes, two side by side, a task over steps, several runs,
links that stay, keys, and the page as one file."""

from collections.abc import Callable
from pathlib import Path

import pytest
from view_pages import Page, needs_a_browser
from view_runs import HOSTILE, held_out, make_evaluated_run, make_run, record, write_evaluation, write_step

from agent_rl.reports.view.data import RunSamples
from agent_rl.reports.view.runs import ViewedRuns
from agent_rl.reports.view.static_page import write_page

pytest_plugins = ["view_fixtures"]
pytestmark = needs_a_browser
OpenPage = Callable[..., Page]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_evaluated_run(tmp_path / "tiny")


def heads(page: Page) -> list[str]:
    """Where the episodes that are shown are from."""
    return page.texts("#episode h2 small")


def wait_for_heads(page: Page, *parts: str) -> None:
    page.wait(lambda: len(heads(page)) == len(parts))
    page.wait(lambda: all(part in head for part, head in zip(parts, heads(page), strict=True)))


# Held-out episodes


def test_held_out_episodes_stand_beside_training_ones(open_page: OpenPage, run: Path) -> None:
    page = open_page(run)
    wait_for_heads(page, "step 10, episode 0")  # the newest step of training comes first
    assert page.texts("#steps h3") == ["held-out, T=0", "held-out, T=0.7"]
    assert [text.split("\n")[0] for text in page.texts("#steps button")] == ["1", "10", "0", "10", "10"]
    page.click("#steps button", 2)
    wait_for_heads(page, "held-out at step 0, temperature 0, episode 0")
    assert page.run("location.hash") == (
        "#run=tiny&step=0&eval=0&task=eval-0&episode=0&tab=conversation&color=advantage"
    )
    page.click("button.row", 1)
    wait_for_heads(page, "episode 1")
    assert page.texts("#episode .head .bad") == [HOSTILE]
    assert page.texts(".message.user pre") == [f"How many? {HOSTILE}"]
    page.click("[data-tab=tokens]")
    assert page.texts("#episode .none") == ["Tokens are saved of training alone, not of evaluations."]
    assert page.all("#color") == []


def test_an_outcome_goes_along_from_step_to_step(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=0&eval=0&task=eval-1")
    wait_for_heads(page, "temperature 0, episode 1")
    for value, listed in (("error", ["#2"]), ("null", ["#2"]), ("true", ["#0"]), ("false", ["#1"])):
        page.choose("[name=success]", value)
        page.wait(lambda: page.rows == listed)  # noqa: B023
    page.press("l")
    wait_for_heads(page, "held-out at step 10, temperature 0, episode 0")
    assert page.rows == [] and page.texts("#count") == ["0 of 3 episodes"]
    assert page.run("location.hash").endswith("&outcome=false")
    page.click("#filters button")
    page.wait(lambda: page.rows == ["#0", "#1", "#2"])
    assert "outcome" not in page.run("location.hash")
    page.go("step=1&outcome=true")
    page.wait(lambda: page.rows == ["#0", "#2"])


# Side by side


def test_two_episodes_of_a_task_stand_side_by_side(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=1&task=task-0&episode=0")
    wait_for_heads(page, "step 1, episode 0")
    page.click("[data-action=beside]")
    wait_for_heads(page, "episode 0", "episode 0")
    page.press("j")
    wait_for_heads(page, "step 1, episode 0", "step 1, episode 1")
    assert page.texts(".side .facts span:nth-child(2)") == ["solved", "not solved"]
    assert page.texts(".same summary")[0] == "4 messages, the same in both"
    assert page.texts(".side > .conversation > .message pre") == ["Five, in episode 0.", "Five, in episode 1."]
    page.click("[data-tab=tokens]")
    page.wait(lambda: len(page.all(".side .token-view")) == 2)
    assert page.colors() == page.colors()[:3] * 2
    page.choose("#color", "mask")
    assert page.colors() == ["rgba(33, 102, 172, 0.36)"] * 6
    page.press("c")
    wait_for_heads(page, "episode 1")


def test_two_steps_of_a_held_out_task_stand_side_by_side(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=0&eval=0&task=eval-1")
    wait_for_heads(page, "held-out at step 0, temperature 0, episode 1")
    page.press("c")
    page.press("]")
    wait_for_heads(page, "held-out at step 0,", "held-out at step 10, temperature 0, episode 1")
    assert page.texts(".same summary")[0] == "5 messages, the same in both"
    assert page.texts(".side .facts span:nth-child(1)") == ["reward 0.000", "reward 1.000"]
    page.press("]")  # no later evaluation has this task
    page.press("[")
    wait_for_heads(page, "held-out at step 0,", "held-out at step 0,")


def test_two_runs_stand_side_by_side(open_page: OpenPage, run: Path, tmp_path: Path) -> None:
    other = make_evaluated_run(tmp_path / "other")
    write_evaluation(other, 10, "0", [held_out(1, reward=0.5)])
    page = open_page(run, "#run=tiny&step=10&eval=0&task=eval-1", other)
    wait_for_heads(page, "tiny, held-out at step 10")
    assert page.texts("#steps h3.folder") == ["tiny", "other"]
    page.press("c")
    page.press("3")
    page.wait(lambda: page.texts(".place h3 span") == [
        "tiny, held-out at step 0, temperature 0",
        "tiny, held-out at step 10, temperature 0",
        "other, held-out at step 0, temperature 0",
        "other, held-out at step 10, temperature 0",
    ])  # fmt: skip
    page.click(".chip", 3)
    wait_for_heads(page, "tiny, held-out at step 10", "other, held-out at step 10")
    assert page.texts(".side .facts span:nth-child(1)") == ["reward 1.000", "reward 0.500"]


# Over steps


def test_a_task_is_followed_over_steps(open_page: OpenPage, run: Path) -> None:
    write_step(run, 20, [record(0, step=20), record(2, step=20, task_id="task-0", greedy=True)])
    page = open_page(run, "#step=1&task=task-0&episode=1")
    wait_for_heads(page, "step 1, episode 1")
    page.click("[data-tab=steps]")
    page.wait(lambda: page.texts(".place h3") == ["step 1 1/2 solved · 0.50", "step 20 1/1 solved · 1.00"])
    assert page.texts(".chip") == ["✓ 1.00", "✗ 0.00", "✓ 1.00", "✓ 1.00"]
    assert page.texts(".chip[aria-current]") == ["✗ 0.00"]
    page.click(".chip", 2)
    wait_for_heads(page, "step 20, episode 0")
    assert page.texts("[aria-pressed=true]") == ["Conversation"]
    assert page.texts("#message") == [""]


# Links


def test_a_link_opens_the_same_episode_when_others_came_before_it(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=1&episode=3")
    wait_for_heads(page, "step 1, episode 3")
    page.press("c")
    page.press("k")
    wait_for_heads(page, "episode 3", "episode 2")
    page.press("2")
    link = page.run("location.hash")
    assert "task=task-1&episode=0" in link and "with_task=task-1&with_episode=1" in link
    write_step(run, 1, [record(6), record(7), record(2), record(3)])  # the file was made again, in another order
    again = open_page(run, link)
    wait_for_heads(again, "episode 3", "episode 2")
    assert again.run("location.hash") == link
    assert again.texts("#episode h2 span:first-child") == ["task-1", "task-1"]
    assert again.texts("[aria-pressed=true]") == ["Tokens"]


def test_a_hostile_name_in_a_link_is_a_text(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=10&episode=0")
    page.wait(lambda: page.texts("#episode h2 span:first-child") == [HOSTILE])
    link = page.run("location.hash")
    again = open_page(run, link)
    again.wait(lambda: again.texts("#episode h2 span:first-child") == [HOSTILE])
    nowhere = open_page(run, f"#run=tiny&step=1&task={HOSTILE}")
    nowhere.wait(lambda: nowhere.texts("#message") == [f"{HOSTILE} has no episode 0 in step 1."])
    assert len(nowhere.rows) == 4 and nowhere.texts("#episode") == [""]
    nowhere.go(f"run={HOSTILE}&step=1")
    nowhere.wait(lambda: nowhere.texts("#message") == [f"There is no run {HOSTILE} here, but tiny."])


def test_an_episode_beside_that_is_gone_is_one_sentence(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=1&task=task-0&episode=0&with_step=1&with_task=task-9&with_episode=2")
    page.wait(lambda: page.texts("#message") == ["task-9 has no episode 2 in step 1."])


# Keys


def test_keys_go_through_groups_steps_and_tabs(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=1&task=task-0&episode=1")
    wait_for_heads(page, "step 1, episode 1")
    for key, head in (
        ("n", "step 1, episode 2"),
        ("n", "step 1, episode 2"),  # there is no group behind it
        ("p", "step 1, episode 0"),
        ("j", "step 1, episode 1"),
        ("l", "step 10, episode 0"),
        ("l", "held-out at step 0, temperature 0, episode 0"),
        ("h", "step 10, episode 0"),
        ("h", "step 1, episode 0"),
        ("h", "step 1, episode 0"),
    ):
        page.press(key)
        wait_for_heads(page, head)
    for key, tab in (("2", "Tokens"), ("3", "Over steps"), ("1", "Conversation")):
        page.press(key)
        page.wait(lambda: page.texts("[aria-pressed=true]") == [tab])  # noqa: B023
    page.press("/")
    assert page.run("document.activeElement.name") == "text"
    page.press_in("[name=text]", "jn?\ue00c")  # letters are text here, Escape leaves
    assert page.run("document.activeElement.name || ''") == ""
    assert page.run("document.querySelector('[name=text]').value") == "jn?"
    page.press("?")
    page.wait(lambda: "the same task, next step" in page.texts("#keys dl")[0])


# One file


def test_the_page_as_a_file_works_like_the_one_that_is_served(open_file: OpenPage, run: Path, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", ViewedRuns([RunSamples(run), RunSamples(make_run(tmp_path / "other"))]))
    link = "#run=tiny&step=1&task=task-1&episode=1&tab=tokens&color=mask&with_run=other&with_step=1&with_task=task-1"
    page = open_file(tmp_path / "page.html", link)
    wait_for_heads(page, "other, step 1, episode 2", "tiny, step 1, episode 3")
    assert page.colors() == ["rgba(33, 102, 172, 0.36)"] * 6
    assert page.run("location.hash").startswith(link)
    page.all("[name=text]")[0].send_keys("Episode 2")
    page.wait(lambda: page.rows == ["#2"])
    page.press_in("[name=text]", "\ue00c")
    page.press("3")
    page.wait(lambda: page.texts(".place h3 span") == ["tiny, step 1", "other, step 1"])
    page.press("1")
    page.click("#steps button", 2)
    wait_for_heads(page, "other, step 1, episode 2", "tiny, held-out at step 0, temperature 0, episode 0")
    page.click(".same summary")
    assert HOSTILE in page.texts(".same .message.user pre")[0]
    assert page.run("getComputedStyle(document.body).display") == "grid"


def test_a_file_with_some_episodes_says_what_it_lacks(open_file: OpenPage, run: Path, tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", ViewedRuns([RunSamples(run)]), lambda _, name: [3] if name == "step-1" else [])
    page = open_file(tmp_path / "page.html")
    wait_for_heads(page, "step 1, episode 3")
    assert page.texts("#count") == ["1 of 1 episodes; 3 more are not in this file"]
    page.go("step=1&episode=0")
    lacks = "This file does not hold that episode; open the run itself with agent-rl view."
    page.wait(lambda: page.texts("#message") == [lacks])
    page.go("step=10&eval=0")
    page.wait(lambda: page.texts("#message") == [lacks.replace("episode", "step")])


@pytest.mark.parametrize("width", [1280, 800, 400])
def test_two_side_by_side_are_no_wider_than_the_window(open_page: OpenPage, run: Path, width: int) -> None:
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page = open_page(run)
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for tab in ("conversation", "tokens", "steps"):
        page.open(f"#step=1&task=task-1&episode=1&tab={tab}&with_step=10&with_eval=0&with_task=eval-1")
        page.wait(lambda: page.texts("#episode .side") or page.texts(".place"))
        assert page.run("document.documentElement.scrollWidth") <= width
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_task_has_a_curve_over_steps(open_page: OpenPage, run: Path) -> None:
    page = open_page(run, "#step=10&eval=0&task=eval-1&tab=steps")
    page.wait(lambda: page.texts(".place"))
    assert page.texts(".curve figcaption span") == [" held-out, T=0"]
    assert page.all(".curve circle", "node.textContent") == ["step 0: 0.000", "step 10: 1.000"]
    page.choose("#metric", "solved")
    assert page.all(".curve > svg", "node.getAttribute('aria-label')") == ["share solved over steps"]
    page.go("step=1&task=task-0&tab=steps")
    page.wait(lambda: any("step 1" in text for text in page.texts(".place h3")))
    assert page.all(".curve") == []  # in one step alone
