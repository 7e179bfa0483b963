"""Names for Prometheus follow the table of docs/metrics.md, all of it and nothing else."""

import re
from collections import Counter
from pathlib import Path

import pytest

from agent_rl.monitoring.names import documented_metrics, exported, read_table
from agent_rl.monitoring.run_series import GAUGES, RUN_COUNTERS

PAGE = (Path(__file__).resolve().parents[2] / "docs/metrics.md").read_text(encoding="utf-8")
ABBREVIATED = re.compile(r"_(s|ms|gib|share|frac|per_s|gigabytes)(_|$)")


def test_the_table_is_that_of_the_page_row_for_row() -> None:
    assert list(documented_metrics()) == read_table(PAGE)
    rows = re.findall(r"^\| `([^`]+)` \|", PAGE.split("## Alarms")[0], re.MULTILINE)
    assert [row.name for row in documented_metrics()] == rows


def test_every_row_has_a_family_of_its_own_in_base_units() -> None:
    families = [row.exported_name.removeprefix("agent_rl_") for row in documented_metrics()]
    beside = [*GAUGES, *RUN_COUNTERS]
    assert [name for name, count in Counter(families + beside).items() if count > 1] == []
    assert [name for name in families if ABBREVIATED.search(name)] == []
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) and not name.endswith("_total") for name in families)


@pytest.mark.parametrize(
    ("name", "family", "labels", "factor"),
    [
        ("reward/mean", "agent_rl_reward_mean", (), 1.0),
        ("perf/mfu", "agent_rl_perf_mfu_ratio", (), 1.0),
        ("group/frac_no_signal", "agent_rl_group_no_signal_ratio", (), 1.0),
        ("rollout/tool_error_share", "agent_rl_rollout_tool_error_ratio", (), 1.0),
        ("time/episode_s_mean", "agent_rl_time_episode_seconds_mean", (), 1.0),
        ("perf/tokens_per_s", "agent_rl_perf_tokens_per_second", (), 1.0),
        ("host/process_memory_gib", "agent_rl_host_process_memory_bytes", (), 2.0**30),
        ("sync/gigabytes", "agent_rl_sync_bytes", (), 1e9),
        ("reward_parts/tests/mean", "agent_rl_reward_parts_mean", (("part", "tests"),), 1.0),
        ("reward_parts/share/tests/mean", "agent_rl_reward_parts_mean", (("part", "share/tests"),), 1.0),
        ("rollout/stop/max_turns", "agent_rl_rollout_stop_ratio", (("reason", "max_turns"),), 1.0),
        ("hacks/episodes", "agent_rl_hacks_episodes", (), 1.0),
        ("hacks/os_exit", "agent_rl_hacks_flagged_episodes", (("flag", "os_exit"),), 1.0),
        ("eval/t0.7/success_low", "agent_rl_eval_success_ratio_low", (("temperature", "0.7"),), 1.0),
        ("env/math/reward/mean", "agent_rl_env_reward_mean", (("environment", "math"),), 1.0),
        (
            "env/math/eval/t0.7/success",
            "agent_rl_env_eval_success_ratio",
            (("environment", "math"), ("temperature", "0.7")),
            1.0,
        ),
        ("mine/count", "agent_rl_other_metric", (("name", "mine/count"),), 1.0),
    ],
)
def test_a_name_follows_the_rule(name: str, family: str, labels: tuple, factor: float) -> None:
    found = exported(name)
    assert (found.family, found.labels, found.factor) == (family, labels, factor)
