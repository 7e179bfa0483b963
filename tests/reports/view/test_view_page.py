"""The page of `agent-rl view` when something is odd: requests that fail or are slow, values that are no numbers, texts
that cannot be seen, runs that go on; and its tokens by keyboard."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from view_pages import Page, needs_a_browser
from view_runs import HOSTILE, make_run, record, sample, write_step

from agent_rl.reports.view.data import RunSamples

pytest_plugins = ["view_fixtures"]
pytestmark = needs_a_browser
MISSING = "step 7 of tiny has no samples; log.samples_every says which steps have"


def forget_failures(page: Page) -> None:
    """The browser's log names every answer that was an error: those that were meant to be, and no others."""
    logged = [entry["message"] for entry in page.driver.get_log("browser")]
    assert logged
    assert all("404 (Not Found)" in message for message in logged)


# Requests


def test_a_step_that_is_not_there_leaves_what_is_shown(page: Page) -> None:
    page.open("#step=1&episode=2&tab=tokens")
    page.wait_for_episode(2)
    page.go("step=7&episode=0")
    page.wait(lambda: page.texts("#message") == [MISSING])
    assert page.run("location.hash") == "#run=tiny&step=1&task=task-1&episode=0&tab=tokens&color=advantage"
    assert page.texts("[aria-pressed=true]") == ["Tokens"]
    assert page.run("document.querySelector('#steps [aria-current]').dataset.step") == "1"
    page.press("j")
    page.wait_for_episode(3)
    assert page.texts("#message") == [""]
    forget_failures(page)


def test_an_episode_that_is_not_there_is_not_mixed_with_another(page: Page) -> None:
    page.open("#step=1&episode=2")
    page.wait_for_episode(2)
    page.go("step=1&episode=9")
    page.wait(lambda: page.texts("#message") == ["step 1 has no episode 9: it has 4, counted from 0"])
    assert page.texts("#episode") == [""]
    assert page.all("button.row[aria-current]") == []
    page.click("button.row", 1)
    page.wait_for_episode(1)
    forget_failures(page)


def test_an_address_that_was_wrong_at_first_can_be_corrected(page: Page) -> None:
    page.open("#step=7")
    page.wait(lambda: page.texts("#message") == [MISSING])
    page.go("step=1&episode=3")
    page.wait_for_episode(3)
    assert page.texts("#message") == [""]
    forget_failures(page)


def test_what_comes_too_late_is_not_shown(open_page: Callable[..., Page], tmp_path: Path) -> None:
    waits, goes_on = threading.Event(), threading.Event()

    class Slow(RunSamples):
        """Step 10 takes until somebody lets it go."""

        def episodes(self, name: str) -> dict[str, Any]:
            if name == "step-10":
                waits.set()
                assert goes_on.wait(20)
            return super().episodes(name)

    page = open_page(Slow(make_run(tmp_path / "tiny")), "#step=1&episode=0")
    page.wait_for_episode(0)
    page.click("#steps button", 1)
    page.wait(waits.is_set)
    page.press("j")  # in the step that is still there
    page.wait_for_episode(1)
    goes_on.set()
    page.press("j")
    page.wait_for_episode(2)
    assert page.run("location.hash").startswith("#run=tiny&step=1&task=task-1&episode=0&")
    assert page.texts("#message") == [""]
    assert page.run("document.querySelector('main').hasAttribute('aria-busy')") is False


def test_a_click_on_a_step_reloads_the_run(
    open_page: Callable[..., Page],
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "tiny")
    page = open_page(run, "#step=1&episode=3")
    page.wait_for_episode(3)
    write_step(run, 1, [record(0), record(1)])
    write_step(run, 20, [record(0, step=20)])
    page.click("#steps button")
    page.wait(lambda: page.rows == ["#0", "#1"])
    page.wait(lambda: len(page.texts("#steps button")) == 3)
    page.wait_for_episode(0)
    assert page.run("document.activeElement.dataset.step") == "1"


# Values


