"""Alarms fire once, after the right number of steps, and remember where they were."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_rl.telemetry.alarms import DEFAULT_ALARMS, STEPS_UNTIL_MISSED, AlarmRule, Alarms, with_defaults

NAN = math.nan


def firing_steps(rule: AlarmRule, values: list[float | None]) -> list[tuple[int, int]]:
    """(step, since step) of every alarm over the values of steps 1, 2, ...; None is a step without the metric."""
    alarms = Alarms([rule])
    steps = [({} if value is None else {rule.metric: value}) for value in values]
    fired = [alarm for step, metrics in enumerate(steps, 1) for alarm in alarms.check(step, metrics)]
    return [(alarm.step, alarm.since_step) for alarm in fired]


@pytest.mark.parametrize(
    ("rule", "values", "fired"),
    [
        (AlarmRule(metric="a", below=0.5), [0.5, 0.4], [(2, 2)]),
        (AlarmRule(metric="a", above=0.5), [0.5, 0.6], [(2, 2)]),
        (AlarmRule(metric="a", above=0.5, steps=3), [0.9, 0.9, 0.9], [(3, 1)]),
        (AlarmRule(metric="a", above=0.5, steps=3), [0.9, 0.9, 0.1, 0.9, 0.9], []),
        # Once, until it was quiet.
        (AlarmRule(metric="a", above=0.5), [0.9, 0.9, 0.9, 0.1, 0.9], [(1, 1), (5, 5)]),
        (AlarmRule(metric="a", above=0.5, steps=2), [0.9, 0.9, 0.9, 0.1, 0.9, 0.9], [(2, 1), (6, 5)]),
        # What was not measured neither counts nor ends the row.
        (AlarmRule(metric="a", above=0.5, steps=2), [0.9, NAN, None, 0.9], [(4, 1)]),
        (AlarmRule(metric="a", above=0.5), [NAN, NAN], []),
        (AlarmRule(metric="a", above=0.5), [0.9, NAN, None, 0.9], [(1, 1)]),
        (AlarmRule(metric="a", above=0.5), [math.inf], [(1, 1)]),
        (AlarmRule(metric="a", above=0.5), [-math.inf], []),
        # A fall needs a height.
        (AlarmRule(metric="a", below=0.5, after_healthy=True), [0.0, 0.0], []),
        (AlarmRule(metric="a", below=0.5, steps=2, after_healthy=True), [0.0, 0.8, 0.1, 0.1], [(4, 3)]),
    ],
)
def test_an_alarm_fires_by_its_rule(rule, values, fired):
    assert firing_steps(rule, values) == fired


def test_the_sentence_names_the_problem_its_start_and_the_remedy():
    rule = AlarmRule(metric="policy/entropy", below=0.02, steps=2, action="stop", advice="lower the learning rate")
    alarms = Alarms([rule])
    assert alarms.check(7, {"policy/entropy": 0.019}) == []
    (fired,) = alarms.check(8, {"policy/entropy": 0.012345})
    assert fired.sentence == "step 8: policy/entropy below 0.02 since step 7, now 0.0123; lower the learning rate"
    assert (fired.metric, fired.action, fired.value) == ("policy/entropy", "stop", 0.012345)
    assert (fired.step, fired.since_step) == (8, 7)


def test_rules_on_one_metric_keep_apart_and_fire_in_their_order():
    warn, stop = (AlarmRule(metric="a", above=0.5, steps=n, action=action) for n, action in ((1, "warn"), (2, "stop")))
    alarms = Alarms([warn, stop])
    assert [[fired.action for fired in alarms.check(step, {"a": 1.0})] for step in (1, 2, 3)] == [
        ["warn"],
        ["stop"],
        [],
    ]


def test_a_metric_that_never_comes_is_reported_once_with_the_nearest_name():
    alarms = Alarms([AlarmRule(metric="policy/entropi", below=0.1, action="stop")])
    fired = [alarm for step in range(1, 30) for alarm in alarms.check(step, {"policy/entropy": 1.0})]
    assert [(alarm.step, alarm.since_step, alarm.action) for alarm in fired] == [(STEPS_UNTIL_MISSED, 1, "warn")]
    assert "'policy/entropi' is blind" in fired[0].sentence
    assert "did you mean 'policy/entropy'?" in fired[0].sentence


def test_a_metric_that_came_once_is_not_missed_later():
    assert firing_steps(AlarmRule(metric="a", above=0.5), [None, NAN] + [None] * 50) == []


@given(st.lists(st.sampled_from([0.0, 1.0, NAN, None]), max_size=30), st.integers(0, 30), st.booleans())
def test_a_stopped_and_continued_watch_fires_as_an_undisturbed_one(values, stop, after_healthy):
    rules = [AlarmRule(metric="a", above=0.5, steps=2, after_healthy=after_healthy), AlarmRule(metric="b", below=0.5)]
    steps = [({} if value is None else {"a": value}) for value in values]

    def sentences(alarms, first, last):
        return [f.sentence for n in range(first, last) for f in alarms.check(n + 1, steps[n])]

    stop = min(stop, len(values))
    first, second = Alarms(rules), Alarms(rules)
    before = sentences(first, 0, stop)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert before + sentences(second, stop, len(values)) == sentences(Alarms(rules), 0, len(values))


def test_a_changed_rule_starts_anew_when_a_run_goes_on():
    earlier, now = (AlarmRule(metric="a", above=limit, steps=2) for limit in (0.5, 0.6))
    first, second = Alarms([earlier]), Alarms([now, AlarmRule(metric="b", above=0.5)])
    first.check(1, {"a": 1.0})
    second.load_state_dict(first.state_dict())
    assert second.check(2, {"a": 1.0}) == []
    assert len(second.check(3, {"a": 1.0})) == 1


# The default rules

HEALTHY = {
    "policy/entropy": 0.02,  # the shipped warm start
    "rollout/tool_calls_per_turn": 1.0,
    "rollout/parse_error_share": 0.02,
    "rollout/truncated_share": 0.1,
    "mismatch/k3": 1e-4,
    "group/frac_no_signal": 0.4,
}
SICK = {
    "policy/entropy": 0.001,
    "rollout/tool_calls_per_turn": 0.0,
    "rollout/parse_error_share": 0.6,
    "rollout/truncated_share": 0.9,
    "mismatch/k3": 0.1,
    "group/frac_no_signal": 0.95,
}


def test_the_default_rules_leave_a_healthy_run_alone_and_only_warn_of_a_sick_one():
    alarms = Alarms(DEFAULT_ALARMS)
    assert [alarms.check(step, HEALTHY) for step in range(1, 20)] == [[]] * 19
    fired = [alarm for step in range(20, 26) for alarm in alarms.check(step, SICK)]
    assert sorted(alarm.metric for alarm in fired) == sorted(SICK)
    assert {alarm.action for alarm in fired} == {"warn"}


def test_a_run_without_tools_hears_nothing_about_tool_calls():
    alarms = Alarms(DEFAULT_ALARMS)
    assert not any(alarms.check(step, HEALTHY | {"rollout/tool_calls_per_turn": 0.0}) for step in range(1, 20))


def test_a_rule_of_ones_own_takes_the_place_of_the_default_on_its_metric():
    own = AlarmRule(metric="policy/entropy", below=0.1, action="stop")
    rules = with_defaults([own])
    assert len(rules) == len(DEFAULT_ALARMS)
    assert [rule for rule in rules if rule.metric == "policy/entropy"] == [own]
    assert with_defaults([]) == DEFAULT_ALARMS
