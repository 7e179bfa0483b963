"""What a run's reward pays for: the statistic by hand and its laws, and what a report makes of a run's folder."""

import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from view_runs import held_out, record, write_evaluation, write_step

from agent_rl.reports.run.data import read_run
from agent_rl.reports.run.page import run_page
from agent_rl.reports.run.parts import PartFigures, reward_parts
from agent_rl.reports.run.report import as_data, make_report
from agent_rl.reports.view.data import RunSamples
from agent_rl.telemetry.statistics import correlation_within

PAIRS = st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 1)), min_size=1, max_size=8)
GROUPS = st.lists(PAIRS, min_size=1, max_size=5)


def test_the_correlation_within_groups_by_hand() -> None:
    assert correlation_within([[(1, 0), (3, 1)]]) == pytest.approx(1.0)
    assert correlation_within([[(1, 0), (3, 1)], [(9, 0), (7, 0)]]) == pytest.approx(1 / math.sqrt(2))
    # Distances -2 0 2, -1 1 and -2/3 1/3 1/3, 1/2 -1/2: products 2 - 1, squares 8 + 2 and 2/3 + 1/2.
    assert correlation_within([[(0, 0), (2, 1), (4, 1)], [(10, 1), (12, 0)]]) == pytest.approx(
        1 / math.sqrt(10 * 7 / 6)
    )
    # Across both groups the value and the success would go together; within them they do not.
    assert correlation_within([[(1, 0), (2, 0)], [(8, 1), (9, 1)]]) is None


def test_there_is_no_correlation_with_what_does_not_vary() -> None:
    assert correlation_within([]) is None
    assert correlation_within([[]]) is None
    assert correlation_within([[(1, 0)], [(5, 1)]]) is None
    assert correlation_within([[(0.1 + 0.2, 0), (0.3, 1)]]) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
def test_there_is_no_correlation_with_what_has_no_size(value: float) -> None:
    assert correlation_within([[(0.0, 0), (value, 1)], [(0.0, 0), (1.0, 1)]]) is None
    assert correlation_within([[(value, 0), (0.0, 1)]]) is None


@given(GROUPS, st.integers(-9, 9), st.sampled_from([-2.0, 0.5, 3.0]))
def test_it_is_bounded_and_knows_neither_levels_nor_units(
    groups: list[list[tuple[int, int]]], shift: int, scale: float
) -> None:
    found = correlation_within(groups)
    moved = [[(scale * (x + shift * place), y) for x, y in group] for place, group in enumerate(groups)]
    if found is None:
        assert correlation_within(moved) is None
    else:
        assert -1 <= found <= 1
        assert correlation_within(moved) == pytest.approx(math.copysign(1, scale) * found, abs=1e-9)


@given(PAIRS)
def test_of_one_group_it_is_the_point_biserial_coefficient(pairs: list[tuple[int, int]]) -> None:
    solved, failed = ([x for x, y in pairs if y == side] for side in (1, 0))
    mean = sum(x for x, _ in pairs) / len(pairs)
    spread = math.sqrt(sum((x - mean) ** 2 for x, _ in pairs) / len(pairs))
    if not solved or not failed or not spread:
        assert correlation_within([pairs]) is None
        return
    share = len(solved) / len(pairs)
    gap = sum(solved) / len(solved) - sum(failed) / len(failed)
    expected = gap / spread * math.sqrt(share * (1 - share))
    assert correlation_within([pairs]) == pytest.approx(expected, abs=1e-9)


def write_run(folder: Path, rows: list[dict[str, float]]) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump({"run": {"name": "small"}}), encoding="utf-8")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def step(number: int, *, success: float, style: float) -> dict[str, float]:
    parts = {"reward_parts/success/mean": success, "reward_parts/style/mean": style, "reward_parts/fixed/mean": 0.5}
    return {"step": number, "reward/mean": success + style, "success/mean": success, **parts}


def scored(number: int, success: float, style: float) -> dict[str, object]:
    """Episode of the group `number // 2`."""
    return record(
        number, reward=success + style, reward_parts={"success": success, "style": style, "fixed": 0.5}, samples=[]
    )


ROWS = [step(n, success=0.5 + 0.01 * (n % 2), style=0.1 * n) for n in range(1, 11)]
"""The style pays more and more, and success stays."""
EPISODES = [scored(0, 1.0, 0.0), scored(1, 0.0, 0.8), scored(2, 0.0, 0.2), scored(3, 0.0, 0.4)]


