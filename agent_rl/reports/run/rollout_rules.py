"""Recommendations from what happened in the episodes: budgets, calls, errors, reward hacking, time.

Pure functions. Not here: learning (`learning_rules.py`).
"""

from statistics import fmean

from agent_rl.reports.run.evidence import (
    ALARM_ADVICE,
    ALARM_LIMITS,
    Evidence,
    Keys,
    Recommendation,
    is_clear,
    measured,
    percent,
    rise,
    severity_above,
    unless,
)

TRUNCATED_HINT = 0.2
"""With a fifth cut off, mean reward can move by as much through lengths alone."""
UNREADABLE_HINT = 0.1
"""A warm-started policy writes a few per cent of unreadable calls."""
FAILED_CALLS = 0.3
"""As the alarm on unreadable calls: with a third, episodes are about the format of calls."""
LONGER = 1.5
"""Growth of episodes that is reported when success did not grow with it."""
ENV_ERRORS = 0.01
"""Share of dropped episodes; a shaky service loses fewer."""
ROLLOUT_SHARE = 0.85
"""Of a step: beyond, a free update would not make it a fifth faster."""
UPDATE_SHARE = 0.6
"""Of a step: rollouts take most of a usual step."""
STRAGGLER = 3.0
"""The slowest episode in means: beyond, most of the machine waits for a few."""

_BUDGETS = {
    "max_turns": "rollout.max_turns",
    "max_tokens": "policy.max_new_tokens",
    "context_full": "policy.max_context",
    "tool_budget": "rollout.max_tool_calls",
    "timeout": "rollout.episode_timeout_s",
}
"""Stop reason -> the key of the budget that was used up."""


def environment_errors(evidence: Evidence) -> Recommendation | None:
    """Dropped episodes of the last steps; a single step is enough for a report."""
    counts = evidence.last("rollout/env_errors")
    if not sum(counts) or sum(counts) < ENV_ERRORS * evidence.episodes_per_step * len(counts):
        return None
    figure = f"{sum(counts):.0f} episodes were dropped by environment errors {evidence.span('rollout/env_errors')}"
    advice = "the run's output says what failed first: look at memory, time limits and services of the environment"
    keys: Keys = {"env.options": "set", "rollout.async_workers": "lower"}
    return Recommendation("environment errors", "problem", figure, advice, keys)


def reward_hacking(evidence: Evidence) -> Recommendation | None:
    """Noticed reward hacking; a problem when it clearly spreads."""
    counts = {name: sum(measured(values)) for name, values in evidence.metrics.items() if name.startswith("hacks/")}
    total = counts.pop("hacks/episodes", 0)
    if not total:
        return None
    named = ", ".join(f"{name.removeprefix('hacks/')} {count:.0f}" for name, count in sorted(counts.items()))
    figure = f"{total:.0f} episode{'s' * (total != 1)} tried to influence the verdict ({named or 'kind unknown'})"
    ends = evidence.ends("hacks/episodes")
    spreads = ends is not None and rise(*ends) > 0 and is_clear(*ends)
    if spreads:
        figure += f", {fmean(ends[1]):.2g} a step at the end after {fmean(ends[0]):.2g} at the start"
    advice = "look at these flags in the transcripts: if such episodes earn reward, fix the checks before continuing"
    severity = "problem" if spreads else "hint"
    return Recommendation("reward hacking", severity, figure, advice, {"env.options": "set"})


def stopped_calling(evidence: Evidence) -> Recommendation | None:
    name = "rollout/tool_calls_per_turn"
    now, limit = evidence.recent(name), ALARM_LIMITS[name]
    highest = max(measured(evidence.metrics.get(name, ())), default=0.0)
    if now is None or now >= limit or highest < limit:
        return None
    figure = f"{now:.2g} tool calls a turn {evidence.span(name)}, {highest:.2g} at best"
    keys: Keys = {"checkpoint.resume": "set", "train.learning_rate": "lower", "algorithm.kl.coef": "raise"}
    return Recommendation("no tool calls", "problem", figure, ALARM_ADVICE[name], keys)


def unreadable_calls(evidence: Evidence) -> Recommendation | None:
    name = "rollout/parse_error_share"
    share = evidence.recent(name)
    if share is None or share < UNREADABLE_HINT:
        return None
    figure = f"{percent(share)} of turns held a call that could not be read {evidence.span(name)}"
    advice = "compare the transcripts with the model's chat template; another agent type or warm start may be needed"
    keys: Keys = {"agent.type": "set", "model.path": "set"}
    return Recommendation("unreadable calls", severity_above(name, share), figure, advice, keys)


def truncated(evidence: Evidence) -> Recommendation | None:
    name = "rollout/truncated_share"
    share = evidence.recent(name)
    if share is None or share < TRUNCATED_HINT:
        return None
    figure = f"{percent(share)} of episodes were cut off {evidence.span(name)}"
    advice, keys = "look at rollout/stop/*", {}
    ends = {reason: evidence.recent(f"rollout/stop/{reason}") or 0.0 for reason in _BUDGETS}
    reason = max(ends, key=lambda each: ends[each])
    if ends[reason]:
        figure += f", most by {reason} ({percent(ends[reason])})"
        advice = "raise that budget if the transcripts show work cut short, or shape the reward by length"
        keys = {_BUDGETS[reason]: "raise", **_overlong(evidence)}
    return Recommendation("cut off", severity_above(name, share), figure, advice, keys)


