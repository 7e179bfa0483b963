"""Groups that a client played through the endpoint and scored: from their JSON to trajectories.

Not here: HTTP, training.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_rl.endpoint.errors import EndpointError, bad_request
from agent_rl.endpoint.outcome import Reward
from agent_rl.endpoint.session import EpisodeSession
from agent_rl.records import StopReason, Trajectory, TrajectoryGroup, Turn

Finite = Annotated[float, Field(allow_inf_nan=False)]


class PlayedEpisode(BaseModel):
    """One episode: `{"id": "run/0/3/1", "reward": 0.5, "success": true}`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    """The name that its requests had."""
    reward: Finite | None = None
    """None: it could not be scored, and is dropped and counted."""
    parts: dict[str, Finite] = {}
    success: bool | None = None
    error: str | None = None
    """What failed, where the episode is to be dropped for it."""
    token_ids: tuple[tuple[int, ...], ...] | None = None
    """The sampled ids that the client saw, reply by reply: a check, where its framework keeps them."""


class PlayedGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    task_id: str
    episodes: Annotated[tuple[PlayedEpisode, ...], Field(min_length=1)]


class PlayedGroups(BaseModel):
    """The body of `POST /v1/groups`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    groups: Annotated[tuple[PlayedGroup, ...], Field(min_length=1)]
    target_functions: tuple[str, ...] | None = None
    """Only turns that these functions of the agent asked for are trained; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadGroups:
    """Groups ready to be trained on, and what was dropped."""

    groups: tuple[TrajectoryGroup, ...]
    episode_ids: tuple[str, ...]
    num_mismatches: int
    """Episodes whose client saw other ids than were sampled."""


def parse_groups(body: object) -> PlayedGroups:
    """EndpointError, which names the place, for a body of another shape."""
    try:
        return PlayedGroups.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise bad_request(f"{where or 'the body'}: {first['msg']}", param=where or None) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """What the episodes of an update have to be sampled by, and where they are."""

    find: Callable[[str], EpisodeSession | None]
    """The open session of an episode's id."""
    was_concluded: Callable[[str], bool]
    temperature: float
    weight_version: int


def read_groups(played: PlayedGroups, sampled: Sampled, *, step: int) -> ReadGroups:
    """The trajectories of a step's groups.

    EndpointError for an episode that is named twice, and for a scored one that never asked for anything, is concluded,
    or was sampled otherwise than the update takes for granted.
    """
    ids = [episode.id for group in played.groups for episode in group.episodes]
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        raise bad_request(f"the episode {twice[0]!r} is in the groups twice; name each once", param="groups")
    groups, num_mismatches = [], 0
    for index, group in enumerate(played.groups):
        episodes = []
        for episode in group.episodes:
            session = sampled.find(episode.id)
            if episode.reward is not None and session is None:
                raise _no_session(episode.id, was_concluded=sampled.was_concluded(episode.id))
            is_other = session is not None and not _saw_what_was_sampled(session, episode.token_ids)
            num_mismatches += is_other
            error = "the client saw other ids than were sampled" if is_other else episode.error
            if session is not None and session.is_spoiled:
                error = error or f"the policy failed: {session.failure}"
            if session is not None and episode.reward is not None and error is None:
                _check_sampling(episode.id, session, sampled)
            group_id = f"{step}/{index}"
            episodes.append(_trajectory(group.task_id, group_id, episode, session, error, played.target_functions))
        groups.append(TrajectoryGroup(task_id=group.task_id, trajectories=tuple(episodes)))
    return ReadGroups(groups=tuple(groups), episode_ids=tuple(ids), num_mismatches=num_mismatches)


def _no_session(name: str, *, was_concluded: bool) -> EndpointError:
    if was_concluded:
        told = f"the episode {name!r} is concluded: an update was made with it, or it was deleted; play another"
        return EndpointError(409, "episode_concluded", told)
    return EndpointError(
        404, "unknown_episode", f"the episode {name!r} never asked for a completion; give it no reward"
    )


def _check_sampling(name: str, session: EpisodeSession, sampled: Sampled) -> None:
    """The loss takes log-probs of another temperature, or of older weights, for those of the policy as it is."""
    if session.spec.temperature != sampled.temperature:
        raise bad_request(
            f"the episode {name!r} was sampled at temperature {session.spec.temperature:g}, but policy.temperature is "
            f"{sampled.temperature:g}; play it without X-Agent-RL-Temperature, or give it no reward",
            param="groups",
        )
    versions = {turn.completion.weight_version for turn in session.turns}
    if versions - {sampled.weight_version}:
        raise EndpointError(
            409,
            "stale_episode",
            f"the episode {name!r} was sampled with weights {min(versions)}, but those of now are "
            f"{sampled.weight_version}; play it again under another name, or give it no reward",
        )


def _trajectory(
    task_id: str,
    group_id: str,
    episode: PlayedEpisode,
    session: EpisodeSession | None,
    error: str | None,
    targets: Sequence[str] | None,
) -> Trajectory:
    turns: tuple[Turn, ...] = ()
    stop_reason = StopReason.FINISHED
    if session is not None:
        turns = session.turns_of(lambda function: is_target(function, targets))
        stop_reason = session.stop_reason or stop_reason
    is_dropped = error is not None or episode.reward is None
    reward = None if is_dropped else Reward(value=episode.reward or 0.0, parts=episode.parts, success=episode.success)
    return Trajectory(
        task_id=task_id,
        group_id=group_id,
        turns=turns,
        stop_reason=StopReason.ENV_ERROR if reward is None else stop_reason,
        reward=None if reward is None else reward.value,
        reward_parts={} if reward is None else reward.reward_parts(),
        initial_messages=() if session is None else session.initial_messages,
        duration_s=0.0 if session is None else session.duration_s,
        error=(error or "the client gave no reward") if is_dropped else None,
    )


def is_target(function: str | None, targets: Sequence[str] | None) -> bool:
    """Whether a turn of a function is trained: `a/b/c` is of `a`, of `b` and of `c`; without targets all are."""
    if targets is None:
        return True
    return function is not None and (function in targets or not set(function.split("/")).isdisjoint(targets))


def _saw_what_was_sampled(session: EpisodeSession, seen: Sequence[Sequence[int]] | None) -> bool:
    if seen is None:
        return True
    sampled = Counter(tuple(turn.completion.token_ids) for turn in session.turns)
    return not Counter(map(tuple, seen)) - sampled
