"""Each rule speaks on a small series that shows its case, with its figure and keys of the configuration, else not."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agent_rl.config import Config
from agent_rl.reports.run.evidence import Evidence, HeldOut, is_clear, percent
from agent_rl.reports.run.recommendations import recommend
from agent_rl.telemetry.alarms import DEFAULT_ALARMS
from agent_rl.telemetry.statistics import PairedChange, paired_change

NAN = math.nan
SETTINGS = {
    "train.steps": 60,
    "train.max_grad_norm": 1.0,
    "rollout.groups_per_step": 12,
    "rollout.group_size": 8,
    "rollout.max_attempts": 1,
    "rollout.async_workers": 128,
    "policy.max_batch_size": 128,
    "policy.type": "minimind",
}
UP = [0.2 + 0.01 * min(step, 40) for step in range(60)]
"""Rises for 40 steps and stays at 0.6."""
HEALTHY = {
    "reward/mean": UP,
    "success/mean": UP,
    "policy/entropy": [0.3 - 0.002 * step for step in range(60)],
    "loss/clip_frac": [0.01] * 60,
    "optim/grad_norm": [0.2, 0.3, 0.5] * 20,
    "optim/nonfinite": [0.0] * 60,
    "mismatch/k3": [1e-4] * 60,
    "group/frac_no_signal": [0.3] * 60,
    "group/frac_all_good": [0.2] * 60,
    "group/frac_all_bad": [0.1] * 60,
    "rollout/tokens_mean": [200.0] * 60,
    "rollout/truncated_share": [0.05] * 60,
    "rollout/stop/max_turns": [0.05] * 60,
    "rollout/tool_calls_per_turn": [0.9] * 60,
    "rollout/tool_error_share": [0.05] * 60,
    "rollout/parse_error_share": [0.03] * 60,
    "rollout/env_errors": [0.0] * 60,
    "hacks/episodes": [0.0] * 60,
    "time/step_s": [15.0] * 60,
    "time/rollout_s": [11.0] * 60,
    "time/update_s": [4.0] * 60,
    "time/episode_s_mean": [6.0] * 60,
    "time/episode_s_max": [11.0] * 60,
}
HELD_OUT = (HeldOut(0, 40, 200), HeldOut(60, 120, 200))


def change_of(held_out) -> PairedChange | None:
    """Of the first and the last evaluation; tasks that one side solved are among those of the other."""
    if len(held_out) < 2:
        return None
    sides = ([[task < each.num_successes] for task in range(each.num_scored)] for each in (held_out[0], held_out[-1]))
    return paired_change(*sides)


def evidence_of(changed, *, held_out=HELD_OUT, settings=SETTINGS):
    """A healthy run but for `changed` metrics."""
    change = change_of(held_out)
    return Evidence(metrics=HEALTHY | changed, held_out=held_out, held_out_change=change, settings=settings)


def recommended(changed, *, held_out=HELD_OUT, **settings):
    """What is recommended for it: rule -> recommendation."""
    found = recommend(evidence_of(changed, held_out=held_out, settings=SETTINGS | settings))
    return {each.rule: each for each in found}


def is_key(name: str) -> bool:
    """Whether the configuration has this key, or the free-form section that it is in."""
    section: type[BaseModel] = Config
    for part in name.split("."):
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            return True  # env.options holds what the environment reads
        if part not in section.model_fields:
            return False
        section = section.model_fields[part].annotation
    return True


def test_a_healthy_run_gets_no_advice():
    assert recommended({}) == {}


CASES = [
    (
        {"group/frac_no_signal": [0.48] * 60, "group/frac_all_good": [0.4] * 60, "group/frac_all_bad": [0.08] * 60},
        ("zero variance", "hint", "48 % of groups had zero variance over the last 20 steps; 40 % were all solved"),
        "harder tasks",
    ),
    (
        {"group/frac_no_signal": [0.9] * 60, "group/frac_all_good": [0.0] * 60, "group/frac_all_bad": [0.9] * 60},
        ("zero variance", "problem", "90 % all failed"),
        "easier tasks first, more episodes a task, or a better warm start",
    ),
    (
        {"group/frac_no_signal": [0.7] * 60, "group/frac_all_good": [0.4] * 60, "group/frac_all_bad": [0.3] * 60},
        ("zero variance", "hint", "40 % were all solved, 30 % all failed"),
        "tasks in between",
    ),
    (
        {"group/frac_no_signal": [0.5] * 60, "group/frac_all_good": [0.0] * 60, "group/frac_all_bad": [0.0] * 60},
        ("zero variance", "hint", "50 % of groups"),
        "a reward with more steps",
    ),
    (
        {"group/frac_minor_signal": [0.21] * 60},
        ("minor signal", "hint", "in 30 % of the groups with a signal all episodes had one outcome"),
        "divide by a standard deviation of a tenth of the full reward at least",
    ),
    (
        {"policy/entropy": [0.3] * 40 + [0.004] * 20},
        ("entropy collapse", "problem", "0.004 nats a token over the last 20 steps, from 0.3 in the first 20"),
        "lower the learning rate",
    ),
    ({"policy/entropy": [0.3] * 40 + [0.05] * 20}, ("entropy collapse", "hint", "is 0.05 nats"), "explores little"),
    (
        {"rollout/truncated_share": [0.55] * 60, "rollout/stop/max_turns": [0.5] * 60},
        ("cut off", "problem", "55 % of episodes were cut off over the last 20 steps, most by max_turns (50 %)"),
        "raise that budget",
    ),
    (
        {"rollout/truncated_share": [0.3] * 60, "rollout/stop/max_turns": [0.0] * 60},
        ("cut off", "hint", "30 % of episodes"),
        "look at rollout/stop",
    ),
    (
        {"rollout/tokens_mean": [100.0] * 30 + [160.0] * 30, "reward/mean": [0.5] * 30 + [0.48] * 30},
        ("longer episodes", "hint", "from 100 to 160"),
        "penalty for length",
    ),
    ({"loss/clip_frac": [0.25] * 60}, ("clipping", "hint", "25 % of trained tokens"), "sampler and trainer"),
    ({"mismatch/k3": [0.02] * 60}, ("sampler mismatch", "problem", "0.02 nats a token"), "turn on a correction"),
    (
        {"optim/grad_norm": [0.2] * 57 + [5.0, 8.0, 6.0]},
        ("gradient spikes", "hint", "3 of 60 steps had a gradient norm above the clip of 1, the largest 8"),
        "clip nearer",
    ),
    ({"optim/nonfinite": [0.0] * 59 + [1.0]}, ("not finite", "problem", "1 updates were not made"), "float32"),
    (
        {"reward/mean": [0.5, 0.6] * 20 + [0.3, 0.4] * 10},
        ("falling reward", "problem", "0.35 over the last 20 steps, after 0.55 in steps 1 to 20"),
        "go back to the best checkpoint",
    ),
    (
        {"reward/mean": [0.5, 0.6] * 20 + [0.3, 0.4] * 10, "policy/entropy": [0.3] * 40 + [0.6] * 20},
        ("falling reward", "problem", "entropy rose from 0.3 to 0.6 nats a token"),
        "the learning rate is too high",
    ),
    ({"reward/mean": [0.2, 0.4] * 30}, ("no progress", "problem", "was 0.3 in the first 20 steps"), "double"),
    (
        {"reward/mean": [0.2 + 0.01 * step for step in range(60)]},
        ("still rising", "hint", "from 0.495 to 0.695 over the last 40 steps, and held-out success is best at the end"),
        "train for longer",
    ),
    (
        {"rollout/tool_calls_per_turn": [0.9] * 40 + [0.05] * 20},
        ("no tool calls", "problem", "0.05 tool calls a turn over the last 20 steps, 0.9 at best"),
        "stopped calling tools",
    ),
    ({"rollout/parse_error_share": [0.15] * 60}, ("unreadable calls", "hint", "15 % of turns"), "chat template"),
    ({"rollout/parse_error_share": [0.4] * 60}, ("unreadable calls", "problem", "40 % of turns"), "chat template"),
    ({"rollout/tool_error_share": [0.35] * 60}, ("failed calls", "hint", "35 % of attempted"), "what the tools answer"),
    ({"rollout/env_errors": [0.0] * 40 + [2.0] * 20}, ("environment errors", "problem", "40 episodes"), "memory"),
    (
        {"hacks/episodes": [0.0] * 50 + [2.0] * 10, "hacks/conftest": [NAN] * 50 + [2.0] * 10},
        ("reward hacking", "problem", "(conftest 20), 1 a step at the end after 0 at the start"),
        "fix the checks",
    ),
    (
        {"hacks/episodes": [1.0] + [0.0] * 59, "hacks/exit": [1.0] + [NAN] * 59},
        ("reward hacking", "hint", "1 episode"),
        "look at these flags",
    ),
    (
        {"time/rollout_s": [14.0] * 60, "time/update_s": [1.0] * 60},
        ("slow rollouts", "hint", "rollouts take 93 % of a step, 14 s of 15 s"),
        "more workers",
    ),
    (
        {"time/rollout_s": [14.0] * 60, "time/update_s": [1.0] * 60, "time/episode_s_mean": [2.0] * 60},
        ("slow rollouts", "hint", "the slowest episode takes 5.5 times the mean"),
        "bound them",
    ),
    (
        {"time/rollout_s": [5.0] * 60, "time/update_s": [10.0] * 60},
        ("slow updates", "hint", "updates take 67 % of a step"),
        "micro-batches",
    ),
]


@pytest.mark.parametrize(("changed", "expected", "advice"), CASES)
def test_a_rule_names_its_figure_what_to_do_and_keys_that_exist(changed, expected, advice):
    rule, severity, figure = expected
    recommendations = recommended(changed)
    assert list(recommendations) == [rule]
    found = recommendations[rule]
    assert (found.severity, found.rule) == (severity, rule)
    assert figure in found.figure
    assert advice in found.advice
    assert [key for key in found.keys if not is_key(key)] == []


def test_the_check_of_keys_knows_a_misspelt_one():
    assert is_key("train.learning_rate") and is_key("env.options.workers")
    assert not is_key("train.lerning_rate") and not is_key("rollouts.max_turns")


def test_held_out_tasks_that_do_not_follow_training_are_a_problem():
    behind = (HeldOut(0, 40, 200), HeldOut(60, 44, 200))
    training = {"success/mean": [0.3] * 30 + [0.6] * 30}
    found = recommended(training, held_out=behind)["held-out behind training"]
    assert "in training rose by 30 points, on held-out tasks it changed by +2 from step 0 to 60" in found.figure
    assert [key for key in found.keys if not is_key(key)] == []
    assert recommended(training, held_out=behind[:1]) == {}
    assert recommended(training) == {}  # 40 points on held-out tasks
    slower_but_sure = (HeldOut(0, 800, 4000), HeldOut(60, 1000, 4000))
    assert recommended(training, held_out=slower_but_sure) == {}  # 5 points, of which the interval is above 0


def test_longer_training_is_advised_only_when_the_run_is_over_and_held_out_tasks_agree():
    rising = {"reward/mean": [0.2 + 0.01 * step for step in range(60)]}
    assert "still rising" in recommended(rising)
    assert recommended(rising, **{"train.steps": 80}) == {}
    flattened = {"reward/mean": [0.2 + 0.01 * min(step, 45) for step in range(60)]}
    assert recommended(flattened) == {}
    past_the_best = (HeldOut(0, 40, 200), HeldOut(40, 130, 200), HeldOut(60, 125, 200))
    assert "still rising" not in recommended(rising, held_out=past_the_best)


def test_advice_depends_on_what_is_set():
    zero_variance = {"group/frac_no_signal": [0.5] * 60}
    assert "rollout.max_attempts" in recommended(zero_variance)["zero variance"].keys
    assert "rollout.max_attempts" not in recommended(zero_variance, **{"rollout.max_attempts": 4})["zero variance"].keys
    clipped = recommended({"loss/clip_frac": [0.25] * 60}, **{"train.minibatches": 2})["clipping"]
    assert "lower the learning rate" in clipped.advice
    assert clipped.keys == {"train.learning_rate": "lower", "train.minibatches": "lower"}
    slow = {"time/rollout_s": [14.0] * 60, "time/update_s": [1.0] * 60}
    assert recommended(slow)["slow rollouts"].keys == {"env.options": "set"}
    narrow = {"rollout.async_workers": 16, "env.options.checkers": 2, "policy.type": "vllm"}
    assert list(recommended(slow, **narrow)["slow rollouts"].keys.items()) == [
        ("rollout.async_workers", "raise"),
        ("env.options.checkers", "raise"),
        ("rollout.max_staleness", "raise"),
        ("algorithm.correction.kind", "set"),
    ]
    spikes = {"optim/grad_norm": [0.4] * 57 + [5.0, 8.0, 6.0]}
    assert "above 5 times the median of 0.4, the largest 8" in recommended(spikes)["gradient spikes"].figure


def test_groups_that_hardly_differ_matter_only_where_their_standard_deviation_divides():
    minor = {"group/frac_minor_signal": [0.21] * 60}
    assert recommended(minor, **{"algorithm.min_std": 0.2}) == {}
    assert recommended(minor, **{"algorithm.scale_by_std": False}) == {}
    assert recommended(minor, **{"algorithm.advantage": "rloo"}) == {}
    assert recommended({"group/frac_minor_signal": [0.05] * 60}) == {}


def test_groups_without_signal_do_not_matter_to_estimators_that_compare_none():
    zero_variance = {"group/frac_no_signal": [0.9] * 60}
    assert recommended(zero_variance, **{"algorithm.advantage": "reinforce_plus_plus"}) == {}
    assert "zero variance" in recommended(zero_variance, **{"algorithm.advantage": "rloo"})


def test_a_single_late_attempt_on_the_verdict_is_a_hint():
    late = {"hacks/episodes": [0.0] * 59 + [1.0], "hacks/exit": [NAN] * 59 + [1.0]}
    assert recommended(late)["reward hacking"].severity == "hint"


def test_steps_are_named_by_their_numbers():
    falling = {"reward/mean": [0.5, 0.6] * 20 + [0.3, 0.4] * 10}
    evidence = Evidence(metrics=falling, steps=range(41, 101))
    assert "in steps 41 to 60" in recommend(evidence)[0].figure


def test_a_window_without_any_reward_is_no_fall():
    found = recommend(Evidence(metrics={"reward/mean": [0.5, 0.6] * 20 + [0.3, 0.4] * 10 + [NAN] * 20}))
    assert "falling reward" not in {each.rule for each in found}


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"reward/mean": [0.5, 0.6] * 20 + [0.3, 0.4] * 10}, "falling reward"),
        ({"reward/mean": [0.2, 0.4] * 30, "success/mean": [0.3] * 60}, "no progress"),
        (
            {"rollout/tokens_mean": [100.0] * 30 + [160.0] * 30, "reward/mean": [0.5] * 30 + [0.48] * 30},
            "longer episodes",
        ),
        ({"success/mean": [0.3] * 30 + [0.6] * 30}, "held-out behind training"),
    ],
)
def test_windows_with_tasks_of_other_levels_are_not_compared(changed, rule):
    held_out = (HeldOut(0, 40, 200), HeldOut(60, 44, 200))
    assert rule in recommended(changed, held_out=held_out)
    assert rule in recommended(changed | {"curriculum/max_level": [2.0] * 60}, held_out=held_out)
    assert rule not in recommended(changed | {"curriculum/max_level": [1.0] * 40 + [2.0] * 20}, held_out=held_out)


def test_a_run_that_never_had_tools_is_not_reported_to_have_stopped_calling_them():
    assert recommended({"rollout/tool_calls_per_turn": [0.0] * 60}) == {}


def test_one_flat_run_gets_one_reason():
    """Too high a clip share explains why nothing moves; a higher learning rate is not advised beside it."""
    assert list(recommended({"reward/mean": [0.2, 0.4] * 30, "loss/clip_frac": [0.3] * 60})) == ["clipping"]


def test_limits_of_default_alarms_are_problems_here_too():
    """A metric that is on the wrong side of a default alarm's limit throughout always leads to a recommendation."""
    for rule in DEFAULT_ALARMS:
        bad = 1.1 * rule.above if rule.above is not None else 0.9 * rule.below
        good_first = [0.9] * 40 if rule.after_healthy else [bad] * 40
        found = recommended({rule.metric: [*good_first, *[bad] * 20]})
        assert "problem" in {each.severity for each in found.values()}, rule.metric


