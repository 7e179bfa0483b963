"""What to change in a run, by rule: each recommendation says on which figure it rests and which keys to turn.

A rule without enough steps is silent. Not here: the rules themselves.
"""

from agent_rl.reports.run_evidence import Evidence, Recommendation
from agent_rl.reports.run_learning_rules import LEARNING_RULES
from agent_rl.reports.run_rollout_rules import ROLLOUT_RULES


def recommend(evidence: Evidence) -> list[Recommendation]:
    """What every rule has to say, problems first, then in the order of the rules."""
    found = [said for rule in (*LEARNING_RULES, *ROLLOUT_RULES) if (said := rule(evidence)) is not None]
    return sorted(found, key=lambda each: each.severity != "problem")