def test_a_part_that_rises_alone_and_goes_against_success_is_seen(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ROWS)
    write_step(run, 10, [*EPISODES, scored(4, 1.0, 9.0) | {"greedy": True}, scored(5, 0.0, 0.0) | {"reward": None}])
    found = reward_parts(read_run(run))
    assert found is not None and found.alone == ("reward", "style")
    assert found.success == pytest.approx((0.506, 0.504))
    by_name = {each.name: each for each in found.parts}
    assert list(by_name) == ["reward", "style", "fixed"]
    # Distances of the style -0.4 0.4, -0.1 0.1 and of success 0.5 -0.5, 0 0.
    assert by_name["style"].with_success == pytest.approx(-0.4 / math.sqrt(0.34 * 0.5))
    assert by_name["style"].first == pytest.approx(0.3) and by_name["style"].last == pytest.approx(0.8)
    assert by_name["fixed"] == PartFigures(name="fixed", first=0.5, last=0.5, with_success=None)
    assert found.source == "within 2 groups of step 10"
    report = make_report(read_run(run))
    (data,) = [each for each in as_data(report)["reward_parts"]["parts"] if each["name"] == "style"]
    assert data["with_success"] == pytest.approx(by_name["style"].with_success)
    page = run_page(report)
    assert "What the reward pays for" in page and "style rose in training while success did not" in page
    assert "-0.97" in page


def test_the_folders_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", ROWS)
    write_step(run, 9, EPISODES)
    write_step(run, 10, EPISODES)
    listed, inside = [], RunSamples._inside
    monkeypatch.setattr(RunSamples, "_inside", lambda *where: listed.append(where) or inside(*where))
    assert reward_parts(read_run(run)) is not None and len(listed) == 2


def test_a_part_of_one_environment_is_correlated_over_its_episodes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ROWS)
    write_step(run, 10, [each | {"env": "one"} for each in EPISODES])
    alone = reward_parts(read_run(run))
    others = [{"success": 0.0}, {"success": 1.0}, {"length": 0.5}, {"length": 0.75}]
    mixed = [
        record(number, reward=0.1 * number, reward_parts=others[number], samples=[]) | {"env": env, "group_id": env}
        for number, env in enumerate(("two", "two", "none", "none"))
    ]
    write_step(run, 10, [*(each | {"env": "one"} for each in EPISODES), *mixed])
    both = reward_parts(read_run(run))
    assert alone is not None and both is not None and both.source == "within 4 groups of step 10"
    style = [{each.name: each.with_success for each in found.parts}["style"] for found in (alone, both)]
    assert style[0] == style[1] == pytest.approx(-0.4 / math.sqrt(0.34 * 0.5))
    # Distances of the reward 0.1 -0.1, 0.1 -0.1 and -0.05 0.05, of success 0.5 -0.5, 0 0 and -0.5 0.5.
    reward = {each.name: each.with_success for each in both.parts}["reward"]
    assert reward == pytest.approx(0.15 / math.sqrt(0.045 * 1.0))


def test_the_newest_saved_steps_count_and_none_that_is_damaged(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ROWS)
    for number in (1, 4, 7, 10):
        write_step(run, number, EPISODES)
    (run / "samples/step_00007.jsonl.gz").write_bytes(b"torn")
    found = reward_parts(read_run(run))
    assert found is not None and found.source == "within 4 groups of steps 4, 10"


def test_without_saved_steps_the_held_out_tasks_count(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ROWS)
    parts = [{"success": 1.0, "style": 0.9}, {"success": 0.0, "style": 0.1}]
    write_evaluation(run, 10, "0", [held_out(n, reward=1.0, reward_parts=each) for n, each in enumerate(parts)])
    found = reward_parts(read_run(run))
    assert found is not None and found.source.startswith("across 2 held-out tasks after step 10")
    assert {each.name: each.with_success for each in found.parts}["style"] == pytest.approx(1.0)


def test_a_reward_of_one_part_has_no_table(tmp_path: Path) -> None:
    rows = [{"step": 1, "reward/mean": 0.5, "success/mean": 0.5, "reward_parts/success/mean": 0.5}]
    run = write_run(tmp_path / "run", rows)
    assert reward_parts(read_run(run)) is None
    assert as_data(make_report(read_run(run)))["reward_parts"] is None
    assert "What the reward pays for" not in run_page(make_report(read_run(run)))
