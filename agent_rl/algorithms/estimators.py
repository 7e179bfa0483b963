"""Estimators: the rewards of a whole step in, an advantage for every trained token out.

`estimate` picks an estimator by name. An estimator of your own is one decorated function, of a step
(`@advantage_estimator`) or of the rewards of one group (`@group_advantages`). Whatever the estimator: an episode
without a score or without a trained token has advantage 0 and is outside all statistics, an outcome belongs to the
last trained token, and nothing that stands where the mask is 0 is read. With rewards of turns, credit is given by
turn: what a turn earned reaches the tokens of this turn and of those before it.
Not here: the formulas (`advantages.py`, `token_advantages.py`), samples and tensors of tokens (`learning/samples.py`).
Shape suffixes: `_E` scored or unscored episode of the step, `_G` episode of a group, `_N` trained token of an episode.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from agent_rl.algorithms.advantages import (
    grpo_advantages,
    has_variance,
    maxrl_advantages,
    normalize_parts,
    opo_advantages,
    pass_at_k_advantages,
    remax_advantages,
    rloo_advantages,
)
from agent_rl.algorithms.results import tensor_given, wrong_result
from agent_rl.algorithms.token_advantages import gae_advantages, reinforce_pp_advantages, whitened
from agent_rl.config.functions import turn_credit_of
from agent_rl.errors import ConfigError
from agent_rl.registry import ADVANTAGE_ESTIMATORS


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRewards:
    """What is known of the E episodes of a step before credit is given; CPU tensors.

    An episode's trained tokens stand one after the other from column 0, padded on the right to the most of any, N.

    For example, one group of an episode of two trained tokens and one of a single one that could not be scored: group_E
    (0, 0), rewards_E (1, NaN), mask_EN ((1, 1), (1, 0)), token_penalties_EN all 0.
    """

    group_E: torch.Tensor
    """Number of each episode's group, long."""
    rewards_E: torch.Tensor
    """Outcome of each episode, float64; NaN where it could not be scored."""
    mask_EN: torch.Tensor
    """True on trained tokens."""
    token_penalties_EN: torch.Tensor
    """What is subtracted from each token's reward, float64: the KL in the reward, or zeros."""
    values_EN: torch.Tensor | None = None
    """What a critic expects from each token on, float64."""
    greedy_rewards_E: torch.Tensor | None = None
    """Outcome of a greedy episode of the same task, float64; NaN where it could not be scored."""
    parts_E: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Parts of the outcome by name, float64 [E] each; NaN where an episode has no such part."""
    turn_EN: torch.Tensor | None = None
    """Number of the turn (from 0) that each trained token was sampled in, long; credit is then given by turn."""
    turn_rewards_EK: torch.Tensor | None = None
    """Reward of each turn, float64, NaN for a turn that an episode does not have; a row adds up to its outcome."""

    def __post_init__(self) -> None:
        if (self.turn_EN is None) != (self.turn_rewards_EK is None):
            raise ValueError("turn_EN and turn_rewards_EK come together")
        num_episodes, num_tokens = self.mask_EN.shape
        columns = {"group_E": self.group_E, "rewards_E": self.rewards_E, "greedy_rewards_E": self.greedy_rewards_E}
        columns |= {f"parts_E[{name!r}]": part for name, part in self.parts_E.items()}
        tables = {"token_penalties_EN": self.token_penalties_EN, "values_EN": self.values_EN}
        tables |= {"turn_EN": self.turn_EN}
        for shape, tensors in (((num_episodes,), columns), ((num_episodes, num_tokens), tables)):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.shape != shape:
                    raise ValueError(f"{name} has shape {list(tensor.shape)}, but mask_EN has {list(shape)}")
        for name, tensor in columns.items():
            if tensor is not None and tensor.isinf().any():
                raise ValueError(f"{name} holds an infinity; an episode that cannot be scored has reward NaN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """The result of an estimator."""

    advantages_EN: torch.Tensor
    """Advantage of each token, float64; 0 where nothing is trained."""
    returns_EN: torch.Tensor | None = None
    """Targets of the critic, float64; None where there is no critic."""


Estimator = Callable[..., Credit]
GroupFunction = Callable[..., torch.Tensor]


def advantage_estimator(
    name: str, *, needs_group: bool | None = None, turn_credit: Literal["group", "own"] | None = None
) -> Callable[[Estimator], Estimator]:
    """`@advantage_estimator("name")` on a function `(step: StepRewards, *, options) -> Credit`.

    In the step that it gets, the mask is true only for episodes that count, rewards are NaN for all others, and
    penalties, values and parts hold nothing of these. `needs_group`: whether it compares the episodes of a group, so
    that groups of one are refused, or does not, so that `rollout.max_attempts` is; None checks neither.
    `turn_credit`: how credit is given by turn, `group` by `_by_turn`, `own` by the function itself, from `turn_EN` and
    `turn_rewards_EK`; None has none.
    """

    def decorate(function: Estimator) -> Estimator:
        function.needs_group = needs_group
        function.turn_credit = turn_credit
        ADVANTAGE_ESTIMATORS.add(name, function)
        return function

    return decorate


def estimate(name: str, step: StepRewards, *, turn_weight: float = 1.0, **options: Any) -> Credit:
    """The credit that the estimator of that name gives, with those of the options that it uses.

    Where the step has rewards of turns, credit is by turn, as in `_by_turn`, unless the estimator reads them itself.
    ConfigError with the nearest name for an unknown estimator, for an option that no estimator uses, and for an
    estimator that has no credit by turn, or that gives no Credit of the step's shape.
    """
    counted = _counted(step)
    if step.turn_EN is None or turn_credit_of(name) == "own":
        credit = _called(name, counted, options)
    else:
        credit = _by_turn(name, counted, turn_weight, options)
    returns_EN = credit.returns_EN
    return Credit(
        advantages_EN=credit.advantages_EN.double().masked_fill(~counted.mask_EN, 0.0),
        returns_EN=None if returns_EN is None else returns_EN.double().masked_fill(~counted.mask_EN, 0.0),
    )


def _called(name: str, step: StepRewards, options: Mapping[str, Any]) -> Credit:
    """What the estimator of that name gives."""
    credit, function = ADVANTAGE_ESTIMATORS.call(name, step, **options), ADVANTAGE_ESTIMATORS.get(name)
    what = f"the advantage estimator {name!r}"
    if not isinstance(credit, Credit):
        raise wrong_result(what, function, type(credit).__name__, "Credit(advantages_EN=...)")
    tensor_given(credit.advantages_EN, step.mask_EN.shape, function, what=what, expected="a tensor advantages_EN")
    return credit


def _by_turn(name: str, step: StepRewards, turn_weight: float, options: Mapping[str, Any]) -> Credit:
    """`A_k = A(outcome) + turn_weight * (A_k(turn) + A_k+1(turn) + ...)` for the tokens of turn k of an episode.

    The outcome is the reward of the last turn; `A(turn)` is the estimator's advantage of what a turn before the last
    earned, among the episodes of the group that go on after the turn of that number. Zeng et al. 2025 (MT-GRPO,
    section 4) have it for two turns and `grpo`: `A_1 = A(outcome) + weight * A_1(turn)`, `A_2 = A(outcome)`.
    """
    turn_EN, rewards_EK = step.turn_EN, step.turn_rewards_EK
    assert turn_EN is not None and rewards_EK is not None, "the step has rewards of turns"
    plain = replace(step, turn_EN=None, turn_rewards_EK=None)
    is_turn_EK = ~rewards_EK.isnan()
    goes_on_EK = is_turn_EK & (is_turn_EK.flip(1).cumsum(dim=1).flip(1) > 1)
    earned_EK = rewards_EK.masked_fill(~goes_on_EK, 0.0)
    outcome = replace(plain, rewards_E=step.rewards_E - earned_EK.sum(dim=1))
    advantages_EN = _called(name, outcome, options).advantages_EN.double()
    for number in range(rewards_EK.shape[1] - 1):
        rewards_E = earned_EK[:, number].masked_fill(~goes_on_EK[:, number], torch.nan)
        penalties_EN = torch.zeros_like(step.token_penalties_EN)
        turn = _counted(replace(plain, rewards_E=rewards_E, token_penalties_EN=penalties_EN))
        of_turn_EN = _called(name, turn, options).advantages_EN.double()
        advantages_EN = advantages_EN + turn_weight * of_turn_EN * (turn_EN <= number)
    return Credit(advantages_EN=advantages_EN)


def group_advantages(name: str, *, divides_by_std: bool = True) -> Callable[[GroupFunction], GroupFunction]:
    """`@group_advantages("name")` on a function `(rewards_G, *, options) -> advantages_G` makes it an estimator.

    It is called with the rewards of a group's scored episodes, float64 [G], each less the penalties of the episode's
    tokens, and its result holds for every trained token of the episode. With `divides_by_std` and the option
    `scale_by_std`, if it has one, groups of equal outcomes (`has_variance`) are left out: the tiny standard deviation
    of their penalties would blow these up. Without, the KL in the reward counts in these groups too (Ahmadian et al.
    2024).
    """

    def decorate(function: GroupFunction) -> GroupFunction:
        @functools.wraps(function)
        def estimator(step: StepRewards, **options: Any) -> Credit:
            by_outcome = divides_by_std and options.get("scale_by_std", True)
            return _spread(
                _by_group(step, lambda rewards_G, _: _of_group(function, rewards_G, options), by_outcome), step
            )

        estimator.needs_group = True
        estimator.turn_credit = "group"
        # `wraps` shows the options of the function to the registry.
        ADVANTAGE_ESTIMATORS.add(name, estimator, source=function)
        return function

    return decorate


def _of_group(function: GroupFunction, rewards_G: torch.Tensor, options: Mapping[str, Any]) -> torch.Tensor:
    given: Any = function(rewards_G, **options)
    with suppress(TypeError, ValueError, RuntimeError):  # lists and arrays are taken too
        given = torch.as_tensor(given, dtype=torch.float64)
    return tensor_given(given, rewards_G.shape, function, what="the function of a group", expected="a tensor")


grpo = group_advantages("grpo")(grpo_advantages)
rloo = group_advantages("rloo", divides_by_std=False)(rloo_advantages)
maxrl = group_advantages("maxrl")(maxrl_advantages)
pass_at_k = group_advantages("pass_at_k")(pass_at_k_advantages)


@advantage_estimator("opo", needs_group=True, turn_credit="group")
def opo(step: StepRewards) -> Credit:
    num_tokens_E = step.mask_EN.sum(dim=1)
    return _spread(_by_group(step, lambda rewards_G, rows: opo_advantages(rewards_G, num_tokens_E[rows]), False), step)


@advantage_estimator("remax", needs_group=False)
def remax(step: StepRewards) -> Credit:
    """Reward from the token on, penalties included, less the reward of the greedy episode."""
    if step.greedy_rewards_E is None:
        raise ConfigError("the estimator 'remax' needs greedy_rewards_E; run one greedy episode per task")
    penalties_to_go_EN = step.token_penalties_EN.flip(1).cumsum(dim=1).flip(1)
    advantages_E1 = remax_advantages(step.rewards_E, step.greedy_rewards_E).unsqueeze(1)
    has_baseline_E1 = ~step.greedy_rewards_E.isnan().unsqueeze(1)
    return Credit(advantages_EN=(advantages_E1 - penalties_to_go_EN) * has_baseline_E1)


@advantage_estimator("reinforce_plus_plus", needs_group=False, turn_credit="own")
def reinforce_plus_plus(step: StepRewards, *, gamma: float = 1.0) -> Credit:
    return Credit(advantages_EN=reinforce_pp_advantages(_token_rewards(step), step.mask_EN, gamma=gamma))


@advantage_estimator("reinforce_plus_plus_baseline", needs_group=True, turn_credit="group")
def reinforce_plus_plus_baseline(step: StepRewards) -> Credit:
    """Rewards less their group's mean, whitened over the trained tokens of all groups with variance (Hu 2025)."""
    centred_EN = _spread(_by_group(step, lambda rewards_G, _: rewards_G - rewards_G.mean(), True), step).advantages_EN
    is_live_E = _in_live_group(centred_EN.any(dim=1), step)
    return Credit(advantages_EN=whitened(centred_EN, step.mask_EN & is_live_E.unsqueeze(1)))


