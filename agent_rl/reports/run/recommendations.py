"""What to change in a run, by rule: each recommendation names its figure and the keys to change.

A rule without enough steps is silent, and no two recommendations turn one key against each other. Not here: the rules
themselves.
"""

from collections.abc import Sequence
from dataclasses import replace

from agent_rl.reports.run.evidence import Evidence, Recommendation, Turn
from agent_rl.reports.run.learning_rules import FURTHER_RULES, LEARNING_RULES
from agent_rl.reports.run.rollout_rules import ROLLOUT_RULES, SPEED_RULES

_OPPOSITES = {"raise", "lower"}


def recommend(evidence: Evidence) -> list[Recommendation]:
    """The recommendations of all rules, problems first, then in the order of the rules."""
    rules = (*LEARNING_RULES, *ROLLOUT_RULES, *FURTHER_RULES, *SPEED_RULES)
    found = [each for rule in rules if (each := rule(evidence)) is not None]
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
