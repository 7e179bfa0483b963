"""Tells of steps whose rewards teach nothing: no group holds episodes of different rewards.

Said once, then at every doubling of how many steps in a row, and at the end for a run that never had any.
Not here: the metric (`group/frac_no_signal`), the alarm over it.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from agent_rl.algorithms.advantages import has_variance
from agent_rl.config import Config
from agent_rl.config.functions import needs_group
from agent_rl.config.sections import PolicyConfig
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup
from agent_rl.telemetry.files import whole_lines
from agent_rl.telemetry.statistics import is_success

_ALL_RIGHT, _ALL_WRONG, _ALL_EQUAL, _NOT_SCORED = "all right", "all wrong", "all equal", "not scored"
_REMEDIES = {
    _ALL_RIGHT: "the tasks are too easy: take harder ones",
    _ALL_WRONG: "the tasks are too hard: take easier ones, a warm start, or a reward for parts of the way",
    _ALL_EQUAL: "the reward does not tell these episodes apart",
    _NOT_SCORED: "their environment failed",
}
_CUT = "cut off by "
_BUDGETS = {
    StopReason.CONTEXT_FULL: "policy.max_context",
    StopReason.MAX_TURNS: "rollout.max_turns",
    StopReason.TOOL_BUDGET: "rollout.max_tool_calls",
    StopReason.TIMEOUT: "rollout.episode_timeout_s",
}


class NoSignal:
    """`no_signal.sentence(3, groups)` is what to tell of a step, or None. Estimators without groups are not judged."""

    def __init__(self, config: Config) -> None:
        algorithm, self._policy = config.algorithm, config.policy
        self._is_judged = needs_group(algorithm.advantage) is not False
        self._compares_parts = bool(algorithm.part_weights)
        self._num_in_a_row = 0

    def sentence(self, step: int, groups: Sequence[TrajectoryGroup], *, was_skipped: bool) -> str | None:
        """Why no group of `step` has a signal; None where one has, and where it was said not long ago.

        `was_skipped`: no update was made, as no other term of the loss asked for one.
        """
        if not self._is_judged or not groups or (self._compares_parts and not was_skipped):
            return None
        kinds = Counter(_kind(group, self._policy) for group in groups)
        if kinds[None]:
            self._num_in_a_row = 0
            return None
        self._num_in_a_row += 1
        if self._num_in_a_row & (self._num_in_a_row - 1):  # no power of two
            return None
        most = max(kinds, key=kinds.__getitem__)
        why = "groups: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
        since = "" if self._num_in_a_row == 1 else f" for {self._num_in_a_row} steps"
        learned = "nothing was learned" if was_skipped else "the rewards taught nothing"
        return f"step {step}: no group had a signal{since} ({why}), {learned}; {_remedy(str(most))}"

    def at_the_end(self, metrics_file: Path) -> str | None:
        """The sentence for a run, earlier starts included, in which no step had a signal."""
        if not self._is_judged:
            return None
        shares = [row["group/frac_no_signal"] for row in _rows(metrics_file) if "group/frac_no_signal" in row]
        if not shares or any(share is None or share < 1.0 for share in shares):
            return None
        return (
            f"No step of this run had a signal: in each of its {len(shares)} steps every group had equal rewards, so "
            "the rewards taught the model nothing"
        )


def _remedy(kind: str) -> str:
    if not kind.startswith(_CUT):
        return _REMEDIES[kind]
    key = kind.removeprefix(_CUT)
    return f"most of their episodes did not come to an end: raise {key}, or take tasks and a model that stay below it"


def _kind(group: TrajectoryGroup, policy: PolicyConfig) -> str | None:
    """Why a group has no signal; None where it has one."""
    if has_variance([episode.reward for episode in group.trajectories]):
        return None
    scored = [episode for episode in group.trajectories if episode.reward is not None]
    if not scored:
        return _NOT_SCORED
    knows_success = any("success" in episode.reward_parts for episode in scored)
    if knows_success and all(_is_right(episode) for episode in scored):
        return _ALL_RIGHT
    budgets = Counter(key for episode in scored if (key := _budget(episode, policy)))
    if budgets.total() > len(scored) / 2:
        return f"{_CUT}{budgets.most_common(1)[0][0]}"
    return _ALL_WRONG if knows_success and not any(_is_right(episode) for episode in scored) else _ALL_EQUAL


def _budget(episode: Trajectory, policy: PolicyConfig) -> str:
    """The key of the budget that ended an episode; empty where none did, or one that an agent set itself."""
    if episode.stop_reason is not StopReason.MAX_TOKENS:
        return _BUDGETS.get(episode.stop_reason, "")
    if len(episode.turns[-1].completion.token_ids) >= policy.max_new_tokens:
        return "policy.max_new_tokens"
    in_context = 0
    for turn in episode.turns:
        in_context = 0 if turn.new_context else in_context
        in_context += len(turn.prompt_token_ids) + len(turn.completion.token_ids)
    return "policy.max_context" if in_context >= policy.max_context else ""


def _is_right(episode: Trajectory) -> bool:
    return is_success(episode.reward_parts)


def _rows(path: Path) -> list[dict[str, float | None]]:
    return [json.loads(line) for line in whole_lines(path)]