@advantage_estimator("gae", needs_group=False, turn_credit="own")
def gae(step: StepRewards, *, gamma: float = 1.0, lam: float = 1.0, whiten: bool = True) -> Credit:
    if step.values_EN is None:
        raise ConfigError("the estimator 'gae' needs values_EN; train a critic, or choose an estimator without one")
    advantages_EN, returns_EN = gae_advantages(
        _token_rewards(step), step.values_EN, step.mask_EN, gamma=gamma, lam=lam, whiten=whiten
    )
    return Credit(advantages_EN=advantages_EN, returns_EN=returns_EN)


@advantage_estimator("gdpo", needs_group=True)
def gdpo(step: StepRewards, *, part_weights: Mapping[str, float]) -> Credit:
    """Parts of the reward standardised one by one, then whitened over the episodes of all groups with variance."""
    if step.token_penalties_EN.any():
        raise ConfigError("the estimator 'gdpo' has no place for a KL penalty in the reward; put the KL into the loss")
    combined_E = torch.zeros_like(step.rewards_E)
    for rows in _groups(step):
        combined_E[rows] = normalize_parts({n: part[rows] for n, part in step.parts_E.items()}, part_weights)
    counts_E = _in_live_group(combined_E != 0, step) & ~step.rewards_E.isnan()
    return _spread(whitened(combined_E, counts_E), step)


