"""Recommendations from how the policy learns: zero-variance groups, updates, entropy, reward over time, held-out tasks.

Pure functions. Not here: what happens in episodes (`rollout_rules.py`).
"""

from statistics import fmean, median
from typing import Literal

from agent_rl.config.functions import needs_group
from agent_rl.registry import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
from agent_rl.reports.run.evidence import (
    ALARM_LIMITS,
    MIN_STEPS,
    WINDOW,
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

ZERO_VARIANCE_HINT = 0.4
"""Beyond two fifths, a step costs more than 1.6 times what it learns from."""
MINOR_HINT = 0.1
"""Beyond a tenth of the groups that are trained on, what hardly matters is a tenth of what is learned."""
EITHER_END = 0.5
"""With half as many groups at the other end, neither harder nor easier tasks alone would help."""
LOST_ENTROPY = 0.2
"""Part of the first steps' entropy that is left: below a fifth, samples have lost most of their variety."""
CLIPPED = 0.2
"""A clipped token teaches nothing; PPO is usually run at a tenth or less."""
SPIKE = 5.0
"""A gradient norm this many times the run's median is an outlier; the spread within a healthy run is below 3."""
SPIKES_TO_TELL = 3
"""One outlier is clipped and forgotten."""
MIN_NORMS = 10
"""Fewest gradient norms that a median is taken of."""
PEAK_ERRORS = 3.0
"""Standard errors of a fall from the best window: more than elsewhere, as the best of many windows is partly luck."""
FALL = 0.1
"""Part of the best window's reward whose loss is reported; a seed's noise is smaller."""
MORE_ENTROPY = 1.5
"""Entropy over that of the best window: from there on the policy diverges rather than narrows."""
TRAIN_GAIN = 0.1
"""Success gained in training that held-out tasks should show: half the width of an interval of 200 tasks."""
SOLVED = 0.9
"""Success of training tasks beyond which a reward has little room to rise."""
SHARED_GAIN = 1 / 3
"""Part of it that they have to show at least."""
FLATTENED = 0.25
"""Rise between the halves of the last window, in rises from window to window: a straight line has half of one."""


def not_finite(evidence: Evidence) -> Recommendation | None:
    """One such update is enough for a report."""
    number = sum(measured(evidence.metrics.get("optim/nonfinite", ())))
    if not number:
        return None
    figure = f"{number:.0f} updates were not made because loss or gradient was not finite"
    keys: Keys = {
        **unless(evidence.settings.get("train.autocast", "none") == "none", {"train.autocast": "set"}),
        **unless(evidence.settings.get("model.dtype", "float32") == "float32", {"model.dtype": "set"}),
        "train.learning_rate": "lower",
        "train.max_grad_norm": "lower",
    }
    return Recommendation("not finite", "problem", figure, "use float32, lower the learning rate, or clip lower", keys)


def mismatch(evidence: Evidence) -> Recommendation | None:
    name = "mismatch/k3"
    value, limit = evidence.recent(name), ALARM_LIMITS[name]
    if value is None or value <= limit:
        return None
    figure = f"mismatch/k3 is {value:.3g} nats a token {evidence.span(name)}, stable runs stay below {limit:g}"
    return Recommendation("sampler mismatch", "problem", figure, *_agreement(evidence))


def _agreement(evidence: Evidence) -> tuple[str, Keys]:
    """What brings sampler and trainer together."""
    settings = evidence.settings
    advice = "sampler and trainer disagree: check number formats and weight sync"
    if not evidence.has_correction:
        is_single = evidence.updates_per_step == 1
        advice += ", or turn on a correction" + (", which with one update a step takes no clip" if is_single else "")
    return advice, {
        **unless(evidence.has_correction, {"algorithm.correction.kind": "set"}),
        **unless(settings.get("model.dtype", "float32") == "float32", {"model.dtype": "set"}),
        **unless(not settings.get("rollout.max_staleness", 0), {"rollout.max_staleness": "lower"}),
    }


def entropy_collapse(evidence: Evidence) -> Recommendation | None:
    name = "policy/entropy"
    now, ends, limit = evidence.recent(name), evidence.ends(name), ALARM_LIMITS[name]
    if now is None:
        return None
    fell = ends is not None and now < LOST_ENTROPY * fmean(ends[0])
    if now >= limit and not fell:
        return None
    start = f", from {fmean(ends[0]):.3g} in the first {len(ends[0])} steps" if ends is not None else ""
    figure = f"entropy is {now:.3g} nats a token {evidence.span(name)}{start}"
    # A ratio that is 1 but for the sampler's rounding is never clipped, and other losses may have no upper clip.
    loss = evidence.settings.get("algorithm.loss", "ppo_clip")
    other, key = "add an entropy bonus", "algorithm.entropy_coef"
    if evidence.updates_per_step > 1 and loss in POLICY_LOSSES.builtin:
        other, key = "raise the upper clip", "algorithm.clip_high"
    advice = f"the policy explores little: lower the learning rate, {other}, or add a KL penalty"
    keys: Keys = {"train.learning_rate": "lower", key: "raise", "algorithm.kl.coef": "raise"}
    return Recommendation("entropy collapse", "problem" if now < limit else "hint", figure, advice, keys)


def zero_variance(evidence: Evidence) -> Recommendation | None:
    """Groups whose episodes all earn the same, where the estimator compares the episodes of a group."""
    name = "group/frac_no_signal"
    share = evidence.recent(name)
    advantage = evidence.settings.get("algorithm.advantage", "grpo")
    is_ungrouped = advantage in ADVANTAGE_ESTIMATORS.builtin and needs_group(advantage) is False
    if share is None or share < ZERO_VARIANCE_HINT or is_ungrouped:
        return None
    good, bad = evidence.recent("group/frac_all_good") or 0.0, evidence.recent("group/frac_all_bad") or 0.0
    figure = f"{percent(share)} of groups had zero variance {evidence.span(name)}"
    if good or bad:
        figure += f"; {percent(good)} were all solved, {percent(bad)} all failed"
    keys = unless(evidence.settings.get("rollout.max_attempts", 1) > 1, {"rollout.max_attempts": "raise"})
    resample = ", or sample tasks again until groups differ" if keys else ""
    if min(good, bad) > EITHER_END * max(good, bad):
        advice = "tasks in between: a curriculum by success, or a reward that distinguishes failures"
        keys = {**_curriculum(evidence), **keys, "env.options": "set"}
    elif good > bad:
        advice = "harder tasks: open levels sooner or add tasks"
        keys = {**_curriculum(evidence, "lower"), **keys}
    elif bad > 0:
        advice = "easier tasks first, more episodes a task, or a better warm start"
        keys = {**_curriculum(evidence, "raise"), "rollout.group_size": "raise", "model.path": "set", **keys}
    else:
        advice = "a reward with more steps between nothing and everything"
        keys = {"env.options": "set", **keys}
    return Recommendation("zero variance", severity_above(name, share), figure, advice + resample, keys)


def _curriculum(evidence: Evidence, threshold: Literal["raise", "lower"] | None = None) -> Keys:
    """What decides the level of tasks; `threshold` says how to turn that of a curriculum by success."""
    mode = evidence.settings.get("data.curriculum.mode", "off")
    if mode == "success":
        return {"data.curriculum.threshold": threshold} if threshold else {}
    return {"data.curriculum.stages" if mode == "stages" else "data.curriculum.mode": "set"}


def minor_signal(evidence: Evidence) -> Recommendation | None:
    """Groups of one outcome and nearly one reward, where the standard deviation makes all groups count alike."""
    share, nothing = evidence.recent("group/frac_minor_signal"), evidence.recent("group/frac_no_signal")
    settings = evidence.settings
    is_divided = settings.get("algorithm.advantage", "grpo") == "grpo" and settings.get("algorithm.scale_by_std", True)
    if share is None or nothing is None or not is_divided or settings.get("algorithm.min_std", 0.0) > 0:
        return None
    if nothing >= 1.0 or share / (1.0 - nothing) < MINOR_HINT:
        return None
    figure = (
        f"in {percent(share / (1.0 - nothing))} of the groups with a signal all episodes had one outcome and nearly "
        f"one reward {evidence.span('group/frac_minor_signal')}"
    )
    advice = (
        "they count as much as groups of successes and failures: divide by a standard deviation of a tenth of the full "
        "reward at least, or not at all"
    )
    return Recommendation("minor signal", "hint", figure, advice, {"algorithm.min_std": "raise"})


def clipping(evidence: Evidence) -> Recommendation | None:
    name = "loss/clip_frac"
    share = evidence.recent(name)
    if share is None or share < CLIPPED:
        return None
    if evidence.updates_per_step == 1:  # then the first pass is the only one, and its ratio is to the sampler
        advice, keys = _agreement(evidence)
    else:
        advice = "updates go further than the loss allows: lower the learning rate, or make fewer updates of a batch"
        keys = {
            "train.learning_rate": "lower",
            **unless(evidence.settings.get("train.epochs", 1) == 1, {"train.epochs": "lower"}),
            **unless(evidence.settings.get("train.minibatches", 1) == 1, {"train.minibatches": "lower"}),
        }
    figure = f"{percent(share)} of trained tokens were clipped {evidence.span(name)}"
    return Recommendation("clipping", "hint", figure, advice, keys)


def gradient_spikes(evidence: Evidence) -> Recommendation | None:
    norms = measured(evidence.metrics.get("optim/grad_norm", ()))
    if len(norms) < MIN_NORMS:
        return None
    middle, clip = median(norms), evidence.settings.get("train.max_grad_norm", 0.0)
    # Below the clip a large norm is no accident to be bounded, whatever the median.
    limit = max(SPIKE * middle, clip)
    named = f"{SPIKE:g} times the median of {middle:.3g}" if limit > clip else f"the clip of {clip:g}"
    spikes = [norm for norm in norms if norm > limit]
    if len(spikes) < SPIKES_TO_TELL:
        return None
    figure = f"{len(spikes)} of {len(norms)} steps had a gradient norm above {named}, the largest {max(spikes):.3g}"
    if limit == clip:
        figure += f"; the median is {middle:.3g}"
    advice = "clip nearer to the median, lower the learning rate, or warm up for longer"
    keys: Keys = {"train.max_grad_norm": "lower", "train.learning_rate": "lower", "train.warmup_steps": "raise"}
    return Recommendation("gradient spikes", "hint", figure, advice, keys)


def falling_reward(evidence: Evidence) -> Recommendation | None:
    """A reward well below what the run had reached; with rising entropy the learning rate is to blame."""
    rewards, last = evidence.metrics.get("reward/mean", ()), evidence.last("reward/mean")
    windows = {
        start: window
        for start in range(len(rewards) - 2 * WINDOW + 1)
        if len(window := measured(rewards[start : start + WINDOW])) >= MIN_STEPS
    }
    if len(measured(rewards)) < 2 * WINDOW or not windows or len(last) < MIN_STEPS:
        return None
    start, best = max(windows.items(), key=lambda each: fmean(each[1]))
    fall = -rise(best, last)
    if fall < FALL * abs(fmean(best)) or not is_clear(best, last, PEAK_ERRORS) or evidence.has_opened_levels(start):
        return None
    figure = f"mean reward is {fmean(last):.3g} {evidence.span('reward/mean')}, after {fmean(best):.3g} in steps "
    figure += f"{evidence.step_at(start)} to {evidence.step_at(start + WINDOW - 1)}"
    advice = "go back to the best checkpoint and continue with a lower learning rate or a KL penalty"
    then = measured(evidence.metrics.get("policy/entropy", ())[start : start + WINDOW])
    now = evidence.recent("policy/entropy")
    if then and now is not None and now >= MORE_ENTROPY * fmean(then):
        figure += f"; entropy rose from {fmean(then):.3g} to {now:.3g} nats a token"
        advice = f"the learning rate is too high: {advice}"
    keys: Keys = {
        "train.learning_rate": "lower",
        "checkpoint.resume": "set",
        "algorithm.kl.coef": "raise",
        "log.alarms": "set",
    }
    return Recommendation("falling reward", "problem", figure, advice, keys)


def no_progress(evidence: Evidence) -> Recommendation | None:
    """A reward that did not move over a run of some length, though it could, and where no other rule knows why.

    Beside advice to lower the learning rate it is not given either (`recommendations.py`).
    """
    ends = evidence.ends("reward/mean")
    if ends is None or evidence.num_steps < 2 * WINDOW or is_clear(*ends) or evidence.has_opened_levels():
        return None
    if (evidence.recent("success/mean") or 0.0) > SOLVED or any(
        rule(evidence) for rule in (mismatch, clipping, overfit)
    ):
        return None
    start, end = fmean(ends[0]), fmean(ends[1])
    figure = f"mean reward was {start:.3g} in the first {len(ends[0])} steps and is {end:.3g} "
    figure += f"{evidence.span('reward/mean')}: within chance"
    advice = "double the learning rate, or make steps larger; if many groups have zero variance, fix that first"
    keys: Keys = {"train.learning_rate": "raise", "rollout.groups_per_step": "raise", "rollout.group_size": "raise"}
    return Recommendation("no progress", "problem", figure, advice, keys)


def overfit(evidence: Evidence) -> Recommendation | None:
    """Training tasks are solved more often, held-out ones are not."""
    ends = evidence.ends("success/mean")
    held_out = evidence.held_out_change
    if ends is None or held_out is None or rise(*ends) < TRAIN_GAIN or not is_clear(*ends):
        return None
    gain = held_out.change
    if (held_out.is_real and gain > 0.0) or gain >= SHARED_GAIN * rise(*ends) or evidence.has_opened_levels():
        return None
    first, last = evidence.held_out[0].step, evidence.held_out[-1].step
    figure = f"success in training rose by {100 * rise(*ends):.0f} points, on held-out tasks it changed by "
    figure += f"{100 * gain:+.0f} from step {first} to {last}"
    advice = "more and more varied training tasks, fewer steps, or a KL penalty; use the best checkpoint"
    keys: Keys = {
        "data.train_path": "set",
        "train.steps": "lower",
        "algorithm.kl.coef": "raise",
        **unless(evidence.settings.get("eval.every", 0) > 0, {"eval.every": "raise"}),
    }
    return Recommendation("held-out behind training", "problem", figure, advice, keys)


def still_rising(evidence: Evidence) -> Recommendation | None:
    """A finished run whose training reward still rose at its end, and whose last evaluation is its best."""
    rewards, held_out = measured(evidence.metrics.get("reward/mean", ())), evidence.held_out
    planned = evidence.settings.get("train.steps", 0)
    is_finished = evidence.num_steps > 0 and evidence.step_at(evidence.num_steps - 1) >= planned > 0
    if len(rewards) < 2 * WINDOW or len(held_out) < 2 or not is_finished:
        return None
    ends = rewards[-2 * WINDOW : -WINDOW], rewards[-WINDOW:]
    earlier, latest = ends[1][: WINDOW // 2], ends[1][WINDOW // 2 :]
    if rise(*ends) <= 0 or not is_clear(*ends) or rise(earlier, latest) < FLATTENED * rise(*ends):
        return None
    if held_out[-1].rate <= max(each.rate for each in held_out[:-1]):
        return None
    figure = f"mean reward rose from {fmean(ends[0]):.3g} to {fmean(ends[1]):.3g} over the last {2 * WINDOW} steps, "
    figure += f"and held-out success is best at the end ({100 * held_out[-1].rate:.0f} %)"
    advice = "train for longer; the learning rate's schedule is stretched with it"
    return Recommendation("still rising", "hint", figure, advice, {"train.steps": "raise"})
