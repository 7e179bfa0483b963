"""The metrics of a step: statistics of its episodes, and the file they are written to.

`metrics.jsonl` holds one flat JSON object per step. Not here: loss metrics (`algorithms/policy_losses.py`), display
(`progress.py`), whole episodes (`episode_files.py`). Nothing here changes what is trained.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from pathlib import Path
from statistics import fmean, pstdev

from agent_rl.closing import Closing
from agent_rl.errors import DataError
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup, Turn
from agent_rl.telemetry.files import read_lines, write_text
from agent_rl.telemetry.statistics import is_success

_NOT_CUT_OFF = (StopReason.FINISHED, StopReason.INVALID_CALLS, StopReason.ENV_ERROR)
"""Ends that neither a budget nor a deadline made."""
_MAX_COUNT = 2**31
"""More calls than this in a turn are no count."""
MINOR = 0.02
"""Part of a step's widest difference of rewards; less than that within a group is a bonus rather than an outcome."""
_OF_ENVIRONMENTS = (
    *("reward/mean", "success/mean", "group/frac_no_signal", "rollout/num_episodes", "rollout/turns_mean"),
    *("rollout/tokens_mean", "rollout/truncated_share", "rollout/env_errors"),
)
"""What is measured for every environment of a mixture too."""


class MetricsWriter(Closing):
    """Appends one JSON object per step to a file, flushed line by line: `writer.write(3, {"reward/mean": 0.5})`.

    Lines of an existing file stay, except a last line that was cut off by a crash and, with `resume_from_step`,
    those of steps from that one on, which the resumed run writes again. A context manager.
    """

    def __init__(self, path: str | Path, resume_from_step: int | None = None) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            _drop_lines(path, resume_from_step)
        self._file = path.open("a", encoding="utf-8")

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line, with the time in seconds since the epoch; a value that is infinite or NaN becomes null.

        Raises DataError when the line cannot be written, because the disk is full for example.
        """
        row: dict[str, float | None] = {"step": step, "time": round(time.time(), 3)}
        row |= {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        try:
            self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise DataError(
                f"{self._file.name}: the metrics of step {step} cannot be written ({error.strerror}); make room, then "
                "continue with checkpoint.resume=auto"
            ) from error

    def close(self) -> None:
        # Every line is flushed, so what a file can still fail to write here was raised by `write`.
        with suppress(OSError):
            self._file.close()


def _drop_lines(path: Path, resume_from_step: int | None) -> None:
    """Rewrite the file without a torn last line and without the steps to come; the old file stays until then."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    if resume_from_step is not None:
        problem = "not a line of metrics with a 'step'; move the file away to resume"
        steps = read_lines(path, lambda row: int(row["step"]), problem)
        lines = [line for line, step in zip(lines, steps, strict=True) if step < resume_from_step]
    write_text(path, "".join(f"{line}\n" for line in lines))


def group_metrics(
    groups: Sequence[TrajectoryGroup], *, has_variance: Callable[[Sequence[float | None]], bool]
) -> dict[str, float]:
    """Statistics of a step's episodes, one flat dictionary.

    `has_variance` says of a group's rewards whether they can train (`algorithms.advantages.has_variance`).
    Rewards, parts and success are over scored episodes (reward not None); NaN when there are none. A part that an
    episode does not report counts as 0 there, in a mixture if its environment reports it; `success/mean` and
    `group/frac_all_good|all_bad|mixed` are absent when no episode reports `success`. `hacks/*` count episodes in which
    reward hacking was noticed. `rollout/*` is over all episodes; tokens are generated ones, `new_contexts` turns whose
    prompt did not continue the last.
    Of a mixture, `env/NAME/*` are some of them for the groups of one environment. docs/metrics.md explains every name.
    Raises ValueError when there is no episode.
    """
    metrics = _group_metrics(groups, has_variance)
    by_env: dict[str, list[TrajectoryGroup]] = {}
    for group in groups:
        if group.trajectories and (name := group.trajectories[0].env):
            by_env.setdefault(name, []).append(group)
    for name, its_groups in by_env.items():
        of_env = _group_metrics(its_groups, has_variance)
        metrics |= {f"env/{name}/{key}": of_env[key] for key in _OF_ENVIRONMENTS if key in of_env}
    return metrics


def _group_metrics(
    groups: Sequence[TrajectoryGroup], has_variance: Callable[[Sequence[float | None]], bool]
) -> dict[str, float]:
    episodes = [trajectory for group in groups for trajectory in group.trajectories]
    if not episodes:
        raise ValueError("no episodes to measure")
    return {
        **_reward_metrics([episode for episode in episodes if _is_scored(episode)]),
        **_rollout_metrics(episodes),
        **_flag_counts(episodes),
        **_success_shares(groups, has_variance),
        "group/frac_no_signal": fmean(not has_variance([t.reward for t in group.trajectories]) for group in groups),
    }


def _is_scored(episode: Trajectory) -> bool:
    return episode.reward is not None and not math.isnan(episode.reward)