def _counted(step: StepRewards) -> StepRewards:
    """The step in float64, with everything taken out that does not count (see `advantage_estimator`)."""
    mask_EN = step.mask_EN.bool()
    counts_E = mask_EN.any(dim=1) & ~step.rewards_E.isnan()
    mask_EN = mask_EN & counts_E.unsqueeze(1)
    values_EN = step.values_EN
    return replace(
        step,
        rewards_E=step.rewards_E.double().masked_fill(~counts_E, torch.nan),
        mask_EN=mask_EN,
        token_penalties_EN=step.token_penalties_EN.double().masked_fill(~mask_EN, 0.0),
        values_EN=None if values_EN is None else values_EN.double().masked_fill(~mask_EN, 0.0),
        parts_E={name: part.double().masked_fill(~counts_E, torch.nan) for name, part in step.parts_E.items()},
        turn_EN=None if step.turn_EN is None else step.turn_EN.masked_fill(~mask_EN, 0),
        turn_rewards_EK=_counted_turns(step.turn_rewards_EK, counts_E),
    )


def _counted_turns(rewards_EK: torch.Tensor | None, counts_E: torch.Tensor) -> torch.Tensor | None:
    return None if rewards_EK is None else rewards_EK.double().masked_fill(~counts_E.unsqueeze(1), torch.nan)