def test_a_short_run_gets_no_advice_from_means():
    bad = {name: values[:4] for name, values in HEALTHY.items()} | {"group/frac_no_signal": [1.0] * 4}
    assert recommend(Evidence(metrics=bad, settings=SETTINGS)) == []
    assert recommend(Evidence()) == []


def test_values_that_were_not_measured_do_not_count():
    assert "2 of" not in str(recommended({"loss/clip_frac": [NAN] * 40 + [0.3, NAN] * 10})["clipping"])
    assert "over the last 10 steps" in recommended({"loss/clip_frac": [NAN] * 40 + [0.3, NAN] * 10})["clipping"].figure
    assert recommended({"loss/clip_frac": [NAN] * 56 + [0.3] * 4}) == {}


def test_windows_differ_clearly_beyond_two_standard_errors():
    # Means 1 and 2, variances 0.5 each: two standard errors are 2 sqrt(0.5 / 2 + 0.5 / 2) = 1.41.
    assert not is_clear([0.5, 1.5], [1.5, 2.5])
    assert is_clear([0.5, 1.5], [1.95, 2.95])
    assert is_clear([1.0, 1.0], [1.1, 1.1]) and not is_clear([1.0, 1.0], [1.0, 1.0])


@pytest.mark.parametrize(("share", "text"), [(0.034, "3.4 %"), (0.48, "48 %"), (0.005, "0.5 %"), (1.0, "100 %")])
def test_percent(share, text):
    assert percent(share) == text


NUMBERS = st.one_of(st.just(NAN), st.floats(0.0, 10.0), st.just(math.inf))


@given(
    st.integers(0, 50).flatmap(
        lambda steps: st.fixed_dictionaries(
            {name: st.lists(NUMBERS, min_size=steps, max_size=steps) for name in HEALTHY}
        )
    ),
    st.lists(st.builds(HeldOut, st.integers(0, 50), st.integers(0, 5), st.just(5)), max_size=3),
)
def test_any_series_is_judged_without_an_error_and_problems_come_first(metrics, held_out):
    severities = [each.severity for each in recommend(evidence_of(metrics, held_out=held_out))]
    assert severities == sorted(severities, key=lambda severity: severity != "problem")
