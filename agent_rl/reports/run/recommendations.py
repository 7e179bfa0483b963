"""What to change in a run, by rule: each recommendation names its figure and the keys to change.

A rule without enough steps is silent, and no two recommendations turn one key against each other. Not here: the rules
themselves.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent_rl.reports.run import learning_rules as learning
from agent_rl.reports.run import rollout_rules as rollout
from agent_rl.reports.run.evidence import Evidence, Recommendation, Rule, Turn

RULES: tuple[Rule, ...] = (
    learning.not_finite,
    learning.mismatch,
    learning.entropy_collapse,
    learning.zero_variance,
    learning.minor_signal,
    learning.clipping,
    learning.gradient_spikes,
    learning.falling_reward,
    learning.overfit,
    rollout.environment_errors,
    rollout.reward_hacking,
    rollout.stopped_calling,
    rollout.unreadable_calls,
    rollout.truncated,
    rollout.longer_episodes,
    rollout.failed_calls,
    learning.no_progress,
    learning.still_rising,
    rollout.slow_stage,
)
"""What goes wrong comes before possible improvements; the keys of an earlier rule win."""
_OPPOSITES = {"raise", "lower"}


def recommend(evidence: Evidence) -> list[Recommendation]:
    """The recommendations of all rules, problems first, then in the order of the rules."""
    found = [each for rule in RULES if (each := rule(evidence)) is not None]
    return sorted(without_contradictions(found), key=lambda each: each.severity != "problem")


def without_contradictions(found: Sequence[Recommendation]) -> list[Recommendation]:
    """Earlier ones before later ones: a later one loses the keys that an earlier one turns the other way, and is left
    out when the first of its keys, what it is about, is among them."""
    turned: dict[str, Turn] = {}
    consistent = []
    for each in found:
        keys = {key: turn for key, turn in each.keys.items() if {turned.get(key), turn} != _OPPOSITES}
        if each.keys and next(iter(each.keys)) not in keys:
            continue
        turned |= keys
        consistent.append(replace(each, keys=keys))
    return consistent