def _groups(step: StepRewards) -> Iterator[torch.Tensor]:
    """Rows of the episodes that count, group by group."""
    counts_E = ~step.rewards_E.isnan()
    for group in step.group_E[counts_E].unique():
        yield ((step.group_E == group) & counts_E).nonzero().squeeze(1)


def _by_group(
    step: StepRewards, function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], by_outcome: bool
) -> torch.Tensor:
    """`function(rewards_G, rows_G)` of each group with variance, in its places of a float64 [E]; 0 elsewhere.

    `by_outcome`: the variance is that of the outcomes alone, else that of the rewards less penalties.
    """
    rewards_E = step.rewards_E - step.token_penalties_EN.sum(dim=1)
    advantages_E = torch.zeros_like(rewards_E)
    for rows in _groups(step):
        if has_variance(step.rewards_E[rows] if by_outcome else rewards_E[rows]):
            advantages_E[rows] = function(rewards_E[rows], rows)
    return advantages_E


def _in_live_group(is_live_E: torch.Tensor, step: StepRewards) -> torch.Tensor:
    """[E]: whether any episode of the group is live; the others must stay exactly 0 when a batch is whitened."""
    return torch.isin(step.group_E, step.group_E[is_live_E])


def _spread(advantages_E: torch.Tensor, step: StepRewards) -> Credit:
    return Credit(advantages_EN=advantages_E.unsqueeze(1) * step.mask_EN)


def _token_rewards(step: StepRewards) -> torch.Tensor:
    """Rewards per token, [E, N]: the outcome on the last trained token, or where turns have rewards each of these on
    the last trained token of its turn; penalties everywhere."""
    if step.turn_EN is None or step.turn_rewards_EK is None:
        return torch.where(_is_last(step.mask_EN), step.rewards_E.unsqueeze(1), 0.0) - step.token_penalties_EN
    rewards_EN = -step.token_penalties_EN
    for number in range(step.turn_rewards_EK.shape[1]):
        is_last_EN = _is_last(step.mask_EN & (step.turn_EN == number))
        rewards_EN = rewards_EN + torch.where(is_last_EN, step.turn_rewards_EK[:, number : number + 1], 0.0)
    return rewards_EN


def _is_last(mask_EN: torch.Tensor) -> torch.Tensor:
    return mask_EN & (mask_EN.flip(1).cumsum(dim=1).flip(1) == 1)
