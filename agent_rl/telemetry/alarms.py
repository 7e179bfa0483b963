"""Alarms: rules over the metrics of a step that detect a failing run and name a remedy.

A rule watches one number: `AlarmRule(metric="policy/entropy", below=0.005, steps=3)`. Not here: stopping and rolling
back, which the trainer does.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agent_rl.config.sections import AlarmConfig
from agent_rl.errors import nearest

STEPS_UNTIL_MISSED = 10
"""Steps after which a rule whose metric is absent is reported: its name is misspelt, or the run has no such metric."""


class AlarmRule(AlarmConfig):
    """Fires when `metric` is above or below a limit `steps` steps in a row; exactly one limit is given."""

    after_healthy: bool = False
    """Watch only once the metric was on the right side of the limit: for a fall, not for a low start."""
    advice: str = "read the transcripts of these steps"
    """What to do about it, without a full stop."""

    @property
    def condition(self) -> str:
        """The bad state in words: `policy/entropy below 0.005`."""
        return f"{self.metric} below {self.below:g}" if self.above is None else f"{self.metric} above {self.above:g}"

    def is_bad(self, value: float) -> bool:
        return value < self.below if self.above is None else value > self.above


@dataclass(frozen=True, slots=True)
class FiredAlarm:
    """One alarm that fired at `step`; `sentence` is its full text."""

    metric: str
    action: str
    step: int
    since_step: int
    """First of the bad steps in a row; of the watched steps when the metric is absent."""
    value: float
    """NaN when the metric is absent."""
    sentence: str


@dataclass(slots=True)
class _Watch:
    """The state of one rule between steps."""

    since_step: int | None = None
    num_bad: int = 0
    has_fired: bool = False
    was_healthy: bool = False
    num_missed: int = 0
    """Steps without the metric; -1 once it was present."""


class Alarms:
    """`for fired in alarms.check(step, metrics): ...`, once per step.

    An alarm fires once and again only after a step on the right side. A value that is not a number was not measured:
    it neither counts nor ends a row of bad steps, and the same holds for a step without the metric.
    """

    def __init__(self, rules: Iterable[AlarmRule]) -> None:
        self._rules = {_key(rule): rule for rule in rules}
        self._watches = {key: _Watch() for key in self._rules}

    def check(self, step: int, metrics: Mapping[str, float]) -> list[FiredAlarm]:
        """The alarms that fire at `step`, in the order of the rules; `metrics` are all metrics of the step."""
        fired = []
        for key, rule in self._rules.items():
            watch = self._watches[key]
            value = metrics.get(rule.metric)
            if value is None:
                alarm = _missed(rule, watch, step, metrics)
            else:
                watch.num_missed = -1
                alarm = None if math.isnan(value) else _judge(rule, watch, step, value)
            if alarm is not None:
                fired.append(alarm)
        return fired

    @property
    def rules(self) -> list[AlarmRule]:
        return list(self._rules.values())

    def active(self) -> list[AlarmRule]:
        """The rules that fired and whose metric was not on the right side since."""
        return [rule for key, rule in self._rules.items() if self._watches[key].has_fired]

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: plain values."""
        return {key: asdict(watch) for key, watch in self._watches.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; an unknown rule starts anew, a removed one is dropped."""
        state = dict(state)
        self._watches = {key: _Watch(**state[key]) if key in state else _Watch() for key in self._watches}


def with_defaults(rules: Sequence[AlarmRule]) -> tuple[AlarmRule, ...]:
    """The default rules, except for metrics with a rule of the user's, and then the user's rules."""
    own = {rule.metric for rule in rules}
    return (*(rule for rule in DEFAULT_ALARMS if rule.metric not in own), *rules)


def _key(rule: AlarmRule) -> str:
    armed = " once healthy" if rule.after_healthy else ""
    return f"{rule.condition} for {rule.steps}{armed}: {rule.action}"


def _judge(rule: AlarmRule, watch: _Watch, step: int, value: float) -> FiredAlarm | None:
    if not rule.is_bad(value):
        watch.since_step, watch.num_bad, watch.has_fired, watch.was_healthy = None, 0, False, True
        return None
    if rule.after_healthy and not watch.was_healthy:
        return None
    if watch.since_step is None:
        watch.since_step = step
    watch.num_bad += 1
    if watch.has_fired or watch.num_bad < rule.steps:
        return None
    watch.has_fired = True
    sentence = f"step {step}: {rule.condition} since step {watch.since_step}, now {value:.3g}; {rule.advice}"
    return FiredAlarm(rule.metric, rule.action, step, watch.since_step, value, sentence)


def _missed(rule: AlarmRule, watch: _Watch, step: int, metrics: Mapping[str, float]) -> FiredAlarm | None:
    if watch.num_missed == -1:
        return None
    watch.num_missed += 1
    if watch.num_missed != STEPS_UNTIL_MISSED:
        return None
    sentence = (
        f"step {step}: the alarm on {rule.metric!r} is blind, the last {STEPS_UNTIL_MISSED} steps had no such "
        f"metric{nearest(rule.metric, metrics)}; see docs/metrics.md or remove it"
    )
    return FiredAlarm(rule.metric, "warn", step, step - STEPS_UNTIL_MISSED + 1, math.nan, sentence)


DEFAULT_ALARMS = (
    # At 0.005 nats a token, 200 tokens hold one nat: the episodes of a group are mostly the same text.
    AlarmRule(
        metric="policy/entropy",
        below=0.005,
        steps=5,
        advice="the policy hardly explores: lower the learning rate, raise algorithm.clip_high, or add a KL penalty",
    ),
    # Collapse in tool use shows as replies without any call, hundreds of steps in; a run without tools never arms it.
    AlarmRule(
        metric="rollout/tool_calls_per_turn",
        below=0.1,
        steps=3,
        after_healthy=True,
        advice="the model stopped calling tools: go back to the best checkpoint and lower the learning rate",
    ),
    # A warm-started policy writes a few per cent of unreadable calls; a third of all turns is another format.
    AlarmRule(
        metric="rollout/parse_error_share",
        above=0.3,
        steps=3,
        advice="the calls cannot be read: look at the transcripts and at the model's chat template",
    ),
    # Truncated episodes earn what they happened to reach, so with most of them the reward measures the budgets.
    AlarmRule(
        metric="rollout/truncated_share",
        above=0.5,
        steps=3,
        advice="see rollout/stop/* for which budget is used up, and raise it or shape the reward by length",
    ),
    # Stable runs stay below 0.01 nats a token; above, the ratios that the loss clips are the two programs', not the
    # policy's.
    AlarmRule(
        metric="mismatch/k3",
        above=0.01,
        steps=3,
        advice="sampler and trainer disagree: check number formats and weight sync, or turn on a correction",
    ),
    # With four fifths of the groups equal, a step learns from a fifth of its episodes, and its gradient is noisy.
    AlarmRule(
        metric="group/frac_no_signal",
        above=0.8,
        steps=5,
        advice="most groups earn the same reward throughout: use tasks of another level, or larger groups",
    ),
)
"""What to watch in any run, all of it `warn`."""


def make_alarms(rules: Sequence[AlarmConfig]) -> Alarms:
    """The alarms of a configuration, beside the default ones."""
    return Alarms(with_defaults([AlarmRule(**rule.model_dump()) for rule in rules]))
