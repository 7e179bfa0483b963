"""The page of `agent-rl view` in a real browser: clicks, colours, filters, keys, links, and text that would do harm."""

from collections.abc import Callable
from pathlib import Path

import pytest
from view_pages import Page, needs_a_browser
from view_runs import HOSTILE, make_run, record, write_step

pytest_plugins = ["view_fixtures"]
pytestmark = needs_a_browser


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
        "turn 1, generated2 tokens, weights after step 0 to 1",
        "tool results1 token",
        "turn 2, generated1 token, weights after step 1",
    ]
    assert page.texts(".learned") == ["counted in the loss of 2 updates of the policy"]
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
    assert page.token() == {
        "text": '"é"',
        "id": "169",
        "position": "3",
        "mask": "counted in the loss",
        "weights": "after step 1",
        "log-prob, sampler": "−2.5 (8.21 %)",
        "log-prob, trainer": "−2.4",
        "ratio (log)": "1.1052 (0.1)",
        "advantage": "0.5",
    }
    page.click(".segment.tool summary")
    page.wait(lambda: len(page.all(".t")) == 4)
    assert page.texts(".segment.tool .t") == [HOSTILE]
    assert page.colors()[2] == "rgba(0, 0, 0, 0)"


def test_filters_leave_what_matches(page: Page) -> None:
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
    assert page.run("location.hash") == ("#run=tiny&step=1&task=task-1&episode=0&tab=tokens&color=mask&outcome=true")
    page.press("j")  # there is no next one
    page.press("k")
    page.wait_for_episode(0)
    page.run("location.hash = '#step=1&episode=3'")
    page.wait_for_episode(3)
    assert page.texts("[aria-pressed=true]") == ["Conversation"]
    assert page.run("document.querySelector('button.row[aria-current]').dataset.episode") == "3"


def test_a_run_without_samples_names_the_key_that_writes_them(open_page: Callable[..., Page], tmp_path: Path) -> None:
    page = open_page(make_run(tmp_path / "none", samples_every=0))
    page.wait(lambda: page.texts("#episode h2") == ["No tokens to show"])
    assert "log.samples_every is 0 in this run's configuration" in page.texts("#episode p")[0]
    assert page.texts("#episode code") == ["log.samples_every=10"]
    page.press("j")


def test_a_thousand_episodes_do_not_freeze_it(open_page: Callable[..., Page], tmp_path: Path) -> None:
    run = make_run(tmp_path / "large")
    write_step(run, 20, [record(number, step=20) for number in range(1000)])
    page = open_page(run, "#step=20&episode=999")
    page.wait_for_episode(999)
    assert page.run("document.querySelectorAll('button.row').length") == 1000
    assert page.run("(() => { const t = performance.now(); filter(); document.body.offsetHeight; "
                    "return performance.now() - t; })()") < 500  # fmt: skip


def test_the_filters_take_very_many_episodes(page: Page) -> None:
    page.click("button.row")
    assert page.run("(() => { step.episodes = Array(300000).fill({ ...step.episodes[0], reward: 0.5 }); fillFilters(); "
                    "return [form().elements.low.placeholder, form().elements.high.placeholder]; })()"
                    ) == ["0.50", "0.50"]  # fmt: skip


@pytest.mark.parametrize("width", [1280, 800, 400])
def test_nothing_is_wider_than_the_window(page: Page, width: int) -> None:
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for tab in ("conversation", "tokens"):
        page.open(f"#step=1&episode=3&tab={tab}")
        page.wait_for_episode(3)
        assert page.run("document.documentElement.scrollWidth") <= width
    page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
