"""Equal projects are checked once, by spec, files and seed; every stage alone too, and never one that came late."""

from nat_projects import check, spec_of

from agent_rl.envs.nat.factory.render import render_project
from agent_rl.envs.nat.judge.checker import check_project
from agent_rl.envs.nat.judge.toolkit import NatToolkit

SPEC = spec_of("unit_converter", 1)
FILES = render_project(SPEC)


def counted(toolkit: NatToolkit) -> tuple[float, float]:
    """Whole checks, and runs of any stage."""
    return toolkit.checks.counters()["run"], toolkit.memo.counters()["run"]


def test_an_equal_project_is_checked_once_and_another_seed_asks_again(nat_toolkit: NatToolkit) -> None:
    first = check_project(nat_toolkit, SPEC, FILES, seed=101)
    before = counted(nat_toolkit)
    assert check_project(nat_toolkit, SPEC, dict(FILES), seed=101) is first
    assert counted(nat_toolkit) == before
    other = check_project(nat_toolkit, SPEC, FILES, seed=102)
    checks, runs = counted(nat_toolkit)
    # Agent and server are asked other questions; texts and tests are the same.
    assert (checks - before[0], runs - before[1]) == (1, 2)
    assert first.complete and other.complete and first.flags == other.flags


def test_a_file_that_the_spec_does_not_list_changes_flags_and_no_run(nat_toolkit: NatToolkit) -> None:
    check_project(nat_toolkit, SPEC, FILES, seed=103)
    before = counted(nat_toolkit)
    report = check_project(nat_toolkit, SPEC, {**FILES, "sitecustomize.py": "x = 1\n"}, seed=103)
    checks, runs = counted(nat_toolkit)
    assert report.flags and (checks - before[0], runs - before[1]) == (1, 0)


def test_projects_are_run_again_only_for_what_they_run_with(nat_toolkit: NatToolkit) -> None:
    check_project(nat_toolkit, SPEC, FILES, seed=104)
    counts = {}
    for path in (SPEC.tests_path, "pyproject.toml", "mcp_server.py", SPEC.register_path):
        before = counted(nat_toolkit)
        assert check_project(nat_toolkit, SPEC, {**FILES, path: f"{FILES[path]}\n# changed\n"}, seed=104).complete
        checks, runs = counted(nat_toolkit)
        counts[path] = (checks - before[0], runs - before[1])
    # A server runs with the agent's sources; texts of configurations and of the agent are read once more.
    wanted = {SPEC.tests_path: 1, "pyproject.toml": 1, "mcp_server.py": 1, SPEC.register_path: 3}
    assert counts == {path: (1, runs) for path, runs in wanted.items()}


def test_verdicts_are_those_of_a_toolkit_that_keeps_none(nat_toolkit: NatToolkit) -> None:
    changes = {SPEC.logic_path: FILES[SPEC.logic_path].replace("value *", "2 * value *")}
    with NatToolkit.open(processes=1, reuse_verdicts=False) as anew:
        for changed in ({}, changes, {SPEC.tests_path: None}):
            kept = [check(nat_toolkit, SPEC, changed) for _ in range(2)][1]
            wanted = [check(anew, SPEC, changed) for _ in range(2)][1]
            assert (kept.points, kept.gates, kept.flags) == (wanted.points, wanted.gates, wanted.flags)
        assert anew.checks.counters()["run"] == 6


def test_a_project_that_comes_late_is_checked_again(hasty_toolkit: NatToolkit) -> None:
    loop = {**FILES, SPEC.logic_path: "while True:\n    pass\n"}
    before = counted(hasty_toolkit)[0]
    assert not any(check_project(hasty_toolkit, SPEC, loop, seed=0).complete for _ in range(2))
    assert counted(hasty_toolkit)[0] - before == 2