def _reward_metrics(scored: Sequence[Trajectory]) -> dict[str, float]:
    if not scored:
        return dict.fromkeys(("reward/mean", "reward/std", "reward/min", "reward/max"), math.nan)
    rewards = [episode.reward for episode in scored if episode.reward is not None]
    metrics = {
        "reward/mean": fmean(rewards),
        "reward/std": pstdev(rewards),
        "reward/min": min(rewards),
        "reward/max": max(rewards),
    }
    for name in sorted({name for episode in scored for name in episode.reward_parts}):
        key = "success/mean" if name == "success" else f"reward_parts/{name}/mean"
        reporting = {episode.env for episode in scored if name in episode.reward_parts}
        metrics[key] = fmean(episode.reward_parts.get(name, 0.0) for episode in scored if episode.env in reporting)
    return metrics


def _rollout_metrics(episodes: Sequence[Trajectory]) -> dict[str, float]:
    stops = Counter(episode.stop_reason for episode in episodes)
    return {
        "rollout/num_episodes": len(episodes),
        **_lengths(episodes),
        **_call_metrics([turn for episode in episodes for turn in episode.turns], num_episodes=len(episodes)),
        **{f"rollout/stop/{reason.value}": stops[reason] / len(episodes) for reason in StopReason},
        "rollout/truncated_share": sum(stops[reason] for reason in StopReason if reason not in _NOT_CUT_OFF)
        / len(episodes),
        "rollout/env_errors": stops[StopReason.ENV_ERROR],
    }


def _lengths(episodes: Sequence[Trajectory]) -> dict[str, float]:
    num_turns = [len(episode.turns) for episode in episodes]
    num_tokens = [sum(len(turn.completion.token_ids) for turn in episode.turns) for episode in episodes]
    num_prompt_tokens = [len(episode.turns[0].prompt_token_ids) for episode in episodes if episode.turns]
    durations_s = [episode.duration_s for episode in episodes]
    return {
        "rollout/turns_mean": fmean(num_turns),
        "rollout/turns_max": max(num_turns),
        "rollout/tokens_mean": fmean(num_tokens),
        "rollout/tokens_max": max(num_tokens),
        "rollout/prompt_tokens_mean": fmean(num_prompt_tokens) if num_prompt_tokens else math.nan,
        "rollout/prompt_tokens_max": max(num_prompt_tokens, default=math.nan),
        "time/episode_s_mean": fmean(durations_s),
        "time/episode_s_max": max(durations_s),
    }


def _call_metrics(turns: Sequence[Turn], *, num_episodes: int) -> dict[str, float]:
    # Counts of the environment, where it reports them: it also knows which calls failed.
    num_calls = sum(_count(turn.info.get("tool_calls"), len(turn.message.tool_calls)) for turn in turns)
    num_errors = sum(_count(turn.info.get("tool_errors"), len(turn.message.tool_errors)) for turn in turns)
    num_attempts = num_calls + sum(len(turn.message.tool_errors) for turn in turns)
    return {
        "rollout/tool_calls_mean": num_calls / num_episodes,
        "rollout/tool_calls_per_turn": num_calls / len(turns) if turns else math.nan,
        "rollout/tool_error_share": num_errors / num_attempts if num_attempts else 0.0,
        "rollout/parse_error_share": fmean(bool(turn.message.tool_errors) for turn in turns) if turns else math.nan,
        "rollout/new_contexts": sum(turn.new_context for turn in turns),
    }


def _count(reported: object, own: int) -> int:
    """What the environment reports where that is a count, as it may keep anything under the name; else our own."""
    is_number = isinstance(reported, Real) and not isinstance(reported, bool)
    return int(reported) if is_number and 0 <= reported <= _MAX_COUNT and reported == int(reported) else own


def _flag_counts(episodes: Sequence[Trajectory]) -> dict[str, float]:
    """Episodes with each kind of noticed reward hacking; kinds that did not occur are absent."""
    counts = Counter(flag for episode in episodes for flag in set(episode.flags))
    return {"hacks/episodes": sum(bool(episode.flags) for episode in episodes)} | {
        f"hacks/{flag}": counts[flag] for flag in sorted(counts)
    }


def _success_shares(
    groups: Sequence[TrajectoryGroup], has_variance: Callable[[Sequence[float | None]], bool]
) -> dict[str, float]:
    """Shares of groups by success of their scored episodes; groups without any are skipped.

    So are those of environments that report none.
    """
    scored = [group for each in groups if (group := [e for e in each.trajectories if _is_scored(e)])]
    reporting = {e.env for group in scored for e in group if "success" in e.reward_parts}
    counted = [group for group in scored if group[0].env in reporting]
    if not counted:
        return {}
    rates = [fmean(is_success(e.reward_parts) for e in group) for group in counted]
    rewards = [[e.reward for e in group if e.reward is not None] for group in counted]
    envs = [group[0].env for group in counted]
    least = {name: MINOR * _widest([r for r, env in zip(rewards, envs, strict=True) if env == name]) for name in envs}
    return {
        "group/frac_all_good": fmean(rate == 1.0 for rate in rates),
        "group/frac_all_bad": fmean(rate == 0.0 for rate in rates),
        "group/frac_mixed": fmean(0.0 < rate < 1.0 for rate in rates),
        "group/frac_minor_signal": fmean(
            rate in (0.0, 1.0) and max(each) - min(each) < least[name] and has_variance(each)
            for rate, each, name in zip(rates, rewards, envs, strict=True)
        ),
    }


def _widest(rewards: Sequence[Sequence[float]]) -> float:
    """The widest difference of rewards in these groups."""
    return max(map(max, rewards)) - min(map(min, rewards))
