"""benchmarks/pass_at_k.py: greedy success beside pass@k, from episodes written by hand."""

from pass_at_k import table

from agent_rl.reports.episodes import GENERAL, Episode


def episode(task_id: str, success: float | None, family: str, sample: int = 0) -> Episode:
    record = {
        "task_id": task_id,
        "sample": sample,
        "family": family,
        "reward": success,
        "reward_parts": {"success": success or 0.0},
        "stop_reason": "done",
    }
    return Episode.from_record(record, "here", GENERAL.label)


def cells_of(line: str) -> list[str]:
    """Without the intervals."""
    return [cell.split(" [")[0].strip() for cell in line.split("|")[1:-1]]


GREEDY = [episode("a", 1.0, "units"), episode("b", 0.0, "dates")]
SAMPLED = [episode("a", 1.0, "units", n) for n in range(2)] + [episode("b", float(n), "dates", n) for n in range(2)]


def test_a_row_has_greedy_success_and_every_k() -> None:
    head, _, row = table({"warm start": (GREEDY, SAMPLED)}).splitlines()
    assert cells_of(head) == ["", "greedy %", "pass@1 %", "pass@2 %"]
    assert cells_of(row) == ["warm start", "50.0", "75.0", "100.0"]


def test_families_have_rows_and_a_dropped_episode_counts_nowhere() -> None:
    lines = table({"m": (GREEDY, [*SAMPLED, episode("b", None, "dates", 2)])}, "family").splitlines()
    assert [cells_of(line) for line in lines[3:]] == [
        ["m, dates", "0.0", "50.0", "100.0"],
        ["m, units", "100.0", "100.0", "100.0"],
    ]


def test_names_with_fewer_samples_leave_cells_empty() -> None:
    lines = table({"two": (GREEDY, SAMPLED), "one": (GREEDY, GREEDY)}).splitlines()
    assert cells_of(lines[3]) == ["one", "50.0", "50.0", ""]