def test_what_did_not_count_is_grey_and_what_is_not_finite_is_shown(
    open_page: Callable[..., Page],
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "tiny")
    generated = [{"kind": "assistant", "turn": 0, "start": 0, "end": 4, "weight_version": 4}]
    odd = sample(
        token_ids=[5, 6, 7, 8],
        texts=["a", "", "\u202eb", "\u200b"],
        loss_mask=[1, 1, 1, 0],
        sampling_logprobs=["-inf", -0.5, -1.0, -0.00002],
        trainer_logprobs=[-0.5, "nan", -1.0, -0.00001],
        advantages=["nan", 0.25, -0.5, -0.5],
        segments=generated,
        num_updates=0,
    )
    unlearned = sample(
        token_ids=[5],
        texts=["a"],
        loss_mask=[0],
        sampling_logprobs=[-0.5],
        trainer_logprobs=[None],
        advantages=[None],
        segments=[generated[0] | {"end": 1}],
        num_updates=0,
    )
    write_step(run, 2, [record(0, step=2, samples=[odd, unlearned])])
    page = open_page(run, "#step=2&episode=0&tab=tokens")
    page.wait_for_episode(0)
    assert page.texts("h3")[-2:] == ["Context 1 of 2", "Context 2 of 2"]
    assert page.texts(".learned") == [
        "counted in the loss, but no update of the policy was made with it",
        "nothing of it counted in the loss",
    ]
    grey, yellow = "rgba(0, 0, 0, 0.08)", "rgb(255, 224, 77)"
    assert page.colors() == [yellow, "rgba(33, 102, 172, 0.36)", "rgba(224, 130, 20, 0.72)", grey, grey]
    assert page.all(".t", "node.className.replace('t ', '')")[1] == "part"
    assert "unseen" in page.all(".t", "node.className")[3]
    page.choose("#color", "logprob")
    assert page.colors()[0] == yellow
    page.choose("#color", "mask")
    assert page.colors()[3:] == ["rgba(224, 130, 20, 0.36)"] * 2
    page.click(".t", 0)
    shown = page.token()
    assert (shown["mask"], shown["log-prob, sampler"], shown["advantage"]) == ("counted in the loss", "−inf", "nan")
    assert (shown["ratio (log)"], shown["weights"]) == ("inf (inf)", "after step 4")
    page.press_in(".tokens", "\ue014")  # an arrow to the right
    assert (page.token()["text"], page.token()["log-prob, trainer"]) == ("no text of its own", "nan")
    page.press_in(".tokens", "\ue014")
    assert page.token()["text"] == '"\\u{202e}b"'
    page.press_in(".tokens", "\ue014")
    shown = page.token()
    assert (shown["text"], shown["mask"]) == ('"\\u{200b}"', "generated, not counted in the loss")
    assert shown["log-prob, sampler"] == "−0.00002 (100 %)"


def test_parts_success_family_and_error_of_all_kinds_are_shown(
    open_page: Callable[..., Page],
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path / "tiny")
    parts = {"success": True, "right": False, "share": 0.5, "bonus": 0.00004, "none": None}
    lost = {"reward": None, "reward_parts": {}, "error": HOSTILE, "stop_reason": "env_error"}
    same = {"step": 2, "group_id": "2/0"}
    write_step(
        run,
        2,
        [
            record(0, **same, family=10, reward_parts=parts),
            record(1, **same, family=10, **lost),
            record(2, **same, family=10, greedy=True),
            record(3, step=2, group_id="2/1", family=9),
        ],
    )
    page = open_page(run, "#step=2&episode=0")
    page.wait_for_episode(0)
    page.click(".parts summary")
    assert page.texts(".parts dd") == ["true", "false", "0.500", "0.00004", "–"]
    assert "solved" in page.texts("#episode .facts")[0]
    assert page.texts(".group h3 small") == ["1/1 solved · 1 unknown · 1.00", "0/1 solved · 0.00"]
    assert page.texts("#groups button.row span:nth-child(4)")[2] == "greedy, finished"
    assert page.run("[...document.querySelectorAll('[name=family] option')].map((node) => node.value)") == [
        "",
        "9",
        "10",
    ]
    page.choose("[name=family]", "10")
    page.wait(lambda: page.rows == ["#0", "#1", "#2"])
    page.choose("[name=success]", "null")
    page.wait(lambda: page.rows == ["#1"])
    page.click("button.row")
    page.wait_for_episode(1)
    assert page.texts("#episode .head .bad") == [HOSTILE]
    assert "solved" not in page.texts("#episode .facts")[0]


# Keyboard


def test_tokens_are_pinned_by_click_and_by_arrows(page: Page) -> None:
    page.open("#step=1&episode=0&tab=tokens")
    page.wait_for_episode(0)
    live = "document.querySelector('.token-detail').getAttribute('aria-live')"
    pinned = "[...document.querySelectorAll('.pinned')].map((node) => node.textContent)"
    assert page.run(live) == "off"
    page.press_in(".tokens", "\ue014")
    assert (page.run(pinned), page.run(live)) == ([""], "polite")
    page.press_in(".tokens", "\ue014\ue014\ue014")  # there is none behind the third
    assert (page.run(pinned), page.token()["text"]) == (["five"], '"five"')
    page.press_in(".tokens", "\ue012")
    assert page.token()["text"] == '"é"'
    page.click(".t", 1)  # once more lets it go
    assert (page.run(pinned), page.run(live)) == ([], "off")
    page.click(".t", 2)
    assert page.run(pinned) == ["five"]
    page.press_in(".tokens", "\ue00c")
    assert page.run(pinned) == []


@pytest.mark.parametrize("name", ["tokens", "conversation"])
def test_a_tab_keeps_the_focus(page: Page, name: str) -> None:
    page.wait_for_episode(0)
    page.press_in(f"[data-tab={name}]", "\ue007")
    assert page.run("document.activeElement.dataset.tab") == name
    assert page.run("document.activeElement.getAttribute('aria-pressed')") == "true"
