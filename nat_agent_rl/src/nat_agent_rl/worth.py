"""What episodes are worth that did not end as they should, and the counts of an epoch. Not here: scores (`play.py`)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nat_agent_rl.errors import FinetuneError
from nat_agent_rl.play import Played


class Records(Protocol):
    """What is asked of the server about episodes."""

    async def health(self) -> dict[str, Any]: ...
    async def num_turns(self, episode: str) -> int: ...
    async def forget(self, episode: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The counts of an epoch or of an evaluation."""

    episodes: int
    failed: int
    """Their workflow raised, or ran out of time."""
    dropped: int
    """They have no reward."""
    solved: int
    reward: float
    """Mean over the episodes that have one."""
    first_error: str | None


async def settle(
    plays: Sequence[Played], server: Records, *, where: str, failed_are_zero: bool, success_score: float
) -> Tally:
    """Give failures their score, or none, and count.

    A workflow that raised after the policy had answered failed by what the model wrote: 0. Without an answer, or where
    the endpoint failed, nobody knows. FinetuneError when every episode failed.
    """
    for played in plays:
        if played.error is not None:
            has_turns = not played.is_endpoint_failure and await server.num_turns(played.episode.id) > 0
            played.score, played.unscored = (0.0, None) if failed_are_zero and has_turns else (None, played.error)
        elif played.episode.num_answers == 0 and await server.num_turns(played.episode.id) == 0:
            played.score, played.unscored = None, "the workflow ended without a completion of the policy"
    failures = [f"{each.episode.id}: {each.error or each.unscored}" for each in plays if each.error or each.unscored]
    if len(failures) == len(plays):
        raise FinetuneError(
            f"all {len(plays)} episodes of {where} failed, the first as {failures[0]}; fix the workflow or its "
            "evaluator, then repeat the command"
        )
    scores = [played.score for played in plays if played.score is not None]
    return Tally(
        episodes=len(plays),
        failed=sum(played.error is not None for played in plays),
        dropped=len(plays) - len(scores),
        solved=sum(score >= success_score for score in scores),
        reward=sum(scores) / len(scores),
        first_error=failures[0] if failures else None,
    )