def _overlong(evidence: Evidence) -> Keys:
    """The penalty for length; it means nothing without the length that is too much."""
    if evidence.settings.get("algorithm.overlong.buffer", 0):
        return {"algorithm.overlong.weight": "raise"}
    return {"algorithm.overlong.buffer": "raise", "algorithm.overlong.max_tokens": "set"}


def longer_episodes(evidence: Evidence) -> Recommendation | None:
    """Growing lengths that bring nothing."""
    lengths, rewards = evidence.ends("rollout/tokens_mean"), evidence.ends("reward/mean")
    if lengths is None or rewards is None or evidence.has_opened_levels():
        return None
    first, last = fmean(lengths[0]), fmean(lengths[1])
    if first <= 0.0 or last < LONGER * first or rise(*rewards) > 0.0:
        return None
    figure = f"episodes grew from {first:.0f} to {last:.0f} generated tokens, and the mean reward did not rise"
    advice, keys = "subtract a penalty for length", _overlong(evidence)
    if evidence.settings.get("algorithm.aggregation") == "seq_mean_token_mean":
        advice += ", and aggregate so that the tokens of long failures do not weigh less"
        keys = {**keys, "algorithm.aggregation": "set"}
    return Recommendation("longer episodes", "hint", figure, advice, keys)


def failed_calls(evidence: Evidence) -> Recommendation | None:
    name = "rollout/tool_error_share"
    share = evidence.recent(name)
    if share is None or share < FAILED_CALLS:
        return None
    figure = f"{percent(share)} of attempted tool calls failed or could not be read {evidence.span(name)}"
    advice = "read in the transcripts what the tools answer: errors should say what to do, descriptions how to call"
    return Recommendation("failed calls", "hint", figure, advice, {"env.options": "set", "tools.use": "set"})


def slow_stage(evidence: Evidence) -> Recommendation | None:
    """What takes most of a step."""
    step, rollout, update = (evidence.recent(f"time/{stage}_s") for stage in ("step", "rollout", "update"))
    if not step or rollout is None or update is None:
        return None
    if update >= UPDATE_SHARE * step:
        figure = f"updates take {percent(update / step)} of a step, {update:.3g} s of {step:.3g} s"
        advice = "larger micro-batches if memory allows, bfloat16 on GPUs, or fewer passes over the episodes"
        keys: Keys = {
            "train.micro_batch_tokens": "raise",
            **unless(evidence.settings.get("train.autocast", "none") == "bfloat16", {"train.autocast": "set"}),
            **unless(evidence.settings.get("train.epochs", 1) == 1, {"train.epochs": "lower"}),
        }
        return Recommendation("slow updates", "hint", figure, advice, keys)
    if rollout < ROLLOUT_SHARE * step:
        return None
    figure = f"rollouts take {percent(rollout / step)} of a step, {rollout:.3g} s of {step:.3g} s"
    advice = "run more episodes at the same time; give the environment more workers if cores are idle"
    keys = {**_narrow(evidence), **_workers(evidence)}
    slowest, mean = evidence.recent("time/episode_s_max"), evidence.recent("time/episode_s_mean")
    if slowest is not None and mean and slowest > STRAGGLER * mean:
        figure += f"; the slowest episode takes {slowest / mean:.1f} times the mean"
        advice = "a few long episodes hold up the step: bound them"
        keys = {"rollout.episode_timeout_s": "lower", "rollout.max_turns": "lower"}
    return Recommendation("slow rollouts", "hint", figure, advice, {**keys, **_staleness(evidence)})


def _narrow(evidence: Evidence) -> Keys:
    """Keys that limit how many episodes of a step run at the same time; vLLM servers have their own limit."""
    settings = evidence.settings
    batch = () if settings.get("vllm.servers") else ("policy.max_batch_size",)
    names = (*batch, "rollout.async_workers")
    return {name: "raise" for name in names if settings.get(name, 0) < evidence.episodes_per_step}


def _workers(evidence: Evidence) -> Keys:
    """The option for the number of an environment's workers, by the names that environments give it."""
    known = ("env.options.checkers", "env.options.workers")
    return {key: "raise" for key in known if key in evidence.settings} or {"env.options": "set"}


def _staleness(evidence: Evidence) -> Keys:
    """Rollouts during updates, if they are possible and off; old tokens need a correction."""
    settings = evidence.settings
    is_possible = settings.get("policy.type") == "vllm" and settings.get("rollout.async_workers", 0) > 0
    if not is_possible or settings.get("rollout.max_staleness", 0):
        return {}
    return {"rollout.max_staleness": "raise", **unless(evidence.has_correction, {"algorithm.correction.kind": "set"})}
