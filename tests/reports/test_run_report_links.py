"""The episodes that a run's report links to, and the file that the links open."""

import json
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from commands import run_here
from view_pages import Page, needs_a_browser
from view_runs import HOSTILE, make_evaluated_run, record, sample, write_step

from agent_rl.reports.run.data import read_run
from agent_rl.reports.run.links import MAX_STEPS, EpisodeLinks, find_links, write_linked_page
from agent_rl.reports.run.page import run_page
from agent_rl.reports.run.report import as_data, make_report
from agent_rl.reports.view.data import RunSamples

pytest_plugins = ["view_fixtures"]
is_slow, has_browser = needs_a_browser


def graded(number: int, reward: float, advantage: float, **changes: Any) -> dict[str, Any]:
    """An episode of step 20; its group is that of `record`, its outcome solved."""
    advantages = [None, None, advantage, advantage, None, advantage]
    samples = [sample(advantages=advantages)]
    parts = {"success": 1.0}
    return record(number, step=20, reward=reward, reward_parts=parts, samples=samples) | changes


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Step 20 has a group of nearly one reward (episodes 0, 1), one of one reward (2, 3), and one of two outcomes."""
    run = make_evaluated_run(tmp_path / "tiny")
    lost = {"reward_parts": {"success": 0.0}}
    write_step(run, 20, [
        graded(0, 2.30, 0.4), graded(1, 2.29, -2.47), graded(2, 2.0, 0.0), graded(3, 2.0, 0.0),
        graded(4, 2.1, 0.7), graded(5, -1.0, -0.7, **lost),
    ])  # fmt: skip
    return run


def found(run: Path) -> EpisodeLinks:
    return find_links(run, make_report(read_run(run)).held_out)


def by_kind(links: EpisodeLinks) -> dict[str, list[tuple[int, str, str]]]:
    return {
        title.partition(":")[0]: [(each.step, each.task_id, each.words) for each in shown]
        for title, _, shown in links.kinds
    }


def test_the_best_the_worst_the_flagged_and_the_lost_are_linked(run: Path) -> None:
    kinds = by_kind(found(run))
    assert kinds["Highest rewards"][0] == (20, "task-0", "reward 2.300, solved, advantage +0.40, ended by finished")
    assert kinds["Lowest rewards"][0] == (20, "task-2", "reward -1.000, not solved, advantage -0.70, ended by finished")
    assert kinds["Flagged reads_tests"] == [(1, "task-1", "reward 0.250, not solved, ended by max_tokens")]
    assert kinds["Not scored, as the environment failed"] == [(10, HOSTILE, "no reward, ended by finished")]


def test_groups_of_minor_signal_are_linked_with_their_two_ends(run: Path) -> None:
    links = found(run)
    (shown,) = [shown for title, _, shown in links.kinds if title.startswith("Minor signal")]
    (link,) = shown
    assert link.words == (
        "reward 2.300, solved, advantage +0.40, ended by finished; beside it reward 2.290, solved, advantage -2.47, "
        "ended by finished"
    )
    assert link.fragment == (
        "run=tiny&step=20&task=task-0&episode=0&with_run=tiny&with_step=20&with_task=task-0&with_episode=1"
    )
    assert links.kept["step-20"] >= {0, 1}


def test_held_out_tasks_that_changed_are_linked_two_by_two(run: Path) -> None:
    links = found(run)
    assert links.pairs == {
        (0.0, "eval-1"): "run=tiny&step=10&eval=0&task=eval-1&episode=0"
        "&with_run=tiny&with_step=0&with_eval=0&with_task=eval-1&with_episode=0"
    }
    assert (links.kept["eval-0-t0"], links.kept["eval-10-t0"]) == ({1}, {1})


def test_many_steps_are_looked_through_evenly(run: Path) -> None:
    for step in range(30, 60):
        write_step(run, step, [record(0, step=step)])
    steps = found(run).steps
    assert (len(steps), steps[0], steps[-1]) == (MAX_STEPS, 1, 59)


def test_a_report_lists_the_folders_once_and_reads_what_it_links_to(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, inside = [], RunSamples._inside
    monkeypatch.setattr(RunSamples, "_inside", lambda *where: listed.append(where) or inside(*where))
    links = found(run)
    assert len(listed) == 2 and links.pairs
    write_step(run, 5, []).write_bytes(b"no gzip")
    write_linked_page(tmp_path / "page.html", run, links)
    assert len(listed) == 6  # with its overview
    assert len(RunSamples(run).of_task("task-0")) == 2 and len(listed) == 8


def test_damaged_samples_are_a_note_and_a_run_without_any_has_no_links(run: Path, tmp_path: Path) -> None:
    write_step(run, 20, []).write_bytes(b"no gzip")
    links = found(run)
    assert links.steps == (1, 10) and len(links.notes) == 1 and "step_00020.jsonl.gz" in links.notes[0]
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    bare = read_run(tmp_path / "bare")
    assert find_links(bare.path, ()).is_empty
    assert "Episodes to read" not in run_page(make_report(bare), find_links(bare.path, ()))


def test_the_page_and_the_data_hold_the_links_and_no_text_as_markup(run: Path) -> None:
    report, links = make_report(read_run(run)), found(run)
    page = run_page(report, links, "report_episodes.html")
    targets = [unescape(each) for each in re.findall(r'href="(.*?)"', page)]
    fragments = [link.fragment for _, _, shown in links.kinds for link in shown] + list(links.pairs.values())
    assert targets == [f"report_episodes.html#{fragment}" for fragment in fragments]
    assert HOSTILE not in page and "<img src=x" not in page
    kinds = as_data(report, links)["episodes"]
    assert [each["links"][0]["fragment"] for each in kinds] == [shown[0].fragment for _, _, shown in links.kinds]


def test_the_command_writes_the_file_that_the_links_open(run: Path) -> None:
    done = run_here("report", run, "--output", run / "my.html")
    assert done.returncode == 0, done.stderr
    assert (run / "my_episodes.html").is_file() and 'href="my_episodes.html#run=tiny' in (run / "my.html").read_text()
    data = json.loads((run / "my.json").read_text())
    assert data["episodes"][0]["kind"] == "Highest rewards"


@is_slow
@has_browser
def test_a_click_in_the_report_opens_the_two_side_by_side(open_file: Callable[..., Page], run: Path) -> None:
    assert run_here("report", run).returncode == 0
    page = open_file(run / "report.html")
    minor = page.run("[...document.querySelectorAll('a')].find((link) => link.href.includes('with_step=20'))")
    minor.click()
    page.wait(lambda: len(page.texts("#episode h2 small")) == 2)
    assert page.texts("#episode h2 small") == ["step 20, episode 1, group 1/0", "step 20, episode 0, group 1/0"]
    assert page.texts("#count") == ["6 of 6 episodes"]
